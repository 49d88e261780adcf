package pass

import (
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/header"
	"github.com/tandem-llm/tandem/engine/plan"
	"github.com/tandem-llm/tandem/kernels"
)

// Passes says what the passes of a model consist of, what they cost, and what they run on. It is valid until the model is closed. The
// model's owner uses it.
type Passes struct {
	plan    *plan.Pass
	work    plan.Work
	kvBytes int64
	device  kernels.Device
	runner  kernels.Runner
}

// NewPasses describes the passes of the model h, which are laid out as of and run on m. kvBytes is the size of the cache for one position.
func NewPasses(h *header.Header, of *plan.Pass, m Machine, kvBytes int64) *Passes {
	return &Passes{plan: of, work: plan.WorkOf(h), kvBytes: kvBytes, device: m.Device, runner: m.Runner}
}

// Work returns the least work of a pass.
func (p *Passes) Work() plan.Work { return p.work }

// Plan returns the operations of a pass. They are the model's: do not change them.
func (p *Passes) Plan() *kernels.Program { return p.plan.Program }

// KVBytes returns the bytes of the KV cache for one position, all layers.
func (p *Passes) KVBytes() int64 { return p.kvBytes }

// TimeOperations starts (true) or stops (false) the timing of operations: while it is on, passes add up how long each kind of operation
// takes. Starting sets all sums to zero. Errors: Unsupported for a device that cannot tell.
func (p *Passes) TimeOperations(on bool) error {
	r, ok := p.runner.(kernels.Timer)
	if !ok {
		return tandem.Errorf("engine", tandem.Unsupported, "the device %v does not tell how long its operations take", p.device.About())
	}
	return r.Time(on)
}

// OperationTimes returns how long each kind of operation took since TimeOperations(true). It is empty unless that is on.
func (p *Passes) OperationTimes() []kernels.OpTime {
	if r, ok := p.runner.(kernels.Timer); ok {
		return r.Times()
	}
	return nil
}

// LeastTime returns how many launches the last pass had on its device. It then runs n graphs of as many launches that do nothing, and
// returns the shortest time of one. Both are 0 for a device without launches. Errors: the device's.
func (p *Passes) LeastTime(n int) (launches int, least time.Duration, err error) {
	if r, ok := p.runner.(kernels.LaunchTimer); ok {
		return r.LeastTime(n)
	}
	return 0, 0, nil
}

// Streamer returns the device of the passes, and true if it streams weights; else nil and false.
func (p *Passes) Streamer() (kernels.Streamer, bool) {
	s, ok := p.device.(kernels.Streamer)
	return s, ok
}

// NewProbe returns a probe of the limits of the device, which reads bytes bytes in turn. Close the probe before the device.
func (p *Passes) NewProbe(bytes int) (kernels.Probe, error) { return p.device.NewProbe(bytes) }

// SetThreads makes later passes use n threads. No pass may be running. Errors: Unsupported for a device without threads, and the device's;
// then the number stays as it was.
func (p *Passes) SetThreads(n int) error {
	d, ok := p.device.(kernels.ThreadSetter)
	if !ok {
		return tandem.Errorf("engine", tandem.Unsupported, "%d threads: %s has none", n, p.device.About())
	}
	return d.SetThreads(n)
}

// Sides returns the two devices that divide the passes; nil and nil if they run on one. The devices belong to whoever made them.
func (p *Passes) Sides() (left, right kernels.Device) {
	if d, ok := p.device.(kernels.Divider); ok {
		return d.Sides()
	}
	return nil, nil
}

// Apart returns why two devices that divide the passes have a copy each of weights and cache; nil if there is one copy.
func (p *Passes) Apart() error {
	if d, ok := p.device.(kernels.Divider); ok {
		return d.Apart()
	}
	return nil
}

// MeetingTime measures how long the two devices that divide the passes take to meet; 0 if they do not: see kernels.Divider. Errors: theirs.
func (p *Passes) MeetingTime() (time.Duration, error) {
	d, ok := p.device.(kernels.Divider)
	if !ok {
		return 0, nil
	}
	return d.MeetingTime()
}

// Divide sets how later passes are divided between the two devices, by their rows and context: see kernels.Divider. nil: each gets half.
// Errors: Unsupported for a model on one device, Invalid for an impossible division; then nothing has changed.
func (p *Passes) Divide(all []kernels.Division) error {
	d, ok := p.device.(kernels.Divider)
	if !ok {
		return tandem.Errorf("engine", tandem.Unsupported, "passes divided: %s is one device", p.device.About())
	}
	if err := d.Divide(all); err != nil {
		return tandem.Errorf("engine", tandem.Invalid, "%w", err)
	}
	return nil
}
