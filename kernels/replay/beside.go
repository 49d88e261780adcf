package replay

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// Beside returns a device that computes on right, operation by operation, and the same beside it on d. The first result on d that is not
// right's is handed to found, with all that it came from; err says why that does not give right's bits again. A record is valid until
// found returns, since it names the pass. The caller keeps both devices open. Records of recurrent layers, experts and divided attention
// may be incomplete, which err tells.
func Beside(right, d kernels.Device, found func(r *Record, err error)) kernels.Device {
	return &beside{Device: right, d: d, found: found}
}

type beside struct {
	kernels.Device
	d     kernels.Device
	found func(*Record, error)
	done  bool
}

// store is the weights of a program on both devices, and as they came.
type store struct {
	kernels.Store
	d    kernels.Store
	data [][]byte
	row  []int // bytes
}

func (b *beside) NewWeights(p *kernels.Program) (kernels.Store, error) {
	s, of := &store{}, Program{Program: *p}
	var err error
	if s.Store, err = b.Device.NewWeights(of.laidOut(b.Device, true)); err != nil {
		return nil, err
	}
	if s.d, err = b.d.NewWeights(of.laidOut(b.d, true)); err != nil {
		s.Store.Close()
		return nil, err
	}
	for _, w := range p.Weights {
		n := kernels.Rows.Bytes(w.Type, 1, w.Cols)
		s.row, s.data = append(s.row, n), append(s.data, make([]byte, w.AllRows()*n))
	}
	return s, nil
}

func (s *store) Pack(w kernels.W, row int, src []byte) error {
	if err := errors.Join(s.Store.Pack(w, row, src), s.d.Pack(w, row, src)); err != nil {
		return err
	}
	copy(s.data[w][row*s.row[w]:], src)
	return nil
}

func (s *store) Close() {
	s.Store.Close()
	s.d.Close()
}

// cache is a cache on both devices, and what was stored in its cells.
type cache struct {
	kernels.Cache
	d     kernels.Cache
	cells map[place][2][]float32 // keys and values
}

// place is a cell of a layer.
type place struct {
	layer int
	cell  kernels.Cell
}

func (b *beside) NewCache(shape kernels.KVShape, pages int) (kernels.Cache, error) {
	c := &cache{cells: map[place][2][]float32{}}
	var err error
	if c.Cache, err = b.Device.NewCache(shape, pages); err != nil {
		return nil, err
	}
	if c.d, err = b.d.NewCache(shape, pages); err != nil {
		c.Cache.Close()
		return nil, err
	}
	return c, nil
}

func (c *cache) Copy(dst, src []kernels.Cell) {
	c.Cache.Copy(dst, src)
	c.d.Copy(dst, src)
	for i := range dst {
		for layer := range c.Shape().Layers {
			c.cells[place{layer, dst[i]}] = c.cells[place{layer, src[i]}]
		}
	}
}

func (c *cache) CopyStates(dst, src []int32) {
	c.Cache.CopyStates(dst, src)
	c.d.CopyStates(dst, src)
}

func (c *cache) Close() {
	c.Cache.Close()
	c.d.Close()
}

// runner runs a program whose operations are stages of their own.
type runner struct {
	kernels.Runner
	d     kernels.Runner
	of    *beside
	p     *kernels.Program
	store *store
	cache *cache
	pass  *kernels.Pass
	read  []map[kernels.Buf][]float32 // what each operation of this pass has read
}

func (b *beside) Compile(p *kernels.Program, w kernels.Weights, c kernels.Cache) (kernels.Runner, error) {
	r, of := &runner{of: b, p: p}, Program{Program: *p}
	var weights [2]kernels.Weights
	var caches [2]kernels.Cache
	if s, ok := w.(*store); ok {
		r.store, weights = s, [2]kernels.Weights{s.Store, s.d}
	} else if w != nil {
		return nil, fmt.Errorf("replay: weights of %T, want those of this device", w)
	}
	if own, ok := c.(*cache); ok {
		r.cache, caches = own, [2]kernels.Cache{own.Cache, own.d}
	}
	var err error
	if r.Runner, err = b.Device.Compile(of.laidOut(b.Device, true), weights[0], caches[0]); err != nil {
		return nil, err
	}
	if r.d, err = b.d.Compile(of.laidOut(b.d, true), weights[1], caches[1]); err != nil {
		r.Runner.Close()
		return nil, err
	}
	return r, nil
}

func (r *runner) Close() {
	r.Runner.Close()
	r.d.Close()
}

func (r *runner) Run(a *kernels.Pass) error {
	err := r.Start(a)
	for i := 0; err == nil && i < r.p.StageCount(); i++ {
		err = r.Stage(i)
	}
	return err
}

func (r *runner) Start(a *kernels.Pass) error {
	r.pass, r.read = a, make([]map[kernels.Buf][]float32, len(r.p.Ops))
	for b := range r.p.Buffers { // what the caller has written
		for i := range r.rows(kernels.Buf(b)) {
			copy(r.d.Row(kernels.Buf(b), i), r.Row(kernels.Buf(b), i))
		}
	}
	return errors.Join(r.Runner.Start(a), r.d.Start(a))
}

// rows returns how many rows of a buffer the pass has.
func (r *runner) rows(b kernels.Buf) int {
	if r.p.Buffers[b].Wanted {
		return len(r.pass.Wanted)
	}
	return r.pass.Rows
}

func (r *runner) Stage(stage int) error {
	from, to := r.p.StageOps(stage)
	for i := from; i < to; i++ {
		if err := r.operation(i); err != nil {
			return err
		}
	}
	return nil
}

