package shape

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"

	"github.com/tandem-llm/tandem"
)

// Sparse is PPD's dynamic sparse tree. Its state is the number of levels that the target guessed behind the last accepted node, which is
// the number of prompt tokens that this node had. Each state has a tree of its own: candidates no deeper than the levels it knows, and
// behind each candidate the prompt tokens that will make the next guesses, more of them where the accepted path will likely end. Plain
// values.
type Sparse struct {
	Way     tandem.SelfDraft `json:"way"`
	States  []State          `json:"states"`  // States[i]: for guesses of i levels, 0 to Way.Levels
	Lengths []float64        `json:"lengths"` // f(T_i): expected tokens of a pass in state i, the target's own included
	Steady  []float64        `json:"steady"`  // how often a round begins in state i, in the long run
	Length  float64          `json:"length"`  // R(T) = Σ Steady[i]·Lengths[i]: expected tokens per pass
}

// State is the tree of one state.
type State struct {
	Shape   Shape  `json:"shape"`
	Prompts []int8 `json:"prompts"` // per node of Shape: prompt tokens behind it
}

// Rows returns the rows of the state's tree: candidates, root included, and members rows for each prompt token.
func (s State) Rows(members int) int {
	n := 0
	for _, p := range s.Prompts {
		n += int(p)
	}
	return s.Shape.Len() + members*n
}

// maker makes sparse trees of one table. A greedy shape begins with the smaller ones, so each state's is made once.
type maker struct {
	rate    Rate
	way     tandem.SelfDraft
	ranks   int
	shapes  []Shape     // by state: all candidates
	chances [][]float64 // of their nodes
}

func newMaker(rate Rate, way tandem.SelfDraft, ranks, rows int) (*maker, error) {
	const op = "sparse tree"
	switch most := tandem.MostPrompts; {
	case way.Levels < 1 || way.Levels > tandem.MostLevels || way.Members < 1 || way.Members > most/way.Levels:
		return nil, tandem.Errorf(op, tandem.Invalid, "%d prompt tokens of %d rows: want 1 to %d, and at most %d rows in all", way.Levels,
			way.Members, tandem.MostLevels, most)
	case ranks < 1 || ranks > tandem.MostCandidates:
		return nil, tandem.Errorf(op, tandem.Invalid, "%d candidates in a level: want 1 to %d", ranks, tandem.MostCandidates)
	case rows <= way.Members:
		return nil, tandem.Errorf(op, tandem.Invalid, "%d rows: want %d or more, for a root with one prompt token", rows, way.Members+1)
	}
	m := &maker{rate: rate, way: way, ranks: ranks}
	for i := range way.Levels + 1 {
		s := Greedy(rate, max(rows/(1+way.Members), 1), i, ranks)
		m.shapes, m.chances = append(m.shapes, s), append(m.chances, s.Chances(rate))
	}
	return m, nil
}

// Dynamic returns the sparse tree with that many candidates in each state, root included, and at most that many rows. Each
// state's candidates are the best by rate (step 1 of PPD, section 5.6.2), each gets all prompt tokens (2), and those that are worth least
// are removed (3). A state whose levels have fewer candidates has more prompt tokens. Errors: Invalid, if rows do not suffice for a
// prompt token behind each candidate.
func Dynamic(rate Rate, way tandem.SelfDraft, ranks, candidates, rows int) (Sparse, error) {
	m, err := newMaker(rate, way, ranks, rows)
	if err != nil {
		return Sparse{}, err
	}
	if most := rows / (1 + way.Members); candidates < 1 || candidates > most {
		return Sparse{}, tandem.Errorf("sparse tree", tandem.Invalid, "%d candidates in %d rows: want 1 to %d, each with a prompt token "+
			"of %d rows", candidates, rows, most, way.Members)
	}
	return m.dynamic(candidates, rows), nil
}

func (m *maker) dynamic(candidates, rows int) Sparse {
	sp := Sparse{Way: m.way, Lengths: m.lengths(candidates)}
	for i, s := range m.shapes {
		s = s.Head(candidates)
		prompts := allot(ends(s.Parents, m.chances[i][:s.Len()]), sp.Lengths, m.way, rows-s.Len(), 1)
		sp.States = append(sp.States, State{s, prompts})
	}
	sp.settle(m.rate)
	return sp
}

// lengths returns f(T_i) of each state's shape with that many candidates.
func (m *maker) lengths(candidates int) []float64 {
	f := make([]float64, len(m.shapes))
	for i, chances := range m.chances {
		f[i] = sum(chances[:min(candidates, len(chances))])
	}
	return f
}

