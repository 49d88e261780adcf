package main

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/gpu"
	"github.com/tandem-llm/tandem/profile"
	"github.com/tandem-llm/tandem/roles"
	"github.com/tandem-llm/tandem/settings"
)

// computeFlags say what computes.
type computeFlags struct {
	settings.Processor
	settings.GPULayers
}

func (c computeFlags) check() error {
	p, err := parsePlace("device", c.Device)
	if err != nil {
		return err
	}
	return cmp.Or(c.GPULayers.Check(c.Device), p.checkThreads("device", "threads", c.Threads), checkPlace("device", c.Device))
}

// checkThreads refuses a number of threads, the value of a flag, that is none, or that p, the value of another flag, says by itself.
func (p place) checkThreads(device, flag string, n int) error {
	if p.grouped() && n != 0 {
		return tandem.Errorf("", tandem.Invalid, "--%s %d with --%s %v: a group has a thread for each of its cores: leave --%s out",
			flag, n, device, p, flag)
	}
	return checkThreads(flag, n)
}

// unusable is the error for a GPU that cannot be used.
type unusable struct{ error }

func (u unusable) Unwrap() error { return u.error }

// at returns what opens devices at a place, with that many threads (0: one per core). They are closed after everything that runs on
// them. Devices on a single group of cores share it: each has as many of the cores as threads, in turn.
func (c computeFlags) at(p place) func(threads int) (roles.Device, error) {
	taken := 0
	return func(threads int) (roles.Device, error) {
		if n := len(p.cores); p.right == nil && threads > 0 && threads < n {
			some := place{}
			for i := range threads {
				some.cores = append(some.cores, p.cores[(taken+i)%n])
			}
			taken += threads
			return c.open(some, threads)
		}
		return c.open(p, threads)
	}
}

// threads returns how many threads all models at a place have together; 0: one per core of the machine.
func (c computeFlags) threads(p place) int {
	if p.right == nil && p.cores != nil {
		return len(p.cores)
	}
	return c.Threads
}

// open opens a device at a place.
func (c computeFlags) open(p place, threads int) (roles.Device, error) {
	switch {
	case p.right != nil:
		return c.openPair(p, threads)
	case p.cores != nil:
		set, err := parseISA(c.ISA)
		if err != nil {
			return nil, err
		}
		d, err := cpu.Pinned(p.cores, set)
		if err != nil {
			return nil, tandem.Errorf("", tandem.Invalid, "--device %s: %w", c.Device, err)
		}
		return d, nil
	case p.layers > 0:
		return c.openLayers(p.layers, threads)
	case p.gpu == nil && c.GPUMemory > 0:
		return c.openLayers(int64(c.GPUMemory), threads)
	case p.gpu == nil:
		return openCPU(threads, c.ISA)
	}
	d, err := cuda.New(func() (cuda.Driver, error) { return gpu.Open(*p.gpu) })
	if err != nil {
		return nil, unusable{tandem.Errorf("", tandem.Unavailable, "--device %s: %w", c.Device, err)}
	}
	return d, nil
}

// openCPU starts threads that passes run on (0: one per core), with the kernels of instruction set isa ("" or auto: the machine's best).
func openCPU(threads int, isa string) (*cpu.Device, error) {
	set, err := parseISA(isa)
	if err != nil {
		return nil, err
	}
	d, err := cpu.New(cmp.Or(threads, runtime.NumCPU()), set)
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--threads %d: %w", threads, err)
	}
	return d, nil
}

// parseISA returns the instruction set of --isa. Errors: Invalid, also for one that this machine does not have.
func parseISA(isa string) (cpu.ISA, error) {
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

// choose calls run with where to compute. With --device auto that is a GPU, if there is one, and if it then cannot be used or has not
// enough memory, run is called again with the processor. Each choice of auto is told on stderr, with its reason.
func (c computeFlags) choose(a *app, run func(p place) error) error { return c.chooseBy(a, nil, run) }

// chooseBy is choose by a plan's decision, nil for none: with --device auto, the best place of the decision comes first.
func (c computeFlags) chooseBy(a *app, d *profile.Decision, run func(p place) error) error {
	p, err := parsePlace("device", c.Device)
	if err != nil {
		return err
	}
	if !p.auto {
		return run(p)
	}
	say := func(format string, args ...any) {
		fmt.Fprintln(a.stderr, "tandem: "+oneLine(fmt.Sprintf(format, args...)))
	}
	full := func(err error) bool { return errors.As(err, new(unusable)) || errors.As(err, new(*cuda.OutOfMemory)) }
	if d != nil {
		p, err := bestPlace(d)
		if err == nil {
			err = p.checkThreads("device", "threads", c.Threads)
		}
		if err == nil {
			say("--device auto computes on %v: %s", p, expected(d))
			err = run(p)
			if !full(err) {
				return err
			}
		}
		say("--device auto does not compute on %s, where the plan has it: %v", d.Placements[0].Device, err)
	}
	chips, err := gpu.Chips()
	if err != nil {
		say("--device auto computes on the processor: %v", err)
		return run(place{})
	}
	say("--device auto computes on cuda:0: %s", about(chips[0]))
	err = run(place{gpu: new(int)})
	if full(err) {
		say("--device auto computes on the processor instead: %v", err)
		return run(place{})
	}
	return err
}

// with calls use with a device, which it closes then.
func (c computeFlags) with(a *app, use func(d kernels.Device) error) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.choose(a, func(p place) error {
		d, err := c.at(p)(c.Threads)
		if err != nil {
			return err
		}
		defer d.Close()
		return use(d)
	})
}

// load opens a device and, with it, a model.
func (c computeFlags) load(a *app, open func(d kernels.Device) (*engine.Model, error)) (m *engine.Model, closed func(), err error) {
	err = c.choose(a, func(p place) error {
		d, err := c.at(p)(c.Threads)
		if err != nil {
			return err
		}
		if m, err = open(d); err != nil {
			d.Close()
			return err
		}
		closed = func() {
			m.Close()
			d.Close()
		}
		return nil
	})
	return m, closed, err
}

// about describes a GPU.
func about(c cuda.Chip) string {
	of := "of its own"
	if c.Integrated {
		of = "shared with the processor"
	}
	return fmt.Sprintf("%s, %s, %d GB %s", c.Name, c.Arch, (c.Total+1<<29)>>30, of)
}

// describeCUDA tells whether this program can use GPUs, and which there are.
func describeCUDA() cudaInfo {
	info := cudaInfo{Built: gpu.Built}
	chips, err := gpu.Chips()
	if err != nil {
		info.Why = oneLine(err.Error())
	}
	for _, c := range chips {
		info.GPUs = append(info.GPUs, gpuInfo{Name: c.Name, Arch: c.Arch, Bytes: c.Total, Shared: c.Integrated, about: about(c)})
	}
	return info
}

// planner is the device for planning a model's memory before it is loaded; it runs nothing.
var planner = sync.OnceValue(func() kernels.Device {
	d, err := cpu.New(1, cpu.Generic)
	if err != nil {
		panic(err) // one thread, the caller's own, of kernels that every machine has
	}
	return d
})

// describeKernels tells which kernels this machine uses.
func describeKernels() *kernelsInfo {
	c := cpu.ChosenReading()
	k := &kernelsInfo{Reading: c.Reading.String(), ReadingWhy: c.Why}
	for _, isa := range cpu.Supported() {
		k.Supported = append(k.Supported, isa.String())
		k.ISA = isa.String() // the best is last
	}
	return k
}
