package system

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
)

// variant is one way to run a prompt.
type variant struct {
	name    string
	request tandem.Request // without a prompt
}

// order returns the order in which n variants run the k-th time: forwards and backwards by turns (ABBA), so
// that slow changes of the machine affect all alike.
func order(k, n int) []int {
	out := make([]int, n)
	for i := range out {
		if out[i] = i; k%2 == 1 {
			out[i] = n - 1 - i
		}
	}
	return out
}

// tally adds up runs.
type tally struct {
	wall     time.Duration
	parallel int // requests at once
	tokens   int
	stats    tandem.Stats // sums; Coordination of the rounds that drafted
	weights  map[string][]float64
}

func newTally(parallel int) *tally {
	return &tally{parallel: parallel, weights: map[string][]float64{},
		stats: tandem.Stats{Choices: map[string]int{}, Reasons: map[string]int{}}}
}

// add adds a generation.
func (t *tally) add(o *outcome) {
	t.tokens += len(o.tokens)
	t.merge(o.Stats)
	for _, d := range o.Stats.Drafters {
		t.weights[d.Name] = append(t.weights[d.Name], d.Weight)
	}
}

// join adds another tally of the same kind.
func (t *tally) join(o *tally) {
	t.wall += o.wall
	t.tokens += o.tokens
	t.merge(o.stats)
	for name, w := range o.weights {
		t.weights[name] = append(t.weights[name], w...)
	}
}

func (t *tally) merge(s tandem.Stats) {
	d := &t.stats
	d.Rounds += s.Rounds
	d.Drafted += s.Drafted
	d.DraftedDepth += s.DraftedDepth
	d.Accepted += s.Accepted
	d.PlainRounds += s.PlainRounds
	d.Reopened += s.Reopened
	d.Prefill += s.Prefill
	d.Decode += s.Decode
	d.DraftBusy += s.DraftBusy
	d.VerifyBusy += s.VerifyBusy
	d.Coordination = append(d.Coordination, s.Coordination...)
	d.AheadHits += s.AheadHits
	d.AheadTries += s.AheadTries
	d.AheadBusy += s.AheadBusy
	d.AheadUseful += s.AheadUseful
	d.Planning += s.Planning
	for name, n := range s.Choices {
		d.Choices[name] += n
	}
	for name, n := range s.Reasons {
		d.Reasons[name] += n
	}
}

// rate returns tokens per second of decoding; with several requests at once, of the whole time.
func (t *tally) rate() float64 {
	if t.parallel == 1 {
		return figures.Share(float64(t.tokens), t.stats.Decode.Seconds())
	}
	return figures.Share(float64(t.tokens), t.wall.Seconds())
}

// perRound returns accepted tokens per round: tokens per round without the target's own.
func (t *tally) perRound() float64 {
	return figures.Share(float64(t.stats.Accepted), float64(t.stats.Rounds))
}

// comparison is the result of a set of prompts that several variants ran in turn.
type comparison struct {
	set      string
	variants []variant
	units    [][]*tally // by prompt (or batch of prompts at once) and variant
	prompts  int        // run
	wanted   int
	equal    bool
}

// sum returns the total of a variant.
func (c *comparison) sum(v int) *tally {
	t := newTally(1)
	for _, u := range c.units {
		t.parallel = u[v].parallel
		t.join(u[v])
	}
	return t
}

// ratio compares the rates of two variants.
type ratio struct {
	Total  float64 `json:"total"`  // of tokens per second over all prompts
	Median float64 `json:"median"` // of the ratios of single prompts, each run in turn
}

// ratio returns how much faster variant a is than b.
func (c *comparison) ratio(a, b int) ratio {
	return ratio{figures.Share(c.sum(a).rate(), c.sum(b).rate()), figures.Median(c.pairs(a, b))}
}

// pairs returns the ratio of variant a to b for each prompt.
func (c *comparison) pairs(a, b int) []float64 {
	pairs := make([]float64, 0, len(c.units))
	for _, u := range c.units {
		if r := figures.Share(u[a].rate(), u[b].rate()); r > 0 {
			pairs = append(pairs, r)
		}
	}
	return pairs
}

// truth holds the first continuation of each prompt; every variant, process group and batch must give the same. Safe for concurrent use.
type truth struct {
	mu     sync.Mutex
	texts  map[string][]tandem.Token
	differ []string // what did not agree, as text
}

