package cpu

// #include "tk.h"
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/tandem-llm/tandem/kernels"
)

var _ kernels.Coupler = (*Device)(nil)

// couple is a kernels.Couple of two sets of threads.
type couple struct {
	left, right *Device
	mu          sync.Mutex
	c           *C.tk_couple // nil once closed
}

// Couple implements kernels.Coupler for two devices of this kind.
func (d *Device) Couple(left, right kernels.Device) (kernels.Couple, error) {
	l, ok := left.(*Device)
	r, also := right.(*Device)
	if !ok || !also || l == r {
		return nil, nil
	}
	var code C.int
	c := C.tk_couple_new(&code)
	if c == nil {
		return nil, fmt.Errorf("kernels: a thread for two groups of cores: %w", syscall.Errno(code))
	}
	return &couple{left: l, right: r, c: c}, nil
}

// Layout, NewWeights and NewCache are the left device's.
func (c *couple) Layout(t kernels.Type) kernels.Layout                 { return c.left.Layout(t) }
func (c *couple) NewWeights(p *kernels.Program) (kernels.Store, error) { return c.left.NewWeights(p) }
func (c *couple) NewCache(s kernels.KVShape, pages int) (kernels.Cache, error) {
	return c.left.NewCache(s, pages)
}

// Footprint returns what both halves take.
func (c *couple) Footprint(p, left, right *kernels.Program) (f kernels.Footprint, err error) {
	if f, err = c.left.Footprint(p); err != nil {
		return f, err
	}
	f.Buffers = 0
	for _, half := range []*kernels.Program{left, right} {
		part, err := c.left.Footprint(half)
		if err != nil {
			return f, err
		}
		f.Buffers += part.Buffers
	}
	return f, nil
}

// Close ends the thread that starts the right halves.
func (c *couple) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.c != nil {
		C.tk_couple_free(c.c)
		c.c = nil
	}
}

// coupled is a runner of two halves. The right one's buffers are the left's.
type coupled struct {
	*runner
	right  *runner
	couple *couple
}

// Compile lays out both halves.
func (c *couple) Compile(p, left, right *kernels.Program, w kernels.Weights, cache kernels.Cache) (kernels.Runner, error) {
	same := slices.Equal(left.Buffers, right.Buffers) && slices.Equal(left.Parts, right.Parts) && left.MaxRows == right.MaxRows &&
		left.MaxWanted == right.MaxWanted && left.StageCount() == right.StageCount()
	if !same {
		return nil, errors.New("kernels: two halves of a pass differ in rows, buffers, parts or stages")
	}
	l, err := c.left.compile(left, w, cache, half{whole: p, coupled: true})
	if err != nil {
		return nil, err
	}
	r, err := c.right.compile(right, w, cache, half{whole: p, of: l, coupled: true})
	if err != nil {
		l.Close()
		return nil, err
	}
	return &coupled{l, r, c}, nil
}

// Run runs both halves at the same time.
func (r *coupled) Run(a *kernels.Pass) error {
	if err := r.Start(a); err != nil {
		return err
	}
	r.started = false
	if r.resident() {
		return r.run(0, len(r.bindings))
	}
	for i := range r.bindings {
		if err := r.run(i, i+1); err != nil {
			return err
		}
	}
	return nil
}

// Start gives the pass to both.
func (r *coupled) Start(a *kernels.Pass) error {
	if err := r.runner.Start(a); err != nil {
		return err
	}
	return r.right.Start(a)
}

// Stage runs one stage of both.
func (r *coupled) Stage(i int) error {
	switch {
	case r.mem == nil:
		return errFreed
	case !r.started || i < 0 || i >= len(r.bindings):
		return fmt.Errorf("kernels: stage %d of %d, want one of a pass that is started", i, len(r.bindings))
	}
	r.started = i+1 < len(r.bindings)
	return r.run(i, i+1)
}

// run runs stages [from, to), only one if the weights are not resident.
func (r *coupled) run(from, to int) error {
	if r.resident() {
		for i := 0; i < len(r.bindings) && !r.bound; i++ {
			if err := r.bindBoth(i); err != nil {
				return err
			}
		}
		r.bound = true
	} else {
		if err := r.bindBoth(from); err != nil {
			return err
		}
		defer r.release(from)
	}
	for _, x := range []*runner{r.runner, r.right} {
		x.prog.first, _ = stageOf(x, from)
		_, x.prog.end = stageOf(x, to-1)
	}
	c := r.couple
	for _, mu := range []*sync.Mutex{&c.mu, &c.left.mu, &c.right.mu} {
		mu.Lock()
		defer mu.Unlock()
	}
	if c.c == nil || c.left.c == nil || c.right.c == nil {
		return errClosed
	}
	if code := C.tk_couple_run(c.c, c.left.c, r.prog, c.right.c, r.right.prog); code != 0 {
		return fmt.Errorf("kernels: memory for a pass: %w", syscall.Errno(code))
	}
	return errors.Join(r.compared(from), r.right.compared(from))
}

// bindBoth acquires a stage's weights once for both.
func (r *coupled) bindBoth(i int) error {
	if len(r.bindings[i])+len(r.right.bindings[i]) == 0 {
		return nil
	}
	all, chosen, err := r.acquire(i)
	if err == nil {
		err = errors.Join(r.bindTo(i, all, chosen), r.right.bindTo(i, all, chosen))
	}
	return err
}

func stageOf(r *runner, i int) (from, to C.int) {
	first, end := r.program.stage(i)
	return C.int(first), C.int(end)
}

// Close frees both halves' memory.
func (r *coupled) Close() {
	if r.mem == nil {
		return
	}
	C.tk_share_parts(r.right.prog, nil) // they are the left's
	r.right.Close()
	r.runner.Close()
}
