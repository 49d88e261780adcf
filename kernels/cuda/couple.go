package cuda

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
)

// A processor and a GPU that compute the two halves of a pass in the same memory: weights in the processor's order, one cache, buffers and
// blocks of attention are memory of the processor that the GPU reads and writes in place. They meet by flags in that memory (meet in
// src/couple.h, tk_meet in kernels/cpu): each side writes its own alone, and a side that has gone is not waited for.

var _ kernels.Coupler = (*Device)(nil)

// patience is how long a side waits for the other before it gives up the pass.
const patience = 30 * time.Second

// couple is a kernels.Couple of a processor and a GPU.
type couple struct {
	gpu      *Device
	cpu      *cpu.Device
	gpuLeft  bool
	patience time.Duration
	mu       sync.Mutex // held by a pass: two that each had one side would wait for each other
	closed   bool
}

// Couple implements kernels.Coupler for this GPU and a processor, on either side.
func (d *Device) Couple(left, right kernels.Device) (kernels.Couple, error) {
	other := right
	if right == kernels.Device(d) {
		other = left
	}
	host, ok := other.(*cpu.Device)
	if !ok {
		return nil, fmt.Errorf("cuda: %v has no memory that %s reads and writes in place: want a processor", other.About(), d.chip.Name)
	}
	if err := d.chip.shares(); err != nil {
		return nil, err
	}
	return &couple{gpu: d, cpu: host, gpuLeft: other == right, patience: patience}, nil
}

// shares returns an error that names what the GPU lacks for working in the processor's memory at the processor's pace.
func (c Chip) shares() error {
	if c.Integrated {
		return nil
	}
	var lacks []string
	if !c.Pageable {
		lacks = append(lacks, "access through the processor's page tables")
	}
	if !c.Atomics {
		lacks = append(lacks, "atomics on its link to the processor's memory")
	}
	if lacks == nil {
		return nil
	}
	return fmt.Errorf("cuda: %s is not integrated with the processor and lacks %s: each has a copy of weights and cache", c.Name,
		strings.Join(lacks, " and "))
}

// Layout returns the processor's.
func (c *couple) Layout(t kernels.Type) kernels.Layout { return c.cpu.Layout(t) }

// Footprint returns what both halves take of the processor's memory.
func (c *couple) Footprint(p, left, right *kernels.Program) (f kernels.Footprint, err error) {
	if f, err = c.cpu.Footprint(p); err != nil {
		return f, err
	}
	host, gpu := right, left
	if !c.gpuLeft {
		host, gpu = left, right
	}
	beside, err := c.cpu.HalfFootprint(host)
	if err != nil {
		return f, err
	}
	l, err := newPlaced(gpu, 0, true)
	if err != nil {
		return f, err
	}
	f.Buffers = beside + int64(l.both.size+l.size+l.inputBytes(0))
	f.States = max(f.States, int64(p.KV.PlaceStates(line).Size))
	return f, nil
}

// sharedStore is a store whose weights lie in the processor's order, where both see them.
type sharedStore struct{ *store }

// NewWeights reserves memory for the weights of p, once.
func (c *couple) NewWeights(p *kernels.Program) (kernels.Store, error) {
	if err := p.CheckFor(name, kernels.Groups16, true); err != nil {
		return nil, err
	}
	s := &store{dev: c.gpu, program: p, lent: map[kernels.W]Memory{}}
	var l layout
	for i := range p.Weights {
		s.at = append(s.at, l.add(p.Weights[i].Bytes()))
	}
	var err error
	if s.mem, err = c.gpu.allocShared(l.size); err != nil {
		return nil, err
	}
	return &sharedStore{s}, nil
}

// Pack takes rows in GGUF layout.
func (s *sharedStore) Pack(w kernels.W, row int, src []byte) error {
	if w < 0 || int(w) >= len(s.at) || s.mem.Size == 0 {
		return fmt.Errorf("cuda: packing weight %d of %d in %d bytes", int(w), len(s.at), s.mem.Size)
	}
	m := s.program.Weights[w]
	return cpu.Pack(s.mem.Host[s.at[w]:][:m.Bytes()], m, row, src)
}

// sharedCache is a cache that both sides see. Recurrent states are the left's alone, and lie in its order.
type sharedCache struct {
	*cpu.Cache
	gpu     *cache
	gpuLeft bool
}

