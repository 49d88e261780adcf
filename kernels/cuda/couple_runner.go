package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
)

// coupled is a runner of two halves. Buffers and blocks of attention are memory of the GPU's half that the processor's works in too. All
// else that the GPU's half writes, such as its activations, is the GPU's alone.
type coupled struct {
	couple  *couple
	gpu     *runner
	cpu     *cpu.Half
	stages  int
	started bool
}

var _, _ = kernels.StagesRunner(&coupled{}), kernels.RouteReader(&coupled{})

// Compile lays out both halves.
func (c *couple) Compile(p, left, right *kernels.Program, w kernels.Weights, kv kernels.Cache) (kernels.Runner, error) {
	host, device := right, left
	if !c.gpuLeft {
		host, device = left, right
	}
	weights, err := c.weights(p, w)
	if err != nil {
		return nil, err
	}
	both, err := kernels.CacheFor[*sharedCache](p, kv)
	if err != nil {
		return nil, err
	}
	r := &coupled{couple: c, stages: p.StageCount()}
	var onGPU *cache
	var onHost kernels.Cache
	if both != nil {
		onGPU, onHost = both.gpu, both.Cache
	}
	if r.gpu, err = c.gpu.compile(device, weights, onGPU, true); err != nil {
		return nil, err
	}
	l, mem := r.gpu.program, r.gpu.buffers.Host
	s := cpu.Shared{Flags: mem[l.flags:][:cpu.FlagBytes]}
	for i, b := range l.Buffers {
		var at unsafe.Pointer
		if l.most(b.Wanted) > 0 {
			at = unsafe.Pointer(&mem[l.bufs[i]])
		}
		s.Buffers = append(s.Buffers, at)
	}
	if r.cpu, err = c.cpu.Half(p, host, w, onHost, s); err != nil {
		r.gpu.Close()
		return nil, err
	}
	return r, nil
}

// weights returns w as the GPU's half finds them: they must lie where both see them.
func (c *couple) weights(p *kernels.Program, w kernels.Weights) (kernels.Weights, error) {
	switch s := w.(type) {
	case nil:
		return nil, nil
	case *sharedStore:
		return s.store, nil
	case *kernels.Loan:
		if own, ok := s.Store.(*sharedStore); ok {
			return &kernels.Loan{Borrower: s.Borrower, Owner: s.Owner, Store: own.store, From: s.From}, nil
		}
	}
	return nil, unsupported("weights that lie elsewhere (%T): %s sees those of the couple alone", w, c.gpu.chip.Name)
}

// Start gives the pass to both.
func (r *coupled) Start(a *kernels.Pass) error {
	r.started = false
	if err := errors.Join(r.gpu.Start(a), r.cpu.Start(a)); err != nil {
		return err
	}
	for i := range r.gpu.parts {
		p := &r.gpu.parts[i]
		if err := r.cpu.Lend(kernels.Parts(i), p.mem.Host); err != nil {
			return err
		}
	}
	r.started = true
	return nil
}

// Run runs both halves at the same time.
func (r *coupled) Run(a *kernels.Pass) error {
	if err := r.Start(a); err != nil {
		return err
	}
	return r.Stages(0, r.stages)
}

func (r *coupled) Stage(i int) error { return r.Stages(i, i+1) }

// Stages runs stages [from, to) of both halves.
func (r *coupled) Stages(from, to int) error {
	if !r.started || from < 0 || to <= from || to > r.stages {
		return fmt.Errorf("cuda: stages %d to %d of %d, want some of a pass that is started", from, to-1, r.stages)
	}
	c := r.couple
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errors.New("cuda: the couple is closed")
	}
	r.started = to < r.stages
	r.cpu.Reset(c.patience)
	ended := make(chan error)
	go func() {
		err := r.gpu.Stages(from, to)
		if err != nil {
			r.cpu.Leave(true)
		}
		ended <- err
	}()
	err := r.cpu.Stages(from, to)
	if err != nil {
		r.cpu.Leave(false)
	}
	if err := errors.Join(err, <-ended); err != nil {
		r.started = false
		return err
	}
	return r.met()
}

// met returns an error if a side has waited in vain.
func (r *coupled) met() error {
	here, there, came := r.cpu.Gone()
	if !here && !there {
		return nil
	}
	r.started = false
	return fmt.Errorf("cuda: the processor came to %d meetings of a pass and %s to %d: one waited for %v and gave it up", came[0],
		r.couple.gpu.chip.Name, came[1], r.couple.patience)
}

// Row returns row i of a buffer, which both sides see.
func (r *coupled) Row(b kernels.Buf, i int) []float32 { return r.gpu.Row(b, i) }

// Top returns what the left half has found.
func (r *coupled) Top(i int) kernels.Top {
	if r.couple.gpuLeft {
		return r.gpu.Top(i)
	}
	return r.cpu.Top(i)
}

// Part returns where the result of a block lies.
func (r *coupled) Part(p kernels.Parts, row, block, head int) kernels.Part {
	return r.cpu.Part(p, row, block, head)
}

// Chosen returns what the processor's half has chosen: both have chosen the same.
func (r *coupled) Chosen(of kernels.Route, row int) []int32 { return r.cpu.Chosen(of, row) }

// Close frees both halves' memory.
func (r *coupled) Close() {
	r.cpu.Close()
	r.gpu.Close()
}
