package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
)

type benchCmd struct {
	Kernels benchKernelsCmd `cmd:"" help:"Single matrices: how near their products come to the limits of the machine."`
	Decode  benchDecodeCmd  `cmd:"" help:"Whole passes of a model, by width: T_V(W) beside its limit."`
	System  benchSystemCmd  `cmd:"" help:"The three processes: tokens per second with and without speculation, in turn."`
}

type benchSystemCmd struct {
	Prompts  string `help:"JSON lines with id, domain and prompt (default: the shipped ones)." placeholder:"FILE" setting:"-"`
	Scenario string `help:"Only this domain of the prompts." placeholder:"NAME" setting:"-"`
	Count    int    `help:"Prompts of each domain; 0 = all." default:"4" setting:"-"`
	samplingFlags
	groupFlags
	output
}

// benchPrompt is one line of a prompts file.
type benchPrompt struct {
	ID     string `json:"id"`
	Domain string `json:"domain"`
	Prompt string `json:"prompt"`
}

// scenarioResult is one domain of prompts with one draft model.
type scenarioResult struct {
	Name           string  `json:"name"`
	Draft          string  `json:"draft"`
	Tree           string  `json:"tree"`
	Sessions       int     `json:"sessions"` // at once
	Prompts        int     `json:"prompts"`
	Tokens         int     `json:"tokens"` // of the speculative runs
	PlainTokS      float64 `json:"plain_tok_s"`
	SpecTokS       float64 `json:"spec_tok_s"`
	Ratio          float64 `json:"ratio"`
	TokensPerRound float64 `json:"tokens_per_round"`
	Acceptance     float64 `json:"acceptance_per_node"`
	VerifierBusy   float64 `json:"verifier_busy"` // share of the time that a request spends in passes of the target
	DrafterBusy    float64 `json:"drafter_busy"`
	Equal          bool    `json:"equal"` // plain and speculative ids were the same

	coordination []time.Duration
}

type quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

type benchResult struct {
	Target       string           `json:"target"`
	Scenarios    []scenarioResult `json:"scenarios"`
	Coordination quantiles        `json:"coordination_us"` // per speculative round
}

// Run measures.
func (c *benchSystemCmd) Run(a *app) error {
	if c.Count < 0 {
		return tandem.Errorf("", tandem.Invalid, "--count is %d: want 1 or more, or 0 for all", c.Count)
	}
	spec, err := c.request("x")
	if err != nil {
		return err
	}
	if spec.Policy.Plain() {
		return tandem.Errorf("", tandem.Invalid, "bench system compares with plain decoding: leave --no-draft and --tree none out")
	}
	sets, err := c.prompts()
	if err != nil {
		return err
	}
	drafts := c.Draft
	if len(drafts) == 0 {
		drafts = []string{""}
	}
	var result benchResult
	var coordination []time.Duration
	for _, draft := range drafts {
		c.Draft = nil
		if draft != "" {
			c.Draft = []string{draft}
		}
		target, path, err := c.pair(false)
		if err != nil {
			return err
		}
		result.Target = modelName(target)
		l := launch{groupFlags: c.groupFlags, target: target, draft: path, sessions: c.atOnce()}
		l.Grace = 0
		scenarios, err := c.measure(a, l, sets, spec)
		if err != nil {
			return err
		}
		for _, s := range scenarios {
			coordination = append(coordination, s.coordination...)
		}
		result.Scenarios = append(result.Scenarios, scenarios...)
	}
	result.Coordination = quantiles{us(quantile(coordination, 0.5)), us(quantile(coordination, 0.99))}
	if c.JSON {
		return printJSON(a.stdout, result)
	}
	return result.print(a)
}

// measure starts the processes for one draft model and runs every set of prompts on them.
func (c *benchSystemCmd) measure(a *app, l launch, sets [][]benchPrompt, spec tandem.Request) ([]scenarioResult, error) {
	if err := checkPair(l, tandem.Request{}); err != nil {
		return nil, err
	}
	p, err := a.startProcesses(l)
	if err != nil {
		return nil, err
	}
	results, err := func() ([]scenarioResult, error) {
		conn, err := client.Dial(p.addr)
		if err != nil {
			return nil, fromClient(err)
		}
		defer conn.Close()
		var results []scenarioResult
		for _, set := range sets {
			s, err := c.scenario(a.ctx, conn, set, spec)
			if err != nil {
				return nil, err
			}
			s.Name, s.Draft, s.Tree, s.Sessions = set[0].Domain, modelName(l.draft), spec.Policy.String(), c.atOnce()
			results = append(results, s)
		}
		return results, nil
	}()
	return results, errors.Join(err, p.stop(a.force))
}

// tally adds up the runs of one kind.
type tally struct {
	wall                  time.Duration
	tokens                int
	rounds, drafted, took int
	draft, verify, decode time.Duration
	coordination          []time.Duration
}

func (t *tally) add(batch []*outcome) {
	for _, o := range batch {
		s := o.finished.Statistics
		t.tokens += len(o.tokens)
		t.rounds += s.Rounds
		t.drafted += s.Drafted
		t.took += s.Accepted
		t.draft += s.DraftBusy
		t.verify += s.VerifyBusy
		t.decode += s.Decode
		t.coordination = append(t.coordination, s.Coordination...)
	}
}

