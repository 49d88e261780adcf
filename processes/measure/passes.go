// Package measure measures passes on this machine: the times that a planner decides by, and how close they
// come to the hardware's limits.
package measure

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
)

// Point is one kind of pass.
type Point struct {
	Rows    int  // rows of a token tree, all with logits; when Prefill, of the prompt
	Context int  // committed positions before them
	Prefill bool // the rows extend the prefix, PieceRows of them in a pass, and the last has logits
	Alike   bool // all rows are the same, so that they use the experts of one
	Chain   bool // each row behind the first has the best token of the one before: engine.Part.Chain
}

// PieceRows is how many rows of a prompt a pass of a verifier has that does nothing else.
const PieceRows = 128

// Wanted returns how many rows have logits.
func (p Point) Wanted() int {
	if p.Prefill {
		return 1
	}
	return p.Rows
}

// Timing is how long passes of one kind took, in order.
type Timing struct {
	Point
	Times   []time.Duration
	Experts int // experts that a pass used on average, counted layer by layer; 0: a model without, or not known
}

// take adds a pass.
func (t *Timing) take(took time.Duration, experts int) {
	n := len(t.Times)
	t.Times = append(t.Times, took)
	t.Experts = (t.Experts*n + experts + n/2) / (n + 1)
}

// Best returns the shortest time, 0 if there is none.
func (t *Timing) Best() time.Duration {
	if len(t.Times) == 0 {
		return 0
	}
	return slices.Min(t.Times)
}

// Median returns the median time.
func (t *Timing) Median() time.Duration { return quantile(t.Times, 0.5) }

// Spread returns the range of the middle eight tenths of the times, as a share of the median.
func (t *Timing) Spread() float64 {
	if len(t.Times) == 0 {
		return 0
	}
	return float64(quantile(t.Times, 0.9)-quantile(t.Times, 0.1)) / float64(t.Median())
}

func quantile[T int64 | float64 | time.Duration](values []T, q float64) T {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	return s[int(q*float64(len(s)-1)+0.5)]
}

// Pages returns the KV pages that measuring the points needs.
func Pages(points []Point) (pages int) {
	seen := map[int]bool{}
	for _, p := range points {
		switch {
		case p.Prefill:
			pages += engine.PagesFor(1, p.Context+p.Rows, 0)
		case p.Alike: // beside a point with the same context
		case !seen[p.Context]:
			seen[p.Context] = true
			pages += engine.PagesFor(1, p.Context, widest(points))
		}
	}
	return pages
}

func widest(points []Point) (rows int) {
	for _, p := range points {
		if !p.Prefill {
			rows = max(rows, p.Rows)
		}
	}
	return rows
}

// Passes runs n rounds of one pass of each kind and returns their times, kinds in order. A first round
// that warms the caches does not count; prompts, which take long and vary little, run in every fourth round. before,
// if not nil, runs before each pass that counts, of a prompt before each piece; last is the time of the latest pass of that kind, or of
// the piece before. The model needs Pages free pages, and passes of as many rows as the widest point. Errors: the model's, Invalid for an
// impossible point, and ctx's once it has ended.
func Passes(ctx context.Context, m *engine.Model, points []Point, n int, before func(i int, last time.Duration) error) ([]Timing, error) {
	r := rig{model: m, points: points, bases: map[int]*engine.Sequence{}}
	defer r.close()
	timings := make([]Timing, len(points))
	last := make([]time.Duration, len(points))
	for round := range n + 1 {
		for i, p := range points {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			timings[i].Point = p
			if p.Prefill && round%4 != 1 {
				continue
			}
			r.before = nil
			if round > 0 && before != nil {
				r.before = func() error {
					if p.Prefill {
						return before(i, r.took)
					}
					return before(i, last[i])
				}
			}
			took, err := r.pass(ctx, p)
			if err != nil {
				return nil, err
			}
			last[i] = took
			if round > 0 {
				timings[i].take(took, r.used)
			}
		}
	}
	return timings, nil
}

// rig holds the sequences from which passes start: one of random tokens for each context.
type rig struct {
	model  *engine.Model
	points []Point
	bases  map[int]*engine.Sequence
	turn   int            // number of the next rows with new tokens: see tree
	into   *Breakdown     // adds up the operations of the passes that are timed; nil: they are not timed
	used   int            // experts of the latest pass that was timed
	likely []tandem.Token // see hear
	before func() error   // runs before each pass that is timed; nil: nothing does
	took   time.Duration  // by the latest pass that was timed
}

func (r *rig) close() {
	for _, s := range r.bases {
		s.Close()
	}
}

// pass runs one pass and leaves everything as it was before.
func (r *rig) pass(ctx context.Context, p Point) (time.Duration, error) {
	if p.Prefill {
		s, err := r.model.NewSequence(p.Context+p.Rows, 0)
		if err != nil {
			return 0, err
		}
		defer s.Close()
		if err := r.extend(ctx, s, p.Context); err != nil {
			return 0, err
		}
		return r.prompt(ctx, s, p.Rows)
	}
	s := r.bases[p.Context]
	if s == nil {
		var err error
		if s, err = r.model.NewSequence(p.Context, max(widest(r.points), r.model.Block().Rows)); err != nil {
			return 0, err
		}
		r.bases[p.Context] = s
		if err := r.extend(ctx, s, p.Context); err != nil {
			return 0, err
		}
	}
	return r.tree(s, p)
}

