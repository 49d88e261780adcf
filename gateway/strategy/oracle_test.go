package strategy

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
)

// outlook is what every drafter would guess at each place of a text, asked or not.
type outlook struct {
	r     *recorded
	draft *guessed // of the model; nil: there is none
	free  []united // by place: lookup's and recycling's guesses
	rates *rates   // of this text
}

// united is a tree of what several drafters guess, each node with a set of those who guess it.
type united struct {
	tandem.Tree
	by []uint8
}

// The drafters of a node.
const (
	byLookup = 1 << iota
	byRecycling
	byModel
)

// unite adds the nodes of a tree. A node that both have keeps the higher probability.
func (u *united) unite(t tandem.Tree, by uint8) {
	at := make([]int32, t.Len())
	for i := 1; i < t.Len(); i++ {
		at[i] = u.put(at[t.Parents[i]], t.Tokens[i], t.LogProbs[i], by)
	}
}

// put adds one node and returns its place.
func (u *united) put(parent int32, token tandem.Token, logProb float32, by uint8) int32 {
	if i := childOf(u.Tree, parent, token); i >= 0 {
		u.by[i], u.LogProbs[i] = u.by[i]|by, max(u.LogProbs[i], logProb)
		return i
	}
	u.Tokens, u.Parents, u.LogProbs = append(u.Tokens, token), append(u.Parents, parent), append(u.LogProbs, logProb)
	u.by = append(u.by, by)
	return int32(u.Len() - 1)
}

// childOf returns a node's child with that token, -1 if there is none.
func childOf(t tandem.Tree, node int32, token tandem.Token) int32 {
	for i := node + 1; int(i) < t.Len(); i++ {
		if t.Parents[i] == node && t.Tokens[i] == token {
			return i
		}
	}
	return -1
}

func (u united) clone() united {
	return united{tandem.Tree{Tokens: slices.Clone(u.Tokens), Parents: slices.Clone(u.Parents), LogProbs: slices.Clone(u.LogProbs)},
		slices.Clone(u.by)}
}

func rooted() united {
	u := united{tandem.Root(0), []uint8{0}}
	u.LogProbs = []float32{0}
	return u
}

// outlooks looks at texts in their order, on one gateway; each is of a tenant of its own. draft names the model, "": none.
func outlooks(texts []*recorded, draft string) (list []*outlook) {
	chances := map[bool]*spec.RankChances{false: {}, true: {}}
	b := newBox()
	bounds := tandem.Bounds{Nodes: 16, Depth: 15, Width: 8}
	usual := &rates{}
	for _, r := range texts {
		o := &outlook{r: r, draft: r.by(draft)}
		find := r.drafter(lookup, b)
		again := recycler{r, spec.NewSuccessors(), chances[r.temperature > 0], tandem.Hindsight{}}
		for at := range r.text {
			find.follow(at)
			u := rooted()
			u.unite(find.text.Continue(bounds), byLookup)
			u.unite(again.tree(at, tandem.Proposal{Bounds: bounds}), byRecycling)
			o.free = append(o.free, u)
			again.look(at, 1)
			again.take(at, tandem.Root(0))
		}
		o.rates = o.count()
		usual.add(o.rates)
		list = append(list, o)
	}
	for _, o := range list {
		o.rates.usual = usual
	}
	return list
}

// prefixes are sizes of trees, root included, between which the oracle that sees the text chooses.
var prefixes = []int{2, 3, 4, 6, 8, 12, 16}

const (
	mostLag   = 24 // committed tokens that the model has not read: more count as these
	mostChain = 8
)

// guess is a tree that an oracle may have verified: its rows, and how many of its tokens are the text's. Common are the first tokens of the
// model's chain that it has as well.
type guess struct{ rows, held, common int }

