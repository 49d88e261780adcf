package strategy

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// newTestShared returns what a gateway whose passes take 40 ms knows of three drafters: cheap, and dear ones whose passes take 8 ms.
func newTestShared(t *testing.T) *Shared {
	rules, err := Rules{}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	l := NewShared(rules)
	l.Measured("", []tandem.Cost{{Rows: 1, Time: 40e6}, {Rows: 64, Time: 80e6}})
	for name, pass := range map[string]time.Duration{"cheap": 200e3, "dear": 8e6, "good": 8e6} {
		*l.parts.Drafter(name) = worth.Drafter{Pass: pass, Model: true, Asked: true}
	}
	return l
}

// seen has sessions find that rounds of that drafter bring so many tokens.
func (l *Shared) seen(drafter string, tokens float64) {
	y := worth.Yields{}
	for i := range 100 {
		y.Observe(drafter, worth.Yield{Accepted: float64(int(tokens*float64(i+1))-int(tokens*float64(i))) - 1, Passes: 2, Rows: 3})
	}
	y.HandOn(l.learned().yields)
}

// opens returns what a new session decides about a drafter.
func opens(l *Shared, prompt, output int, drafter string, among ...string) bool {
	open, _ := plannerOf(l, tandem.VoteTree, true, true, prompt, output).Opens(drafter, among)
	return open
}

// TestOpens: a session does without a drafter only if reading the prompt takes more than the drafter may save: for long prompts with short
// answers, sooner if other sessions have seen little of it, and never for all sessions.
func TestOpens(t *testing.T) {
	l := newTestShared(t)
	l.seen("dear", 1.1)
	l.seen("good", 2.5)
	for _, tc := range []struct {
		drafter        string
		prompt, output int
		want           bool
	}{
		{"cheap", 8000, 100, true},  // 2 ms for 64 tokens
		{"dear", 30, 200, true},     // other texts say little of this one
		{"dear", 8000, 100, false},  // two seconds to read, four to write
		{"dear", 8000, 2000, false}, // answers have 256 tokens, until one has more
		{"good", 1000, 200, true},
		{"good", 30000, 100, false},
		{"unknown", 30000, 10, true}, // its cost is not known
		{tandem.Medusa, 30000, 1, true},
		{"dear", 8000, 0, true}, // no end is known
	} {
		if got := opens(l, tc.prompt, tc.output, tc.drafter, tc.drafter); got != tc.want {
			t.Errorf("%s with a prompt of %d tokens for %d: opened %v, want %v", tc.drafter, tc.prompt, tc.output, got, tc.want)
		}
	}
	var leave []func()
	for range 15 {
		leave = append(leave, l.Enter())
	}
	if opens(l, 30, 200, "dear", "dear", "cheap") {
		t.Error("a dear drafter is opened beside 15 sessions that fill the passes")
	}
	if !opens(l, 30, 200, "cheap", "dear", "cheap") {
		t.Error("a drafter that costs nothing is not opened beside 15 sessions")
	}
	for _, f := range leave {
		f()
	}
	p, among := plannerOf(l, tandem.VoteTree, true, true, 30, 200), []string{"dear", "cheap"}
	if open, settled := p.Opens("dear", among); l.running != 0 || open || settled {
		t.Errorf("after they have left, %d sessions run; the first of the next ones: opened %v, settled %v, does not wait for those",
			l.running, open, settled)
	}
	p.during, p.rows, p.tickets = 1, 0, 0
	p.text.base += 30
	if open, settled := p.Opens("dear", among); !open || !settled {
		t.Errorf("30 tokens have shown that nobody runs beside the session: opened %v, settled %v", open, settled)
	}
	l.usually = 0
	for range 20 {
		l.seen("dear", 1)
	}
	if !opens(l, 30, 200, "dear", "dear", "cheap") {
		t.Error("a drafter that has brought nothing is not opened for a short prompt")
	}
	l.learned().output = 5 // answers are short here
	if opens(l, 1000, 2000, "dear", "dear") {
		t.Error("a drafter is opened for an answer that will be short")
	}
}

