package drafter

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
)

// This file is what a draft that reads the target's states does while the target verifies.
//
// It goes on below the tree that was sent as a draft of tokens does (lookahead), with its own outputs in place of the target's states. If
// the verdict leads to a tree that is complete, this is the next tree: it is sent at once, before the target's states have come. An
// incomplete tree is given up, since the target's states guess better and a pass is needed anyway.
//
// The rows of a tree that was sent so are second-best, and so would be all that is drafted below them. So when the target's states have
// come, all of it is computed anew, still while the target verifies: first the committed tokens (renew), then what goes on ahead. In
// this way a tree is at most one verdict behind the target's states.
//
// It is not done where drafter and verifier share cores. Where they do not, the proposal says whether it pays (tandem.Proposal.Ahead): the
// gateway sees what rounds in both ways take and bring.

// goes implements grower. Where a pass ahead must save more than half a pass, as on shared cores, none is run.
func (f *stateGrower) goes(p tandem.Proposal) bool {
	ahead := p.Ahead && 2*f.d.cfg.AheadGain <= 1 && !p.Bounds.Plain() && f.d.cfg.Features != nil
	f.going.Store(ahead)
	return ahead
}

// prepared returns the explored nodes that the proposal's new tokens are. ready: the tree below the last of them was drafted ahead and
// is complete.
func (f *stateGrower) prepared(p tandem.Proposal) (path []int32, ready bool) {
	s := f.session
	held, from := len(s.Tokens), int(p.From)
	if s.ahead.trees == nil || s.explored.Len() == 0 || int(p.Base) <= held || p.Bounds.Width > s.explored.Width() ||
		!slices.Equal(s.Tokens[from:], p.Suffix[:held-from]) {
		return nil, false
	}
	path = s.explored.Follow(p.Suffix[held-from:])
	if len(path) < int(p.Base)-held || s.ahead.trees[path[len(path)-1]] == nil {
		return nil, false
	}
	_, run := f.d.tree(s, path[len(path)-1])
	return path, run == 0
}

// goOn makes the last node of path, whose first is a child of the root, the root. held is how many tokens the session had before path.
func (f *stateGrower) goOn(held int, path []int32) error {
	f.remember(held-1, path)
	root := path[len(path)-1]
	kept := f.explored.Reroot(root)
	copy(f.output(0), f.output(int(root)))
	f.retainOutputs(kept)
	return f.seq.Reroot(rowsOf(path), rowsOf(kept))
}

// renew implements grower. The rows that were computed with the draft's own outputs are replaced once the target's states of all tokens
// have come. Nothing is drafted below the old ones meanwhile, unless there will be no others.
func (f *stateGrower) renew(part *engine.Part, rows int) (wait bool) {
	s := f.session
	if s.explored.Len() > 0 {
		if f.sure == s.seq.Len() || f.none.Load() {
			return false
		}
		if f.end() < len(s.Tokens)-1 || s.seq.Truncate(f.sure) != nil {
			return true
		}
		f.rollBack(s.seq.Len(), false)
		s.explored.Clear()
		s.ahead.trees, s.ahead.left = map[int32]*growth{}, min(f.d.cfg.Ahead, f.d.cfg.TreeRows)
	}
	part.Extend = s.known(s.Tokens[s.held():][:min(s.Missing(), rows)])
	f.complete(part, rows, false)
	return true
}

// begin starts the proposal's job. A draft that reads states first waits for them, as gather does; but not if the proposal's tree was
// drafted ahead. Then they are learned when they come. Errors: Unavailable during Shutdown, and ctx's.
func (d *Drafter) begin(ctx context.Context, p tandem.Proposal, j *job, came time.Time) error {
	down := tandem.Errorf("propose", tandem.Unavailable, "drafter is shutting down")
	x, is := d.states.Load(p.Session)
	if !is || !x.(*stateGrower).going.Load() {
		learn := d.gather(ctx, p)
		if !d.sched.Post(func() { learn(); d.start(p, j, came) }) { // not Do: one wait is enough
			return down
		}
		return nil
	}
	learned, hit := make(chan func(), 1), false
	if !d.background.run(ctx, func(ctx context.Context) { learned <- d.gather(ctx, p) }) {
		return down
	}
	err := d.sched.Do(ctx, func() error {
		if hit = d.hits(p); hit {
			d.start(p, j, came)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case hit:
		d.background.run(ctx, func(context.Context) {
			learn := <-learned
			d.sched.Post(func() { learn(); d.goOn(p.Session) })
		})
		return nil
	}
	select {
	case learn := <-learned:
		if d.sched.Post(func() { learn(); d.start(p, j, came) }) {
			return nil
		}
		return down
	case <-ctx.Done():
		return j.GivenUp()
	}
}

// hits reports whether the proposal's tree was drafted ahead.
func (d *Drafter) hits(p tandem.Proposal) bool {
	s := d.session(p.Session)
	if s == nil || s.Busy() || s.Check(p) != nil {
		return false
	}
	f, is := s.grower.(*stateGrower)
	if !is {
		return false
	}
	_, ready := f.prepared(p)
	return ready
}

// goOn lets a session for which features have come go on ahead.
func (d *Drafter) goOn(id tandem.SessionID) {
	if s := d.session(id); s != nil && !s.Busy() && s.ahead.trees != nil {
		d.sched.Rest(s)
		d.sched.Spare(s)
	}
}

// background runs what no call waits for, until stop.
type background struct {
	closing context.Context
	close   context.CancelFunc
	mu      *sync.Mutex
	running *sync.WaitGroup
}

func newBackground() background {
	a := background{mu: new(sync.Mutex), running: new(sync.WaitGroup)}
	a.closing, a.close = context.WithCancel(context.Background())
	return a
}

// run runs fn, whose context has ctx's values and ends with stop. It returns false after stop.
func (a *background) run(ctx context.Context, fn func(context.Context)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closing.Err() != nil {
		return false
	}
	a.running.Go(func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(a.closing, cancel)()
		fn(ctx)
	})
	return true
}

// stop ends all that runs and waits for it.
func (a *background) stop() {
	a.mu.Lock()
	a.close()
	a.mu.Unlock()
	a.running.Wait()
}
