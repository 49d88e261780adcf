package stream

import (
	"cmp"
	"math"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

const (
	// guessReads is how many guessed parts are read at a time: half of the readers, so that a miss always finds one.
	guessReads = 4
	// leastChance is how likely an expert that is read by a guess must be wanted, as guesses of its rank have been so far.
	leastChance = 0.4
	// recent guesses count for how often guesses are right, and rows of a pass by which that is told.
	recent, judged = 32, 16
	// tokenSlots is for how many tokens each mixture knows what they chose last.
	tokenSlots = 1 << 11
)

// foresight is what is guessed of the choices to come. Its counts are guarded by experts.mu.
type foresight struct {
	choices map[int]*mixture // by stage that chooses
	looking map[int]guess    // by stage that guesses
	guessed []task           // nearest mixture first
	flying  int              // parts that are being read by guesses
	off     bool             // such a read has failed
	tokens  []int32          // of the pass
}

// guess is a route by which a mixture is foretold.
type guess struct {
	of    *mixture
	route kernels.Route
}

// guesses are those of one mixture.
type guesses struct {
	count   kernels.ExpertStats
	ahead   odds // of the router one layer before
	before  odds // of what the same token chose last
	keys    []int32
	last    []uint16 // by slot and rank: what the token of keys chose
	chances []float64
}

// odds are how often a guess of each rank was right, of the recent ones.
type odds struct {
	right []float64
	mean  float64 // of right
	n     int
}

func (o *odds) judge(guessed, chosen []int32) {
	o.right = slices.Grow(o.right, len(guessed))[:len(guessed)]
	o.n, o.mean = min(o.n+1, recent), 0
	for i, g := range guessed {
		hit := 0.0
		if slices.Contains(chosen, g) {
			hit = 1
		}
		o.right[i] += (hit - o.right[i]) / float64(o.n)
		o.mean += o.right[i] / float64(len(guessed))
	}
}

// foretell finds where p, a divided program, chooses and guesses.
func (x *experts) foretell(p *kernels.Program) {
	of := map[kernels.Route]*mixture{}
	for _, m := range x.all {
		of[m.route] = m
		m.keys, m.last, m.chances = make([]int32, tokenSlots), make([]uint16, tokenSlots*m.used), make([]float64, len(m.experts))
		for i := range m.keys {
			m.keys[i] = -1
		}
	}
	x.choices, x.looking = map[int]*mixture{}, map[int]guess{}
	guesses := guessesOf(p)
	for s := range p.StageCount() {
		from, to := p.StageOps(s)
		for i, o := range p.Ops[from:to] {
			c, ok := o.(kernels.ChooseExperts)
			if !ok {
				continue
			}
			if m := of[c.Out]; m != nil {
				x.choices[s] = m
			} else if m := of[guesses[from+i]]; m != nil {
				x.looking[s] = guess{m, c.Out}
			}
		}
	}
}

// begin guesses what a pass of tokens will choose by what they chose before.
func (x *experts) begin(tokens []int32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tokens = append(x.tokens[:0], tokens...)
	for _, t := range x.guessed {
		t.of.drop()
	}
	x.guessed = x.guessed[:0]
	if len(tokens) > judged {
		return // wide passes want almost all
	}
	for _, m := range x.all {
		x.expect(m, &m.before, len(tokens), func(row int) []int32 { return m.remembered(tokens[row]) })
	}
}

// remembered returns what a token chose last, best first; nil: not known.
func (m *mixture) remembered(token int32) (chosen []int32) {
	slot := int(token) & (tokenSlots - 1)
	if m.keys[slot] != token {
		return nil
	}
	for _, e := range m.last[slot*m.used : (slot+1)*m.used] {
		chosen = append(chosen, int32(e))
	}
	return chosen
}

// after learns from a stage of a pass of so many rows that on has computed, and guesses.
func (x *experts) after(stage, rows int, on kernels.RouteReader) {
	m, g := x.choices[stage], x.looking[stage]
	if m == nil && g.of == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if m != nil {
		for row := range min(rows, len(x.tokens)) {
			chosen, token := on.Chosen(m.route, row), x.tokens[row]
			if was := m.remembered(token); was != nil && row < judged {
				m.before.judge(was, chosen)
			}
			slot := int(token) & (tokenSlots - 1)
			m.keys[slot] = token
			for i, e := range chosen {
				m.last[slot*m.used+i] = uint16(e)
			}
		}
		for _, h := range x.looking {
			if h.of == m {
				for row := range min(rows, judged) {
					m.ahead.judge(on.Chosen(h.route, row), on.Chosen(m.route, row))
				}
			}
		}
	}
	if g.of != nil {
		x.expect(g.of, &g.of.ahead, rows, func(row int) []int32 { return on.Chosen(g.route, row) })
	}
}

// expect asks for the experts of a mixture that guesses for the rows of a pass have, as far as such guesses were right lately. All rows
// count alike: a pass computes them all, whatever becomes of them.
func (x *experts) expect(m *mixture, by *odds, rows int, of func(row int) []int32) {
	if x.off || x.closed || len(by.right) == 0 || slices.Max(by.right) < leastChance && rows == 1 {
		return
	}
	clear(m.chances)
	var likely []*expert
	for row := range rows {
		for rank, e := range of(row) {
			if m.chances[e] == 0 {
				likely = append(likely, &m.experts[e])
			}
			m.chances[e] += (1 - m.chances[e]) * by.right[rank]
		}
	}
	slices.SortStableFunc(likely, func(a, b *expert) int { return cmp.Compare(m.chances[b.number], m.chances[a.number]) })
	for _, e := range likely {
		chance := m.chances[e.number]
		if chance < leastChance {
			break
		}
		// what is worth as much is wanted as often: with use p in each pass it is p·halfLife/ln 2
		if e.place == nil && !x.seat(e, chance*halfLife/math.Ln2) {
			continue
		}
		e.guessed = true
		for i, p := range e.parts {
			if p == absent {
				e.parts[i] = asked
				x.guessed = append(x.guessed, task{e, i})
			}
		}
	}
	slices.SortStableFunc(x.guessed, func(a, b task) int { return cmp.Compare(a.of.of.at, b.of.of.at) })
	for range min(len(x.guessed), guessReads-x.flying) {
		x.asking.Signal()
	}
}

// flies notes that a guessed part is being read.
func (x *experts) flies(e *expert) {
	if x.flying++; !e.fresh {
		e.fresh = true
		e.of.count.Guessed++
	}
}

// blind ends guessing.
func (x *experts) blind() {
	x.off = true
	for _, t := range x.guessed {
		t.of.drop()
	}
	x.guessed = nil
}

// drop no longer asks for parts of a guessed expert.
func (e *expert) drop() {
	if e.guessed = false; e.wanted {
		return
	}
	for i, p := range e.parts {
		if p == asked {
			e.parts[i] = absent
		}
	}
	if e.place != nil && e.coming == 0 && !slices.Contains(e.parts, there) {
		e.leave()
	}
}

// settle counts how a mixture's guesses were, and ends them: chosen are the experts that it has chosen.
func (x *experts) settle(m *mixture, chosen []int32) {
	for _, n := range chosen {
		e := &m.experts[n]
		m.count.Used++
		switch {
		case e.fresh:
			m.count.Foretold++
		case !e.whole():
			m.count.Missed++
		}
		e.fresh = false
	}
	for i := range m.experts {
		if e := &m.experts[i]; e.guessed {
			e.drop()
		}
	}
	x.guessed = slices.DeleteFunc(x.guessed, func(t task) bool { return t.of.of == m })
}

// stats returns what each mixture has done.
func (x *experts) stats() (all []kernels.ExpertStats) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, m := range x.all {
		s := m.count
		s.Right = slices.Clone(m.ahead.right)
		all = append(all, s)
	}
	return all
}
