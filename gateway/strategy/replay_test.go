package strategy

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/worth"
)

// box is what passes and messages cost in a replay: one table, so that the machine on which the test runs does not count.
type box struct {
	verify     []tandem.Cost
	drafting   []tandem.Cost                          // of the draft model, if it was measured
	row, pass  time.Duration                          // of a draft model's pass: for each row, and besides
	together   [4]float64                             // factor on a draft pass while so many draft models work at once
	lookup     time.Duration                          // a draft by lookup
	plain, hop time.Duration                          // the rest of a plain round, of a drafted one
	merged     time.Duration                          // and what several drafters add
	dear       time.Duration                          // a pass of the dear drafter
	verified   *worth.Costs                           // of verify
	drafted    *worth.Costs                           // of the draft model's passes; nil: as row and pass say
	ranks      map[*Shared]map[bool]*spec.RankChances // what gateways know of recycled guesses: greedy, and sampled
}

// Two machines with two cores, 0.97 b Q8_0 (bench decode --context 256) and the shipped drafts.
var (
	zen4 = newBox(31.3, 33.0, 35.0, 39.5, 48.9, 65.4, 121.9, 230)
	zen5 = newBox(15.1, 16.9, 19.7, 25.4, 32.7, 40.0, 67, 111)
	slow = newBox(36.5, 46, 52, 92, 133, 174, 330, 640) // where wide passes cost much
)

// newBox takes the milliseconds of passes of 1, 2, 4, 8, 12, 16, 32 and 64 rows.
func newBox(ms ...float64) *box {
	b := &box{pass: 200 * time.Microsecond, row: 9 * time.Microsecond, together: [4]float64{1, 1, 2.1, 3.7}, lookup: 30 * time.Microsecond,
		plain: 800 * time.Microsecond, hop: 1200 * time.Microsecond, merged: 450 * time.Microsecond, dear: 8 * time.Millisecond}
	for i, rows := range []int{1, 2, 4, 8, 12, 16, 32, 64}[:len(ms)] {
		b.verify = append(b.verify, tandem.Cost{Rows: rows, Time: time.Duration(ms[i] * 1e6)})
	}
	b.verified = worth.NewCosts(b.verify)
	return b
}

// lookup is the drafter in a replay that has no trie.
const lookup = "lookup"

// dear is a drafter in a replay that knows what the drafter for Python does, with passes that take long.
const dear = "dear"

// replayed is one drafter of a replayed session.
type replayed struct {
	name   string
	of     *recorded
	tries  []*trie // nil: lookup
	places map[*trie]int
	raw    bool // the guesses have the model's own probabilities
	box    *box
	pass   time.Duration // more than other draft models' passes take
	ran    map[*trie]bool
	expect *spec.Children
	base   int // of the text it knows
	text   *spec.Automaton
	again  *recycler // of recycling alone
	recall spec.Recall
}

func (r *recorded) drafter(name string, b *box) *replayed {
	d := &replayed{name: name, of: r, box: b, ran: map[*trie]bool{}, expect: spec.NewChildren(nil)}
	if name == recycling {
		d.again = &recycler{of: r, table: spec.NewSuccessors()}
		return d
	}
	if name == dear {
		name, d.pass = experts[1], b.dear
	}
	if at := slices.IndexFunc(r.of, func(g guessed) bool { return g.drafter == name }); at >= 0 {
		g := &r.of[at]
		d.tries, d.places, d.raw = g.tries, g.places, g.temper == 1
		for i := range g.said.Tokens {
			d.recall.Saw(len(r.prompt)-g.said.Tokens+i, g.said.Hits>>(g.said.Tokens-1-i)&1 == 1)
		}
		return d
	}
	d.text = spec.NewAutomaton()
	for i, t := range r.prompt {
		d.see(i, t)
	}
	return d
}

// see continues lookup's text.
func (d *replayed) see(at int, t tandem.Token) {
	guess := d.text.Continue(tandem.Bounds{Nodes: 2, Depth: 1, Width: 1})
	d.recall.Saw(at, guess.Len() > 1 && guess.Tokens[1] == t)
	if at >= len(d.of.prompt) {
		d.text.Learn(t)
	}
	d.text.Append(t)
}

