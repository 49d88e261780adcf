package states

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/engine"
)

const (
	featureTime   = 25 * time.Millisecond // for the features of a round, if the plan does not say how long a pass takes
	leastTime     = 10 * time.Millisecond // for those, whatever the plan says
	featureShares = 1 << 2                // else the time for them is this part of a pass
)

// Feeds are the feeds of all sessions of a draft that reads the target's states. It implements grow.Gate: proposals wait for features.
type Feeds struct {
	draft      *grow.Draft
	width      int        // values of a row of features
	background background // asks for features that no call waits for

	mu   sync.Mutex
	open map[tandem.SessionID]*Feed
}

// Is reports whether a model reads the target's hidden states. Drafts of package blocks do so too.
func Is(m *engine.Model) bool {
	width, _ := m.StateWidth()
	return width > 0
}

// NewFeeds returns the feeds of a draft whose model reads states; it has none yet. Errors: Invalid if Config.Taps do not fit the model.
func NewFeeds(d *grow.Draft) (*Feeds, error) {
	width, _ := d.Config.Model.StateWidth()
	if taps := d.Config.Taps; len(taps) == 0 || width%len(taps) != 0 {
		return nil, tandem.Errorf("drafter", tandem.Invalid,
			"a draft that reads %d values of states, and taps %v: want states of equal width",
			width, taps)
	}
	return &Feeds{draft: d, width: width, background: newBackground(), open: map[tandem.SessionID]*Feed{}}, nil
}

// Traits returns the traits of any draft that reads states.
func (fs *Feeds) Traits() grow.Traits {
	return grow.Traits{Skipped: 1, Whole: true, Gate: fs, OwnTarget: "reads the hidden states of its own target: want that one"}
}

// of returns a session's feed, or nil.
func (fs *Feeds) of(id tandem.SessionID) *Feed {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.open[id]
}

// closed forgets a feed.
func (fs *Feeds) closed(f *Feed) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.open[f.s.ID] == f {
		delete(fs.open, f.s.ID)
	}
}

// gather asks for the features that a proposal's tokens need and that are not here. It waits for them, but no longer than a part of a pass
// of the target takes: without them the draft goes on from its own outputs, and they are asked for again in the next round. The schedule's
// goroutine calls learn, by which the session gets what has come.
func (fs *Feeds) gather(ctx context.Context, p tandem.Proposal) (learn func()) {
	learn = func() {}
	f, c, until := fs.of(p.Session), &fs.draft.Config, int(p.Base)-1
	if f == nil || c.Features == nil {
		return learn
	}
	f.addr.Store(&p.Place.Addr)
	if f.none.Load() || f.s.Epoch != p.Epoch || int(f.next.Load()) >= until || until > int(p.From)+len(p.Suffix) {
		return learn
	}
	limit := featureTime
	if len(p.Plan.Verify) > 0 {
		limit = max(p.Plan.Verify[0]/featureShares, leastTime)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begun := time.Now()
	a, err := f.ask(ctx, until)
	c.Counters.Add("features.asked", 1)
	c.Counters.Add("features.waited_us", time.Since(begun).Microseconds())
	if err != nil || int(a.From)+a.Len() < until {
		c.Counters.Add("features.late", 1)
	}
	if err != nil {
		return learn
	}
	return func() {
		if fs.draft.Session(p.Session) == f.s {
			_ = f.learn(a) // an error is counted
		}
	}
}

// Propose implements grow.Gate: the job waits for features, as gather does. But if the proposal's tree was drafted ahead the job is begun
// at once, and they are learned when they come.
func (fs *Feeds) Propose(ctx context.Context, j *grow.Job) error {
	p, d := j.Proposal, fs.draft
	if f := fs.of(p.Session); f == nil || !f.going.Load() {
		learn := fs.gather(ctx, p)
		return d.Post(func() { learn(); d.Begin(j) }) // not Do: one wait is enough
	}
	learned, hit := make(chan func(), 1), false
	if err := fs.background.run(ctx, func(ctx context.Context) { learned <- fs.gather(ctx, p) }); err != nil {
		return err
	}
	err := d.Sched.Do(ctx, func() error {
		if hit = fs.hits(p); hit {
			d.Begin(j)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case hit:
		_ = fs.background.run(ctx, func(context.Context) { // an error: nothing goes on any more
			learn := <-learned
			_ = d.Post(func() { learn(); fs.goOn(p.Session) })
		})
		return nil
	}
	select {
	case learn := <-learned:
		return d.Post(func() { learn(); d.Begin(j) })
	case <-ctx.Done():
		return j.GivenUp()
	}
}

// hits reports whether the proposal's tree was drafted ahead.
func (fs *Feeds) hits(p tandem.Proposal) bool {
	f, s := fs.of(p.Session), fs.draft.Session(p.Session)
	return f != nil && f.s == s && f.ready != nil && !s.Busy() && s.Text.Check(p) == nil && f.ready(p)
}

// goOn lets a session for which features have come go on ahead.
func (fs *Feeds) goOn(id tandem.SessionID) {
	if s := fs.draft.Session(id); s != nil && !s.Busy() && s.Lookahead.Active() {
		fs.draft.Sched.Rest(s)
		fs.draft.Sched.Spare(s)
	}
}

// Stop implements grow.Gate.
func (fs *Feeds) Stop() { fs.background.stop() }

// background runs what no call waits for, until stop. Safe for concurrent use.
type background struct {
	closing context.Context
	close   context.CancelFunc
	mu      *sync.Mutex
	running *sync.WaitGroup
}

func newBackground() background {
	b := background{mu: new(sync.Mutex), running: new(sync.WaitGroup)}
	b.closing, b.close = context.WithCancel(context.Background())
	return b
}

// run runs fn, whose context has ctx's values and ends with stop. Errors: Unavailable after stop.
func (b *background) run(ctx context.Context, fn func(context.Context)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing.Err() != nil {
		return tandem.Errorf("propose", tandem.Unavailable, "drafter is shutting down")
	}
	b.running.Go(func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(b.closing, cancel)()
		fn(ctx)
	})
	return nil
}

// stop ends all that runs and waits for it.
func (b *background) stop() {
	b.mu.Lock()
	b.close()
	b.mu.Unlock()
	b.running.Wait()
}