var _ kernels.HostCache = (*sharedCache)(nil)

// NewCache reserves a cache, once.
func (c *couple) NewCache(shape kernels.KVShape, pages int) (kernels.Cache, error) {
	bytes, err := cpu.CacheBytes(shape, pages)
	if err != nil {
		return nil, err
	}
	gpu, err := c.gpu.newCache(shape, pages)
	if err != nil {
		return nil, err
	}
	if gpu.mem, err = c.gpu.allocShared(max(bytes, gpu.statesAt+gpu.states.Size)); err != nil {
		return nil, err
	}
	host, err := cpu.CacheIn(shape, pages, gpu.mem.Host)
	if err != nil {
		gpu.Close()
		return nil, err
	}
	return &sharedCache{host, gpu, c.gpuLeft}, nil
}

func (c *sharedCache) Bytes() int64              { return int64(c.gpu.mem.Size) }
func (c *sharedCache) Populate(_, _ int64) error { return nil } // memory that a GPU sees is there from the start, and stays
func (c *sharedCache) Lock() error               { return nil }
func (c *sharedCache) Close()                    { c.gpu.Close() }

// Form tells the order of states too, if the GPU has them.
func (c *sharedCache) Form() string {
	if c.gpuLeft && c.gpu.states.Slot > 0 {
		return "cuda states, " + c.Cache.Form()
	}
	return c.Cache.Form()
}

// Slot returns the bytes of a slot.
func (c *sharedCache) Slot(i int32) []byte {
	if !c.gpuLeft {
		return c.Cache.Slot(i)
	}
	n := c.gpu.states.Slot
	return c.gpu.mem.Host[c.gpu.statesAt+int(i)*n:][:n:n]
}

// CopyStates copies slots.
func (c *sharedCache) CopyStates(dst, src []int32) {
	for i := range dst {
		copy(c.Slot(dst[i]), c.Slot(src[i]))
	}
}

// allocShared returns memory of the processor that the GPU sees, released by free.
func (d *Device) allocShared(bytes int) (m Memory, err error) {
	err = d.do(func(g Driver) error {
		m, err = g.AllocShared(max(bytes, 16))
		return err
	})
	return m, err
}

// Close makes later passes fail.
func (c *couple) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// tiledBytes returns what parts of this pass take in the processor's order.
func (r *runner) tiledBytes(p kernels.Parts) int {
	for i := range r.items {
		if c := &r.items[i].c; r.items[i].parts == p {
			group := int(c.heads / c.kvHeads)
			one := round(group*(round(int(c.valueDim), 16)+2), 16)
			return 4 * int(c.kvHeads) * r.pass.rows * r.pass.blocks * one
		}
	}
	return 0
}

// meet lowers a meeting.
func (l *lowering) meet() item {
	return item{kernel: "meet", form: meeting, weight: kernels.None, parts: kernels.None, c: cOp{flags: l.buffers + Pointer(l.flags)}}
}

// meets reports whether the last block of a launch can meet the processor, which saves a launch.
func (l *launch) meets() bool {
	return l.chained || l.tails == 0 && (l.mapped || l.form == attending || l.kernel == "elements")
}

// inOrder makes items read weights in the order in which they lie.
func (l *lowering) inOrder(all []item) []item {
	for i := range all {
		if x := &all[i]; x.weight != kernels.None && l.Weights[x.weight].Layout == kernels.Groups16 {
			x.kernel = strings.TrimSuffix(x.kernel, "_") + "_16"
			if x.form == product || x.form == expertProduct {
				x.kernel, x.mapped = x.kernel+"_", true
			}
		}
	}
	return all
}

// many is how many rows a block of src/matmul.h's multiply_many takes, and manyShared its shared memory.
const (
	many       = 64
	manyShared = 4*(2*8*8*group+many*group+8*many) + 36<<10 + 2*64
)

// multiplyMany gives a launch of products on weights that no cache may hold the kernel that reads each once, if there are several tiles.
func (l *launch) multiplyMany(kernel string, s Shape, rows int) (string, Shape) {
	switch {
	case l.form == expertProduct && rows > 1:
	case l.form == product && rows > 8:
		kernel, s.Grid[0] = l.kernel+strconv.Itoa(many), (rows+many-1)/many
	default:
		return kernel, s
	}
	s.Block, s.Shared = [3]int{group, threads / group, 1}, manyShared
	return kernel, s
}
