// Package emulated is a cuda.Driver without a GPU, for tests: g++ compiles the CUDA sources as C++ and a process of its own runs them.
// The kernels' arithmetic is what they say, so results have the bits of a GPU.
//
// The process (child/*.cpp) runs one block after the other, in a shuffled order, and the threads of a block as fibers, in a shuffled
// order too, shuffled again at each barrier. So a kernel that lacks a barrier gives wrong bits for some Options.Seed; Options.Drop
// removes a barrier to show it. Shared memory starts full of garbage. With Options.Sanitize an access outside of what is allocated
// ends the process with a report. So does a deadlock, or a kernel that never ends, in any case: the report becomes the error of the
// Driver's next call, and the device is lost.
//
// Kernels may use what child/emu.h declares. A program is compiled once and kept under the user's cache folder, in tandem-emulated.
package emulated

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/src"
)

// Options of New. Zero fields take the default named beside them.
type Options struct {
	Sources    fs.FS         // tandem.cu and what it includes (src.Files)
	Sanitize   bool          // with the address and undefined-behaviour sanitizers: two to five times slower
	Integrated bool          // shares the processor's memory
	Memory     int64         // bytes of the GPU (4 GiB); only what is used takes memory
	Arch       string        // what Chip reports ("emulated")
	Seed       uint64        // of the order of blocks and threads (the environment's TANDEM_EMULATED_SEED, or 1)
	Coherent   bool          // reads the processor's memory through its page tables, with atomics of both
	Registers  bool          // Register takes shared mappings of files that this process has open, such as of a memfd
	Delay      time.Duration // what a fence for other processors takes at most: half of them take none (0)
	Limit      time.Duration // what one launch may take, in whole seconds (2 minutes)
	Drop       Barrier       // a barrier that is left out (none)
	Gauge      []int         // second-level caches for Moved, each in KiB, at most 4; blocks then run in order (none)
	Resident   int           // blocks that run side by side for Moved (64: four on each of 16 multiprocessors)
}

// SeedVariable is the environment variable that gives Options.Seed.
const SeedVariable = "TANDEM_EMULATED_SEED"

func (o *Options) fill() error {
	if o.Sources == nil {
		o.Sources = src.Files
	}
	if o.Memory == 0 {
		o.Memory = 4 << 30
	}
	if o.Memory < 0 || o.Memory%page != 0 {
		return fmt.Errorf("emulated GPU: %d bytes of memory: want a positive multiple of %d", o.Memory, page)
	}
	if o.Arch == "" {
		o.Arch = "emulated"
	}
	if o.Limit == 0 {
		o.Limit = 2 * time.Minute
	}
	if o.Limit < time.Second {
		return fmt.Errorf("emulated GPU: a launch may take %v: want at least a second", o.Limit)
	}
	if o.Resident == 0 {
		o.Resident = 64
	}
	if err := checkGauge(o); err != nil {
		return err
	}
	if o.Seed != 0 {
		return nil
	}
	o.Seed = 1
	if s := os.Getenv(SeedVariable); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return fmt.Errorf("emulated GPU: %s is %q: want a number", SeedVariable, s)
		}
		o.Seed = seed
	}
	return nil
}

// Driver implements cuda.Driver. FailLaunch, TakeMemory and Calls may be called from any goroutine.
type Driver struct {
	faults
	calls
	chip      cuda.Chip
	memory    memory
	process   process
	sanitized bool
	gauges    int // caches
	kernels   map[string]uint32
	capturing *graph // nil unless Capture runs
	closed    bool
}

var _ cuda.Driver = (*Driver)(nil)

// New starts an emulated GPU. The error is ErrNoCompiler if there is no g++.
func New(o Options) (*Driver, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	program, err := build(o.Sources, o.Sanitize, len(o.Gauge) > 0)
	if err != nil {
		return nil, err
	}
	chip := cuda.Chip{Name: "emulated GPU", Arch: o.Arch, Integrated: o.Integrated, Pageable: o.Coherent, Atomics: o.Coherent,
		Registers: o.Registers, Total: o.Memory, Processors: 4}
	d := &Driver{chip: chip, sanitized: o.Sanitize, gauges: len(o.Gauge), kernels: map[string]uint32{}}
	file, err := d.memory.open(o.Memory)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := d.process.start(program, file, o); err != nil {
		d.Close()
		return nil, err
	}
	base, err := d.process.answer(8)
	if err != nil {
		d.Close()
		return nil, err
	}
	d.memory.base = cuda.Pointer(base)
	return d, nil
}

// Open is New for a test: it skips the test if there is no g++, and closes the driver at its end.
func Open(t testing.TB, o Options) *Driver {
	t.Helper()
	d, err := New(o)
	if errors.Is(err, ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func (d *Driver) Chip() cuda.Chip { return d.chip }

// Close ends the process. The second call does nothing.
func (d *Driver) Close() {
	if d.closed {
		return
	}
	d.closed = true
	d.process.stop()
	d.memory.close()
}

// ready returns an error if the device is closed, lost, or captures a graph, when nothing but Launch may be called.
func (d *Driver) ready(call string) error {
	switch {
	case d.closed:
		return fmt.Errorf("%s: %s after Close", d.chip.Name, call)
	case d.capturing != nil:
		return fmt.Errorf("%s: %s while a graph is captured: want Launch alone", d.chip.Name, call)
	}
	return d.process.lost
}

func (d *Driver) Wait() error {
	if err := d.ready("Wait"); err != nil {
		return err
	}
	d.waits.Add(1)
	return d.process.wait()
}