// operation runs one and compares what it has written.
func (r *runner) operation(i int) error {
	o := r.p.Ops[i]
	u := r.p.Uses(o)
	r.read[i] = map[kernels.Buf][]float32{}
	for _, b := range u.Reads {
		r.read[i][b] = rowsOf(r.Runner, b, r.rows(b))
	}
	if s, stores := o.(kernels.StoreKV); stores && r.cache != nil {
		for row, cell := range r.pass.Store {
			var kv [2][]float32
			for j, b := range []kernels.Buf{s.K, s.V} {
				if b != kernels.None {
					kv[j] = slices.Clone(r.Row(b, row))
				}
			}
			r.cache.cells[place{s.Layer, cell}] = kv
		}
	}
	if err := errors.Join(r.Runner.Stage(i), r.d.Stage(i)); err != nil || r.of.done || u.Writes == kernels.None {
		return err
	}
	want, got := rowsOf(r.Runner, u.Writes, r.rows(u.Writes)), rowsOf(r.d, u.Writes, r.rows(u.Writes))
	if at := differ(want, got); at >= 0 {
		r.of.done = true
		x := r.record(i)
		x.Buf, x.Rows, x.Want, x.Got = u.Writes, r.rows(u.Writes), want, got
		dim := r.p.Buffers[u.Writes].Dim
		x.What = fmt.Sprintf("operation %d, %T: row %d of %d, number %d of %d", i, o, at/dim, x.Rows, at%dim, dim)
		again, err := x.Run(r.of.Device)
		if err == nil && differ(again, want) >= 0 {
			err = fmt.Errorf("replay: %s: the record gives other bits on %v", x.What, r.of.Device.About())
		}
		r.of.found(x, err)
	}
	return nil
}

// record returns operation i with those before it that fill what it multiplies, and all that they read.
func (r *runner) record(i int) *Record {
	first := i
	for need := r.p.Uses(r.p.Ops[i]).Takes; need != kernels.None && first > 0; {
		if first--; r.p.Uses(r.p.Ops[first]).Fills == need {
			need = r.p.Uses(r.p.Ops[first]).Takes
		}
	}
	ops := r.p.Ops[first : i+1]
	x := &Record{On: r.of.d.About(), KV: r.p.KV}
	p := Program{Program: *r.p, Data: make([][]byte, len(r.p.Weights))}
	p.Ops, p.Stages, p.Taps, p.Weights = ops, nil, nil, slices.Clone(r.p.Weights)
	used, layers, known := map[kernels.W]bool{}, map[int]bool{}, map[kernels.Buf]bool{}
	var sets []Event
	for j, o := range ops {
		u := r.p.Uses(o)
		used[u.W], layers[u.Layer] = true, true
		for _, b := range append(slices.Clone(u.Reads), u.Writes) {
			if b == kernels.None || known[b] {
				continue
			}
			if known[b] = true; r.read[first+j][b] != nil {
				sets = append(sets, Event{Program: 1, Buf: b, Numbers: r.read[first+j][b]})
			}
		}
	}
	for w := range p.Weights {
		if used[kernels.W(w)] {
			p.Data[w] = r.store.data[w]
		} else { // keeps its number alone
			p.Weights[w] = kernels.Weight{Name: "not read", Type: kernels.F32, Rows: 1, Cols: 1}
		}
	}
	x.Programs = []Program{{}, p}
	if r.cache != nil {
		x.Pages = r.cache.Pages()
		x.Programs[0], x.Events = r.fill(layers)
	}
	if len(x.Events) == 0 {
		x.Programs = x.Programs[1:]
		for j := range sets {
			sets[j].Program = 0
		}
	}
	x.Events = append(append(x.Events, sets...), Event{Program: len(x.Programs) - 1, Pass: r.pass})
	return x
}

// fill returns a program that stores what the cells of layers hold, and what to do with it.
func (r *runner) fill(layers map[int]bool) (Program, []Event) {
	p := kernels.NewProgram(1, 0)
	p.KV = r.p.KV
	type buffers struct{ k, v kernels.Buf }
	of := map[int]buffers{}
	for i, l := range p.KV.Layers {
		if !layers[i] && !slices.ContainsFunc(p.KV.Layers, func(x kernels.KVLayer) bool { return x.Shared && x.Source == i }) {
			continue
		}
		b := buffers{kernels.None, kernels.None}
		switch {
		case l.Latent > 0:
			if b.v = p.Buf(l.Latent); l.Rotated > 0 {
				b.k = p.Buf(l.Rotated)
			}
		case l.Heads > 0:
			b = buffers{p.Buf(l.Heads * l.Dim), p.Buf(l.Heads * l.Dim)}
		default:
			continue
		}
		of[i] = b
		p.StoreKV(b.k, b.v, i)
	}
	cells := map[kernels.Cell]bool{}
	for at := range r.cache.cells {
		if _, ok := of[at.layer]; ok {
			cells[at.cell] = true
		}
	}
	var events []Event
	for cell := range cells {
		pass := &kernels.Pass{Rows: 1, Pos: []int32{0}, Store: []kernels.Cell{cell}, Pages: []int32{0}, Table: []int32{0},
			Prefix: []int32{0}, Anc: []kernels.Cell{cell}, AncOff: []int32{0}, AncLen: []int32{1}}
		for layer, b := range of {
			kv := r.cache.cells[place{layer, cell}]
			for j, buf := range []kernels.Buf{b.k, b.v} {
				if buf != kernels.None && kv[j] != nil {
					events = append(events, Event{Buf: buf, Numbers: kv[j]})
				}
			}
		}
		events = append(events, Event{Pass: pass})
	}
	return Program{Program: *p}, events
}