// best returns the most that any sequence of ways brings that sees what comes of each: no way, the free drafters' tree at any of several
// sizes, a chain of 1 to 8 tokens of the model, or both; exactly, over (place, tokens that the model has not read).
func (o *outlook) best(b *box) (sum tally) {
	n := len(o.r.text)
	held := func(t tandem.Tree, at int) int { return min(spec.Held(t, o.r.text[at:]), n-at-1) }
	took := make([][mostLag + 1]float64, n+mostChain+18) // seconds from a place to the end
	verify := func(rows int) float64 { return b.verified.Time(rows).Seconds() }
	for at := n - 1; at >= 0; at-- {
		chain := o.chain(at)
		right := held(chain, at)
		var trees []guess
		for _, w := range prefixes {
			flat := tandem.Plan{Verify: slices.Repeat([]time.Duration{1}, w)}
			t, _ := spec.Cut(o.free[at].Tree, flat, 0)
			if len(trees) > 0 && t.Len() == trees[len(trees)-1].rows || t.Len() < 2 {
				break
			}
			g := guess{rows: t.Len(), held: held(t, at)}
			for node := int32(0); g.common < chain.Len()-1; g.common++ {
				if node = childOf(t, node, chain.Tokens[g.common+1]); node < 0 {
					break
				}
			}
			trees = append(trees, g)
		}
		for lag := 1; lag <= mostLag; lag++ {
			least := b.plain.Seconds() + verify(1) + took[at+1][min(lag+1, mostLag)]
			for _, g := range trees {
				least = min(least, (b.lookup+b.hop).Seconds()+verify(g.rows)+took[at+g.held+1][min(lag+g.held+1, mostLag)])
			}
			drafting := 0.0
			for k := 1; k < chain.Len(); k++ {
				if k == 1 {
					drafting = b.drafted.Time(lag).Seconds()
				} else {
					drafting += b.drafted.Time(1).Seconds()
				}
				h := min(right, k)
				read := min(h, k-1)
				least = min(least, drafting+b.hop.Seconds()+verify(k+1)+took[at+h+1][h+1-read])
				for _, g := range trees {
					all := max(h, g.held)
					least = min(least, drafting+(b.lookup+b.hop+b.merged).Seconds()+verify(g.rows+max(k-g.common, 0))+
						took[at+all+1][min(all+1-read, mostLag)])
				}
			}
			took[at][lag] = least
		}
	}
	return tally{tokens: n, took: time.Duration(took[0][1] * float64(time.Second))}
}

// chain returns the model's likeliest tokens after a place, one after the other.
func (o *outlook) chain(at int) tandem.Tree {
	t := tandem.Root(0)
	if o.draft == nil {
		return t
	}
	n := o.draft.tries[at]
	for i := range int32(mostChain) {
		list := beside
		if n != nil && len(n.list) > 0 {
			list = n.list
		}
		t.Tokens, t.Parents = append(t.Tokens, list[0].Token), append(t.Parents, i)
		n = o.draft.step(n, list[0].Token, o.r)
	}
	return t
}

// rates are how often guesses were right whose parents were, by who guessed them, their rank there and their probability.
type rates struct {
	of    [8][mostRank][32]rate
	next  [32]rate // of the model's first guess, by the probability of the accepted one before it
	usual *rates   // of all texts
}

type rate struct{ seen, right float64 }

const (
	mostRank   = 3
	usualCount = 6 // guesses that the rate of all texts counts for in one
)

func (r *rates) add(o *rates) {
	for i := range r.of {
		for j := range r.of[i] {
			for k := range r.of[i][j] {
				r.of[i][j][k].seen += o.of[i][j][k].seen
				r.of[i][j][k].right += o.of[i][j][k].right
			}
		}
	}
	for k := range r.next {
		r.next[k].seen += o.next[k].seen
		r.next[k].right += o.next[k].right
	}
}

func (c *rate) take(right bool) {
	if c.seen++; right {
		c.right++
	}
}

// chance returns the rate of a guess.
func (r *rates) chance(by uint8, rank int, own float32) float64 {
	bin := tandem.AcceptBin(own)
	return mixed(r.of[by][rank][bin], r.usual.of[by][rank][bin])
}

// after returns the rate of the model's guess after one of its own.
func (r *rates) after(own float32) float64 {
	bin := tandem.AcceptBin(own)
	return mixed(r.next[bin], r.usual.next[bin])
}

// mixed returns the rate of one text where it has many guesses, else that of all.
func mixed(c, all rate) float64 {
	return (c.right + usualCount*(all.right+0.5)/(all.seen+1)) / (c.seen + usualCount)
}