// follow tells the drafter the text up to base, and returns its hindsight.
func (d *replayed) follow(base int) tandem.Hindsight {
	for ; d.base < base; d.base++ {
		at, t := len(d.of.prompt)+d.base, d.of.text[d.base]
		if d.tries == nil {
			d.see(at, t)
		} else {
			list := d.tries[d.base].list
			d.recall.Saw(at, len(list) > 0 && list[0].Token == t)
		}
	}
	return d.recall.Of(len(d.of.prompt) + base)
}

// propose drafts as a drafter does (drafter.Drafter's advance, Lookup's draft).
func (d *replayed) propose(base int, p tandem.Proposal, atOnce int) tandem.Proposed {
	if d.again != nil {
		tree, _ := spec.Cut(d.again.tree(base, p), p.Plan, d.box.lookup)
		_, depth := tree.Depths()
		return tandem.Proposed{Tree: tree, Nodes: tree.Len(), Depth: depth, Busy: d.box.lookup}
	}
	out := tandem.Proposed{Hindsight: d.follow(base)}
	if d.tries == nil {
		out.Busy = d.box.lookup
		out.Tree, _ = spec.Cut(d.text.Continue(p.Bounds), p.Plan, out.Busy)
	} else {
		out.Tree, out.Busy, out.Passes = d.grow(base, p, d.box.together[min(atOnce, len(d.box.together)-1)])
	}
	out.Nodes = out.Tree.Len()
	_, out.Depth = out.Tree.Depths()
	return out
}

func (d *replayed) grow(base int, p tandem.Proposal, slow float64) (t tandem.Tree, busy time.Duration, passes int) {
	root := tandem.Token(0)
	if all := len(d.of.prompt) + base; base == 0 {
		root = d.of.prompt[all-1]
	} else {
		root = d.of.text[base-1]
	}
	pass := func(rows int) time.Duration {
		if d.box.drafted != nil {
			return d.box.drafted.Time(rows)
		}
		return time.Duration(slow * float64(d.pass+d.box.pass+time.Duration(rows)*d.box.row))
	}
	g := spec.NewGrower(root, p)
	var at []*trie // of the grower's rows
	place := func(r spec.Row) *trie {
		parent := d.tries[base]
		if r.Depth == 0 {
			return parent
		}
		if r.Parent >= 0 {
			parent = at[r.Parent]
		}
		if parent == nil {
			return nil
		}
		i := slices.IndexFunc(parent.list, func(c spec.Candidate) bool { return c.Token == r.Token })
		if i < 0 {
			return nil
		}
		if k, on := d.places[parent]; on && d.of.text[k] == r.Token {
			if k+1 < len(d.tries) {
				return d.tries[k+1]
			}
			return nil
		}
		return parent.next[i]
	}
	for {
		rows := g.Pending(1 << 20)
		if len(rows) == 0 {
			break
		}
		run, cost, nodes := 0, make([]time.Duration, len(rows)+1), make([]*trie, len(rows))
		known := 0 // rows before the first that must be run
		for i, r := range rows {
			if nodes[i] = place(r); nodes[i] == nil || !d.ran[nodes[i]] {
				run++
			} else if run == 0 {
				known++
			}
			cost[i+1] = pass(run)
		}
		if run > 0 && rows[0].Depth == 0 {
			run = d.lacks(base)
		}
		if run > 0 && rows[0].Depth > 0 && len(p.Plan.Verify) > 0 {
			left := known
			if known == 0 {
				left = d.expect.Rows(g.Draft(), p.Plan, busy, func(rows int) time.Duration { return cost[rows] }, len(rows))
			}
			if left == 0 {
				break
			}
			g.Shorten(left)
			rows, nodes, run = rows[:left], nodes[:left], 0
			for _, n := range nodes {
				if n == nil || !d.ran[n] {
					run++
				}
			}
		}
		if run > 0 {
			busy += pass(run)
			passes++
		}
		lists := make([][]spec.Candidate, len(rows))
		for i, n := range nodes {
			if rows[i].Depth > 0 {
				at = append(at, n)
			}
			switch {
			case n != nil && d.raw:
				d.ran[n], lists[i] = true, spec.Temper(n.list, p.Temper)
			case n != nil:
				d.ran[n], lists[i] = true, n.list
			case d.raw:
				lists[i] = spec.Temper(beside, p.Temper)
			}
			d.expect.Learn(rows[i], lists[i], p.Plan.Accept)
		}
		g.Absorb(lists)
	}
	t = g.Draft().Tree
	if len(p.Plan.Verify) > 0 {
		t, _ = spec.Cut(t, p.Plan, busy)
	}
	return t, busy, passes
}