// TestOpensLate: a drafter that was never asked, but has said what its passes cost, is not opened for a long text until the answer has gone
// on for so long that it pays; nor at all where no answer could. For a short text, or one of whose cost nothing is known, it is.
func TestOpensLate(t *testing.T) {
	dear := []tandem.Cost{{Rows: 1, Time: 8e6}, {Rows: 64, Time: 160e6}} // 2.5 ms a token, and 40 ms for one of the target's
	for _, tc := range []struct {
		name           string
		costs          []tandem.Cost
		prompt, output int
		expects        float64
		open, settled  bool
	}{
		{"a short prompt", dear, 200, 2000, 0, true, true},
		{"a long one", dear, 4000, 2000, 0, false, false},            // 10 s, and a usual answer takes as long
		{"a long one, short answer", dear, 4000, 40, 0, false, true}, // nothing that may come pays
		{"a long one where answers are long", dear, 4000, 2000, 600, true, true},
		{"a short one where answers are short", dear, 1000, 2000, 50, false, false},
		{"nothing is known", nil, 8000, 40, 0, true, true},
		{"what cannot be is known", []tandem.Cost{{Rows: 64}, {Time: 1}}, 8000, 40, 0, true, true},
		{"reading as in the target", []tandem.Cost{{Rows: 1, Time: 16e6}}, 20000, 2000, 0, false, false}, // 0.5 ms a token
	} {
		l := newTestShared(t)
		l.PassCosts("new", tc.costs)
		l.learned().output = cmp.Or(tc.expects, worth.UsualOutput)
		p := plannerOf(l, tandem.VoteTree, true, true, tc.prompt, tc.output)
		if open, settled := p.Opens("new", []string{"new"}); open != tc.open || settled != tc.settled {
			t.Errorf("%s: opened %v, settled %v: want %v, %v", tc.name, open, settled, tc.open, tc.settled)
		}
	}
	l := newTestShared(t)
	l.PassCosts("new", dear)
	l.seen("cheap", 4) // in other texts
	if !opens(l, 200, 2000, "new", "new", "cheap") {
		t.Error("a drafter that no session has asked is not opened beside one that has brought much")
	}
	l.learned().output = 60
	p := plannerOf(l, tandem.VoteTree, true, true, 2000, 4000)
	opened := 0
	for done := 0; done < 4000 && opened == 0; done += 10 {
		p.during, p.text.base = 1, tandem.Position(done)
		open, settled := p.Opens("new", []string{"new"})
		if settled {
			opened = done
		}
		if open != settled {
			t.Fatalf("after %d tokens: opened %v, settled %v", done, open, settled)
		}
	}
	if opened < 200 || opened > 1000 { // 5 s to read, and an answer of 200 tokens takes 8 s
		t.Errorf("opened after %d tokens: want 200 to 1000", opened)
	}
}

// TestPassCosts: what a drafter says of its passes holds until rounds have shown what they take; what they show of a pass goes on to change
// what reading takes, in proportion.
func TestPassCosts(t *testing.T) {
	l := newTestShared(t)
	l.PassCosts("new", []tandem.Cost{{Rows: 64, Time: 160e6}, {Rows: 1, Time: 10e6}})
	for range 2 {
		p := plannerOf(l, tandem.VoteTree, true, true, 0, 0)
		if of := p.parts.Drafter("new"); of.Pass != 10*time.Millisecond || !of.Model || of.Asked || p.reading("new") != 0.0025 {
			t.Errorf("%+v, %v s a token: want passes of 10 ms, 2.5 ms a token", of, p.reading("new"))
		}
		l.PassCosts("new", nil) // its successor is of an earlier version
	}
	l.parts.Drafter("new").Pass, l.parts.Drafter("new").Asked = 20*time.Millisecond, true // rounds
	l.PassCosts("new", []tandem.Cost{{Rows: 1, Time: 10e6}, {Rows: 64, Time: 128e6}})
	p := plannerOf(l, tandem.VoteTree, true, true, 0, 0)
	if of := p.parts.Drafter("new"); of.Pass != 20*time.Millisecond || p.reading("new") != 0.004 {
		t.Errorf("%+v, %v s a token: want passes of 20 ms, 4 ms a token", of, p.reading("new"))
	}
	if got, want := p.reading("dear"), 0.008*2/64; got != want { // the target takes twice as long for 64 rows
		t.Errorf("a drafter that said nothing reads a token in %v s: want %v", got, want)
	}
}

