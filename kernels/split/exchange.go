package split

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/tandem-llm/tandem/kernels"
)

// Two devices with memories of their own: each has all weights and the whole cache, and after each divided operation what one has
// computed is handed to the other. Both do everything else, and so both keep the states of delta nets.

func (d *Device) sides() [2]kernels.Device { return [2]kernels.Device{d.left, d.right} }

func (d *Device) exchanged(p *kernels.Program) (sum kernels.Footprint, err error) {
	for i, half := range d.exchanging(p) {
		f, err := d.sides()[i].Footprint(half.p)
		if err != nil {
			return sum, unsupported(err)
		}
		sum = sum.With(f)
	}
	return sum, nil
}

// half is the program of one device. Each of its stages ends with something to hand over; own is the part computed here.
type half struct {
	p   *kernels.Program
	own []own // per stage
}

// own is what one device computes before the two hand over: outputs of buffers, or blocks of parts.
type own struct {
	outs  []outputs
	parts kernels.Parts
	kv    int // heads, of parts
	at    int // stage of the whole program
}

// outputs are columns of a buffer, of which each device computes some.
type outputs struct {
	buf   kernels.Buf
	cols  kernels.Range
	times int // as often, one after the other: for each expert of a row
}

// touched reports whether an operation reads or changes outputs that are still to be handed over.
func (x *own) touched(u kernels.Uses) bool {
	return slices.ContainsFunc(x.outs, func(c outputs) bool { return u.Writes == c.buf || slices.Contains(u.Reads, c.buf) })
}

// exchanging returns the programs of the two devices, with the same stages.
func (d *Device) exchanging(p *kernels.Program) (halves [2]half) {
	for side := range halves {
		q := *p
		q.Ops, q.Stages, q.Weights = nil, nil, nil
		for _, w := range p.Weights {
			w.Layout = d.sides()[side].Layout(w.Type)
			q.Weights = append(q.Weights, w)
		}
		h := half{p: &q}
		begin := func(at int) {
			last := len(q.Ops) - 1
			if n := len(q.Stages); n == 0 || q.Stages[n-1].First <= last {
				if last >= 0 {
					q.Ops[last] = alone(q.Ops[last])
				}
				q.Stages = append(q.Stages, kernels.Stage{Name: p.StageName(at), First: len(q.Ops)})
				h.own = append(h.own, own{parts: kernels.None, at: at})
			}
		}
		for at := range p.StageCount() {
			begin(at)
			from, to := p.StageOps(at)
			for _, o := range p.Ops[from:to] {
				if h.own[len(h.own)-1].touched(p.Uses(o)) {
					begin(at)
				}
				h.own[len(h.own)-1].at = at
				h.add(o, side)
			}
		}
		if n := len(q.Stages); q.Stages[n-1].First == len(q.Ops) {
			q.Stages, h.own = q.Stages[:n-1], h.own[:n-1]
		}
		halves[side] = h
	}
	return halves
}

// alone returns an operation that ends before the next starts: the last one of a stage.
func alone(o kernels.Op) kernels.Op {
	if m, ok := o.(kernels.MatMul); ok {
		m.Concurrent = false
		return m
	}
	if m, ok := o.(kernels.ExpertMatMul); ok {
		m.Concurrent = false
		return m
	}
	return o
}

