package drafter

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/schedule/owner"
)

const (
	featurePause  = 2 * time.Millisecond // before a verifier that does not hold the session yet is asked again; doubles
	longPause     = 50 * time.Millisecond
	featureTime   = 25 * time.Millisecond // for the features of a round, if the plan does not say how long a pass takes
	leastTime     = 10 * time.Millisecond // for those, whatever the plan says
	featureShares = 1 << 2                // else the time for them is this part of a pass
	heldRows      = 1 << 11               // see Drafter.held
)

// ask asks for the session's features of positions before until that are not here. Safe for concurrent use.
func (f *stateGrower) ask(ctx context.Context, until int) (tandem.Features, error) {
	d := f.d
	q := tandem.FeatureQuery{Session: f.Prefix.Session, Epoch: f.Prefix.Epoch, From: tandem.Position(f.next.Load()),
		Until: tandem.Position(until)}
	if addr := f.addr.Load(); addr != nil {
		q.Addr = *addr
	}
	if d.cfg.Features == nil {
		return tandem.Features{}, tandem.Errorf("features", tandem.Unsupported, "nobody hands them out")
	}
	a, err := d.cfg.Features.Features(ctx, q)
	if err == nil {
		err = a.Validate(q)
	}
	if errors.Is(err, tandem.Unsupported) {
		f.none.Store(true)
	}
	if errors.Is(err, tandem.Corrupt) || errors.Is(err, tandem.Stale) {
		d.cfg.Counters.Add("features."+tandem.KindOf(err).String(), 1)
	}
	if err != nil {
		return tandem.Features{}, err
	}
	return a, nil
}

// learn takes what has come for the session. Errors: Corrupt.
func (f *stateGrower) learn(a tandem.Features) error {
	d := f.d
	came, missing, err := f.add(a, d.cfg.Taps)
	if err != nil {
		d.cfg.Counters.Add("features.corrupt", 1)
	}
	d.cfg.Counters.Add("features.came", int64(came))
	d.cfg.Counters.Add("features.missing", int64(missing))
	return err
}

// gather asks for the features that a proposal's tokens need and that are not here. It waits for them, but no longer than a part of a pass
// of the target takes: without them the draft goes on from its own outputs, and they are asked for again in the next round. The schedule's
// goroutine calls learn, by which the session gets what has come.
func (d *Drafter) gather(ctx context.Context, p tandem.Proposal) (learn func()) {
	learn = func() {}
	x, is := d.states.Load(p.Session)
	if !is || d.cfg.Features == nil {
		return learn
	}
	f, until := x.(*stateGrower), int(p.Base)-1
	f.addr.Store(&p.Place.Addr)
	if f.none.Load() || f.Prefix.Epoch != p.Epoch || int(f.next.Load()) >= until || until > int(p.From)+len(p.Suffix) {
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
	d.cfg.Counters.Add("features.asked", 1)
	d.cfg.Counters.Add("features.waited_us", time.Since(begun).Microseconds())
	if err != nil || int(a.From)+a.Len() < until {
		d.cfg.Counters.Add("features.late", 1)
	}
	if err != nil {
		return learn
	}
	return func() {
		if d.session(p.Session) == f.session {
			_ = f.learn(a) // an error is counted
		}
	}
}

// open implements grower: the cache gets the text as its features come. Progress is told.
func (f *stateGrower) open(ctx context.Context, o tandem.Opening) error {
	n := len(o.Tokens)
	f.addr.Store(&o.Place.Addr)
	if o.Progress == nil {
		return f.fill(ctx, n)
	}
	ended, every := make(chan error, 1), time.NewTicker(tandem.ProgressEvery)
	defer every.Stop()
	go func() { ended <- owner.Guard(func() error { return f.fill(ctx, n) }) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-every.C:
			p := f.d.sched.Progress()
			p.Held, p.Steps = int(f.next.Load()), p.Steps+f.asked.Load()
			o.Progress(p)
		}
	}
}

// fill brings the first n-1 tokens of the session into the cache, as the features of its n tokens come. It waits as long as some come.
// When none have come for Config.FeatureWait, the rest goes without. The session is dropped after an error.
func (f *stateGrower) fill(ctx context.Context, n int) error {
	begun, pause := time.Now(), featurePause
	for more := n > 1; more; begun, pause = time.Now(), featurePause {
		most, cancel := context.WithDeadline(ctx, begun.Add(f.d.cfg.FeatureWait))
		a, err := f.ask(most, n-1)
		for ; soon(err) && most.Err() == nil; pause = min(2*pause, longPause) {
			select {
			case <-time.After(pause):
			case <-most.Done():
			}
			a, err = f.ask(most, n-1)
		}
		cancel()
		f.asked.Add(1)
		if err == nil && int(a.From) < n-1 && a.Len() == 0 && int(a.From) == int(f.next.Load()) {
			err = tandem.Errorf("features", tandem.Unavailable, "position %d of %d will not come", a.From, n-1)
		}
		if more, err = f.fillPiece(ctx, n, a, err); err != nil {
			return err
		}
	}
	return nil
}

// soon reports whether the verifier that gave err is about to open the session, to open it again, or to come back.
func soon(err error) bool {
	k := tandem.KindOf(err)
	return k == tandem.UnknownSession || k == tandem.Stale || k == tandem.Unavailable
}

// fillPiece learns a, unless err says that no more features will come, and computes the tokens that can be computed then, but not the last.
// It reports whether some are left. Until Drafter.held have come nothing is computed: the target is at the same prompt, on the same
// processors perhaps, and somebody waits for its first token.
func (f *stateGrower) fillPiece(ctx context.Context, n int, a tandem.Features, err error) (more bool, _ error) {
	s, d, call := f.session, f.d, schedule.NewCall(ctx)
	failed := d.sched.Do(ctx, func() error {
		if !d.sched.Holds(s) {
			return tandem.Errorf("open", tandem.UnknownSession, "session %v is not held any more", s.Prefix.Session)
		}
		if err == nil {
			err = f.learn(a)
		}
		if err != nil {
			d.cfg.Counters.Add("features.missing", int64(f.giveUp(n-1)))
		}
		if more = f.end() < n-1; more && f.end()-s.seq.Len() < d.held {
			call.End(nil)
			return nil
		}
		if s.goal = min(f.end()+1, n-1); s.Missing() == 0 {
			s.filled(n, more)
			call.End(nil)
			return nil
		}
		d.sched.Queue(s, call, time.Now(), s.Missing())
		return nil
	})
	if failed == nil {
		failed = call.Wait()
	}
	if failed == nil {
		failed = d.sched.Do(ctx, func() error { s.filled(n, more); return nil })
	}
	if failed != nil {
		d.sched.Post(func() {
			if d.sched.Holds(s) {
				d.sched.Drop(s, failed)
			}
		})
	}
	return more, failed
}

// filled ends the filling with a piece of the first n tokens; without more it was the last.
func (s *session) filled(n int, more bool) {
	if s.goal = 0; !more {
		s.hindsight = s.recall.Of(n)
	}
}