// beside is what a replayed drafter guesses where the recording ends, far beside the text: a guess of usual certainty. No guess there can
// be right, but a drafter does not know that, and goes on.
var beside = []spec.Candidate{{Token: 1 << 28, LogProb: -0.5}, {Token: 1<<28 + 1, LogProb: -2}}

// lacks returns how many tokens before base, and there, the draft model has not read yet.
func (d *replayed) lacks(base int) (n int) {
	if base < len(d.tries) && d.ran[d.tries[base]] {
		return 0
	}
	for n = 1; n <= base && !d.ran[d.tries[base-n]]; n++ {
	}
	return n
}

// read lets the draft model read the text up to base, and returns how long that takes.
func (d *replayed) read(base int) time.Duration {
	n := d.lacks(base)
	for i := range n {
		d.ran[d.tries[base-i]] = true
	}
	return d.box.drafted.Time(n)
}

// tally is what replays came to.
type tally struct {
	tokens, rounds, nodes int
	took                  time.Duration
	prefill               time.Duration // of target and draft models, before the first token
}

func (t tally) rate() float64 { return float64(t.tokens) / t.took.Seconds() }

// fromRequest is the rate with the prefill.
func (t tally) fromRequest() float64 { return float64(t.tokens) / (t.took + t.prefill).Seconds() }

func (t *tally) add(o tally) {
	t.tokens, t.rounds, t.nodes = t.tokens+o.tokens, t.rounds+o.rounds, t.nodes+o.nodes
	t.took, t.prefill = t.took+o.took, t.prefill+o.prefill
}

// every replays all texts, one after the other on one gateway, and returns the sums by class.
func (b *box) every(t testing.TB, texts []*recorded, req tandem.Request, names []string) map[string]*tally {
	rules, err := Rules{}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	shared := NewShared(rules)
	shared.Measured("", b.verify)
	out := map[string]*tally{}
	for _, r := range texts {
		if out[r.class] == nil {
			out[r.class] = &tally{}
		}
		out[r.class].add(b.replay(r, req, shared, names))
	}
	return out
}

var classes = []string{"go", "python", "prose", "hostile", "changing", "copy"}

var everyone = append(slices.Clone(experts), lookup)

// planned is a request for the planner.
func planned() tandem.Request {
	return tandem.Request{Strategy: tandem.StrategyPlanner, Bounds: tandem.DefaultBounds(tandem.StrategyPlanner)}
}

// fixedBest returns the rate of the best fixed choice in each class, plain or one drafter with trees of one shape, and its name.
func (b *box) fixedBest(t testing.TB, texts []*recorded) (best map[string]float64, who map[string]string) {
	best, who = map[string]float64{}, map[string]string{}
	try := func(name string, names []string, shape tandem.Bounds) {
		for class, sum := range b.every(t, texts, tandem.Request{Strategy: tandem.StrategyFixed, Bounds: shape}, names) {
			if sum.rate() > best[class] {
				best[class], who[class] = sum.rate(), name
			}
		}
	}
	try(Plain, nil, tandem.Bounds{})
	for _, d := range everyone {
		for _, nodes := range []int{6, 8, 12} {
			for _, depth := range []int{3, 5, 7} {
				if shape := (tandem.Bounds{Nodes: nodes, Depth: depth, Width: 8}); depth < nodes {
					try(d+" "+shape.String(), []string{d}, shape)
				}
			}
		}
	}
	return best, who
}