// scenario runs a set of prompts, each batch once plain and once with speculation; which comes first
// alternates.
func (c *benchSystemCmd) scenario(ctx context.Context, conn *client.Client, set []benchPrompt, spec tandem.Request) (scenarioResult, error) {
	plain := spec
	plain.Policy = tandem.Policy{}
	if _, _, err := runBatch(ctx, conn, set[:1], spec); err != nil { // caches and connections are warm from here on
		return scenarioResult{}, err
	}
	var sum [2]tally // plain, speculative
	equal := true
	width := c.atOnce()
	for n := 0; n*width < len(set); n++ {
		batch := set[n*width : min((n+1)*width, len(set))]
		var outcomes [2][]*outcome
		for i := range 2 {
			kind := (n + i) % 2
			out, wall, err := runBatch(ctx, conn, batch, []tandem.Request{plain, spec}[kind])
			if err != nil {
				return scenarioResult{}, err
			}
			outcomes[kind] = out
			sum[kind].add(out)
			sum[kind].wall += wall
		}
		for i := range batch {
			equal = equal && slices.Equal(outcomes[0][i].tokens, outcomes[1][i].tokens)
		}
	}
	p, s := sum[0], sum[1]
	r := scenarioResult{
		Prompts: len(set), Tokens: s.tokens, Equal: equal, coordination: s.coordination,
		PlainTokS: p.rate(width), SpecTokS: s.rate(width),
		TokensPerRound: share(float64(s.tokens), float64(s.rounds)), Acceptance: share(float64(s.took), float64(s.drafted)),
		VerifierBusy: share(float64(s.verify), float64(s.decode)), DrafterBusy: share(float64(s.draft), float64(s.decode)),
	}
	r.Ratio = share(r.SpecTokS, r.PlainTokS)
	return r, nil
}

// atOnce returns how many requests run at once.
func (c *benchSystemCmd) atOnce() int { return c.sessionsOr(1) }

// rate returns tokens per second of decoding; with several requests at once, of the whole time.
func (t tally) rate(parallel int) float64 {
	if parallel == 1 {
		return share(float64(t.tokens), t.decode.Seconds())
	}
	return share(float64(t.tokens), t.wall.Seconds())
}

// runBatch runs a batch of prompts at once.
func runBatch(ctx context.Context, conn *client.Client, batch []benchPrompt, r tandem.Request) ([]*outcome, time.Duration, error) {
	out := make([]*outcome, len(batch))
	errs := make([]error, len(batch))
	start := time.Now()
	var wg sync.WaitGroup
	for i, p := range batch {
		wg.Go(func() {
			mine := r
			mine.Prompt = p.Prompt
			if out[i], errs[i] = collect(ctx, conn, mine, func(string) error { return nil }); errs[i] != nil {
				errs[i] = fmt.Errorf("prompt %s: %w", p.ID, errs[i])
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, 0, err
		}
	}
	return out, time.Since(start), nil
}

// prompts reads the prompts, by domain in order of appearance.
func (c *benchSystemCmd) prompts() ([][]benchPrompt, error) {
	path := c.Prompts
	if path == "" {
		model, err := targetPath("")
		if err != nil {
			return nil, tandem.Errorf("", tandem.Invalid, "no prompts: give --prompts FILE")
		}
		path = filepath.Join(filepath.Dir(model), "..", "testdata", "prompts.jsonl")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--prompts %s: %w", path, reason(err))
	}
	defer f.Close()
	var domains []string
	sets := map[string][]benchPrompt{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, tandem.DefaultLimits.PromptBytes)
	for n := 1; lines.Scan(); n++ {
		var p benchPrompt
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil || p.Prompt == "" {
			return nil, tandem.Errorf("", tandem.Invalid, "--prompts %s: line %d: want an object with id, domain and prompt", path, n)
		}
		if c.Scenario != "" && p.Domain != c.Scenario {
			continue
		}
		if sets[p.Domain] == nil {
			domains = append(domains, p.Domain)
		}
		if c.Count == 0 || len(sets[p.Domain]) < c.Count {
			sets[p.Domain] = append(sets[p.Domain], p)
		}
	}
	if lines.Err() != nil || len(domains) == 0 {
		return nil, tandem.Errorf("", tandem.Invalid, "--prompts %s: no prompts%s", path, strings.TrimRight(" of domain "+c.Scenario, " "))
	}
	all := make([][]benchPrompt, len(domains))
	for i, d := range domains {
		all[i] = sets[d]
	}
	return all, nil
}

func (r benchResult) print(a *app) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "scenario\tdraft\tat once\tplain tok/s\tspec tok/s\tratio\ttokens/round\tverifier busy\tequal\t")
	for _, s := range r.Scenarios {
		fmt.Fprintf(w, "%s\t%s\t%d\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t%v\t\n", s.Name, s.Draft, s.Sessions, s.PlainTokS, s.SpecTokS, s.Ratio, s.TokensPerRound, s.VerifierBusy, s.Equal)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.stdout, "coordination per round: p50 %.0f µs, p99 %.0f µs\n", r.Coordination.P50, r.Coordination.P99)
	return err
}

// quantile returns the q-th quantile of values, 0 if there are none.
func quantile(values []time.Duration, q float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}