// TestPriceByParts: a way takes what its parts take, whatever its rounds were like as a whole.
func TestPriceByParts(t *testing.T) {
	l := newTestShared(t)
	l.parts.Plain, l.parts.Drafted = time.Millisecond, 2*time.Millisecond
	l.seen("dear", 2.5)
	p := plannerOf(l, tandem.VoteTree, true, true, 0, 0)
	way := func(ahead bool) float64 {
		w := worth.Way{Set: "dear", Drafters: []string{"dear"}, Ahead: ahead, Expected: p.yields.Of("dear")}
		p.price(&w)
		return 1000 * w.Seconds()
	}
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	dear := p.parts.Drafter("dear")
	pass3, read := ms(l.pass(3)), ms(dear.Time(2, l.pass)-dear.Time(1, l.pass)) // it reads the two tokens of each round
	plain, _, _ := p.ways(nil, tandem.DefaultBounds(tandem.StrategyPlanner))
	for _, tc := range []struct {
		name      string
		got, want float64
	}{
		{"plain", 1000 * plain.Seconds(), 41},
		{"in turn", way(false), 2 + 16 + read + pass3},
		{"ahead, not tried yet: no gain", way(true), 2 + 16 + read + pass3},
	} {
		if diff := tc.got - tc.want; diff > 0.1 || diff < -0.1 {
			t.Errorf("%s: %.2f ms, want %.2f", tc.name, tc.got, tc.want)
		}
	}
	*p.parts.Ahead("dear") = worth.Ahead{Left: 0.25, Slow: 1.25}
	if got, want := way(true), 2+0.25*(16+read)+1.25*pass3; got < want-0.1 || got > want+0.1 {
		t.Errorf("ahead: %.2f ms, want %.2f", got, want)
	}
	before := way(false)
	p.Hindsight("dear", 100, tandem.Hindsight{}, 0)
	p.text.base = 160
	if now := way(false); now <= before || now > before+2 {
		t.Errorf("60 tokens behind: %.2f ms after %.2f", now, before)
	}
	p.text.runs = 1 // the free drafters take over in every other round
	if now := way(false); now < before+5 {
		t.Errorf("60 tokens behind, for one round: %.2f ms after %.2f", now, before)
	}
}

// TestMeasure: a disturbed time counts little, and a mean of disturbed times goes as soon as one is not.
func TestMeasure(t *testing.T) {
	mean := time.Duration(0)
	for range 10 {
		worth.Measure(&mean, 10*time.Millisecond)
	}
	worth.Measure(&mean, time.Second)
	if mean > 13*time.Millisecond {
		t.Errorf("after one stall the mean is %v", mean)
	}
	for range 50 {
		worth.Measure(&mean, time.Second)
	}
	if mean < 500*time.Millisecond {
		t.Errorf("after many slow ones the mean is %v", mean)
	}
	worth.Measure(&mean, 10*time.Millisecond)
	if mean != 10*time.Millisecond {
		t.Errorf("after a quick one the mean is %v", mean)
	}
}