// Split returns the sparse tree of at most that many rows with the split into candidates and prompt rows by which it is longest. Up to
// 64 rows it tries all splits, beyond that every few and then all near the best of them.
func Split(rate Rate, way tandem.SelfDraft, ranks, rows int) (Sparse, error) {
	m, err := newMaker(rate, way, ranks, rows)
	if err != nil {
		return Sparse{}, err
	}
	return m.split(rows), nil
}

func (m *maker) split(rows int) (best Sparse) {
	most := rows / (1 + m.way.Members)
	step := max(most/(1<<5), 1)
	at := 0
	try := func(candidates int) {
		if candidates < 1 || candidates > most {
			return
		}
		if sp := m.dynamic(candidates, rows); sp.Length > best.Length {
			best, at = sp, candidates
		}
	}
	for n := 1; n <= most; n += step {
		try(n)
	}
	for near, n := at, at-step+1; n < near+step; n++ {
		if n != near {
			try(n)
		}
	}
	return best
}

// Time returns the mean time of a pass over all states, by how often rounds begin in each. cost returns the time of a pass by its rows.
func (sp *Sparse) Time(cost func(rows int) time.Duration) time.Duration {
	mean := 0.0
	for i, p := range sp.Steady {
		mean += p * float64(cost(sp.States[i].Rows(sp.Way.Members)))
	}
	return time.Duration(mean)
}

// Static returns the sparse tree of at most that many rows in which every candidate has all prompt tokens, to compare with.
func Static(rate Rate, way tandem.SelfDraft, ranks, rows int) (Sparse, error) {
	m, err := newMaker(rate, way, ranks, rows)
	if err != nil {
		return Sparse{}, err
	}
	candidates := rows / (1 + way.Levels*way.Members)
	if candidates < 1 {
		return Sparse{}, tandem.Errorf("sparse tree", tandem.Invalid, "%d rows: want %d or more, for a root with all prompt tokens", rows,
			1+way.Levels*way.Members)
	}
	return m.dynamic(candidates, candidates*(1+way.Levels*way.Members)), nil
}

// RandomSparse returns Dynamic's tree with random prompt tokens removed in place of those that are worth least, to compare with. One
// at least is kept behind each candidate. Errors: as Dynamic.
func RandomSparse(seed uint64, rate Rate, way tandem.SelfDraft, ranks, candidates, rows int) (Sparse, error) {
	sp, err := Dynamic(rate, way, ranks, candidates, rows)
	if err != nil {
		return Sparse{}, err
	}
	draw := rand.New(rand.NewPCG(seed, 0xa5))
	for i := range sp.States {
		prompts := sp.States[i].Prompts
		var removable []int
		for node := range prompts {
			prompts[node] = int8(way.Levels)
			for range way.Levels - 1 {
				removable = append(removable, node)
			}
		}
		draw.Shuffle(len(removable), func(a, b int) { removable[a], removable[b] = removable[b], removable[a] })
		for ; sp.States[i].Rows(way.Members) > rows; removable = removable[1:] {
			prompts[removable[0]]--
		}
	}
	sp.settle(rate)
	return sp, nil
}

// ends returns the chance that the accepted path ends at each node: its own without its children's. In Proposition 5.6.3 this is p(c):
// the next state is that of the last accepted node, not of those above it.
func ends(parents []int32, chances []float64) []float64 {
	out := make([]float64, len(parents))
	copy(out, chances)
	for i := 1; i < len(out); i++ {
		out[parents[i]] -= chances[i]
	}
	for i := range out {
		out[i] = max(out[i], 0) // rounding, or chances that are no chances
	}
	return out
}

// removal is the last prompt token behind a node.
type removal struct {
	loss float64 // ΔF
	node int32
}

func (r removal) before(q removal) bool {
	return cmp.Or(cmp.Compare(r.loss, q.loss), cmp.Compare(q.node, r.node)) < 0
}

// allot returns the prompt tokens of each node: all at first, then the one whose removal loses least is removed,
// ΔF = p(c)·(f(T_i) − f(T_{i−1})) (Proposition 5.6.3), until they take at most that many rows. keep are kept behind each node. It takes
// O(nodes · tokens · log nodes).
func allot(ends, lengths []float64, way tandem.SelfDraft, rows, keep int) []int8 {
	prompts := make([]int8, len(ends))
	open := queue[removal]{make([]removal, 0, len(ends)), removal.before}
	loss := func(node int32) removal {
		i := prompts[node]
		return removal{ends[node] * (lengths[i] - lengths[i-1]), node}
	}
	for i := range prompts {
		if prompts[i] = int8(way.Levels); way.Levels > keep {
			open.push(loss(int32(i)))
		}
	}
	for used := len(ends) * way.Levels * way.Members; used > rows && len(open.heap) > 0; used -= way.Members {
		node := open.pop().node
		if prompts[node]--; int(prompts[node]) > keep {
			open.push(loss(node))
		}
	}
	return prompts
}