// check compares a continuation with the first one of that prompt and reports whether they agree. One with a
// smaller token limit must be a prefix of the other.
func (t *truth) check(key, variant string, tokens []tandem.Token, reason tandem.FinishReason) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.texts == nil {
		t.texts = map[string][]tandem.Token{}
	}
	known, ok := t.texts[key]
	if !ok {
		t.texts[key] = tokens
		return true
	}
	n := min(len(known), len(tokens))
	if slices.Equal(known[:n], tokens[:n]) && (len(tokens) >= len(known) || reason == tandem.FinishLength) {
		if len(tokens) > len(known) {
			t.texts[key] = tokens
		}
		return true
	}
	at := 0
	for at < n && known[at] == tokens[at] {
		at++
	}
	t.differ = append(t.differ, fmt.Sprintf("%s by %s from token %d", key, variant, at+1))
	return false
}

// runner is what a suite runs with: a group of processes, prompts, and time.
type runner struct {
	ctx       context.Context
	cfg       *Bench
	processes Processes
	launched  Group    // of which they are
	file      string   // of the target
	target    string   // its name
	drafters  []string // their names
	base      tandem.Request
	plain     tandem.Request
	sets      []promptSet
	truth     *truth
	until     time.Time // later only the first prompt of each set is begun; zero: no limit
	note      func(format string, args ...any)
}

// over reports whether the suite's time is used up.
func (b *runner) over() bool { return !b.until.IsZero() && time.Now().After(b.until) }

// within returns b with an equal share of the time that is left for n things to do.
func (b *runner) within(n int) *runner {
	if b.until.IsZero() {
		return b
	}
	part := *b
	part.until = time.Now().Add(max(0, time.Until(b.until)) / time.Duration(max(n, 1)))
	return &part
}

// outcome is one generation.
type outcome struct {
	tokens []tandem.Token
	tandem.Result
}