// add appends a side's part of an operation.
func (h *half) add(o kernels.Op, side int) {
	q, mine := h.p, &h.own[len(h.own)-1]
	switch o := o.(type) {
	case kernels.MatMul:
		r := o.Outputs.Of(q.Weights[o.W].Rows)
		if r.To-r.From <= kernels.GroupRows { // nothing to divide: both compute it
			q.Add(o)
			return
		}
		o.Outputs, o.Side = r, [2]kernels.Side{kernels.Left, kernels.Right}[side]
		q.Add(o)
		mine.outs = append(mine.outs, outputs{o.Out, r, 1})
	case kernels.ExpertMatMul:
		r := kernels.Range{To: q.Weights[o.W].Rows}
		if r.To <= kernels.GroupRows {
			q.Add(o)
			return
		}
		o.Side = [2]kernels.Side{kernels.Left, kernels.Right}[side]
		q.Add(o)
		mine.outs = append(mine.outs, outputs{o.Out, r, q.Routes[o.Route].Used})
	case kernels.Attention:
		kvHeads, _, dim := q.KV.Layers[q.KV.Kept(o.Layer)].Seen()
		q.Parts = append(q.Parts[:len(q.Parts):len(q.Parts)], kernels.PartShape{Heads: o.Heads, Dim: dim})
		mine.parts, mine.kv = kernels.Parts(len(q.Parts)-1), kvHeads
		attend, join := o.Blocks(mine.parts, [2]kernels.Side{kernels.Left, kernels.Right}[side], shared(kvHeads))
		q.Add(attend)
		q.Stages = append(q.Stages, kernels.Stage{Name: "join", First: len(q.Ops)})
		h.own = append(h.own, own{parts: kernels.None, at: mine.at})
		q.Add(join)
	default:
		q.Add(o)
	}
}

// twoStores are the weights of both.
type twoStores struct {
	halves [2]half
	stores [2]kernels.Store
}

