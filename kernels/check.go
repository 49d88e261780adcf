package kernels

import (
	"errors"
	"fmt"
	"slices"
)

// Check returns the first mistake in the program, such as an invalid handle or a size that does not fit. A device may still refuse
// a correct program: see Unsupported.
func (p *Program) Check() error {
	if p.MaxRows < 1 || p.MaxRows > 1<<20 || p.MaxWanted < 0 || p.MaxWanted > p.MaxRows {
		return fmt.Errorf("kernels: program of %d rows and %d wanted ones, want 1 to %d rows and no more wanted", p.MaxRows, p.MaxWanted,
			1<<20)
	}
	if len(p.Ops) == 0 {
		return fmt.Errorf("kernels: program without operations")
	}
	if err := p.checkSizes(); err != nil {
		return err
	}
	c := checker{Program: p, sides: map[Parts]AttendBlocks{}, chosen: map[Route]bool{}}
	for i, o := range p.Ops {
		if o.check(&c); c.err != nil {
			return fmt.Errorf("kernels: operation %d, %w", i, c.err)
		}
	}
	return p.checkTaps()
}

// CheckFor is Check for a device that computes by itself, takes weights in one layout only, and runs a Meet only as half of a divided pass.
// It returns an *Unsupported error that names what the device lacks.
func (p *Program) CheckFor(device string, layout Layout, half bool) error {
	for i := range p.Weights {
		if w := &p.Weights[i]; w.Layout != layout && !(w.Lent && w.Layout == Groups16) {
			return &Unsupported{device, fmt.Sprintf("weights in layout %q (weight %q): this device wants %q", w.Layout, w.Name, layout)}
		}
	}
	if !half && slices.Contains(p.Ops, Op(Meet{})) {
		return &Unsupported{device, "meeting of another device"}
	}
	return p.Check()
}

// CacheFor returns c as a device's own type C, for compiling p. Errors: c is of another type, or its shape is not p's. If p has no cache it
// returns the zero C.
func CacheFor[C Cache](p *Program, c Cache) (own C, err error) {
	if len(p.KV.Layers) == 0 {
		return own, nil
	}
	own, ok := c.(C)
	switch {
	case !ok:
		return own, fmt.Errorf("kernels: a KV cache of type %T, want one that this device has made", c)
	case !own.Shape().Equal(p.KV):
		return own, errors.New("kernels: the KV cache is not of the shape that the program wants")
	}
	return own, nil
}

// checkSizes checks everything but operations.
func (p *Program) checkSizes() error {
	for i, b := range p.Buffers {
		if b.Dim < 1 || b.Dim > maxDim {
			return fmt.Errorf("kernels: buffer %d of %d columns, want 1 to %d", i, b.Dim, maxDim)
		}
	}
	for i, a := range p.Activations {
		if a.Dim < 1 || a.Dim > maxDim {
			return fmt.Errorf("kernels: activation %d of %d columns, want 1 to %d", i, a.Dim, maxDim)
		}
	}
	for i := range p.Weights {
		if err := p.Weights[i].check(); err != nil {
			return fmt.Errorf("kernels: weight %d %q: %w", i, p.Weights[i].Name, err)
		}
	}
	for i, s := range p.Parts {
		if s.Heads < 1 || s.Dim < 1 || s.Heads > maxDim || s.Dim > maxDim {
			return fmt.Errorf("kernels: parts %d of %d heads of %d", i, s.Heads, s.Dim)
		}
	}
	for i, r := range p.Routes {
		if r.Used < 1 || r.Used > r.Experts || r.Experts > maxDim {
			return fmt.Errorf("kernels: route %d to %d of %d experts, want 1 to as many as there are", i, r.Used, r.Experts)
		}
		if r.Fixed && r.Used != r.Experts {
			return fmt.Errorf("kernels: route %d of %d experts is fixed, but its rows use %d, want all", i, r.Experts, r.Used)
		}
	}
	for i, s := range p.Stages {
		if i == 0 && s.First != 0 || s.First < 0 || s.First >= len(p.Ops) || i > 0 && s.First <= p.Stages[i-1].First {
			return fmt.Errorf("kernels: stage %d %q begins with operation %d of %d, want 0 for the first and ascending numbers",
				i, s.Name, s.First, len(p.Ops))
		}
	}
	if len(p.KV.Layers) > 0 || len(p.KV.States) > 0 {
		return p.KV.Check()
	}
	return nil
}

