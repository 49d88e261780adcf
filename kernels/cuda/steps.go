package cuda

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

var _, _, _ = kernels.ChainRunner(&runner{}), kernels.RowGiver(bulk{}), kernels.Chainer(&Device{})

// Chains reports true: all runners run chains.
func (d *Device) Chains() bool { return true }

// mostSpan is the most numbers of a span that comes with a pass: a few for each thread of a block.
const mostSpan = 4 * threads

// mostGifts is how many numbers of rows come with a pass. Further ones, as of a prompt, are written one by one, so that the memory for a
// pass stays small.
const mostGifts = 1 << 18

// place is a row of a buffer.
type place struct {
	buf kernels.Buf
	row int
}

// Give returns what a row of a buffer is copied from when the next pass begins.
func (r bulk) Give(b kernels.Buf, i int) []float32 {
	if !r.has(b, i) {
		return nil
	}
	m := r.mirror(b, i)
	if m.fresh[i] = true; !m.given[i] {
		m.given[i], r.given = true, append(r.given, place{b, i})
	}
	return m.rows[i]
}

// take makes what was given a part of the pass that begins.
func (r *runner) take() {
	n := &r.pass
	n.gives, n.gifts, n.after, n.result = n.gives[:0], n.gifts[:0], nil, 0
	for _, p := range r.given {
		m := &r.mirrors[p.buf]
		if m.given[p.row] = false; len(n.gifts)+len(m.rows[p.row]) > mostGifts {
			m.lent = append(m.lent, p.row)
			continue
		}
		n.give(r.program, p, len(n.gifts))
		n.gifts = append(n.gifts, m.rows[p.row]...)
	}
	r.given, r.further, r.chaining = r.given[:0], nil, false
}

// give adds the spans of a row whose numbers are gifts from packed on; below 0: zeros.
func (n *inputs) give(l *placed, p place, packed int) {
	dim := l.Buffers[p.buf].Dim
	for k := 0; k < dim; k += mostSpan {
		s := cSpan{int64(l.bufs[p.buf]/4 + p.row*dim + k), int64(packed), int64(min(mostSpan, dim-k))}
		if packed >= 0 {
			s.packed += int64(k)
		}
		n.gives = append(n.gives, s)
	}
}

// linked is what a runner has for chains. Results are, for each wanted row, what TopK found, and the state.
type linked struct {
	kernels.Link
	mem                  Memory
	norm, tokens, result int // in mem
	dim                  int // of a state
}

func (c *linked) stride() int { return topRow + c.dim }

// Link makes room for the results of chains.
func (r *runner) Link(l kernels.Link) error {
	if r.closed {
		return errFreed
	}
	c := &linked{Link: l}
	if err := r.checkLink(c); err != nil {
		return err
	}
	c.Zero = slices.Clone(l.Zero) // the rest is copied to the GPU
	var at layout
	c.norm, c.tokens = at.add(4*len(l.Norm)), at.add(4*len(l.Tokens))
	c.result = at.add(4 * c.stride() * r.program.MaxWanted)
	var err error
	if c.mem, err = r.dev.alloc(at.size); err != nil {
		return err
	}
	if r.link != nil {
		r.dev.free(r.link.mem)
	}
	r.link = c
	return r.dev.do(func(g Driver) error {
		return errors.Join(write(g, c.mem.At+Pointer(c.norm), view(l.Norm)), write(g, c.mem.At+Pointer(c.tokens), view(l.Tokens)),
			r.writeOps(g))
	})
}

func (r *runner) checkLink(c *linked) error {
	p, l := r.program, &c.Link
	rows := r.limits.Tokens()
	buffer := func(b kernels.Buf) bool { return b >= 0 && int(b) < len(p.Buffers) && !p.Buffers[b].Wanted }
	if l.From != kernels.None {
		if !buffer(l.From) || !buffer(l.To) || p.Buffers[l.From] != p.Buffers[l.To] {
			return fmt.Errorf("cuda: states of a chain go from buffer %d to buffer %d: want two of all rows and equal width", l.From, l.To)
		}
		c.dim = p.Buffers[l.From].Dim
	}
	switch {
	case !r.resident || len(p.Parts) > 0 || len(p.KV.States) > 0:
		return unsupported("chains of passes with weights that come stage by stage, with parts of attention or with recurrent layers")
	case p.vocabulary == 0 || rows == 0:
		return fmt.Errorf("cuda: a chain of passes without best values or without tokens to look up")
	case l.Tokens != nil && len(l.Tokens) != p.vocabulary || l.Tokens == nil && p.vocabulary > rows:
		return fmt.Errorf("cuda: a chain with tokens for %d of %d logits, and embeddings of %d", len(l.Tokens), p.vocabulary, rows)
	case len(l.Norm) != 0 && len(l.Norm) != c.dim:
		return fmt.Errorf("cuda: a norm of %d numbers for states of %d", len(l.Norm), c.dim)
	case slices.ContainsFunc(l.Zero, func(b kernels.Buf) bool { return !buffer(b) || b == l.From || b == l.To }):
		return fmt.Errorf("cuda: buffers %d are 0 in rows of a chain: want buffers of all rows that hold no states", l.Zero)
	}
	for i, t := range l.Tokens {
		if t < 0 || int(t) >= rows {
			return fmt.Errorf("cuda: logit %d of a chain is token %d, want 0 to %d", i, t, rows-1)
		}
	}
	return nil
}

