package main

import (
	"cmp"

	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda/gpu"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
)

// computeFlags say what computes.
type computeFlags struct {
	settings.Processor
	settings.GPULayers
}

func (c computeFlags) check() error {
	p, err := device.Parse("device", c.Device)
	if err != nil {
		return err
	}
	return cmp.Or(c.GPULayers.Check(c.Device), p.CheckThreads("device", "threads", c.Threads), device.Check("device", c.Device))
}

// opener returns what opens the devices that these flags name.
func (c computeFlags) opener() device.Opener { return device.Opener{ISA: c.ISA} }

// at returns what opens devices at a place: that of --device, or the one chosen for auto.
func (c computeFlags) at(p device.Spec) func(threads int) (roles.Device, error) {
	if p.GPU == nil && p.Right == nil && p.Cores == nil && c.GPUMemory > 0 {
		p.Layers = int64(c.GPUMemory)
	}
	return c.opener().At(p)
}

// threads returns how many threads all models at a place have together; 0: one per core of the machine.
func (c computeFlags) threads(p device.Spec) int {
	if p.Right == nil && p.Cores != nil {
		return len(p.Cores)
	}
	return c.Threads
}

// choose calls run with where to compute: see placement.Choose. d is what a profile decides; nil: nothing.
func (c computeFlags) choose(a *app, d *profile.Decision, run func(p device.Spec) error) error {
	return placement.Choose(c.Device, c.Threads, d, func(format string, args ...any) { a.say("tandem: "+format, args...) }, run)
}

// load opens a device and, with it, a model.
func (c computeFlags) load(a *app, open func(d kernels.Device) (*engine.Model, error)) (m *engine.Model, closed func(), err error) {
	err = c.choose(a, nil, func(p device.Spec) error {
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

// describeCUDA tells whether this program can use GPUs, and which there are.
func describeCUDA() cudaInfo {
	info := cudaInfo{Built: gpu.Built}
	chips, err := gpu.Chips()
	if err != nil {
		info.Why = terminal.OneLine(err.Error())
	}
	for _, c := range chips {
		info.GPUs = append(info.GPUs, gpuInfo{Name: c.Name, Arch: c.Arch, Bytes: c.Total, Shared: c.Integrated, about: device.About(c)})
	}
	return info
}

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