func (w *Weight) check() error {
	const limit = 1 << 30
	elems, _ := w.Type.Block()
	switch {
	case elems == 0:
		return fmt.Errorf("no kernels for weights of %v", w.Type)
	case w.Rows < 1 || w.Cols < 1 || w.Rows > limit || w.Cols > limit:
		return fmt.Errorf("matrix of %d outputs and %d inputs, want 1 to %d of each", w.Rows, w.Cols, limit)
	case w.Cols%elems != 0:
		return fmt.Errorf("rows of %d elements in %v, want a multiple of %d", w.Cols, w.Type, elems)
	case w.Experts < 0 || w.Experts > maxDim:
		return fmt.Errorf("%d experts, want 1 to %d, or 0 for a plain matrix", w.Experts, maxDim)
	case w.Layout != Rows && w.Layout != Groups16 && w.Layout != Groups32:
		return fmt.Errorf("unknown layout %q, want %s, %s or %s", w.Layout, Rows, Groups16, Groups32)
	}
	return nil
}

// checkTaps checks that exactly one operation writes to each tapped buffer.
func (p *Program) checkTaps() error {
	for i, t := range p.Taps {
		if t.Layer < 0 || t.Buf < 0 || int(t.Buf) >= len(p.Buffers) {
			return fmt.Errorf("kernels: tap %d of layer %d in buffer %d of %d", i, t.Layer, t.Buf, len(p.Buffers))
		}
		writers := 0
		for _, o := range p.Ops {
			if o.uses(p).Writes == t.Buf {
				writers++
			}
		}
		if writers != 1 {
			return fmt.Errorf("kernels: the buffer of tap %d, layer %d, is written to by %d operations, want 1", i, t.Layer, writers)
		}
	}
	return nil
}

// checker checks one operation after the other; the first mistake sticks.
type checker struct {
	*Program
	name  string
	err   error
	sides map[Parts]AttendBlocks // computed since the last join; another device may compute the other side
	// chosen are the routes that an operation has filled.
	chosen map[Route]bool
	given  int // columns of the pass's given embeddings; 0: none yet
}

func (c *checker) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(c.name+": "+format, args...)
	}
}

func (c *checker) want(what string, got, want int) {
	if got != want {
		c.fail("%s is %d, want %d", what, got, want)
	}
}

func (c *checker) sameRows(a, b bool) {
	if a != b {
		c.fail("one side has all rows, the other the wanted rows")
	}
}

// of returns the entry that a handle names; an invalid handle is a mistake.
func of[H ~int, T any](c *checker, what string, all []T, h H) (t T) {
	if h < 0 || int(h) >= len(all) {
		c.fail("%s %d of %d", what, int(h), len(all))
		return t
	}
	return all[h]
}

func (c *checker) buf(b Buf) Buffer     { return of(c, "buffer", c.Buffers, b) }
func (c *checker) act(a Act) Activation { return of(c, "activation", c.Activations, a) }
func (c *checker) weight(w W) Weight    { return of(c, "weight", c.Weights, w) }

func (c *checker) heads(heads, dim int) {
	if heads < 1 || dim < 1 || heads > maxDim || dim > maxDim {
		c.fail("%d heads of %d, want at least 1 of each", heads, dim)
	}
}

// alike checks that an input has the shape of the output, and is another buffer.
func (c *checker) alike(in, out Buf) {
	a, b := c.buf(in), c.buf(out)
	c.want("input's columns", a.Dim, b.Dim)
	c.sameRows(a.Wanted, b.Wanted)
	if in == out {
		c.fail("buffer %d is input and output", int(in))
	}
}

// fed checks that an activation has the shape of the buffer that it is filled from.
func (c *checker) fed(in Buf, out Act) {
	b, a := c.buf(in), c.act(out)
	c.want("output's columns", a.Dim, b.Dim)
	c.sameRows(a.Wanted, b.Wanted)
}
