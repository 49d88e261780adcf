package cpu

// #include "tk.h"
import "C"

import (
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/kernels"
)

var _ kernels.Timer = (*runner)(nil)

// Time makes passes add up the times of their operations, or stop.
func (r *runner) Time(on bool) error {
	if r.mem == nil {
		return errFreed
	}
	r.dev.quiet() // no thread of the last pass still adds
	r.prog.timed = 0
	r.times.Free()
	threads := r.dev.Threads()
	if !on || len(r.ops) == 0 {
		return nil
	}
	var err error
	if r.times, err = Alloc(threads * len(r.ops) * C.sizeof_tk_time); err != nil {
		r.times = &Memory{}
		return err
	}
	r.prog.times, r.prog.timed = (*C.tk_time)(r.times.at(0)), C.int(threads)
	return nil
}

// Times returns the sums since Time(true).
func (r *runner) Times() (times []kernels.OpTime) {
	if r.mem == nil || r.prog.timed == 0 {
		return nil
	}
	r.dev.quiet()
	threads := int(r.prog.timed)
	all := view[C.tk_time](r.times, 0, threads*len(r.ops))
	for i := 0; i < len(r.ops); i += 1 + int(r.ops[i].chain) {
		kind := r.kind(i)
		at := slices.IndexFunc(times, func(t kernels.OpTime) bool { return t.Kind == kind })
		if at < 0 {
			at = len(times)
			times = append(times, kernels.OpTime{Kind: kind, Busy: make([]time.Duration, threads), Wait: make([]time.Duration, threads)})
		}
		for thread := range threads {
			t := all[thread*len(r.ops)+i]
			times[at].Busy[thread] += time.Duration(t.busy)
			times[at].Wait[thread] += time.Duration(t.wait)
		}
	}
	return times
}

// kind names operation i and those chained to it, each kind once.
func (r *runner) kind(i int) string {
	var names []string
	for _, o := range r.ops[i : i+1+int(r.ops[i].chain)] {
		if name := C.GoString(C.tk_kinds[o.kind].name); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if k := r.ops[i].kind; k == C.TK_MATMUL || k == C.TK_EXPERTS {
		names = append(names[:1], r.program.Weights[r.program.weightOf(i)].Type.String())
		return strings.Join(names, " ")
	}
	return strings.Join(names, "+")
}
