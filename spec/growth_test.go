package spec

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// drafted is a text and what a draft model that knows its own chances says of it: after each place, and after wrong guesses, some
// candidates with their probabilities. It is the same in every run.
type drafted struct {
	text  []tandem.Token // 1 to 3: the candidate of that rank; 4: none of them
	best  []float64      // probability of the best candidate after each place
	seed  uint64
	sharp float64 // factor on the log-odds that the model states; 1: it knows how often it is right
}

// newDrafted returns a text of which the best candidates are right at about that rate. Sure and unsure places come in runs.
func newDrafted(seed uint64, tokens int, rate, sharp float64) *drafted {
	r := rand.New(rand.NewPCG(seed, 1))
	d := &drafted{seed: seed, sharp: sharp}
	hard := false
	for range tokens {
		if r.Float64() < 0.3 {
			hard = r.Float64() < 2*(1-rate) // 0.5 is the rate of hard places, 1 nearly that of easy ones
		}
		p := 0.97 + 0.03*r.Float64()
		if hard {
			p = 0.15 + 0.7*r.Float64()
		}
		x, token := r.Float64(), tandem.Token(4)
		for rank, c := range ranked(p) {
			if x -= c; x < 0 {
				token = tandem.Token(rank + 1)
				break
			}
		}
		d.text, d.best = append(d.text, token), append(d.best, p)
	}
	return d
}

// ranked returns the probabilities of the three best candidates.
func ranked(best float64) [3]float64 { return [3]float64{best, (1 - best) * 0.5, (1 - best) * 0.2} }

// stated returns the candidates as the draft model states them.
func (d *drafted) stated(best float64) []Candidate {
	var list []Candidate
	all := ranked(best)
	sum := math.Pow((1-best)*0.3, d.sharp)
	for i, p := range all {
		all[i] = math.Pow(p, d.sharp)
		sum += all[i]
	}
	for i, p := range all {
		list = append(list, Candidate{tandem.Token(i + 1), float32(math.Log(p / sum))})
	}
	return list
}

// after returns the candidates after a path below text[:at].
func (d *drafted) after(at int, path []tandem.Token) []Candidate {
	h := d.seed
	for i, t := range path {
		h = (h + uint64(t)) * 0x9e3779b97f4a7c15
		if at+i >= len(d.text) || d.text[at+i] != t { // beside the text
			r := rand.New(rand.NewPCG(h, uint64(at)))
			return d.stated(0.2 + 0.75*r.Float64())
		}
	}
	if at+len(path) >= len(d.text) {
		return nil
	}
	return d.stated(d.best[at+len(path)])
}

// pair is what passes cost.
type pair struct {
	verify, draft []time.Duration // by rows
	rest          time.Duration
}

// measured fills in costs of up to n rows between points, in milliseconds.
func measured(n int, points map[int]float64) []time.Duration {
	var list []tandem.Cost
	for rows, ms := range points {
		list = append(list, tandem.Cost{Rows: rows, Time: time.Duration(ms * 1e6)})
	}
	costs, out := worth.NewCosts(list), []time.Duration(nil)
	for rows := range n {
		out = append(out, costs.Time(rows+1))
	}
	return out
}

// real05 is a target of 1.5 and a draft of 0.5 billion weights on two cores, measured.
var real05 = pair{measured(32, map[int]float64{1: 24, 2: 26.8, 4: 32, 8: 47.5, 16: 88, 32: 184}),
	measured(32, map[int]float64{1: 10.5, 2: 11.9, 4: 13.9, 8: 17.8, 16: 31, 32: 60}), time.Millisecond}

// fixedChain returns the tokens a second of chains of n tokens.
func (c pair) fixedChain(d *drafted, n int) float64 {
	took := time.Duration(0)
	for at := 0; at < len(d.text); {
		took += time.Duration(n)*c.draft[0] + c.verify[n] + c.rest
		for i := 0; i < n && at < len(d.text) && d.text[at] == 1; i++ {
			at++
		}
		at++
	}
	return float64(len(d.text)) / took.Seconds()
}

