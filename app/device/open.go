package device

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/gpu"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/processes/roles"
)

// Opener opens devices.
type Opener struct {
	ISA string // instruction set, as --isa has it; "" or auto: the machine's best
}

// At returns a function that opens devices at p, each with that many threads (0: one per core). The caller closes each after everything
// that runs on it. If p is a single group of cores, devices with fewer threads than it has cores share it: each takes as many cores as
// threads, in turn. One goroutine at a time may call the function.
func (o Opener) At(p Spec) func(threads int) (roles.Device, error) {
	taken := 0
	return func(threads int) (roles.Device, error) {
		if n := len(p.Cores); p.Right == nil && threads > 0 && threads < n {
			some := Spec{}
			for i := range threads {
				some.Cores = append(some.Cores, p.Cores[(taken+i)%n])
			}
			taken += threads
			return o.Open(some, threads)
		}
		return o.Open(p, threads)
	}
}

// Open opens the device that p names; the caller closes it. threads is for a p of all cores; 0: one per core. Errors: Unusable, Invalid.
func (o Opener) Open(p Spec, threads int) (roles.Device, error) {
	switch {
	case p.Right != nil:
		return o.pair(p, threads)
	case p.Cores != nil:
		set, err := ParseISA(o.ISA)
		if err != nil {
			return nil, err
		}
		d, err := cpu.Pinned(p.Cores, set)
		if err != nil {
			return nil, tandem.Errorf("", tandem.Invalid, "--device %v: %w", p, err)
		}
		return d, nil
	case p.Layers > 0:
		return o.layers(p.Layers, threads)
	case p.GPU == nil:
		return o.CPU(threads)
	}
	d, err := cuda.New(func() (cuda.Driver, error) { return gpu.Open(*p.GPU, available) })
	if err != nil {
		return nil, Unusable{tandem.Errorf("", tandem.Unavailable, "--device %v: %w", p, err)}
	}
	return d, nil
}

// CPU opens the processor with that many threads; 0: one per core. The caller closes it. Errors: Invalid.
func (o Opener) CPU(threads int) (*cpu.Device, error) {
	set, err := ParseISA(o.ISA)
	if err != nil {
		return nil, err
	}
	d, err := cpu.New(cmp.Or(threads, runtime.NumCPU()), set)
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--threads %d: %w", threads, err)
	}
	return d, nil
}

// layered is a device made of the processor and a GPU that are its own.
type layered struct {
	*layers.Device
	near, far roles.Device
}

func (d layered) Close() {
	d.near.Close()
	d.far.Close()
}

// layers opens the processor with that many threads, and the first GPU with so many bytes for layers. Which layers go there is told on
// stderr.
func (o Opener) layers(bytes int64, threads int) (roles.Device, error) {
	far, err := cuda.New(func() (cuda.Driver, error) { return gpu.Open(0, available) })
	if err != nil {
		return nil, Unusable{tandem.Errorf("", tandem.Unavailable, "--gpu-memory %s: %w", memory.Bytes(bytes), err)}
	}
	near, err := o.CPU(threads)
	if err != nil {
		far.Close()
		return nil, err
	}
	tell := func(p layers.Placement) { fmt.Fprintln(os.Stderr, "tandem: "+p.String()) }
	return layered{layers.New(layers.Config{Near: near, Far: far, Budget: bytes, Tell: tell}), near, far}, nil
}

// CheckLayers returns Unavailable if the first GPU cannot be used, and Exhausted if it has less memory than so many bytes for layers.
func CheckLayers(bytes int64) error {
	chips, err := gpu.Chips()
	if err != nil {
		return tandem.Errorf("", tandem.Unavailable, "--gpu-memory %s: %w", memory.Bytes(bytes), err)
	}
	if bytes > chips[0].Total {
		return tandem.Errorf("", tandem.Exhausted, "--gpu-memory is %s, but %s has %s: want less", memory.Bytes(bytes), chips[0].Name,
			memory.Bytes(chips[0].Total))
	}
	return nil
}

// Unusable is the error for a GPU that cannot be used: see NoRoom.
type Unusable struct{ error }

// Unwrap returns the cause.
func (u Unusable) Unwrap() error { return u.error }

// NoRoom reports whether err says that a GPU cannot be used or has too little memory, so that a caller may choose the processor instead.
func NoRoom(err error) bool {
	return errors.As(err, new(Unusable)) || errors.As(err, new(*cuda.OutOfMemory))
}

// CheckThreads returns Invalid for a number of threads, n of the named flag, that is impossible, or not 0 where p, the value of the flag
// named by device, names its cores.
func (p Spec) CheckThreads(device, flag string, n int) error {
	if p.Grouped() && n != 0 {
		return tandem.Errorf("", tandem.Invalid, "--%s %d with --%s %v: a group has a thread for each of its cores: leave --%s out",
			flag, n, device, p, flag)
	}
	return CheckThreads(flag, n)
}

// CheckThreads returns Invalid unless n, the value of the named flag, is 0 to 1024.
func CheckThreads(flag string, n int) error {
	if n < 0 || n > 1024 {
		return tandem.Errorf("", tandem.Invalid, "--%s is %d: want 1 to 1024, or 0 to choose by the number of cores", flag, n)
	}
	return nil
}

// ParseISA returns the instruction set of --isa. Errors: Invalid, also for one that this machine does not have.
func ParseISA(isa string) (cpu.ISA, error) {
	if isa == "" {
		return cpu.Auto, nil
	}
	set, err := cpu.ParseISA(isa)
	if err == nil && set != cpu.Auto && !slices.Contains(cpu.Supported(), set) {
		err = fmt.Errorf("this machine has no %v: want auto or one of %v", set, cpu.Supported())
	}
	if err != nil {
		return set, tandem.Errorf("", tandem.Invalid, "--isa %s: %w", isa, err)
	}
	return set, nil
}

// available is how much of the processor's memory this process may take, which a GPU that is integrated with it has free.
func available() int64 { return max(0, memory.Free().Bytes) }

// About describes a GPU in a few words: name, architecture, memory.
func About(c cuda.Chip) string {
	of := "of its own"
	if c.Integrated {
		of = "shared with the processor"
	}
	return fmt.Sprintf("%s, %s, %d GB %s", c.Name, c.Arch, (c.Total+1<<29)>>30, of)
}

// Planner returns the device for planning a model's memory before it is loaded. It is shared and runs nothing; nobody closes it.
var Planner = sync.OnceValue(func() kernels.Device {
	d, err := cpu.New(1, cpu.Generic)
	if err != nil {
		panic(err) // one thread, the caller's own, of kernels that every machine has
	}
	return d
})
