package main

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/gpu"
	"github.com/tandem-llm/tandem/roles"
)

// computeFlags say what computes.
type computeFlags struct {
	Threads int    `help:"Threads; 0 = all cores." default:"0"`
	ISA     string `name:"isa" help:"Instruction set: auto, generic, avx2, avx512, neon, neon-dot, neon-i8mm." default:"auto"`
	Device  string `help:"Where to compute: cpu, cuda (an NVIDIA GPU; cuda:1 is the second), or auto: cuda if it can be used, else cpu. All give the same results." default:"cpu" placeholder:"DEVICE"`
	gpuMemoryFlags
}

func (c computeFlags) check() error {
	if _, err := parsePlace("device", c.Device); err != nil {
		return err
	}
	if err := c.gpuMemoryFlags.check(c.Device); err != nil {
		return err
	}
	return checkThreads("threads", c.Threads)
}

// place is where something computes: on a GPU or, with neither field set, on the processor's cores.
type place struct {
	gpu  *int // its index
	auto bool // on a GPU if one can be used
}

func parsePlace(flag, s string) (place, error) {
	kind, index, indexed := strings.Cut(s, ":")
	n, err := strconv.Atoi(index)
	switch {
	case s == "cpu" || s == "":
		return place{}, nil
	case s == "auto":
		return place{auto: true}, nil
	case kind == "cuda" && !indexed:
		return place{gpu: new(int)}, nil
	case kind == "cuda" && err == nil && n >= 0:
		return place{gpu: &n}, nil
	}
	return place{}, tandem.Errorf("", tandem.Invalid, "--%s is %q: want cpu, cuda, cuda:N with N from 0 on, or auto", flag, s)
}

// checkPlace refuses a place that is not there.
func checkPlace(flag, s string) error {
	p, err := parsePlace(flag, s)
	if err != nil || p.gpu == nil {
		return err
	}
	chips, err := gpu.Chips()
	if err == nil && *p.gpu >= len(chips) {
		err = fmt.Errorf("there are %d GPUs: want cuda:0 to cuda:%d", len(chips), len(chips)-1)
	}
	if err != nil {
		return tandem.Errorf("", tandem.Unavailable, "--%s %s: %w", flag, s, err)
	}
	return nil
}

// unusable is the error for a GPU that cannot be used.
type unusable struct{ error }

func (u unusable) Unwrap() error { return u.error }

// at returns what opens devices at a place, with that many threads (0: one per core). They are closed after everything that runs on
// them.
func (c computeFlags) at(p place) func(threads int) (roles.Device, error) {
	return func(threads int) (roles.Device, error) {
		switch {
		case p.gpu == nil && c.GPUMemory > 0:
			return c.openLayers(threads)
		case p.gpu == nil:
			return openCPU(threads, c.ISA)
		}
		d, err := cuda.New(func() (cuda.Driver, error) { return gpu.Open(*p.gpu) })
		if err != nil {
			return nil, unusable{tandem.Errorf("", tandem.Unavailable, "--device %s: %w", c.Device, err)}
		}
		return d, nil
	}
}

// openCPU starts threads that passes run on (0: one per core), with the kernels of instruction set isa ("" or auto: the machine's best).
func openCPU(threads int, isa string) (*cpu.Device, error) {
	set, err := cpu.Auto, error(nil)
	if isa != "" {
		set, err = cpu.ParseISA(isa)
	}
	if err == nil {
		var d *cpu.Device
		if d, err = cpu.New(cmp.Or(threads, runtime.NumCPU()), set); err == nil {
			return d, nil
		}
	}
	return nil, tandem.Errorf("", tandem.Invalid, "--isa %s --threads %d: %w", isa, threads, err)
}

// choose calls run with where to compute. With --device auto that is a GPU, if there is one, and if it then cannot be used or has not
// enough memory, run is called again with the processor. Each choice of auto is told on stderr, with its reason.
func (c computeFlags) choose(a *app, run func(p place) error) error {
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
	chips, err := gpu.Chips()
	if err != nil {
		say("--device auto computes on the processor: %v", err)
		return run(place{})
	}
	say("--device auto computes on cuda:0: %s", about(chips[0]))
	err = run(place{gpu: new(int)})
	if errors.As(err, new(unusable)) || errors.As(err, new(*cuda.OutOfMemory)) {
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
