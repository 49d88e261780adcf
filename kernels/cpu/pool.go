// Package kernels is the arithmetic of tandem on the CPU: packed weight matrices, a thread pool in C,
// and programs, lists of operations planned once for a model and run by one C call per pass.
//
// Every operation is defined in kernels/ref and docs/kernels.md down to the order of each rounding. All
// instruction sets give those bits, and a row's result never depends on the other rows of the pass, on
// the number of threads, or on how work was divided.
package kernels

// #cgo CFLAGS: -O3 -std=c11 -D_GNU_SOURCE -pthread -Wall -Wextra
// #cgo LDFLAGS: -pthread
// #include "tk.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
)

// Supported returns the instruction sets of this machine, worst first.
func Supported() []ISA {
	var all []ISA
	for _, i := range []ISA{Generic, AVX2, AVX512, NEON, NEONDot, NEONI8MM} {
		if C.tk_kernels_of(C.int(i)) != nil {
			all = append(all, i)
		}
	}
	return all
}

// Pool is a set of threads, made in C, that run programs. The caller of Program.Run is one of them.
// Between operations they spin for some tens of microseconds and then sleep; an idle pool uses no time.
// Passes on one pool run one after the other.
type Pool struct {
	mu      sync.Mutex
	c       *C.tk_pool // nil once closed
	threads int
	isa     ISA
}

// NewPool starts threads-1 threads that use the kernels of isa; Auto is the best of this machine.
func NewPool(threads int, isa ISA) (*Pool, error) {
	const limit = 1024
	if threads < 1 || threads > limit {
		return nil, fmt.Errorf("kernels: pool of %d threads, want 1 to %d", threads, limit)
	}
	if isa == Auto {
		all := Supported()
		isa = all[len(all)-1]
	}
	var code C.int
	c := C.tk_pool_new(C.int(threads), C.int(isa), &code)
	if c == nil {
		if err := syscall.Errno(code); err != syscall.ENOTSUP {
			return nil, fmt.Errorf("kernels: starting %d threads: %w", threads, err)
		}
		return nil, fmt.Errorf("kernels: this machine has no %v; it has %v", isa, Supported())
	}
	return &Pool{c: c, threads: threads, isa: isa}, nil
}

// Threads returns the number of threads, the caller's included.
func (p *Pool) Threads() int { return p.threads }

// ISA returns the instruction set in use, never Auto.
func (p *Pool) ISA() ISA { return p.isa }

// Close ends the threads, after the pass that is running. A second Close does nothing.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.c != nil {
		C.tk_pool_free(p.c)
		p.c = nil
	}
}

// quiet returns when no thread of p holds a program.
func (p *Pool) quiet() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.c != nil {
		C.tk_pool_quiet(p.c)
	}
}

var errClosed = errors.New("kernels: the pool is closed")

func (p *Pool) run(prog *C.tk_prog) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.c == nil {
		return errClosed
	}
	if code := C.tk_pool_run(p.c, prog); code != 0 {
		return fmt.Errorf("kernels: memory for a pass: %w", syscall.Errno(code))
	}
	return nil
}
