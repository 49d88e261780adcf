// Package cpu is tandem's arithmetic on the processor's cores: packed weight matrices, a thread pool in C, and programs run by one C call
// per pass.
//
// Every operation is defined in kernels/ref and docs/kernels.md down to the order of each rounding. All
// instruction sets give those bits, and a row's result never depends on the other rows of the pass, on
// the number of threads, or on how work was divided.
package cpu

// #cgo CFLAGS: -O3 -std=c11 -D_GNU_SOURCE -pthread -Wall -Wextra
// #cgo LDFLAGS: -pthread
// #include "tk.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/tandem-llm/tandem/kernels"
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

// Device is a kernels.Device: a set of threads, made in C, that run programs, and host memory. The caller of Runner.Run
// is one of the threads. Between operations they spin for some tens of microseconds and then sleep; an idle device uses
// no time. Passes on one device run one after the other.
type Device struct {
	mu      sync.Mutex
	c       *C.tk_pool // nil once closed
	threads int
	isa     ISA
	repeat  int // of products and blocks of attention: see Repeat
}

var _ kernels.Threaded = (*Device)(nil)

// New starts threads-1 threads that use the kernels of isa; Auto is the best of this machine. Close ends them.
func New(threads int, isa ISA) (*Device, error) {
	if isa == Auto {
		all := Supported()
		isa = all[len(all)-1]
	}
	ChosenReading()
	c, err := newPool(threads, isa)
	if err != nil {
		return nil, err
	}
	return &Device{c: c, threads: threads, isa: isa}, nil
}

func newPool(threads int, isa ISA) (*C.tk_pool, error) {
	const limit = 1024
	if threads < 1 || threads > limit {
		return nil, fmt.Errorf("kernels: pool of %d threads, want 1 to %d", threads, limit)
	}
	var code C.int
	c := C.tk_pool_new(C.int(threads), C.int(isa), &code)
	if c == nil {
		if err := syscall.Errno(code); err != syscall.ENOTSUP {
			return nil, fmt.Errorf("kernels: starting %d threads: %w", threads, err)
		}
		return nil, fmt.Errorf("kernels: this machine has no %v; it has %v", isa, Supported())
	}
	return c, nil
}

// About returns the instruction set and the number of threads.
func (d *Device) About() kernels.About {
	d.mu.Lock()
	defer d.mu.Unlock()
	return kernels.About{Name: name, Kernels: d.isa.String(), Threads: d.threads}
}

// Threads returns the number of threads, the caller's included.
func (d *Device) Threads() int { return d.About().Threads }

// ISA returns the instruction set in use, never Auto.
func (d *Device) ISA() ISA { return d.isa }

// SetThreads waits for the running pass and makes later ones use n threads.
func (d *Device) SetThreads(n int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.c == nil {
		return errClosed
	}
	c, err := newPool(n, d.isa)
	if err != nil {
		return err
	}
	C.tk_pool_free(d.c)
	d.c, d.threads = c, n
	return nil
}

// Repeat makes runners that are compiled from now on do every product and block of attention n times, with the same result: a slower
// processor, for tests and measurements.
func (d *Device) Repeat(n int) { d.repeat = n }

// Close waits for the running pass and ends the threads. The owners of runners, weights and caches close them, before or
// after. A second Close does nothing.
func (d *Device) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.c != nil {
		C.tk_pool_free(d.c)
		d.c = nil
	}
}

// quiet returns when no thread holds a program.
func (d *Device) quiet() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.c != nil {
		C.tk_pool_quiet(d.c)
	}
}

var errClosed = errors.New("kernels: the pool is closed")

// run runs operations [from, to) of a program.
func (d *Device) run(prog *C.tk_prog, from, to int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.c == nil {
		return errClosed
	}
	prog.first, prog.end = C.int(from), C.int(to)
	if code := C.tk_pool_run(d.c, prog); code != 0 {
		return fmt.Errorf("kernels: memory for a pass: %w", syscall.Errno(code))
	}
	return nil
}

const name = "cpu"

func unsupported(format string, args ...any) error {
	return &kernels.Unsupported{Device: name, What: fmt.Sprintf(format, args...)}
}
