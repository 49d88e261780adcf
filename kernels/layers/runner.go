package layers

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// runner runs both halves in turn. A buffer's value is where it was last changed; it is copied to the other side once that needs it.
type runner struct {
	dev     *Device
	program *kernels.Program
	halves  [2]half
	of      [2]kernels.Runner // nil: the side has no operations
	limits  kernels.PassLimits
	stages  []stretch // per piece, in order
	whole   []stretch // neighbouring pieces on one side as one
	given   []given   // buffers that the caller fills
	home    []int     // per buffer: the side that has its value
	both    []bool    // per buffer: both have it
	tops    int       // the side with TopK
	staged  []float32
	pass    kernels.Pass // the far side's: without what only the embedding reads
	rows    [2]int       // of the pass: all, and those with logits
	next    int          // piece to be run
	started bool
	closed  bool
}

// stretch is neighbouring pieces on one side.
type stretch struct {
	side, from, to int           // stages of that half
	at             int           // stage of the whole program; of a stretch of several, of the first
	needs, fills   []kernels.Buf // that come from before it, and that it changes
}

// given is a buffer whose value a program needs from before a pass, and the side that needs it first.
type given struct {
	buf  kernels.Buf
	side int
}

var errClosed = errors.New("layers: the runner is closed")

// Compile makes both halves of p ready. w and c must be of this Device with as many layers on the far one.
func (d *Device) Compile(p *kernels.Program, w kernels.Weights, c kernels.Cache) (kernels.Runner, error) {
	halves, err := d.divide(p)
	if err != nil {
		return nil, err
	}
	for side, h := range halves {
		if !h.empty() {
			if _, err := d.sides()[side].Footprint(h.p); err != nil { // what the device lacks
				return nil, d.of(side, err)
			}
		}
	}
	both, _ := c.(*cache)
	if len(p.KV.Layers) > 0 {
		switch {
		case both == nil:
			return nil, fmt.Errorf("layers: a KV cache of type %T, want one that this device has made", c)
		case !both.shape.Equal(p.KV):
			return nil, errors.New("layers: the KV cache is not of the shape that the program wants")
		case both.layers != d.layers:
			return nil, fmt.Errorf("layers: the KV cache has %d layers on the far device, want %d", both.layers, d.layers)
		}
	}
	r := &runner{dev: d, program: p, halves: halves}
	pages := 0
	if both != nil {
		pages = both.pages
	}
	r.limits = p.PassLimits(pages)
	for side, h := range halves {
		if h.empty() {
			continue
		}
		if err = r.compile(side, w, both); err != nil {
			r.Close()
			return nil, d.of(side, err)
		}
	}
	pieces, err := d.pieces(p)
	if err != nil {
		return nil, err
	}
	r.layOut(pieces)
	return r, nil
}

// compile makes the half of a side ready.
func (r *runner) compile(side int, w kernels.Weights, c *cache) (err error) {
	h := r.halves[side]
	var own kernels.Weights
	switch s := w.(type) {
	case *stores:
		if own = s.of[side]; !slices.Equal(s.halves[side].weights, h.weights) {
			return errors.New("weights of another program")
		}
	case *kernels.Loan:
		if own, err = borrowed(r.program, side, h, s); err != nil {
			return err
		}
	case nil:
	default:
		return &kernels.Unsupported{Device: name, What: fmt.Sprintf("weights of type %T", w)}
	}
	var keys kernels.Cache
	if c != nil && len(h.p.KV.Layers) > 0 {
		keys = c.of[side]
	}
	compiled, err := r.dev.sides()[side].Compile(h.p, own, keys)
	if err == nil {
		r.of[side] = compiled
	}
	return err
}

// layOut decides what runs where, and where buffers are before the first pass: where they are needed or filled first.
func (r *runner) layOut(pieces []piece) {
	p := r.program
	for i, x := range pieces {
		ops := p.Ops[x.from:x.to]
		r.stages = append(r.stages, stretch{x.side, x.as, x.as + 1, x.at, needs(p, ops), fills(p, ops)})
		if i > 0 && pieces[i-1].side == x.side {
			last := &r.whole[len(r.whole)-1]
			last.to++
			continue
		}
		r.whole = append(r.whole, stretch{side: x.side, from: x.as, to: x.as + 1, at: x.at})
	}
	for i, n := 0, 0; i < len(r.whole); i++ {
		w := &r.whole[i]
		from := pieces[n].from
		n += w.to - w.from
		ops := p.Ops[from:pieces[n-1].to]
		w.needs, w.fills = needs(p, ops), fills(p, ops)
	}
	r.home, r.both = make([]int, len(p.Buffers)), make([]bool, len(p.Buffers))
	touched := make([]bool, len(p.Buffers))
	if r.of[near] == nil {
		for b := range r.home {
			r.home[b] = far
		}
	}
	for _, x := range r.stages {
		for _, b := range x.needs {
			if !touched[b] {
				r.given = append(r.given, given{b, x.side})
				r.home[b], touched[b] = x.side, true
			}
		}
		for _, b := range x.fills {
			if !touched[b] {
				r.home[b], touched[b] = x.side, true
			}
		}
	}
	for _, x := range pieces {
		if slices.ContainsFunc(p.Ops[x.from:x.to], func(o kernels.Op) bool { _, ok := o.(kernels.TopK); return ok }) {
			r.tops = x.side
		}
	}
}