// knowing returns the tokens a second of chains that end where the text leaves them, or before, whichever is best: no stop can do more.
func (c pair) knowing(d *drafted) float64 {
	least := make([]time.Duration, len(d.text)+1) // from a place to the end
	for at := len(d.text) - 1; at >= 0; at-- {
		least[at] = math.MaxInt64
		for n := 0; at+n < len(d.text) && n < len(c.verify); n++ {
			if t := time.Duration(n)*c.draft[0] + c.verify[n] + c.rest + least[at+n+1]; t < least[at] {
				least[at] = t
			}
			if d.text[at+n] != 1 {
				break
			}
		}
	}
	return float64(len(d.text)) / least[0].Seconds()
}

// fixedTree returns the tokens a second of trees by levels, of so many levels in which so many nodes have children.
func (c pair) fixedTree(d *drafted, depth, width int) float64 {
	p := tandem.Proposal{Bounds: tandem.Bounds{Nodes: len(c.verify), Depth: depth, Width: width}}
	return c.rounds(d, func(at int) (tandem.Tree, time.Duration) {
		return c.tree(d, at, NewGrower(0, p), func(_ Draft, _ time.Duration, n int) int { return n }, func(Row, []Candidate) {})
	}, func(tandem.Tree, []tandem.Token) {})
}

// grown returns the tokens a second of trees that grow by plans whose chances are learned, and the drafting of a round.
func (c pair) grown(d *drafted, bounds tandem.Bounds) (rate float64, spent time.Duration) {
	chances, children := worth.NewCalibration(), NewChildren(nil)
	pass := func(rows int) time.Duration { return c.draft[rows-1] }
	rounds := 0
	rate = c.rounds(d, func(at int) (tandem.Tree, time.Duration) {
		p := tandem.Proposal{Bounds: bounds, Growth: tandem.GrowBest,
			Plan: tandem.Plan{Verify: c.verify[:min(bounds.Nodes, len(c.verify))], Round: c.rest, Accept: chances.Accept()}}
		tree, busy := c.tree(d, at, NewGrower(0, p), func(tree Draft, busy time.Duration, n int) int {
			return children.Rows(tree, p.Plan, busy, pass, n)
		}, func(r Row, list []Candidate) { children.Learn(r, list, p.Plan.Accept) })
		tree, _ = Cut(tree, p.Plan, busy)
		spent, rounds = spent+busy, rounds+1
		return tree, busy
	}, chances.Record)
	return rate, spent / time.Duration(rounds)
}

// rounds returns the tokens a second of a text whose rounds begin with such trees.
func (c pair) rounds(d *drafted, draft func(at int) (tandem.Tree, time.Duration), learn func(tandem.Tree, []tandem.Token)) float64 {
	took := time.Duration(0)
	for at := 0; at < len(d.text); {
		tree, busy := draft(at)
		held := min(Held(tree, d.text[at:]), len(d.text)-at-1)
		took += busy + c.rest + c.verify[tree.Len()-1]
		learn(tree, d.text[at:at+held+1])
		at += held + 1
	}
	return float64(len(d.text)) / took.Seconds()
}

// tree grows a tree below a place, in passes of as many of the pending rows as decided.
func (c pair) tree(d *drafted, at int, g Grower, decide func(Draft, time.Duration, int) int, learn func(Row, []Candidate)) (tandem.Tree,
	time.Duration) {
	busy := time.Duration(0)
	var paths [][]tandem.Token // by row
	for pending := g.Pending(math.MaxInt); len(pending) > 0; pending = g.Pending(math.MaxInt) {
		n := len(pending)
		if pending[0].Depth > 0 {
			if n = decide(g.Draft(), busy, n); n == 0 {
				break
			}
			g.Shorten(n)
		}
		lists := make([][]Candidate, n)
		for i, r := range pending[:n] {
			var path []tandem.Token
			if r.Depth > 0 {
				if r.Parent >= 0 {
					path = slices.Clone(paths[r.Parent])
				}
				path = append(path, r.Token)
				paths = append(paths, path)
			}
			lists[i] = d.after(at, path)
			learn(r, lists[i])
		}
		busy += c.draft[n-1]
		g.Absorb(lists)
	}
	return g.Draft().Tree, busy
}

