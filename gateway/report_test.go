package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/round"
)

// reports checks the reports of a request as they come.
type reports struct {
	want    bool
	rounds  int
	base    int // of the next round
	choices map[string]int
	latest  time.Duration // the end of the latest commit
	problem string
}

func (r *reports) take(d tandem.Delta) {
	if r.problem == "" {
		r.problem = r.wrong(d)
	}
	r.rounds++
	r.base += len(d.Tokens)
}

// wrong returns what is wrong with a delta's report.
func (r *reports) wrong(d tandem.Delta) string {
	x := d.Round
	if !r.want || x == nil {
		if x != nil || r.want {
			return fmt.Sprintf("round %d has report %v although report is %v", r.rounds, x, r.want)
		}
		return ""
	}
	r.choices[x.Choice]++
	switch {
	case x.Index != r.rounds || int(x.Base) != r.base:
		return fmt.Sprintf("report of round %d at %d: want %d at %d", x.Index, x.Base, r.rounds, r.base)
	case x.Choice == "" || x.Why == "" || strings.Contains(x.Why, "\n"):
		return fmt.Sprintf("round %d chose %q because %q", r.rounds, x.Choice, x.Why)
	case len(x.Votes) != x.Tree.Len() || len(x.Drafters) > 16:
		return fmt.Sprintf("round %d: %d votes for %d nodes by %d drafters", r.rounds, len(x.Votes), x.Tree.Len(), len(x.Drafters))
	case len(x.Path) != len(d.Tokens) && len(x.Path) != len(d.Tokens)-1:
		return fmt.Sprintf("round %d: path %v for tokens %v", r.rounds, x.Path, d.Tokens)
	}
	if err := x.Tree.Validate(64, vocabSize); err != nil {
		return err.Error()
	}
	at := int32(0)
	for i, n := range x.Path {
		if x.Tree.Parents[n] != at || x.Tree.Tokens[n] != d.Tokens[i] || x.Votes[n] == 0 {
			return fmt.Sprintf("round %d: node %d of path %v has parent %d, token %d, votes %b: want %d, %d, some", r.rounds, n, x.Path,
				x.Tree.Parents[n], x.Tree.Tokens[n], x.Votes[n], at, d.Tokens[i])
		}
		at = n
	}
	for n, v := range x.Votes {
		if v>>len(x.Drafters) != 0 || n > 0 && v&^x.Votes[x.Tree.Parents[n]] != 0 {
			return fmt.Sprintf("round %d: node %d has votes %b of %d drafters, its parent %b", r.rounds, n, v, len(x.Drafters),
				x.Votes[x.Tree.Parents[n]])
		}
	}
	order := []string{"ahead", "draft", "pool", "verify", "guess", "commit"}
	for i, l := range x.Lanes {
		stage := slices.Index(order, l.Stage)
		switch {
		case stage < 0 || l.From < 0 || l.To <= l.From || (l.By != "") != (stage < 2 || l.Stage == "guess"):
			return fmt.Sprintf("round %d: lane %+v", r.rounds, l)
		case i > 0 && slices.Index(order, x.Lanes[i-1].Stage) > stage:
			return fmt.Sprintf("round %d: lanes %+v out of order", r.rounds, x.Lanes)
		case stage > 0 && l.From < r.latest:
			return fmt.Sprintf("round %d: lane %+v begins before the round, at %v", r.rounds, l, r.latest)
		case stage > 1 && i > 0 && x.Lanes[i-1].Stage != "ahead" && l.From < x.Lanes[i-1].To:
			return fmt.Sprintf("round %d: lanes %+v overlap", r.rounds, x.Lanes)
		}
	}
	if n := len(x.Lanes); n > 0 {
		r.latest = x.Lanes[n-1].To
	}
	return ""
}

