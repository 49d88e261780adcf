package system

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// What changes evenly over time adds the same to every variant over an even number of rounds.
func TestOrderCancelsDrift(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, rounds := rapid.IntRange(1, 9).Draw(t, "variants"), 2*rapid.IntRange(1, 5).Draw(t, "pairs")
		drift, at := make([]int, n), 0
		for k := range rounds {
			o := order(k, n)
			if !slices.Equal(slices.Sorted(slices.Values(o)), order(0, n)) {
				t.Fatalf("order %v: want each of %d once", o, n)
			}
			for _, v := range o {
				drift[v] += at
				at++
			}
		}
		for _, d := range drift {
			if d != drift[0] {
				t.Fatalf("after %d rounds drifts are %v: want them equal", rounds, drift)
			}
		}
	})
	if got := [][]int{order(0, 2), order(1, 2), order(2, 2), order(3, 2)}; fmt.Sprint(got) != "[[0 1] [1 0] [0 1] [1 0]]" {
		t.Errorf("two variants run %v: want ABBA", got)
	}
}

// ran returns the tally of a text of so many tokens that took so long.
func ran(tokens int, d time.Duration) *tally {
	t := newTally(1)
	t.tokens, t.stats.Decode = tokens, d
	return t
}

func TestRatio(t *testing.T) {
	c := &comparison{set: "x", variants: []variant{{name: "plain"}, {name: "fast"}}, units: [][]*tally{
		{ran(100, 4*time.Second), ran(100, 2*time.Second)},
		{ran(100, 4*time.Second), ran(100, time.Second)},
		{ran(100, 4*time.Second), ran(100, 13*time.Second)}, // something else ran on the machine
	}}
	if got := c.ratio(1, 0); math.Abs(got.Total-12.0/16) > 1e-9 || got.Median != 2 {
		t.Errorf("ratio %+v: want 0.75 in total, 2 in the middle", got)
	}
	if got := c.ratio(0, 0); got != (ratio{1, 1}) {
		t.Errorf("a variant over itself is %+v", got)
	}
	if r := c.result(); r.Tokens != 300 || len(r.Variants) != 2 || r.Variants[1].TokS != 300.0/16 || r.Variants[0].Ratio.Total != 1 {
		t.Errorf("result %+v", r)
	}
	many := newTally(8)
	many.tokens, many.wall, many.stats.Decode = 100, time.Second, 10*time.Second
	if many.rate() != 100 {
		t.Errorf("with several at once the rate is %v: want it by the time of all, 100", many.rate())
	}
}

func TestTally(t *testing.T) {
	one := func(n int, w float64) *outcome {
		return &outcome{make([]tandem.Token, n), tandem.Result{Stats: tandem.Stats{Rounds: 2, Accepted: n - 2, Decode: time.Second,
			Planning: time.Millisecond, Choices: map[string]int{"plain": 1, "go 8/4": 1}, Reasons: map[string]int{"best": 2},
			Coordination: []time.Duration{1, 2}, Drafters: []tandem.DrafterStats{{Name: "go", Weight: w}, {Name: "py", Weight: 1}}}}}
	}
	a, b, sum := newTally(1), newTally(1), newTally(1)
	a.add(one(4, 2))
	b.add(one(8, 3))
	b.add(one(8, 4))
	sum.join(a)
	sum.join(b)
	s := sum.stats
	if sum.tokens != 20 || s.Rounds != 6 || s.Accepted != 14 || s.Decode != 3*time.Second ||
		s.Planning != 3*time.Millisecond || s.Choices["plain"] != 3 || s.Reasons["best"] != 6 || len(s.Coordination) != 6 {
		t.Errorf("sum %+v", sum)
	}
	if got := spread(sum); got != 3 {
		t.Errorf("weights %v spread %v: want the median text's 3", sum.weights, got)
	}
	if got := sum.perRound(); got != 14.0/6 {
		t.Errorf("accepted per round %v", got)
	}
	if a.stats.Choices["plain"] != 1 {
		t.Error("joining changed what was joined")
	}
}

func TestShares(t *testing.T) {
	for want, counts := range map[string]map[string]int{
		"nothing":                         nil,
		"plain 100 %":                     {"plain": 3},
		"go 60 %, plain 39 %, others 1 %": {"plain": 78, "go": 120, "py": 1, "prose": 1},
		"a 50 %, b 50 %":                  {"b": 1, "a": 1},
	} {
		if got := shares(counts); got != want {
			t.Errorf("shares of %v are %q: want %q", counts, got, want)
		}
	}
}

