// Package cpu is tandem's arithmetic on the processor's cores: packed weight matrices, a thread pool in C, and programs that run there
// without returning to Go. A pass is one call of C if its weights are resident, and one for each stage if they are streamed.
//
// Every operation is defined in kernels/ref and docs/kernels.md down to the order of each rounding. All
// instruction sets give those bits, and a row's result never depends on the other rows of the pass, on
// the number of threads, or on how work was divided.
package cpu

// #cgo CFLAGS: -std=c11 -D_GNU_SOURCE -pthread -Wall -Wextra
// #cgo !sanitize CFLAGS: -O3 -g1
// #cgo LDFLAGS: -pthread
// #include <sched.h>
// #include "tk.h"
// static int tk_core_in(int core, const cpu_set_t *set) { return CPU_ISSET(core, set); }
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"github.com/tandem-llm/tandem/kernels"
)

// Supported returns the instruction sets of this machine, worst first.
func Supported() []ISA {
	var all []ISA
	for _, i := range []ISA{Generic, AVX2, AVXVNNI, AVX512, NEON, NEONDot, NEONI8MM} {
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
	cores   []int // one for each thread that there may be; nil: wherever the system puts them
	repeat  int   // of products and blocks of attention: see Repeat
}

var _ kernels.ThreadSetter = (*Device)(nil)

// New starts threads-1 threads that use the kernels of isa; Auto is the best of this machine. Close ends them.
func New(threads int, isa ISA) (*Device, error) { return newDevice(threads, nil, isa) }

// Pinned is New with a thread for each of some cores, as the system numbers them, on which it stays. The thread that calls for a pass is
// moved to the first core for as long as the pass takes. Errors: those of New; a core that this process may not use, or one named twice.
func Pinned(cores []int, isa ISA) (*Device, error) {
	allowed, err := Cores()
	if err != nil {
		return nil, err
	}
	for i, c := range cores {
		if !slices.Contains(allowed, c) || slices.Contains(cores[:i], c) {
			return nil, fmt.Errorf("kernels: threads on cores %v, want each once, of %v", cores, allowed)
		}
	}
	return newDevice(len(cores), slices.Clone(cores), isa)
}

// Cores returns the cores that this process may use, ascending.
func Cores() (all []int, err error) {
	var set C.cpu_set_t
	if n, err := C.sched_getaffinity(0, C.sizeof_cpu_set_t, &set); n != 0 {
		return nil, fmt.Errorf("kernels: the cores of this process: %w", err)
	}
	for i := range 8 * C.sizeof_cpu_set_t {
		if C.tk_core_in(C.int(i), &set) != 0 {
			all = append(all, i)
		}
	}
	return all, nil
}

func newDevice(threads int, cores []int, isa ISA) (*Device, error) {
	if isa == Auto {
		all := Supported()
		isa = all[len(all)-1]
	}
	ChosenReading()
	c, err := newPool(threads, cores, isa)
	if err != nil {
		return nil, err
	}
	return &Device{c: c, threads: threads, isa: isa, cores: cores}, nil
}

func newPool(threads int, cores []int, isa ISA) (*C.tk_pool, error) {
	const limit = 1024
	if threads < 1 || threads > limit {
		return nil, fmt.Errorf("kernels: pool of %d threads, want 1 to %d", threads, limit)
	}
	var on []C.int32_t
	for _, c := range cores {
		on = append(on, C.int32_t(c))
	}
	if on != nil && threads > len(on) {
		return nil, fmt.Errorf("kernels: %d threads on cores %v, want at most one for each", threads, cores)
	}
	var code C.int
	c := C.tk_pool_new(C.int(threads), unsafe.SliceData(on), C.int(isa), &code)
	if c == nil {
		if err := syscall.Errno(code); err != syscall.ENOTSUP {
			return nil, fmt.Errorf("kernels: starting %d threads: %w", threads, err)
		}
		return nil, fmt.Errorf("kernels: this machine has no %v; it has %v", isa, Supported())
	}
	return c, nil
}

// About returns the instruction set and the number of threads; of pinned ones also where they are, since cores may differ.
func (d *Device) About() kernels.About {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := kernels.About{Name: name, Kernels: d.isa.String(), Threads: d.threads}
	if d.cores != nil {
		a.Kernels += " on cores " + CoreList(d.cores[:d.threads])
	}
	return a
}

// CoreList writes a list of cores as taskset has it: 0,2,4-5.
func CoreList(cores []int) string {
	var b strings.Builder
	for i := 0; i < len(cores); {
		n := 1
		for i+n < len(cores) && cores[i+n] == cores[i]+n {
			n++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, cores[i])
		if n > 1 {
			fmt.Fprintf(&b, "-%d", cores[i+n-1])
		}
		i += n
	}
	return b.String()
}

// Threads returns the number of threads, the caller's included.
func (d *Device) Threads() int { return d.About().Threads }

// ISA returns the instruction set in use, never Auto.
func (d *Device) ISA() ISA { return d.isa }

// SetThreads waits for the running pass and makes later ones use n threads, of pinned ones the first n cores.
func (d *Device) SetThreads(n int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.c == nil {
		return errClosed
	}
	c, err := newPool(n, d.cores, d.isa)
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