// TestFirstDraftIsLeftOut: the first draft of a session reads its prompt or touches weights for the first time. No mean knows of it, in the
// session or after.
func TestFirstDraftIsLeftOut(t *testing.T) {
	l := newTestShared(t)
	p := plannerOf(l, tandem.VoteTree, true, true, 0, 0)
	for i, busy := range []time.Duration{900 * time.Millisecond, 16 * time.Millisecond, 16 * time.Millisecond} {
		p.Decide([]string{"dear"}, tandem.Bounds{Nodes: 16, Depth: 8, Width: 4})
		p.way = worth.Way{Set: "dear", Drafters: []string{"dear"}}
		tree := tandem.Tree{Tokens: []tandem.Token{1, 2}, Parents: []int32{-1, 0}, LogProbs: []float32{0, -0.1}}
		p.Learn(&Outcome{Drafts: []Draft{{Drafter: "dear", Got: tandem.Proposed{Nodes: 2, Depth: 1, Busy: busy, Passes: 2, Tree: tree}}},
			Tree: tree, Judged: true, Tokens: 2, Wall: busy + 41*time.Millisecond, Rest: time.Millisecond,
			Verdict: tandem.Verdict{Base: tandem.Position(10 + i), Nodes: 2, Rows: 2, Batch: 1, Tokens: []tandem.Token{2, 3}, Busy: 40e6}})
	}
	for name, x := range map[string]*worth.Parts{"session": p.parts, "later ones": l.parts} {
		if d := x.Drafter("dear"); d.Pass > 9*time.Millisecond {
			t.Errorf("%s: a pass takes %v", name, d.Pass)
		}
	}
}

// TestWanted: a slow drafter is not asked where a draft is there that promises more.
func TestWanted(t *testing.T) {
	l := newTestShared(t)
	*l.parts.Drafter("lookup") = worth.Drafter{Pass: 30e3, Asked: true}
	l.seen("dear", 2.2)
	l.seen("lookup", 0.5)
	p := plannerOf(l, tandem.VoteTree, true, true, 0, 0)
	ready := []string{"dear", "lookup"}
	d := p.Decide(ready, tandem.Bounds{Nodes: 16, Depth: 8, Width: 4})
	if len(d.Asks) != 2 || d.Later != 1 || d.Asks[0].Drafter != "lookup" {
		t.Fatalf("%s: %d asked, %d of them later: want lookup first, the slow drafter later", p.Explain(d), len(d.Asks), d.Later)
	}
	chain := func(n int) []Draft {
		tree := tandem.Tree{Tokens: []tandem.Token{1}, Parents: []int32{-1}, LogProbs: []float32{0}}
		for i := range int32(n) {
			tree.Tokens, tree.Parents = append(tree.Tokens, 5), append(tree.Parents, i)
			tree.LogProbs = append(tree.LogProbs, -0.05*float32(i+1))
		}
		return []Draft{{Drafter: "lookup", Got: tandem.Proposed{Nodes: n + 1, Tree: tree}}}
	}
	if !p.Wanted(chain(0)) {
		t.Error("without any other draft the slow drafter is not wanted")
	}
	if p.Wanted(chain(6)) {
		t.Error("beside a good copy the slow drafter is wanted")
	}
}

// TestWays: each model is a way to spend a round, and all together are; the free drafters and the target's paid guesses are in each.
func TestWays(t *testing.T) {
	p := plannerOf(newTestShared(t), tandem.VoteTree, true, false, 0, 0)
	for d, pass := range map[string]time.Duration{"a": 2e6, "b": 3e6, "dear": 40e6} {
		*p.parts.Drafter(d) = worth.Drafter{Pass: pass, Model: true, Asked: true}
	}
	*p.parts.Drafter("lookup") = worth.Drafter{Pass: 30e3, Asked: true}
	for _, tc := range []struct{ ready, want []string }{
		{[]string{"a", "b", "lookup"}, []string{"a", "b", "a, b"}},
		{[]string{"a", "b", "dear", "lookup", tandem.Medusa}, []string{"a", "b", "dear", "a, b, dear"}},
	} {
		var got []string
		_, _, models := p.ways(tc.ready, tandem.DefaultBounds(tandem.StrategyPlanner))
		for _, w := range models {
			if got = append(got, w.Name); slices.Contains(w.Drafters, "dear") != (w.Seconds() >= 0.08) {
				t.Errorf("%s takes %v s", w.Name, w.Seconds())
			}
		}
		if !slices.Equal(got, tc.want) || slices.Contains(p.free, tandem.Medusa) != slices.Contains(tc.ready, tandem.Medusa) {
			t.Errorf("of %v: %q, free %q: want %q", tc.ready, got, p.free, tc.want)
		}
	}
}