// generate runs one prompt; heard, if not nil, is called with the number of tokens that have just arrived.
func (b *runner) generate(v variant, p benchPrompt, heard func(tokens int)) (*outcome, error) {
	out := &outcome{tokens: []tandem.Token{}}
	r := v.request
	r.Prompt, r.Tokens = p.Prompt, p.Tokens
	var err error
	out.Result, err = b.processes.Generate(b.ctx, r, func(tokens []tandem.Token) {
		out.tokens = append(out.tokens, tokens...)
		if heard != nil {
			heard(len(tokens))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("prompt %s, %s: %w", p.ID, v.name, err)
	}
	return out, nil
}

// agrees checks a continuation against all others of the prompt.
func (b *runner) agrees(v variant, p benchPrompt, o *outcome) bool {
	return b.truth.check(b.target+", "+p.ID, v.name, o.tokens, o.Finish)
}

// batch runs prompts at once.
func (b *runner) batch(v variant, prompts []benchPrompt) (t *tally, equal bool, err error) {
	out := make([]*outcome, len(prompts))
	errs := make([]error, len(prompts))
	start := time.Now()
	var wg sync.WaitGroup
	for i, p := range prompts {
		wg.Go(func() { out[i], errs[i] = b.generate(v, p, nil) })
	}
	wg.Wait()
	t, equal = newTally(b.cfg.Parallel), true
	t.wall = time.Since(start)
	for i, o := range out {
		if errs[i] != nil {
			return nil, false, errs[i]
		}
		t.add(o)
		equal = b.agrees(v, prompts[i], o) && equal
	}
	return t, equal, nil
}

// compare runs each prompt of a set by all variants, in turn.
func (b *runner) compare(set promptSet, variants ...variant) (*comparison, error) {
	c := &comparison{set: set.Name, variants: variants, equal: true, wanted: len(set.Prompts) * b.cfg.Repeat}
	k := 0
	for range b.cfg.Repeat {
		for prompts := range slices.Chunk(set.Prompts, b.cfg.Parallel) {
			if k > 0 && b.over() {
				b.note("%s: time is over after %d of %d prompts", set.Name, c.prompts, c.wanted)
				return c, nil
			}
			unit := make([]*tally, len(variants))
			for _, i := range order(k, len(variants)) {
				t, equal, err := b.batch(variants[i], prompts)
				if err != nil {
					return nil, err
				}
				unit[i], c.equal = t, c.equal && equal
			}
			c.units = append(c.units, unit)
			c.prompts += len(prompts)
			k++
		}
	}
	return c, nil
}

// best returns the fastest of several variants, by all prompts of a set.
func (b *runner) best(set promptSet, variants ...variant) (variant, *comparison, error) {
	c, err := b.compare(set, variants...)
	if err != nil {
		return variant{}, nil, err
	}
	top := 0
	for i := range variants {
		if c.sum(i).rate() > c.sum(top).rate() {
			top = i
		}
	}
	return variants[top], c, nil
}

// pick returns the sets of the given names in that order, at most Count prompts of each; those asked for
// on the command line if it names some.
func (b *runner) pick(names ...string) []promptSet {
	if len(b.cfg.Scenario) > 0 {
		names = b.cfg.Scenario
	}
	var out []promptSet
	for _, n := range names {
		if i := slices.IndexFunc(b.sets, func(s promptSet) bool { return s.Name == n }); i >= 0 {
			out = append(out, b.sets[i].Take(b.cfg.Count))
		}
	}
	return out
}

// domains returns the names of the sets that were read, not made.
func (b *runner) domains() (names []string) {
	for _, s := range b.sets {
		if !slices.Contains([]string{setHostile, setCopy, setMixed, setChanging}, s.Name) {
			names = append(names, s.Name)
		}
	}
	return names
}

// variantResult is a variant's part of a comparison.
type variantResult struct {
	Name           string             `json:"name"`
	TokS           float64            `json:"tok_s"`
	Ratio          ratio              `json:"ratio"` // to the first variant
	TokensPerRound float64            `json:"tokens_per_round"`
	PerRound       float64            `json:"accepted_per_round"`
	PerDepth       float64            `json:"acceptance_per_depth"`
	PerNode        float64            `json:"acceptance_per_node"`
	VerifierBusy   float64            `json:"verifier_busy"` // share of the time that a request decodes
	DrafterBusy    float64            `json:"drafter_busy"`
	Planning       float64            `json:"planning_share"`
	PlanningUS     float64            `json:"planning_us"`    // per round
	AheadHits      float64            `json:"ahead_hit_rate"` // of the rounds after which a drafter went on
	AheadUseful    float64            `json:"ahead_useful_ms"`
	AheadWasted    float64            `json:"ahead_wasted_ms"`
	PlainRounds    float64            `json:"plain_rounds"`      // share
	Choices        map[string]int     `json:"choices,omitempty"` // rounds by what was chosen
	Reasons        map[string]int     `json:"reasons,omitempty"` // and by why
	Weights        map[string]float64 `json:"weights,omitempty"` // medians at the end of a text
}

// setResult is a comparison for the report.
type setResult struct {
	Name     string          `json:"name"`
	Prompts  int             `json:"prompts"`
	Wanted   int             `json:"prompts_wanted"`
	Tokens   int             `json:"tokens"` // of each variant
	Equal    bool            `json:"equal"`
	Variants []variantResult `json:"variants"`
}

func (c *comparison) result() setResult {
	r := setResult{Name: c.set, Prompts: c.prompts, Wanted: c.wanted, Equal: c.equal, Tokens: c.sum(0).tokens}
	for i, v := range c.variants {
		t := c.sum(i)
		s, decode, rounds := t.stats, float64(t.stats.Decode), float64(t.stats.Rounds)
		if s.AheadBusy == 0 {
			s.AheadHits = 0 // nodes of the round before were used again, not drafted ahead
		}
		weights := map[string]float64{}
		for name, w := range t.weights {
			weights[name] = figures.Median(w)
		}
		us, ms, share := figures.US, figures.MS, figures.Share
		r.Variants = append(r.Variants, variantResult{
			Name: v.name, TokS: t.rate(), Ratio: c.ratio(i, 0), TokensPerRound: share(float64(t.tokens), rounds), PerRound: t.perRound(),
			PerDepth: share(float64(s.Accepted), float64(s.DraftedDepth)), PerNode: share(float64(s.Accepted), float64(s.Drafted)),
			VerifierBusy: share(float64(s.VerifyBusy), decode), DrafterBusy: share(float64(s.DraftBusy), decode),
			Planning: share(float64(s.Planning), decode), PlanningUS: share(us(s.Planning), rounds),
			AheadHits:   share(float64(s.AheadHits), float64(s.AheadTries)),
			AheadUseful: ms(s.AheadUseful), AheadWasted: ms(max(0, s.AheadBusy-s.AheadUseful)),
			PlainRounds: share(float64(s.PlainRounds), rounds),
			Choices:     maps.Clone(s.Choices), Reasons: maps.Clone(s.Reasons), Weights: weights,
		})
	}
	return r
}