// TestGrowthByLearnedChances: a dear draft, whose pass takes 0.44 of the target's, as good as good drafts for code and for prose are. Trees
// that grow by what was learned bring more than the best of all fixed chains, which nobody knows beforehand, whether the draft model knows
// how often it is right or is far too sure of itself. A stop that knew the text would bring what the third figure says.
func TestGrowthByLearnedChances(t *testing.T) {
	const texts = 6
	for _, c := range []struct{ rate, sharp, least float64 }{ // least: of the best fixed chain
		{0.88, 1, 1.07}, {0.88, 2.5, 1.07}, {0.7, 1, 1.05}, {0.7, 2.5, 1.05}, {0.5, 1, 1.02}, {0.5, 2.5, 1.02},
	} {
		fixed, knowing, grown, chain := make([]float64, 8), 0.0, 0.0, 0.0
		for seed := range uint64(texts) {
			d := newDrafted(seed, 400, c.rate, c.sharp)
			plain := real05.fixedChain(d, 0)
			for n := range fixed {
				fixed[n] += real05.fixedChain(d, n) / plain / texts
			}
			knowing += real05.knowing(d) / plain / texts
			rate, _ := real05.grown(d, tandem.Bounds{Nodes: 32, Depth: 31, Width: 8})
			grown += rate / plain / texts
			rate, _ = real05.grown(d, tandem.Bounds{Nodes: 32, Depth: 31, Width: 1})
			chain += rate / plain / texts
		}
		best := slices.Max(fixed)
		t.Logf("right %.2f, sharpened by %v: best fixed chain %.3f of plain, trees %.3f, one branch %.3f, a stop that knows %.3f",
			c.rate, c.sharp, best, grown, chain, knowing)
		if grown < c.least*best || chain < 0.95*best {
			t.Errorf("right %.2f, sharpened by %v: trees bring %.3f and one branch %.3f of plain, the best fixed chain %.3f",
				c.rate, c.sharp, grown, chain, best)
		}
	}
}

// TestHopelessDraft: where no candidate is ever right, each round costs the one pass that makes them, and once that is known the target's
// passes have one row.
func TestHopelessDraft(t *testing.T) {
	d := newDrafted(1, 300, 0.5, 1)
	for i := range d.best {
		d.best[i], d.text[i] = 0.03, 4
	}
	rate, spent := real05.grown(d, tandem.Bounds{Nodes: 32, Depth: 31, Width: 8})
	if want := 1 / (real05.draft[0] + real05.verify[0] + real05.rest).Seconds(); spent != real05.draft[0] || rate < 0.99*want {
		t.Errorf("%.2f tokens/s and %v of drafting a round: want %.2f and one pass of one row, %v", rate, spent, want, real05.draft[0])
	}
}

// TestGrowthEndsWhereItNoLongerPays: a target that is read from a disk takes 300 ms for a pass of any width, the draft 12 ms and 1 ms for
// each row. Trees have the best rate of all fixed trees, and do not grow to the bounds.
func TestGrowthEndsWhereItNoLongerPays(t *testing.T) {
	streamed := pair{rest: time.Millisecond}
	for rows := range 256 {
		streamed.verify = append(streamed.verify, 300*time.Millisecond)
		streamed.draft = append(streamed.draft, 12*time.Millisecond+time.Duration(rows+1)*time.Millisecond)
	}
	for _, rate := range []float64{0.88, 0.7, 0.5} {
		d := newDrafted(9, 300, rate, 2.5)
		best, shape := 0.0, tandem.Bounds{}
		for _, width := range []int{1, 4, 8, 12} {
			for _, depth := range []int{1, 3, 4, 5, 6, 8, 11, 14, 18, 22, 31} {
				if r := streamed.fixedTree(d, depth, width); r > best {
					best, shape = r, tandem.Bounds{Nodes: 256, Depth: depth, Width: width}
				}
			}
		}
		got, spent := streamed.grown(d, tandem.StreamedBounds)
		t.Logf("right %.2f: %.2f tokens/s, %v of drafting a round; best fixed tree %v %.2f", rate, got, spent, shape, best)
		if got < 0.95*best {
			t.Errorf("right %.2f: %.2f tokens/s with %v of drafting a round, the fixed tree %v has %.2f", rate, got, spent, shape, best)
		}
	}
}