// TestPromptRows: prompt rows are as many as bring more than they cost; a way that is only looked at gets the fewest, and one in use that
// brings nothing none.
func TestPromptRows(t *testing.T) {
	l := newTestShared(t)
	l.Measured("", []tandem.Cost{{Rows: 1, Time: 40e6}, {Rows: 8, Time: 42e6}, {Rows: 64, Time: 154e6}}) // 2 ms a row beyond 8
	p := plannerOf(l, tandem.VoteTree, true, true, 0, 0)
	p.tokens, p.during = 40, 1 // a token in 25 ms
	p.parts.Drafter(tandem.PPD).Pass = time.Millisecond
	rows := []int{2, 4, 8, 16}
	if got := p.Prompts(tandem.PPD, 4, rows, []float64{0, 0, 0, 0}); got != 0 {
		t.Errorf("a way that is only looked at has choice %d", got)
	}
	for range 30 {
		p.yields.Observe(gain(tandem.PPD), worth.Yield{Accepted: 1})
	}
	for _, tc := range []struct {
		nodes int
		gains []float64
		want  int
	}{{4, []float64{0.2, 0.3, 0.35, 0.4}, 1}, {1, []float64{0.2, 0.3, 0.5, 0.6}, 2}, {1, []float64{0.2, 0.5, 1, 3}, 3},
		{20, []float64{0.05, 0.1, 0.15, 0.2}, -1}} {
		if got := p.Prompts(tandem.PPD, tc.nodes, rows, tc.gains); got != tc.want {
			t.Errorf("%d nodes, gains %v: choice %d, want %d", tc.nodes, tc.gains, got, tc.want)
		}
	}
}

// TestHearsPasses: what a drafter that was told of the text took for it says what a pass of its model takes, less what it read; an answer
// without a pass says nothing.
func TestHearsPasses(t *testing.T) {
	l := newTestShared(t)
	p := plannerOf(l, tandem.VoteTree, true, true, 0, 0)
	of := p.parts.Drafter("dear")
	of.Pass = 20 * time.Millisecond
	p.Hindsight("dear", 10, tandem.Hindsight{}, 0)
	if p.Hindsight("dear", 14, tandem.Hindsight{}, 0); of.Pass != 20*time.Millisecond {
		t.Errorf("after an answer without a pass, one takes %v: want 20 ms", of.Pass)
	}
	long := of.Time(16, l.pass)
	if long < 22*time.Millisecond {
		t.Fatalf("16 rows take %v in this test: want more than one", long)
	}
	if p.Hindsight("dear", 30, tandem.Hindsight{}, long); of.Pass < 19*time.Millisecond || of.Pass > 21*time.Millisecond {
		t.Errorf("after a pass that read 16 tokens in %v, one of a single row takes %v: want 20 ms", long, of.Pass)
	}
}

// TestNeverAhead: drafters that never draft ahead, though asked to, are asked to no more.
func TestNeverAhead(t *testing.T) {
	for _, does := range []time.Duration{0, time.Millisecond} {
		l := newTestShared(t)
		l.seen("dear", 2.5)
		p := plannerOf(l, tandem.VoteTree, true, true, 0, 100)
		asked := 0
		for range 200 {
			dec := p.Decide([]string{"dear"}, tandem.DefaultBounds(tandem.StrategyPlanner))
			o := Outcome{Decision: dec, Tree: tandem.Root(1), Tokens: 1, Wall: 40 * time.Millisecond, Rest: time.Millisecond,
				Verdict: tandem.Verdict{Tokens: []tandem.Token{5}, Nodes: 1, Rows: 1, Busy: 30 * time.Millisecond}}
			for _, a := range dec.Asks {
				got := tandem.Proposed{Nodes: 2, Depth: 1, Passes: 2, Busy: 16 * time.Millisecond,
					Tree: tandem.Tree{Tokens: []tandem.Token{1, 5}, Parents: []int32{-1, 0}, LogProbs: []float32{0, -0.1}}}
				if a.Proposal.Ahead {
					asked, got.Ahead = asked+1, does
				}
				o.Drafts, o.Tree, o.Tokens = append(o.Drafts, Draft{Drafter: a.Drafter, Got: got}), got.Tree, 2
				o.Verdict.Nodes, o.Verdict.Rows, o.Verdict.Tokens, o.Judged = 2, 2, []tandem.Token{5, 6}, true
			}
			p.Learn(&o)
		}
		if never := p.parts.Ahead("dear").Idle >= neverAhead; does == 0 && asked > 4*neverAhead || does > 0 && never {
			t.Errorf("drafting %v ahead: asked to in %d of 200 rounds, seems never to: %v", does, asked, never)
		}
	}
}