func TestTruth(t *testing.T) {
	const length, stop = tandem.FinishLength, tandem.FinishStop
	ids := func(n ...tandem.Token) []tandem.Token { return n }
	tr := &truth{}
	for i, c := range []struct {
		tokens []tandem.Token
		reason tandem.FinishReason
		want   bool
	}{
		{ids(1, 2, 3), length, true},
		{ids(1, 2, 3), length, true},
		{ids(1, 2), length, true},        // was told to be shorter
		{ids(1, 2), stop, false},         // says that the text ends there
		{ids(1, 9, 3), length, false},    // another token
		{ids(1, 2, 3, 4), length, true},  // goes on
		{ids(1, 2, 3, 5), length, false}, // differs from what went on
		{nil, length, true},
	} {
		if got := tr.check("p", fmt.Sprint(i), c.tokens, c.reason); got != c.want {
			t.Errorf("%d: %v that ends by %s: %v, want %v", i, c.tokens, c.reason, got, c.want)
		}
	}
	if !tr.check("q", "v", ids(7), stop) {
		t.Error("another prompt may have another text")
	}
	if want := []string{"p by 3 from token 3", "p by 4 from token 2", "p by 6 from token 4"}; !slices.Equal(tr.differ, want) {
		t.Errorf("differ %q: want %q", tr.differ, want)
	}
}

func TestFigures(t *testing.T) {
	var out strings.Builder
	r := Result{Differ: []string{"p by v from token 3"}, Suites: []*suiteResult{{Name: "plain",
		Figures: []figure{{"a", 2.5, ""}, {"b", 0.3, "why"}}, Error: "broke", Notes: []string{"time is over"}}}}
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2.5", "why", "note: time is over", "error: broke", "NOT EQUAL: p by v"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestHostilePrompts(t *testing.T) {
	const n, vocab = 12, 4096
	prompts := hostilePrompts(n, vocab)
	if fmt.Sprint(prompts) != fmt.Sprint(hostilePrompts(n, vocab)) {
		t.Error("the same call makes other prompts")
	}
	h := fnv.New64a()
	seen := map[string]bool{}
	for i, p := range prompts {
		fmt.Fprint(h, p)
		text := fmt.Sprint(p.Prompt, p.Tokens)
		if seen[p.ID] || seen[text] {
			t.Errorf("%s is there twice, or its text is", p.ID)
		}
		seen[p.ID], seen[text] = true, true
		if (p.Prompt == "") == (p.Tokens == nil) || !utf8.ValidString(p.Prompt) ||
			len(p.Prompt) > 1000 || len(p.Tokens) > 200 || (i%4 == 0) != (p.Tokens != nil) {
			t.Errorf("%s: %q %v", p.ID, p.Prompt, p.Tokens)
		}
		for _, id := range p.Tokens {
			if id < 3 || id >= vocab {
				t.Errorf("%s: token %d: want 3 to %d", p.ID, id, vocab-1)
			}
		}
	}
	if got := h.Sum64(); got != hostileHash {
		t.Errorf("hash %#x: want %#x; figures of other prompts cannot be compared with earlier ones", got, uint64(hostileHash))
	}
	for _, p := range hostilePrompts(8, 2) {
		for _, id := range p.Tokens {
			if id > 1 {
				t.Errorf("token %d of a vocabulary of 2", id)
			}
		}
	}
}

// hostileHash is of the prompts that the figures in docs/measurements/planner.md are from.
const hostileHash = 0x52a386ecdba4065b

func TestMadeSets(t *testing.T) {
	domain := func(name string, n int) promptSet {
		s := promptSet{Name: name}
		for i := range n {
			s.Prompts = append(s.Prompts, benchPrompt{ID: fmt.Sprint(name, i), Domain: name, Prompt: fmt.Sprint("text of ", name, i)})
		}
		return s
	}
	sets := allSets([]promptSet{domain("a", 9), domain("b", 7), domain("c", 8)}, 100)
	if got := setNames(sets); got != "a, b, c, hostile, copy, mixed, changing" {
		t.Fatalf("sets %s", got)
	}
	mixed, changing := sets[5].Prompts, sets[6].Prompts
	if len(mixed) != 21 || mixed[0].Domain+mixed[1].Domain+mixed[2].Domain+mixed[3].Domain != "abca" || mixed[4].ID != "b1" {
		t.Errorf("mixed: %v", mixed)
	}
	pairs := map[string]bool{}
	ids := map[string]bool{}
	for _, p := range changing {
		from, to, _ := strings.Cut(p.ID, "+")
		if from[0] == to[0] || ids[p.ID] || p.Prompt != "text of "+from+"\n\ntext of "+to {
			t.Errorf("%s: %q", p.ID, p.Prompt)
		}
		ids[p.ID] = true
		pairs[string([]byte{from[0], to[0]})] = true
	}
	if len(changing) != 7 || len(pairs) != 6 {
		t.Errorf("%d changing texts of %d kinds: want 7 of all 6", len(changing), len(pairs))
	}
	if got := setNames(allSets([]promptSet{domain("a", 2)}, 100)); got != "a, hostile, copy" {
		t.Errorf("one domain makes %s: want no mixture", got)
	}
	if len(sets[0].Take(3).Prompts) != 3 || len(sets[0].Take(0).Prompts) != 9 || len(sets[0].Take(99).Prompts) != 9 {
		t.Error("take takes another number")
	}
}