// TestReport looks at whole reports. A proposal takes 3 ms, a ticket 1 ms on its way, half as much more of the
// root alone, a pass 5 ms.
func TestReport(t *testing.T) {
	tree := tandem.Bounds{Nodes: 5, Depth: 4, Width: 1}
	for _, test := range []struct {
		name     string
		r        tandem.Request
		faults   map[string]fault
		round    int
		choice   string
		why      string // the beginning
		drafters []string
		lanes    string // in ms
	}{
		{"not asked", tandem.Request{}, nil, 0, "plain", "plain: not asked for", nil, "pool 10.0-11.5 verify 11.5-16.5"},
		{"nobody", tandem.Request{Bounds: tree, Drafters: []string{"gone"}}, nil, 1, "plain", "plain: nobody drafts, none is alive", nil,
			"pool 16.5-18.0 verify 18.0-23.0"},
		{"opening", tandem.Request{Bounds: tree}, map[string]fault{"open-drafter 1": {do: "slow", wait: 80 * time.Millisecond}}, 0,
			"plain", "plain: nobody drafts: fake opening", nil, "pool 30.0-31.5 verify 31.5-36.5"},
		{"fixed", tandem.Request{Bounds: tree}, nil, 0, "fake 5/4", "fixed: tree 5/4/1", []string{"fake"},
			"draft fake 10.0-13.0 pool 13.0-14.0 verify 14.0-19.0"},
		{"refused", tandem.Request{Bounds: tree}, map[string]fault{"propose 1": {do: "fail", kind: tandem.Internal}}, 0,
			"fake 5/4", "fixed: tree 5/4/1; no draft came", nil, "pool 10.0-11.5 verify 11.5-16.5"},
		{"pacer", tandem.Request{Bounds: tree, Strategy: tandem.StrategyLLMCad}, nil, 1, "fake 5/4", "threshold: α 0.0", []string{"fake"},
			"ahead fake 13.0-16.0 draft fake 19.0-22.0 pool 22.0-23.0 verify 23.0-28.0"},
		{"chains", tandem.Request{Bounds: tree, Strategy: tandem.StrategyMinions, Drafters: []string{"fake", "b"}}, nil, 0, "vote of 2 5/4",
			"length: 4 tokens, 0 of 8 records; weights fake 1.00, b 1.00", []string{"fake", "b"},
			"draft fake 10.0-13.0 draft b 10.0-13.1 pool 13.1-14.1 verify 14.1-19.1"},
		{"planner", tandem.Request{Bounds: tree, Strategy: tandem.StrategyPlanner, Vote: tandem.VoteNone, Drafters: []string{"fake"}}, nil,
			0, "fake", "best: fake: 1+1.000±2.00 tokens in ",
			[]string{"fake"}, "draft fake 10.0-13.0 pool 13.0-14.0 verify 14.0-19.0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.quiet = true
				if test.faults != nil {
					w.faults = test.faults
				}
				c := w.config()
				c.Drafters = append(c.Drafters, w.enlisted("b"))
				g, err := New(c)
				if err != nil {
					t.Fatal(err)
				}
				w.gw = g
				g.Enlist(Enlisted{Name: "gone", Drafter: fakeDrafter{w.peer("drafter")}})
				g.Dismiss("gone")
				r := test.r
				r.Prompt, r.MaxTokens, r.Sampling, r.Report = "func", 30, tandem.Sampling{TopP: 1}, true
				var got []*tandem.Round
				if _, err := g.Generate(context.Background(), r,
					&sink{each: func(d tandem.Delta) { got = append(got, d.Round) }}); err != nil {
					t.Fatal(err)
				}
				if err := g.Shutdown(context.Background()); err != nil {
					t.Error(err)
				}
				w.flights.Wait()
				x := got[test.round]
				if lanes := wordLanes(x.Lanes); x.Choice != test.choice || !strings.HasPrefix(x.Why, test.why) ||
					!slices.Equal(x.Drafters, test.drafters) || lanes != test.lanes {
					t.Errorf("choice %q, why %q, drafters %v, lanes %s: want %q, %q, %v, %s", x.Choice, x.Why, x.Drafters, lanes,
						test.choice, test.why, test.drafters, test.lanes)
				}
				t.Log(got[len(got)-1].Why)
			})
		})
	}
}

