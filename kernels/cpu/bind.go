package cpu

// #include "tk.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// binding says which of a stage's weights an operation reads.
type binding struct{ op, weight int }

func (r *runner) resident() bool { return r.weights == nil || r.weights.Resident() }

// bindAll binds every stage's weights, once.
func (r *runner) bindAll() error {
	for i := range r.bindings {
		if r.bound {
			return nil
		}
		if err := r.bind(i); err != nil {
			return err
		}
	}
	r.bound = true
	return nil
}

// bind acquires a stage's weights and tells its operations where they lie.
func (r *runner) bind(i int) error {
	if len(r.bindings[i]) == 0 {
		return nil
	}
	all, chosen, err := r.acquire(i)
	if err != nil {
		return err
	}
	return r.bindTo(i, all, chosen)
}

// acquire returns a stage's weights, and for how many experts those with experts are; -1: for all, in one piece.
func (r *runner) acquire(i int) (all [][]byte, chosen int, err error) {
	list := r.chosenFor(i)
	if all, err = r.weights.Acquire(i, list); err != nil {
		return nil, 0, fmt.Errorf("kernels: weights of %s: %w", r.program.StageName(i), err)
	}
	if list == nil {
		return all, -1, nil
	}
	return all, len(list), nil
}

// release gives back a stage's weights, if the stage has any.
func (r *runner) release(i int) {
	if r.weights != nil && len(r.reads[i]) > 0 {
		r.weights.Release(i)
	}
}

// bindTo tells a stage's operations where its weights lie: see acquire.
func (r *runner) bindTo(i int, all [][]byte, chosen int) error {
	at := make([]int, 0, 8) // per weight of the stage
	n := 0
	for _, w := range r.reads[i] {
		at = append(at, n)
		if n++; chosen >= 0 && r.program.Weights[w].Experts > 0 {
			n += chosen - 1
		}
	}
	if len(all) != n {
		r.weights.Release(i)
		return fmt.Errorf("kernels: %d pieces of the weights of %s, want %d", len(all), r.program.StageName(i), n)
	}
	var sums [][]uint32
	if r.checked != nil {
		sums = r.checked.Sums(i)
	}
	for _, b := range r.bindings[i] {
		if err := r.bindOne(b.op, all[at[b.weight]:], chosen); err != nil {
			r.weights.Release(i)
			return err
		}
		if c := &r.ops[b.op]; sums != nil && c.kind == C.TK_MATMUL {
			c.sums = (*C.uint32_t)(unsafe.SliceData(sums[b.weight]))
		}
	}
	return nil
}

// compared returns an error if a weight that stage i has read was not what its checksums say.
func (r *runner) compared(i int) error {
	op := int(r.prog.wrong) - 1
	if op < 0 {
		return nil
	}
	r.prog.wrong = 0
	return fmt.Errorf("kernels: weights of %s: %w", r.program.StageName(i), r.checked.Wrong(i, r.program.weightOf(op)))
}

// bindOne tells an operation where its weight lies: in the first piece, or with one piece for each chosen expert.
func (r *runner) bindOne(op int, all [][]byte, chosen int) error {
	c, w := &r.ops[op], &r.program.Weights[r.program.weightOf(op)]
	if chosen < 0 || w.Experts == 0 {
		at := all[0]
		if len(at) != w.Bytes() || uintptr(unsafe.Pointer(unsafe.SliceData(at)))%64 != 0 {
			return fmt.Errorf("kernels: weight %q in %d bytes at %p, want %d at a multiple of 64", w.Name, len(at), unsafe.SliceData(at),
				w.Bytes())
		}
		c.w = (*C.uint8_t)(unsafe.Pointer(&at[0]))
		return nil
	}
	c.w = nil
	each := view[*C.uint8_t](r.mem, r.at.each[op], w.Experts)
	for i, b := range all[:chosen] {
		if len(b) != w.Each() {
			return fmt.Errorf("kernels: an expert of weight %q in %d bytes, want %d", w.Name, len(b), w.Each())
		}
		each[i] = (*C.uint8_t)(unsafe.Pointer(&b[0]))
	}
	return nil
}
