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

// Compute says what computes.
type Compute struct {
	settings.Processor
	settings.GPULayers
}

// Validate refuses values that no device takes.
func (c Compute) Validate() error {
	p, err := device.Parse("device", c.Device)
	if err != nil {
		return err
	}
	return cmp.Or(c.GPULayers.Check(c.Device), p.CheckThreads("device", "threads", c.Threads), device.Check("device", c.Device))
}

// Opener returns what opens the devices that these flags name.
func (c Compute) Opener() device.Opener { return device.Opener{ISA: c.ISA} }

// Place returns what opens devices at a place: that of --device, or the one chosen for auto.
func (c Compute) Place(p device.Spec) func(threads int) (roles.Device, error) {
	if p.GPU == nil && p.Right == nil && p.Cores == nil && c.GPUMemory > 0 {
		p.Layers = int64(c.GPUMemory)
	}
	return c.Opener().At(p)
}

// ThreadsAt returns how many threads all models at a place have together; 0: one per core of the machine.
func (c Compute) ThreadsAt(p device.Spec) int {
	if p.Right == nil && p.Cores != nil {
		return len(p.Cores)
	}
	return c.Threads
}

// Choose calls run with where to compute: see placement.Choose. d is what a profile decides; nil: nothing.
func (c Compute) Choose(say Say, d *profile.Decision, run func(p device.Spec) error) error {
	return placement.Choose(c.Device, c.Threads, d, func(format string, args ...any) { say("tandem: "+format, args...) }, run)
}

// Load opens a device and, with it, a model.
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

// Gain returns how far ahead a drafter at a place drafts, as drafter.Setup takes it, and what opens the cores that it leaves to a verifier
// on this machine. A verifier on the same cores is something that only whoever starts both knows.
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

// SharedGain is about what a pass ahead costs a verifier on the same cores, if the draft leaves it some of them.
const SharedGain = 0.7