// count returns the rates of the text.
func (o *outlook) count() *rates {
	c := &rates{}
	for at, u := range o.free {
		on := make([]int, u.Len()) // tokens from the root to a node, all right; -1: one is wrong
		for i := 1; i < u.Len(); i++ {
			on[i] = -1
			depth := on[u.Parents[i]]
			if depth < 0 || at+depth >= len(o.r.text) {
				continue
			}
			right := o.r.text[at+depth] == u.Tokens[i]
			if c.of[u.by[i]][0][tandem.AcceptBin(u.LogProbs[i]-u.LogProbs[u.Parents[i]])].take(right); right {
				on[i] = depth + 1
			}
		}
		if o.draft == nil {
			continue
		}
		list := o.draft.tries[at].list
		for rank, g := range list[:min(len(list), mostRank)] {
			c.of[byModel][rank][tandem.AcceptBin(g.LogProb)].take(g.Token == o.r.text[at])
		}
		if at == 0 || len(list) == 0 {
			continue
		}
		if before := o.draft.tries[at-1].list; len(before) > 0 && before[0].Token == o.r.text[at-1] {
			c.next[tandem.AcceptBin(before[0].LogProb)].take(list[0].Token == o.r.text[at])
		}
	}
	return c
}

// fair is the oracle that knows a text's rates, and no outcome before its pass. It chooses each round what brings the most tokens beyond
// those that its time brings otherwise.
type fair struct {
	*outlook
	b      *box
	pace   float64           // tokens per second that time is worth
	behind float64           // how much of the time in which the model will read what it was not told is counted
	asked  [fairClasses]rate // value of rounds with the model, by what the free drafters promise: rounds and sum
	memory map[int]fairRound // with the model, by place
}

const fairClasses = 6

// fairRound is a round as it would be, were the model to read one row first.
type fairRound struct {
	value  float64
	tree   tandem.Tree
	draft  float64        // seconds
	tokens []tandem.Token // that were run, on the model's likeliest path
}

// reach returns the chance of each node by the rates.
func (f *fair) reach(u united, rank []int) []float64 {
	out := make([]float64, u.Len())
	out[0] = 1
	for i := 1; i < u.Len(); i++ {
		by, r := u.by[i], 0
		if rank != nil {
			r = rank[i]
		}
		own := u.LogProbs[i] - u.LogProbs[u.Parents[i]]
		p := 0.0
		if by&byModel != 0 {
			p = f.rates.chance(byModel, r, own)
		}
		if by &= byLookup | byRecycling; by != 0 {
			p = max(p, f.rates.chance(by, 0, own))
		}
		out[i] = p * out[u.Parents[i]]
	}
	return out
}

// cut returns the nodes of a tree that are worth their rows, and what a round with them is worth, in tokens beyond those of its time.
func (f *fair) cut(reach []float64, spent float64) (kept []int, value float64) {
	order := make([]int, len(reach))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order[1:], func(a, b int) int { return cmp.Compare(reach[b], reach[a]) })
	tokens, n := 0.0, 1
	value = math.Inf(-1)
	for i, node := range order {
		tokens += reach[node]
		if v := tokens - f.pace*(spent+f.b.verified.Time(i+1).Seconds()); v > value {
			value, n = v, i+1
		}
	}
	kept = order[:n]
	slices.Sort(kept)
	return kept, value
}

// keep returns the tree of the kept nodes.
func keep(t tandem.Tree, kept []int) (out tandem.Tree) {
	place := make([]int32, t.Len())
	for i, at := range kept {
		place[at] = int32(i)
		out.Tokens, out.Parents = append(out.Tokens, t.Tokens[at]), append(out.Parents, -1)
		if at > 0 {
			out.Parents[i] = place[t.Parents[at]]
		}
	}
	return out
}