// stepOps are the operations of enter and leave.
func (r *runner) stepOps() []cOp {
	enter, leave := cOp{out: r.buffers.At}, cOp{}
	if c := r.link; c != nil {
		l, results := r.program, c.mem.At+Pointer(c.result)
		enter.in, enter.ld, enter.dim = results, int32(c.stride()), int32(c.dim)
		if c.Tokens != nil {
			enter.ids = c.mem.At + Pointer(c.tokens)
		}
		leave.ids, leave.out, leave.ld, leave.dim, leave.eps = r.mem.At+Pointer(l.ids), results, enter.ld, enter.dim, c.Eps
		if c.dim > 0 {
			enter.in2, leave.in = r.row(c.To, 0), r.row(c.From, 0)
		}
		if len(c.Norm) > 0 {
			leave.vec = c.mem.At + Pointer(c.norm)
		}
	}
	return []cOp{enter, leave}
}

// Chain runs steps as one graph, and reads all results at once.
func (r *runner) Chain(steps []kernels.ChainStep) error {
	wanted, err := r.checkChain(steps)
	if err != nil {
		return err
	}
	r.take()
	r.chaining, r.started = true, false
	result := 0
	for i, s := range steps {
		n := &r.pass
		if i > 0 {
			n = &inputs{after: s.After, result: result}
			for _, b := range r.link.Zero {
				for row := range s.Rows {
					n.give(r.program, place{b, row}, -1)
				}
			}
			r.further = append(r.further, n)
		}
		n.set(r.program, s.Pass, r.dev.chip.Processors)
		result += len(s.Wanted)
	}
	return r.dev.do(func(g Driver) error {
		if err := r.begin(g); err != nil {
			return err
		}
		if err := r.upload(g, r.stages[0].reads); err != nil {
			return err
		}
		if err := r.launchAll(g, 0, len(r.stages)); err != nil {
			return err
		}
		if wanted == 0 {
			return g.Wait()
		}
		return r.readResults(g, wanted, r.link.stride(), r.link.mem.At+Pointer(r.link.result))
	})
}

// checkChain returns how many wanted rows the steps have.
func (r *runner) checkChain(steps []kernels.ChainStep) (wanted int, err error) {
	switch {
	case r.closed:
		return 0, errFreed
	case r.link == nil || len(steps) == 0:
		return 0, fmt.Errorf("cuda: a chain of %d steps, linked: %v: want Link first, and one at least", len(steps), r.link != nil)
	}
	for i, s := range steps {
		if err := r.limits.Check(s.Pass); err != nil {
			return 0, fmt.Errorf("cuda: step %d of a chain: %w", i, err)
		}
		if i > 0 && len(s.After) != s.Rows || i == 0 && len(s.After) > 0 || len(steps) > 1 && s.TopK != max(1, steps[0].TopK) {
			return 0, fmt.Errorf("cuda: step %d of a chain has %d rows, %d of which follow others, and the %d best values: want all rows "+
				"but those of the first step to do so, and %d values", i, s.Rows, len(s.After), s.TopK, max(1, steps[0].TopK))
		}
		for row, after := range s.After {
			if after < 0 || int(after) >= wanted {
				return 0, fmt.Errorf("cuda: row %d of step %d of a chain follows wanted row %d of %d", row, i, after, wanted)
			}
		}
		if wanted += len(s.Wanted); wanted > r.program.MaxWanted {
			return 0, fmt.Errorf("cuda: %d wanted rows in a chain, want at most %d", wanted, r.program.MaxWanted)
		}
	}
	return wanted, nil
}

// State returns a state of the last chain.
func (r *runner) State(i int) []float32 {
	if r.closed || !r.chaining || i < 0 || i >= r.found || r.link.dim == 0 {
		return nil
	}
	return as[float32](view(r.tops[i*r.stride+topRow:][:r.link.dim]))
}

// startStep launches enter (0) or leave (1) of a step.
func (r *runner) startStep(g Driver, which, blocks, at int) error {
	if blocks == 0 {
		return nil
	}
	op := r.mem.At + Pointer(r.program.ops+(len(r.items)+which)*opBytes)
	return g.Launch([]string{"enter", "leave"}[which], grid(1, blocks, 1, threads, 0), op, r.input.At+Pointer(at*passBytes))
}

// cover returns an extent that covers both.
func (e extent) cover(o extent) extent {
	return extent{max(e.rows, o.rows), max(e.wanted, o.wanted), max(e.pairs, o.pairs), max(e.walks, o.walks), max(e.steps, o.steps),
		min(e.each, o.each), max(e.enters, o.enters)}
}