// Allot returns how many prompt tokens each of t's nodes should have, 0 or more; all together take at most rows rows. It is for trees that
// Sparse has not made, such as merged ones. t's LogProbs are the nodes' chances; lengths is Sparse.Lengths.
func Allot(t tandem.Tree, lengths []float64, way tandem.SelfDraft, rows int) []int8 {
	return Place(endsOf(t), lengths, way, rows)
}

// Gain returns how many more tokens the round after t's is expected to bring with counts[i] prompt tokens behind each node i than with
// none. lengths is Sparse.Lengths.
func Gain(t tandem.Tree, lengths []float64, counts []int8) (tokens float64) {
	for i, p := range endsOf(t) {
		tokens += p * (lengths[min(int(counts[i]), len(lengths)-1)] - lengths[0])
	}
	return tokens
}

// endsOf is ends of a tree's guesses, by its LogProbs.
func endsOf(t tandem.Tree) []float64 {
	n := t.Guesses()
	chances := make([]float64, n)
	for i := range chances {
		if chances[i] = 1; t.LogProbs != nil && i > 0 {
			chances[i] = min(math.Exp(float64(t.LogProbs[i])), chances[t.Parents[i]])
		}
	}
	return ends(t.Parents[:n], chances)
}

// Place is Allot where it is known how likely the accepted path ends at each node: ends[i] for node i.
func Place(ends, lengths []float64, way tandem.SelfDraft, rows int) []int8 {
	way.Levels = min(way.Levels, len(lengths)-1)
	return allot(ends, lengths, way, rows, 0)
}

// Prompt returns t with the prompt nodes of counts[i] prompt tokens behind each node i, in place of those it had: one chain for each
// member. It shares no memory with t.
func Prompt(t tandem.Tree, counts []int8, way tandem.SelfDraft) tandem.Tree {
	n := t.Guesses()
	out := tandem.Tree{Tokens: append([]tandem.Token{}, t.Tokens[:n]...), Parents: append([]int32{}, t.Parents[:n]...)}
	if t.LogProbs != nil {
		out.LogProbs = append([]float32{}, t.LogProbs[:n]...)
	}
	for node := range n {
		for member := range way.Members {
			parent := int32(node)
			for level := range int(counts[node]) {
				out.Tokens, out.Parents = append(out.Tokens, tandem.Token(member*way.Levels+level)), append(out.Parents, parent)
				parent = int32(out.Len() - 1)
				if out.LogProbs != nil {
					out.LogProbs = append(out.LogProbs, 0)
				}
			}
		}
	}
	out.Prompts = out.Len() - n
	return out
}

// Tree fills the tree of g's state with its candidates and prompt nodes. LogProbs are the logarithms of the chances by rate; of prompt
// nodes they are 0.
func (sp *Sparse) Tree(root tandem.Token, g tandem.Guess, rate Rate) tandem.Tree {
	st := sp.States[min(len(g.Levels), len(sp.States)-1)]
	t, at := st.Shape.fill(root, g, rate)
	counts := make([]int8, len(at))
	for i, node := range at {
		counts[i] = st.Prompts[node]
	}
	return Prompt(t, counts, sp.Way)
}

// settle computes Steady and Length from the states.
func (sp *Sparse) settle(rate Rate) {
	n := len(sp.States)
	next := make([][]float64, n) // [from][to]: p(s_to | s_from)
	for i, st := range sp.States {
		next[i] = make([]float64, n)
		for node, p := range ends(st.Shape.Parents, st.Shape.Chances(rate)) {
			next[i][st.Prompts[node]] += p
		}
	}
	sp.Steady = steady(next)
	sp.Length = 0
	for i, p := range sp.Steady {
		sp.Length += p * sp.Lengths[i]
	}
}

// steady returns the long-run frequencies of a Markov chain that begins in state 0. It follows the chain that stays where it is in half
// of the steps: its frequencies are the same, and it has no period.
func steady(next [][]float64) []float64 {
	now := make([]float64, len(next))
	now[0] = 1
	for range 1 << 12 {
		then := make([]float64, len(now))
		for i, p := range now {
			then[i] += p / 2
			for j, q := range next[i] {
				then[j] += p * q / 2
			}
		}
		change := 0.0
		for i := range now {
			change += math.Abs(then[i] - now[i])
		}
		if now = then; change < 1e-12 {
			break
		}
	}
	return now
}
