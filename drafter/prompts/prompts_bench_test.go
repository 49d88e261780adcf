package prompts_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/spec"
)

var (
	benchDraft   = flag.String("prompts.draft", draftertest.ModelFile, "GGUF file of the draft of BenchmarkPrompts")
	benchPrompts = flag.String("prompts.file", promptsFile, "side file of the draft")
	benchCount   = flag.Int("prompts.count", 4, "prompts of each domain")
	benchVerify  = flag.Duration("prompts.verify", 40*time.Millisecond, "what a pass of the target is taken to cost")
)

// domainTexts returns, for some prompts of each domain, what the target writes at temperature 0; and how long the prompts are.
func domainTexts(b *testing.B, encode func(string) []tandem.Token, count int) (texts [][]tandem.Token, from []int) {
	f, err := os.Open(draftertest.FromRoot("test/testdata/prompts.jsonl"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	seen := map[string]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var p struct{ Domain, Prompt string }
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			b.Fatal(err)
		}
		tokens := encode(p.Prompt)
		if len(tokens) > draftertest.Limit/2 || seen[p.Domain] == count {
			continue
		}
		seen[p.Domain]++
		texts, from = append(texts, draftertest.Truth(b, tokens, draftertest.Limit)), append(from, len(tokens))
	}
	return texts, from
}

// BenchmarkPrompts decodes what a target writes with a draft model that has prompt tokens of its own and with the same one that
// has none, in turn, round by round; the draft's device has one thread.
func BenchmarkPrompts(b *testing.B) {
	with := draftertest.New(b, drafter.Config{Model: draftertest.OpenDraft(b, *benchDraft, *benchPrompts)})
	without := draftertest.Twin(b, drafter.Config{Model: draftertest.OpenDraft(b, *benchDraft)})
	texts, from := domainTexts(b, func(s string) []tandem.Token { return with.Draft().Config.Model.Vocab().Encode(s, true) }, *benchCount)
	plan := tandem.Plan{Round: time.Millisecond}
	for w := range 32 {
		plan.Verify = append(plan.Verify, *benchVerify+time.Duration(max(w-7, 0))**benchVerify*3/40)
	}
	for _, v := range []struct {
		name string
		tandem.Proposal
	}{
		{"levels 16/7/10", tandem.Proposal{Bounds: draftertest.Bounds}},
		{"levels 32/7/8", tandem.Proposal{Bounds: tandem.Bounds{Nodes: 32, Depth: 7, Width: 8}}},
		{"best 16/8/8", tandem.Proposal{Bounds: tandem.Bounds{Nodes: 16, Depth: 8, Width: 8}, Growth: tandem.GrowBest}},
		{"chain 8", tandem.Proposal{Bounds: tandem.Bounds{Nodes: 8, Depth: 7, Width: 1}}},
		{"pacer 32/8/8", tandem.Proposal{Bounds: tandem.Bounds{Nodes: 32, Depth: 8, Width: 8}, Growth: tandem.GrowPacer, Branch: 0.1,
			Stop: 0.02}},
		{"plan 32/12/8", tandem.Proposal{Bounds: tandem.Bounds{Nodes: 32, Depth: 12, Width: 8}, Growth: tandem.GrowBest, Plan: plan}},
	} {
		b.Run(v.name, func(b *testing.B) {
			var sums [2]replayed
			for n := 0; b.Loop(); n++ {
				i := n % len(texts)
				for k := range 2 {
					k = (k + n) % 2
					sums[k].add(replay(b, []*draftertest.Rig{with, without}[k], texts[i], from[i], v.Proposal))
				}
			}
			w, o := sums[0], sums[1]
			b.ReportMetric(w.per(w.rows), "rows")
			b.ReportMetric(o.per(o.rows), "rows-without")
			b.ReportMetric(w.per(w.passes), "passes")
			b.ReportMetric(o.per(o.passes), "passes-without")
			b.ReportMetric(w.per(w.nodes), "nodes")
			b.ReportMetric(o.per(o.nodes), "nodes-without")
			b.ReportMetric(w.per(w.tokens), "tau")
			b.ReportMetric(o.per(o.tokens), "tau-without")
			b.ReportMetric(w.per(int(w.busy.Microseconds())), "draft-µs")
			b.ReportMetric(o.per(int(o.busy.Microseconds()))/w.per(int(w.busy.Microseconds())), "time-ratio")
		})
	}
}

// replayed counts rounds.
type replayed struct {
	rounds, passes, rows, nodes, tokens int
	busy                                time.Duration
}

func (r *replayed) add(x replayed) {
	r.rounds, r.passes, r.rows = r.rounds+x.rounds, r.passes+x.passes, r.rows+x.rows
	r.nodes, r.tokens, r.busy = r.nodes+x.nodes, r.tokens+x.tokens, r.busy+x.busy
}

func (r *replayed) per(n int) float64 { return float64(n) / float64(r.rounds) }

// replay drafts for each round of a text of which the first n tokens are the prompt.
func replay(t testing.TB, r *draftertest.Rig, all []tandem.Token, n int, like tandem.Proposal) (out replayed) {
	t.Helper()
	id := tandem.SessionID(7)
	r.Begin(id, all[:n])
	rows := r.Counters.Snapshot()["passes.rows"]
	for at, told := n, n; at < len(all)-like.Bounds.Depth; {
		p := draftertest.Proposal(id, all[:at], told)
		p.Bounds, p.Growth, p.Branch, p.Stop, p.Plan, p.Return = like.Bounds, like.Growth, like.Branch, like.Stop, like.Plan, true
		done, err := r.Propose(context.Background(), p)
		if err != nil {
			t.Fatal(err)
		}
		if err := done.Tree.Validate(max(p.Bounds.Nodes, 1), 4096); err != nil {
			t.Fatal(err)
		}
		next := at
		_, tokens := spec.Accept(done.Tree, func(int32) tandem.Token { next++; return all[next-1] })
		told, at = at, at+len(tokens)
		out.add(replayed{1, done.Passes, 0, done.Nodes - 1, len(tokens), done.Busy})
	}
	out.rows = int(r.Counters.Snapshot()["passes.rows"] - rows)
	if err := r.Close(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	return out
}
