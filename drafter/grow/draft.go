package grow

import (
	"context"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/spec"
)

// maxWidth is the most candidates that a pass of the engine returns for a row.
const maxWidth = 1 << 6

// Draft is one draft model and what its sessions share: the schedule of its passes, and what they have learned.
//
// All sessions belong to one goroutine, the schedule's. A call becomes work of its session: Open computes
// all tokens but the last, Propose grows a tree. While there is work the schedule runs passes
// of the model. Each takes the next rows of every tree that is growing and fills up with pieces of
// prompts, so neither a long prompt nor another session's tree delays anybody for longer than
// a pass. While there is no work it drafts ahead for sessions that wait for the target, a small pass at a
// time, so that new work does not wait for long. Whoever calls waits in his own goroutine, above all for the pool.
type Draft struct {
	Config Config // with defaults
	Traits Traits
	Sched  *schedule.Schedule

	// The schedule's goroutine's:
	sampler  sample.Sampler
	trust    [2]spec.Trust // of sessions that take the likeliest token, and that draw
	children *spec.Children
}

// hops is through how many goroutines a tree goes on its way out: one, the caller's, which puts it into the pool. With 2, fewer trees
// arrived in time for a pass of the target: those of 3.7 sessions of 8 instead of 4.4, with passes of a few milliseconds.
const hops = 1

// NewDraft returns a draft without a kind, which does nothing before Start. Errors: Invalid for a configuration that contradicts itself.
func NewDraft(c Config) (*Draft, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	c.Model.Prefixes().Bound(c.PrefixCache)
	return &Draft{Config: c, children: spec.NewChildren(nil), Sched: schedule.New(schedule.Config{Name: "drafter", Model: c.Model,
			Events: c.Events, Counters: c.Counters, Chunk: c.Chunk, Spare: aheadRows, Idle: c.Idle, Patience: 1, Hops: hops,
			Pulse: c.Pulse, Resting: c.Resting})},
		nil
}

// Start starts the schedule's goroutine, for a kind of draft with those traits. Call it once; Stop ends the goroutine.
func (d *Draft) Start(t Traits) {
	d.Traits = t
	d.Sched.Start()
}

// Stop ends all calls with Unavailable, frees all sessions and waits for the schedule's goroutine, no longer than ctx. The model may be
// closed after it has returned nil.
func (d *Draft) Stop(ctx context.Context) error {
	if g := d.Traits.Gate; g != nil {
		g.Stop()
	}
	return d.Sched.Stop(ctx)
}

// Window returns what the model sees of its texts; the zero value: all.
func (d *Draft) Window() engine.Window {
	config := d.Config.Model.Config()
	if d.Traits.Whole || config.Recurrent() {
		return engine.Window{}
	}
	w := d.Config.Window
	w.Last = max(w.Last, config.Window)
	return w
}