// prompt extends s by n tokens in passes of PieceRows, whose times it adds up. It counts as one pass.
func (r *rig) prompt(ctx context.Context, s *engine.Sequence, n int) (sum time.Duration, err error) {
	passes := 0
	for end := s.Len() + n; s.Len() < end; passes++ {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		part := engine.Part{Seq: s, Extend: r.tokens(s.Len(), min(end-s.Len(), PieceRows, r.model.MaxRows())), Want: engine.WantTail}
		took, err := r.timed(part)
		if err != nil {
			return 0, err
		}
		sum += took
	}
	if r.into != nil {
		r.into.Passes -= passes - 1
	}
	return sum, nil
}

// tree runs a pass over a binary tree below s, over rows that are all the same, or over a block of a block draft, and drops it again.
// Where experts are streamed each pass has new tokens: the same ones would find their experts in memory.
func (r *rig) tree(s *engine.Sequence, p Point) (time.Duration, error) {
	at, block := s.Len(), r.model.Block()
	if block.Rows > 0 {
		p = Point{Rows: block.Rows, Context: p.Context}
	}
	nodes, parents := r.rows(at, p.Rows), make([]int32, p.Rows)
	if d, ok := r.model.Passes().Streamer(); ok && d.StreamStats().AllExperts > 0 {
		r.turn += p.Rows
		nodes = r.tokens(at+r.turn, p.Rows)
	}
	for i := range parents {
		parents[i] = int32(i+1)/2 - 1 // -1, 0, 0, 1, 1, 2 …
		switch {
		case block.Rows > 0 || p.Chain:
			parents[i] = int32(i) - 1
		case p.Alike:
			nodes[i], parents[i] = nodes[0], -1
		}
	}
	g := engine.Part{Seq: s, Nodes: nodes, Parents: parents, Want: engine.WantTail}
	if p.Chain {
		g.Chain = p.Rows - 1
	}
	took, err := r.timed(g)
	if err != nil {
		return 0, err
	}
	return took, s.Truncate(at)
}

// batch returns a batch of g alone; a draft with states gets rows of which no state is known.
func (r *rig) batch(g engine.Part) []engine.Part {
	if features, _ := r.model.StateWidth(); features > 0 {
		g.States = make([]engine.State, len(g.Extend)+len(g.Nodes)-g.Chain)
	}
	return []engine.Part{g}
}

func (r *rig) timed(g engine.Part) (time.Duration, error) {
	if r.before != nil {
		if err := r.before(); err != nil {
			return 0, err
		}
	}
	batch := r.batch(g)
	if r.into != nil {
		if err := r.model.Passes().TimeOperations(true); err != nil { // from zero on
			return 0, err
		}
	}
	start := time.Now()
	topK := 1
	if r.model.Passes().Work().Experts > 0 {
		topK = likelyEach
	}
	out, err := r.model.Forward(batch, topK)
	took := time.Since(start)
	if r.took = took; err == nil {
		r.used = out.Experts().All()
		r.hear(out)
	}
	if r.into != nil {
		r.into.add(took, r.model.Passes().OperationTimes())
	}
	return took, err
}

// extend fills s with n random tokens.
func (r *rig) extend(ctx context.Context, s *engine.Sequence, n int) error {
	for s.Len() < n {
		if err := ctx.Err(); err != nil {
			return err
		}
		g := engine.Part{Seq: s, Extend: r.tokens(s.Len(), min(n-s.Len(), r.model.MaxRows()))}
		if _, err := r.model.Forward(r.batch(g), 0); err != nil {
			return err
		}
	}
	return nil
}

const (
	likelyEach = 4   // tokens of a row that are candidates for rows of later passes
	mostLikely = 256 // that are kept
)

// hear notes which tokens a model with experts held likely, the latest and likeliest first, each once.
func (r *rig) hear(out *engine.Output) {
	if r.model.Passes().Work().Experts == 0 {
		return
	}
	var heard []tandem.Token
	add := func(t tandem.Token) {
		if len(heard) < mostLikely && !slices.Contains(heard, t) {
			heard = append(heard, t)
		}
	}
	for rank := range likelyEach {
		for i := range out.Len() {
			if ids := out.Top(i).IDs; rank < len(ids) {
				add(tandem.Token(ids[rank]))
			}
		}
	}
	for _, t := range r.likely {
		add(t)
	}
	r.likely = heard
}

// rows returns n tokens for rows to measure. Which experts a pass uses depends on its tokens: of a model with experts, those that it
// held likely in the passes before come first, none twice; random ones where these are too few.
func (r *rig) rows(at, n int) []tandem.Token {
	tokens := r.tokens(at, n)
	copy(tokens, r.likely)
	return tokens
}

// tokens returns n tokens for the positions from at on, the same in every run.
func (r *rig) tokens(at, n int) []tandem.Token {
	tokens := make([]tandem.Token, n)
	for i := range tokens {
		x := uint64(at+i) * 0x9e3779b97f4a7c15 // splitmix64's increment and finaliser
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		tokens[i] = tandem.Token((x ^ x>>27) % uint64(r.model.Config().Vocab))
	}
	return tokens
}