// Run runs all stages, crossing to the other side only where it must.
func (r *runner) Run(a *kernels.Pass) error {
	if err := r.Start(a); err != nil {
		return err
	}
	r.started = false
	for _, x := range r.whole {
		if err := r.run(x); err != nil {
			return err
		}
	}
	return nil
}

// Start checks the pass and brings it to both sides, and before that what the caller has written where the last pass left a buffer.
func (r *runner) Start(a *kernels.Pass) error {
	if r.closed {
		return errClosed
	}
	if err := r.limits.Check(a); err != nil {
		return err
	}
	r.started, r.next, r.rows = false, 0, [2]int{a.Rows, len(a.Wanted)}
	clear(r.both)
	for _, g := range r.given {
		if err := r.bring(g.buf, g.side); err != nil {
			return err
		}
	}
	for side, x := range r.of {
		if x == nil {
			continue
		}
		own := a
		if side == far && !slices.ContainsFunc(r.halves[far].p.Ops, func(o kernels.Op) bool { _, ok := o.(kernels.Embed); return ok }) {
			r.pass = *a
			r.pass.Tokens, r.pass.Given = nil, nil
			own = &r.pass
		}
		if err := x.Start(own); err != nil {
			return r.dev.of(side, err)
		}
	}
	r.started = true
	return nil
}

// Stage runs one stage: its pieces on both sides.
func (r *runner) Stage(i int) error {
	switch {
	case r.closed:
		return errClosed
	case !r.started || i < 0 || i >= r.program.StageCount():
		return fmt.Errorf("layers: stage %d of %d, want one of a pass that is started", i, r.program.StageCount())
	}
	r.started = i+1 < r.program.StageCount()
	for ; r.next < len(r.stages) && r.stages[r.next].at == i; r.next++ {
		if err := r.run(r.stages[r.next]); err != nil {
			return err
		}
	}
	return nil
}

// run runs a stretch, with the values that it needs.
func (r *runner) run(x stretch) error {
	for _, b := range x.needs {
		if err := r.bring(b, x.side); err != nil {
			return err
		}
	}
	on := r.of[x.side]
	if s, ok := on.(kernels.StagesRunner); ok {
		if err := s.Stages(x.from, x.to); err != nil {
			return r.dev.of(x.side, err)
		}
	} else {
		for i := x.from; i < x.to; i++ {
			if err := on.Stage(i); err != nil {
				return r.dev.of(x.side, err)
			}
		}
	}
	for _, b := range x.fills {
		r.home[b], r.both[b] = x.side, false
	}
	if x.side == near || r.of[near] == nil {
		return nil
	}
	for _, t := range r.halves[far].p.Taps { // they are read row by row
		if slices.Contains(x.fills, t.Buf) {
			if err := r.bring(t.Buf, near); err != nil {
				return err
			}
		}
	}
	return nil
}

// bring copies a buffer's rows of this pass to a side that has not got them.
func (r *runner) bring(b kernels.Buf, to int) error {
	from := r.home[b]
	if from == to || r.both[b] {
		return nil
	}
	shape := r.program.Buffers[b]
	rows := r.rows[0]
	if shape.Wanted {
		rows = r.rows[1]
	}
	if n := rows * shape.Dim; n > len(r.staged) {
		r.staged = make([]float32, n)
	}
	staged, cols := r.staged[:rows*shape.Dim], kernels.Range{To: shape.Dim}
	if err := kernels.ReadRows(r.of[from], b, rows, cols, staged); err != nil {
		return r.dev.of(from, err)
	}
	if err := kernels.WriteRows(r.of[to], b, rows, cols, staged); err != nil {
		return r.dev.of(to, err)
	}
	r.both[b] = true
	return nil
}

// Row returns a row on the side that has it; where both have it, on the near one, to which the caller may write.
func (r *runner) Row(b kernels.Buf, i int) []float32 {
	if r.closed || b < 0 || int(b) >= len(r.home) {
		return nil
	}
	if r.both[b] {
		r.home[b], r.both[b] = near, false
	}
	return r.of[r.home[b]].Row(b, i)
}

// Top returns what TopK found.
func (r *runner) Top(i int) kernels.Top {
	if r.closed || r.of[r.tops] == nil {
		return kernels.Top{}
	}
	return r.of[r.tops].Top(i)
}

var _ kernels.RouteReader = (*runner)(nil)

// Chosen returns the experts of a row on the side that chose them; nil if that side does not tell.
func (r *runner) Chosen(of kernels.Route, row int) []int32 {
	for side, h := range r.halves {
		for _, o := range h.p.Ops {
			var here bool
			switch o := o.(type) {
			case kernels.ChooseExperts:
				here = o.Out == of
			case kernels.ExpertMatMul: // of a fixed route, which nothing chooses
				here = o.Route == of && of < kernels.Route(len(r.program.Routes)) && r.program.Routes[of].Fixed
			}
			if here && !r.closed {
				on, tells := r.of[side].(kernels.RouteReader)
				if !tells {
					return nil
				}
				return on.Chosen(of, row)
			}
		}
	}
	return nil
}

// Part returns a part on the side whose attention it belongs to.
func (r *runner) Part(p kernels.Parts, row, block, head int) kernels.Part {
	for side, h := range r.halves {
		for _, o := range h.p.Ops {
			if x, ok := o.(kernels.AttendBlocks); ok && x.Out == p && !r.closed {
				return r.of[side].Part(p, row, block, head)
			}
		}
	}
	return kernels.Part{}
}

// Close frees both.
func (r *runner) Close() {
	r.closed = true
	for _, x := range r.of {
		if x != nil {
			x.Close()
		}
	}
}
