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
// All sessions belong to one goroutine, the schedule's. A call becomes a job of its session: Open the prefill
// of all tokens but the last, Propose the growth of a tree. While there are jobs the schedule runs passes
// of the model: each takes the next rows of every tree that is growing and fills up with pieces of
// prompts, so that neither a long prompt nor another session's tree delays a job for longer than
// a pass. While there are no jobs it drafts ahead for sessions that wait for the target, a small pass at a
// time, so that a new job does not wait for long. Waiting, above all for the pool, happens in the
// caller's goroutine.
type Draft struct {
	Config Config // with defaults
	Traits Traits
	Sched  *schedule.Schedule

	// The schedule's goroutine's:
	sampler  sample.Sampler
	trust    [2]spec.Trust // of sessions that take the likeliest token, and that draw
	children *spec.Children
}

// hops is the number of goroutines that a tree passes on its way out: the caller's, which puts it into the pool. With a larger number
// fewer trees arrive in time for a pass of the target: 3.7 of 8 sessions instead of 4.4, measured with passes of a few milliseconds.
const hops = 1

// NewDraft returns a draft without a kind, which does nothing before Start. Errors: Invalid.
func NewDraft(c Config) (*Draft, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	c.Model.Prefixes().Bound(c.PrefixCache)
	return &Draft{Config: c, children: spec.NewChildren(nil), Sched: schedule.New(schedule.Config{Name: "drafter", Model: c.Model,
			Events: c.Events, Counters: c.Counters, Chunk: c.Chunk, Spare: aheadRows, Idle: c.Idle, Patience: 1, Hops: hops,
			Pulse: c.Pulse})},
		nil
}

// Start starts the schedule's goroutine, for a kind of draft with those traits. Stop ends it.
func (d *Draft) Start(t Traits) {
	d.Traits = t
	d.Sched.Start()
}

// Stop ends all calls with Unavailable, frees all sessions and waits for the schedule's goroutine, no longer than ctx.
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