func wordLanes(lanes []tandem.Lane) string {
	var out []string
	for _, l := range lanes {
		who := l.Stage
		if l.By != "" {
			who += " " + l.By
		}
		out = append(out, fmt.Sprintf("%s %.1f-%.1f", who, float64(l.From)/1e6, float64(l.To)/1e6))
	}
	return strings.Join(out, " ")
}

// TestReportOfMergedTree: votes are of those whose own draft held a node.
func TestReportOfMergedTree(t *testing.T) {
	s := desk(t, tandem.Request{Report: true, Vote: tandem.VoteTree, Bounds: tandem.Bounds{Nodes: 8, Depth: 4, Width: 1}}, "go", "py",
		"prose")
	chain := func(tokens ...tandem.Token) tandem.Proposed {
		tree := tandem.Root(1)
		tree.LogProbs = []float32{0}
		for i, x := range tokens {
			tree.Tokens, tree.Parents, tree.LogProbs = append(tree.Tokens, x), append(tree.Parents, int32(i)),
				append(tree.LogProbs, float32(-i-1))
		}
		return tandem.Proposed{Nodes: tree.Len(), Depth: tree.Len() - 1, Tree: tree}
	}
	a := s.plan()
	for i, got := range []tandem.Proposed{chain(5, 6), chain(5, 7), chain(9)} {
		a.Answer(&round.Draft{Drafter: a.Asks[i].Drafter, Got: got, Begun: s.begun})
	}
	a.Merged(time.Millisecond, false)
	if a.Tree.Len() != 5 {
		t.Fatalf("merged tree %+v: want 5 nodes", a.Tree)
	}
	a.Verdict = tandem.Verdict{Base: 1, Nodes: 5, Tokens: []tandem.Token{5, 7, 3}}
	byToken := map[tandem.Token]int32{}
	for i, x := range a.Tree.Tokens {
		byToken[x] = int32(i)
	}
	a.Verdict.Path = []int32{byToken[5], byToken[7]}
	s.commit(a)
	x := a.delta.Round
	want := map[tandem.Token]uint16{1: 7, 5: 3, 6: 1, 7: 2, 9: 4}
	for i, token := range x.Tree.Tokens {
		if x.Votes[i] != want[token] {
			t.Errorf("token %d has votes %03b: want %03b", token, x.Votes[i], want[token])
		}
	}
	if !slices.Equal(x.Path, a.Verdict.Path) || x.Tree.LogProbs == nil || !slices.Equal(x.Drafters, []string{"go", "py", "prose"}) ||
		x.Why != "fixed: tree 8/4/1; weights go 1.00, py 1.00, prose 1.00" {
		t.Errorf("report %+v", x)
	}
}

// TestLogprobsGoWithTokens: a delta has those of its tokens, none of what the budget cut off; a verdict without
// them is no verdict.
func TestLogprobsGoWithTokens(t *testing.T) {
	s := desk(t, tandem.Request{Sampling: tandem.Sampling{Logprobs: true}, Bounds: tandem.Bounds{Nodes: 8, Depth: 4, Width: 1}})
	s.text.Limit = 3
	v := tandem.Verdict{Base: 1, Nodes: 4, Path: []int32{1, 2}, Tokens: []tandem.Token{5, 6, 7},
		Logprobs: []tandem.Logprob{{LogProb: -1}, {LogProb: -2}, {LogProb: -3}}}
	a := s.plan()
	a.Merged(0, false)
	if x := a.Answered(v); x.Do != round.Commit {
		t.Errorf("%+v: want commit", x)
	}
	s.commit(a)
	if p := a.delta.Logprobs; len(p) != 2 || p[0].LogProb != -1 || p[1].LogProb != -2 {
		t.Errorf("log-probabilities %v: want those of two tokens", p)
	}
	v.Logprobs = nil
	a = s.plan()
	a.Merged(0, false)
	if x := a.Answered(v); x.Do != round.Reopen || tandem.KindOf(x.Err) != tandem.Corrupt {
		t.Errorf("verdict without log-probabilities: %+v, want to open again, corrupt", x)
	}
}