// TestPlannerOnRecordedRounds replays recorded texts: the planner with all drafters beside the best fixed choice in each class, and
// beside the planner with every other set of drafters. Wanted are 0.95 (hostile 0.90) and 0.97. The second is not met where one expert
// knows the class, because a text of 96 tokens ends before it is known which one: see docs/measurements/planner.md.
func TestPlannerOnRecordedRounds(t *testing.T) {
	texts := readRecording(t, recording)
	for name, b := range map[string]*box{"Zen 4": zen4, "Zen 5": zen5} {
		plain := b.every(t, texts, tandem.Request{Strategy: tandem.StrategyFixed}, nil)
		fixed, shape := b.fixedBest(t, texts)
		all := b.every(t, texts, planned(), everyone)
		most, set := map[string]float64{}, map[string][]string{}
		for mask := 1; mask < 1<<len(everyone)-1; mask++ {
			var names []string
			for i, d := range everyone {
				if mask>>i&1 == 1 {
					names = append(names, d)
				}
			}
			for class, sum := range b.every(t, texts, planned(), names) {
				if sum.rate() > most[class] {
					most[class], set[class] = sum.rate(), names
				}
			}
		}
		mean := 0.0
		for _, c := range classes {
			sum := all[c]
			overFixed, overSet := sum.rate()/fixed[c], sum.rate()/most[c]
			rounds := float64(sum.rounds)
			t.Logf("%s, %-8s %5.1f/s, %.2f × plain, %.3f × %s, %.3f × planner with %s; %.2f tokens of %.1f nodes a round", name, c,
				sum.rate(), sum.rate()/plain[c].rate(), overFixed, shape[c], overSet, strings.Join(set[c], ", "),
				float64(sum.tokens)/rounds, float64(sum.nodes)/rounds)
			if least := 0.95; overFixed < least {
				t.Errorf("%s, %s: the planner has %.3f of the speed of %s: want %v", name, c, overFixed, shape[c], least)
			}
			mean += math.Log(overSet) / float64(len(classes))
			if least := 0.8; overSet < least { // a class is eight texts in one order: single choices move it by a tenth
				t.Errorf("%s, %s: all drafters have %.3f of the speed of %v: want %v", name, c, overSet, set[c], least)
			}
		}
		if mean = math.Exp(mean); mean < 0.93 {
			t.Errorf("%s: all drafters have %.3f of the speed of the best set of each class: want 0.93", name, mean)
		}
	}
}

// shuffled sums up replays of the texts in several orders, each on a gateway of its own, because what a gateway has learned before a text
// changes single choices.
func (b *box) shuffled(t testing.TB, texts []*recorded, names []string) map[string]*tally {
	sum := map[string]*tally{}
	for order := range uint64(4) {
		list := slices.Clone(texts)
		rand.New(rand.NewPCG(order, 1)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		for class, one := range b.every(t, list, planned(), names) {
			if sum[class] == nil {
				sum[class] = &tally{}
			}
			sum[class].add(*one)
		}
	}
	return sum
}

// TestDearDrafterCostsLittle: a drafter that does not pay, because its passes take long, costs at most 4 % of the speed without it, over
// all classes. Single classes vary by about 2 %, because choices follow from few rounds.
func TestDearDrafterCostsLittle(t *testing.T) {
	texts := readRecording(t, recording)
	for name, b := range map[string]*box{"Zen 4": zen4, "Zen 5": zen5, "slow": slow} {
		without := b.shuffled(t, texts, everyone)
		with := b.shuffled(t, texts, append(slices.Clone(everyone), dear))
		mean := 0.0
		for _, c := range classes {
			ratio := with[c].rate() / without[c].rate()
			t.Logf("%s, %-8s %5.1f/s with it, %5.1f/s without: %.3f", name, c, with[c].rate(), without[c].rate(), ratio)
			if mean += math.Log(ratio) / float64(len(classes)); ratio < 0.93 {
				t.Errorf("%s, %s: a dear drafter leaves %.3f of the speed: want 0.93", name, c, ratio)
			}
		}
		if mean = math.Exp(mean); mean < 0.96 {
			t.Errorf("%s: a dear drafter leaves %.3f of the speed: want 0.96", name, mean)
		}
		t.Logf("%s, all classes: %.3f", name, mean)
	}
}