// TestFarDrafters: the way to a drafter and back is learned from its calls, and is in the price of ways that ask it, once for all that are
// asked together.
func TestFarDrafters(t *testing.T) {
	l := newTestShared(t)
	p := plannerOf(l, tandem.VoteTree, true, true, 10, 100)
	price := func(drafters ...string) time.Duration {
		w := worth.Way{Set: setOf(drafters), Drafters: drafters, Expected: p.yields.Of("good")}
		p.price(&w)
		return time.Duration(w.Seconds() * 1e9)
	}
	near := price("good")
	for range 30 {
		p.way = worth.Way{Set: "good", Drafters: []string{"good"}}
		p.warm["good"] = true
		p.times(&Outcome{Verdict: tandem.Verdict{Nodes: 4, Rows: 4, Busy: 40e6, Tokens: make([]tandem.Token, 2)}, Tokens: 2,
			Drafts: []Draft{{Drafter: "good", Got: tandem.Proposed{Nodes: 4, Depth: 3, Passes: 2, Busy: 16e6}, Away: 20e6}},
			Rest:   21e6, Wall: 77e6})
	}
	if d := price("good") - near; d < 20e6 || d > 24e6 {
		t.Errorf("20 ms away: rounds are dearer by %v", d)
	}
	if alone, both := price("dear"), price("dear", "good"); both-alone < 15e6 || both-alone > 25e6 {
		t.Errorf("one that is near alone: %v, with one that is not: %v", alone, both)
	}
	if away := l.Away(); len(away) != 1 || away["good"] < 19e6 || away["good"] > 21e6 {
		t.Errorf("told: %v", away)
	}
}

// plannerOf returns a planner for a prompt of so many tokens and at most so many of output.
func plannerOf(l *Shared, vote tandem.Vote, adaptive, ahead bool, prompt, output int) *planner {
	return newPlanner(options{shared: l, vote: vote, adaptive: adaptive, ahead: ahead, prompt: prompt, output: output}).(*planner)
}

// TestConstrainedTextsAreLearnedForThemselves: what drafts bring in texts of a form is what such texts begin with, and no others, and the
// other way round. Costs and times belong to both.
func TestConstrainedTextsAreLearnedForThemselves(t *testing.T) {
	l := newTestShared(t)
	begin := func(of *tandem.Constraint) *planner {
		x, _ := New(tandem.Request{Strategy: tandem.StrategyPlanner, MaxTokens: 100, Sampling: tandem.Sampling{Constraint: of}}, 10, l)
		return x.(*planner)
	}
	teach := func(of *tandem.Constraint, tokens float64) {
		p := begin(of)
		for range 50 {
			p.yields.Observe("good", worth.Yield{Accepted: tokens, Passes: 2, Rows: 3})
		}
		p.text.of["good"], p.text.base = report{}, tandem.Position(10*tokens)
		p.HandOn()
	}
	form := new(tandem.Constraint)
	teach(nil, 1)
	teach(form, 7)
	plain, formed := begin(nil), begin(form)
	if a, b := plain.yields.Of("good").Accepted, formed.yields.Of("good").Accepted; a > 2 || b < 5 {
		t.Errorf("rounds of free texts are expected to bring %.1f tokens, those of formed ones %.1f: want about 1 and 7", a, b)
	}
	if plain.expects >= formed.expects {
		t.Errorf("free texts are expected to have %.1f tokens, formed ones %.1f: want fewer and more", plain.expects, formed.expects)
	}
	if plain.parts.Drafter("dear").Pass != formed.parts.Drafter("dear").Pass || formed.parts.Drafter("dear").Pass == 0 {
		t.Error("the times of drafts differ")
	}
}
