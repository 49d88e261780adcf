package start

import (
	"cmp"

	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/processes/settings"
)

// Compute says what computes: the flags of a command with one model.
type Compute struct {
	settings.Processor
	settings.GPULayers
	OrCPU bool `kong:"-"` // on the cores where Device and GPUMemory cannot be had
}

// Validate returns an error for values that no device takes, or that name a processor that is not there: see device.Check.
func (c Compute) Validate() error {
	p, err := device.Parse("device", c.Device)
	if err != nil {
		return err
	}
	if c.OrCPU {
		return cmp.Or(c.GPULayers.Check(c.Device), p.CheckThreads("device", "threads", c.Threads))
	}
	return cmp.Or(c.GPULayers.Check(c.Device), p.CheckThreads("device", "threads", c.Threads), device.Check("device", c.Device))
}

// Opener returns an opener of devices with the instruction set of these flags.
func (c Compute) Opener() device.Opener { return device.Opener{ISA: c.ISA} }

// Place returns a function that opens devices at p, as device.Opener.At does. p is the place that --device names, or the one chosen for
// auto. If that is all cores, --gpu-memory adds layers on a GPU.
func (c Compute) Place(p device.Spec) func(threads int) (roles.Device, error) {
	if p.GPU == nil && p.Right == nil && p.Cores == nil && c.GPUMemory > 0 {
		p.Layers = int64(c.GPUMemory)
	}
	return c.Opener().At(p)
}

// ThreadsAt returns how many threads all models at p have together; 0: one per core of the machine.
func (c Compute) ThreadsAt(p device.Spec) int {
	if p.Right == nil && p.Cores != nil {
		return len(p.Cores)
	}
	return c.Threads
}

// Choose calls run with the place to compute at: see placement.Choose. d is what a profile has decided for auto; nil: nothing. With OrCPU
// it calls run again, with the cores, if the place cannot be used; then c has no GPUMemory.
func (c *Compute) Choose(say Say, d *profile.Decision, run func(p device.Spec) error) error {
	err := placement.Choose(c.Device, c.Threads, d, func(format string, args ...any) { say("tandem: "+format, args...) }, run)
	if c.OrCPU && device.NoRoom(err) {
		say("tandem: on the cores instead of %s: %v", c.Device, err)
		c.GPUMemory = 0
		return run(device.Spec{})
	}
	return err
}

// Load opens a device and calls open for a model on it. The caller calls closed, which closes both; it is nil after an error. Errors: those
// of the device, and open's.
func (c Compute) Load(say Say, open func(d kernels.Device) (*engine.Model, error)) (m *engine.Model, closed func(), err error) {
	err = c.Choose(say, nil, func(p device.Spec) error {
		d, err := c.Place(p)(c.Threads)
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

// Gain returns two things for a drafter at p: how far ahead it drafts, as drafter.Setup takes it, and what opens the cores that it leaves
// to a verifier on this machine; nil: nothing is to be opened. Only a caller that starts both knows whether a verifier has the same cores.
// ahead is the setting; only drafter.Measured is looked into.
func (c Compute) Gain(ahead float64, p device.Spec) (float64, func() (roles.Device, error), error) {
	if ahead != drafter.Measured {
		return ahead, nil, nil
	}
	all, err := cpu.Cores()
	if err != nil {
		return 0, nil, err
	}
	switch others := p.Others(all); len(others) {
	case 0:
		return SharedGain, nil, nil
	case len(all):
		return drafter.Measured, func() (roles.Device, error) { return c.Opener().CPU(0) }, nil
	default:
		return drafter.Measured, func() (roles.Device, error) { return c.Opener().Open(device.Spec{Cores: others}, 0) }, nil
	}
}

// SharedGain is Gain's first result for a drafter on all cores: about what a pass ahead costs a verifier on the same ones, if the draft
// leaves it some of them.
const SharedGain = 0.7