func (d *Device) twoStores(p *kernels.Program) (kernels.Store, error) {
	s := &twoStores{halves: d.exchanging(p)}
	for i := range s.stores {
		var err error
		if s.stores[i], err = d.sides()[i].NewWeights(s.halves[i].p); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

func (s *twoStores) Acquire(int, []int32) ([][]byte, error) {
	return nil, errors.New("split: its weights are two devices'")
}
func (s *twoStores) Release(int)    {}
func (s *twoStores) Resident() bool { return true }
func (s *twoStores) Bytes() int64   { return s.stores[0].Bytes() + s.stores[1].Bytes() }
func (s *twoStores) Lock() error    { return errors.Join(s.stores[0].Lock(), s.stores[1].Lock()) }

func (s *twoStores) Pack(w kernels.W, row int, src []byte) error {
	return errors.Join(s.stores[0].Pack(w, row, src), s.stores[1].Pack(w, row, src))
}

func (s *twoStores) Close() {
	for _, x := range s.stores {
		if x != nil {
			x.Close()
		}
	}
}

// twoCaches are the caches of both, which hold the same.
type twoCaches [2]kernels.Cache

func (d *Device) twoCaches(shape kernels.KVShape, pages int) (kernels.Cache, error) {
	var c twoCaches
	for i := range c {
		var err error
		if c[i], err = d.sides()[i].NewCache(shape, pages); err != nil {
			if i > 0 {
				c[0].Close()
			}
			return nil, err
		}
	}
	return c, nil
}

func (c twoCaches) Shape() kernels.KVShape { return c[0].Shape() }
func (c twoCaches) Pages() int             { return c[0].Pages() }
func (c twoCaches) Bytes() int64           { return c[0].Bytes() + c[1].Bytes() }
func (c twoCaches) Lock() error            { return errors.Join(c[0].Lock(), c[1].Lock()) }

func (c twoCaches) Populate(from, to int64) error {
	if from >= c[0].Bytes() {
		return nil // the other's become real with use
	}
	return c[0].Populate(from, min(to, c[0].Bytes()))
}

func (c twoCaches) Copy(dst, src []kernels.Cell) {
	c[0].Copy(dst, src)
	c[1].Copy(dst, src)
}

func (c twoCaches) CopyStates(dst, src []int32) {
	c[0].CopyStates(dst, src)
	c[1].CopyStates(dst, src)
}

func (c twoCaches) Close() {
	c[0].Close()
	c[1].Close()
}

// exchanger runs both halves stage by stage.
type exchanger struct {
	dev     *Device
	halves  [2]half
	runners [2]kernels.Runner
	pass    kernels.Pass
	stage   int
	live    [][]bool        // per stage and buffer: the right device's numbers matter
	lent    []int           // per buffer: so many rows may have been written to by the caller
	parts   []kernels.Range // to hand over
	packed  []float32       // on their way
}

func (d *Device) exchange(p *kernels.Program, w kernels.Weights, c kernels.Cache) (kernels.Runner, error) {
	r := &exchanger{dev: d}
	var stores [2]kernels.Weights
	switch s := w.(type) {
	case *twoStores:
		r.halves, stores = s.halves, [2]kernels.Weights{s.stores[0], s.stores[1]}
	case *kernels.Loan:
		owner, ok := s.Store.(*twoStores)
		if !ok {
			return nil, fmt.Errorf("split: weights borrowed of type %T, want its own", s.Store)
		}
		r.halves = d.exchanging(p)
		for i := range stores {
			var err error
			if stores[i], err = kernels.Borrow(r.halves[i].p, owner.halves[i].p, owner.stores[i], s.From); err != nil {
				return nil, err
			}
		}
	default:
		return nil, fmt.Errorf("split: weights of type %T, want its own", w)
	}
	r.live, r.lent = live(r.halves[1].p), make([]int, len(p.Buffers))
	caches, _ := c.(twoCaches)
	for i := range r.runners {
		var err error
		if r.runners[i], err = d.sides()[i].Compile(r.halves[i].p, stores[i], caches[i]); err != nil {
			r.Close()
			return nil, err
		}
	}
	return r, nil
}

func (r *exchanger) Run(a *kernels.Pass) error {
	if err := r.Start(a); err != nil {
		return err
	}
	return r.until(len(r.halves[0].own))
}

// Start divides the pass.
func (r *exchanger) Start(a *kernels.Pass) error {
	r.pass, r.stage = r.dev.divisions.Load().cut(a, r.pass.Cut), 0
	return errors.Join(of(0, r.runners[0].Start(&r.pass)), of(1, r.runners[1].Start(&r.pass)))
}

func (r *exchanger) Stage(i int) error {
	end := r.stage
	for end < len(r.halves[0].own) && r.halves[0].own[end].at == i {
		end++
	}
	return r.until(end)
}

// of names the device that an error comes from.
func of(side int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("split: the %s device: %w", [2]string{"left", "right"}[side], err)
}

// until runs both halves at the same time, stage by stage, up to one.
func (r *exchanger) until(end int) error {
	if err := r.give(); err != nil {
		return err
	}
	for ; r.stage < end; r.stage++ {
		var errs [2]error
		var wg sync.WaitGroup
		for side, x := range r.runners {
			wg.Go(func() { errs[side] = of(side, x.Stage(r.stage)) })
		}
		wg.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
		if err := errors.Join(r.handOver(0, 1), r.handOver(1, 0)); err != nil {
			return err
		}
	}
	return nil
}

// Row returns the left device's.
func (r *exchanger) Row(b kernels.Buf, i int) []float32 {
	row := r.runners[0].Row(b, i)
	if row != nil {
		r.lent[b] = max(r.lent[b], i+1)
	}
	return row
}

func (r *exchanger) Top(i int) kernels.Top { return r.runners[0].Top(i) }

// Chosen returns the choice of one device: both have chosen the same.
func (r *exchanger) Chosen(of kernels.Route, row int) []int32 {
	for _, x := range r.runners {
		if ids := chosen(x, of, row); ids != nil {
			return ids
		}
	}
	return nil
}

// Part returns nothing: the whole program has no divided attention.
func (r *exchanger) Part(kernels.Parts, int, int, int) kernels.Part { return kernels.Part{} }

func (r *exchanger) Close() {
	for _, x := range r.runners {
		if x != nil {
			x.Close()
		}
	}
}