func TestBudget(t *testing.T) {
	if b := (&runner{}).within(3); b.over() || !b.until.IsZero() {
		t.Error("without a limit time is over")
	}
	begun := time.Now()
	b := &runner{until: begun.Add(3 * time.Second)}
	part := b.within(3)
	if left := time.Until(part.until); left > time.Second || left < time.Second-time.Since(begun) || b.until == part.until {
		t.Errorf("a third of 3 s is %v", left)
	}
	if late := (&runner{until: time.Now().Add(-time.Second)}).within(2); !late.over() {
		t.Error("time that is used up comes back")
	}
}

func TestGrowth(t *testing.T) {
	run := func(size func(i int) int64) float64 {
		var s []memorySample
		for i := range 50 {
			s = append(s, memorySample{RSS: map[string]int64{"gateway": size(i)}})
		}
		return growth(s)["gateway"]
	}
	if g := run(func(i int) int64 { return 100 + int64(i%7) }); g != 1 {
		t.Errorf("a saw grows by %v", g)
	}
	if g := run(func(i int) int64 { return min(100, 20*int64(i+1)) }); g != 1 {
		t.Errorf("what fills once grows by %v", g)
	}
	if g := run(func(i int) int64 { return 100 + int64(i) }); g < 1.15 {
		t.Errorf("a leak grows by %v", g)
	}
	if g := growth(make([]memorySample, 9)); len(g) != 0 {
		t.Errorf("too few samples tell %v", g)
	}
}

func TestArrivals(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	a := newArrivals(2)
	a.add(at(0), 5)
	a.begin(at(0))
	a.add(at(1), 5)
	a.add(at(2), 7) // the first of the other
	a.begin(at(2))
	a.add(at(3), 3)
	a.add(at(4), 4)
	a.end(at(4))
	a.add(at(5), 9)
	a.end(at(5))
	if n, d := a.window(); n != 7 || d != 2*time.Second {
		t.Errorf("%d tokens in %v: want 7 in 2 s, while both ran", n, d)
	}
	never := newArrivals(2)
	never.begin(at(0))
	never.end(at(1))
	never.begin(at(2))
	if n, d := never.window(); n != 0 || d != 0 {
		t.Errorf("%d tokens in %v although they never ran at once", n, d)
	}
}

func TestExpert(t *testing.T) {
	b := &runner{drafters: []string{"gopher-draft-all-f16", "gopher-draft-go-f16", "gopher-draft-py-f16"}}
	for domain, want := range map[string]string{"go": "gopher-draft-go-f16", "python": "gopher-draft-py-f16", "prose": "", setMixed: ""} {
		if got := b.expert(domain); got != want {
			t.Errorf("expert of %s is %q: want %q", domain, got, want)
		}
	}
	if got := b.one(setMixed); !slices.Equal(got, b.drafters[:1]) {
		t.Errorf("one drafter for mixed texts is %v", got)
	}
}

func TestValidate(t *testing.T) {
	ok := Bench{Repeat: 1, Rounds: 100, Request: tandem.Request{Bounds: tandem.Bounds{Nodes: 2, Depth: 1, Width: 1}}}
	if err := ok.validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Bench){
		"--count is -1":     func(c *Bench) { c.Count = -1 },
		"--repeat is 0":     func(c *Bench) { c.Repeat = 0 },
		"--budget is -1ns":  func(c *Bench) { c.Budget = -1 },
		"--rounds is 5":     func(c *Bench) { c.Rounds = 5 },
		"give --heads FILE": func(c *Bench) { c.Suites = []string{"ways"} },
		"leave --no-draft":  func(c *Bench) { c.Request.Bounds = tandem.Bounds{} },
	} {
		c := ok
		change(&c)
		if err := c.validate(); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want Invalid that says %q", err, want)
		}
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		list []string
		want string // suites, or a part of the error
	}{
		{nil, "[plain]"},
		{[]string{"vote", "length"}, "[length vote]"},
		{[]string{"all"},
			"[plain drafts strategies planner length vote llmcad overlap wall ways sessions pipeline minions cost memory ratio]"},
		{[]string{"votes"}, "--suite votes: want all or some of plain,"},
	} {
		names, err := Choose(c.list)
		got := fmt.Sprint(names)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, c.want) || (err != nil && tandem.KindOf(err) != tandem.Invalid) {
			t.Errorf("%q: want %q", got, c.want)
		}
	}
}