// model returns the round with the model at a place, pass by pass: it goes on with its likeliest token as long as a further pass is
// expected to pay.
func (f *fair) model(at int) fairRound {
	if r, is := f.memory[at]; is {
		return r
	}
	u, rank := f.free[at].clone(), make([]int, f.free[at].Len())
	rest := (f.b.hop + f.b.lookup + f.b.merged).Seconds()
	if u.Len() == 1 {
		rest = f.b.hop.Seconds()
	}
	var out fairRound
	n, node, one := f.draft.tries[at], int32(0), f.b.drafted.Time(1).Seconds()
	for out.draft = one; ; out.draft += one {
		list := beside
		if n != nil && len(n.list) > 0 {
			list = n.list
		}
		top := node
		for r, g := range list[:min(len(list), mostRank)] {
			had := u.Len()
			child := u.put(node, g.Token, u.LogProbs[node]+g.LogProb, byModel)
			if u.Len() > had {
				rank = append(rank, r)
			}
			if r == 0 {
				top = child
			}
		}
		reach := f.reach(u, rank)
		var kept []int
		kept, out.value = f.cut(reach, rest+out.draft)
		out.tree = keep(u.Tree, kept)
		hoped := append(slices.Clone(reach), reach[top]*f.rates.after(u.LogProbs[top]-u.LogProbs[node]))
		if _, then := f.cut(hoped, rest+out.draft+one); then <= out.value || len(out.tokens) >= mostChain {
			break
		}
		out.tokens = append(out.tokens, list[0].Token)
		n, node = f.draft.step(n, list[0].Token, f.r), top
	}
	f.memory[at] = out
	return out
}

// class says what the free drafters promise at a place.
func (f *fair) class(at int) int {
	most := 0.0
	if reach := f.reach(f.free[at], nil); len(reach) > 1 {
		most = slices.Max(reach[1:])
	}
	if f.free[at].Len() == 1 {
		return 0
	}
	return 1 + min(int(most*(fairClasses-1)), fairClasses-2)
}

// late returns what it is worth that the model lags behind, in tokens.
func (f *fair) late(lag float64) float64 {
	if f.draft == nil {
		return 0
	}
	return f.pace * (f.b.drafted.Time(int(lag+0.5)) - f.b.drafted.Time(1)).Seconds()
}

// run writes the text and returns what it came to.
func (f *fair) run() (sum tally) {
	f.memory, f.asked = map[int]fairRound{}, [fairClasses]rate{}
	if f.draft != nil {
		for at := range f.r.text {
			c := &f.asked[f.class(at)]
			c.seen++
			c.right += f.model(at).value
		}
	}
	n, lag := len(f.r.text), 1
	for at := 0; at < n; {
		u := f.free[at]
		kept, value := f.cut(f.reach(u, nil), (f.b.hop + f.b.lookup).Seconds())
		if plain := 1 - f.pace*(f.b.plain+f.b.verified.Time(1)).Seconds(); len(kept) == 1 || plain > value {
			kept, value = []int{0}, plain
		}
		tree, took := keep(u.Tree, kept), f.b.plain
		if len(kept) > 1 {
			took = f.b.hop + f.b.lookup
		}
		expected := 1.0
		for _, i := range kept[1:] {
			expected += f.reach(u, nil)[i]
		}
		c, read := f.asked[f.class(at)], -1
		if c.seen > 0 && c.right/c.seen-f.late(float64(lag)) > value-f.behind*f.late(float64(lag)+expected) {
			m := f.model(at)
			tree, read = m.tree, 0
			for read < len(m.tokens) && at+read < n && m.tokens[read] == f.r.text[at+read] {
				read++
			}
			took = f.b.hop + time.Duration(m.draft*float64(time.Second)) + f.b.drafted.Time(lag) - f.b.drafted.Time(1)
			if u.Len() > 1 {
				took += f.b.lookup + f.b.merged
			}
		}
		held := min(spec.Held(tree, f.r.text[at:]), n-at-1)
		sum.add(tally{tokens: held + 1, rounds: 1, nodes: tree.Len(), took: took + f.b.verified.Time(tree.Len())})
		if at += held + 1; read < 0 {
			lag += held + 1
		} else {
			lag = held + 1 - min(read, held)
		}
		lag = min(lag, mostLag)
	}
	return sum
}

// known returns what a text comes to for who knows its rates, and the pace that follows from them: the best of two prices of lagging
// behind.
func (o *outlook) known(b *box) (best tally) {
	for _, behind := range []float64{0, 0.7} {
		f := fair{outlook: o, b: b, behind: behind, pace: 1 / (b.plain + b.verified.Time(1)).Seconds()}
		for range 3 {
			sum := f.run()
			if best.tokens == 0 || sum.rate() > best.rate() {
				best = sum
			}
			f.pace = sum.rate()
		}
	}
	return best
}
