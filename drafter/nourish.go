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
	featureShares = 4                     // else the time for them is this part of a pass
	heldRows      = 2048                  // see Drafter.held
)

// ask asks for a session's features of positions before until that are not here.
func (d *Drafter) ask(ctx context.Context, id tandem.SessionID, f *fed, until int) (tandem.Features, error) {
	q := tandem.FeatureQuery{Session: id, Epoch: f.epoch, From: tandem.Position(f.next.Load()), Until: tandem.Position(until)}
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

// learn gives a session what has come for it, on the schedule's goroutine. Errors: Corrupt.
func (d *Drafter) learn(s *session, a tandem.Features) error {
	came, missing, err := s.fed.learn(a, d.cfg.Taps)
	if err != nil {
		d.cfg.Counters.Add("features.corrupt", 1)
	}
	d.cfg.Counters.Add("features.came", int64(came))
	d.cfg.Counters.Add("features.missing", int64(missing))
	return err
}

// gather asks for the features that a proposal's tokens need and that are not here, and returns what comes in time: a part of a pass of
// the target. Without them the draft goes on from its own outputs, and they are asked for again in the next round.
func (d *Drafter) gather(ctx context.Context, p tandem.Proposal) (news *tandem.Features) {
	x, is := d.fed.Load(p.Session)
	if !is || d.cfg.Features == nil {
		return nil
	}
	f, until := x.(*fed), int(p.Base)-1
	if f.none.Load() || f.epoch != p.Epoch || int(f.next.Load()) >= until || until > int(p.From)+len(p.Suffix) {
		return nil
	}
	limit := featureTime
	if len(p.Plan.Verify) > 0 {
		limit = max(p.Plan.Verify[0]/featureShares, leastTime)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begun := time.Now()
	a, err := d.ask(ctx, p.Session, f, until)
	d.cfg.Counters.Add("features.asked", 1)
	d.cfg.Counters.Add("features.waited_us", time.Since(begun).Microseconds())
	if err != nil || int(a.From)+a.Len() < until {
		d.cfg.Counters.Add("features.late", 1)
	}
	if err != nil {
		return nil
	}
	return &a
}

// nourishing is nourish of a session that o opens, whose progress is told.
func (d *Drafter) nourishing(ctx context.Context, s *session, o tandem.Opening) error {
	n := len(o.Tokens)
	if o.Progress == nil {
		return d.nourish(ctx, s, n)
	}
	ended, every := make(chan error, 1), time.NewTicker(tandem.ProgressEvery)
	defer every.Stop()
	go func() { ended <- owner.Guard(func() error { return d.nourish(ctx, s, n) }) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-every.C:
			p := d.sched.Progress()
			p.Held, p.Steps = int(s.fed.next.Load()), p.Steps+s.fed.asked.Load()
			o.Progress(p)
		}
	}
}

// nourish brings the first n-1 tokens of a session that was just opened into the cache, as the features of its n tokens come. Open
// waits as long as some come. When none have come for Config.FeatureWait, the rest goes without. The session is dropped after an error.
func (d *Drafter) nourish(ctx context.Context, s *session, n int) error {
	begun, pause := time.Now(), featurePause
	for more := n > 1; more; begun, pause = time.Now(), featurePause {
		most, cancel := context.WithDeadline(ctx, begun.Add(d.cfg.FeatureWait))
		a, err := d.ask(most, s.id, s.fed, n-1)
		for ; soon(err) && most.Err() == nil; pause = min(2*pause, longPause) {
			select {
			case <-time.After(pause):
			case <-most.Done():
			}
			a, err = d.ask(most, s.id, s.fed, n-1)
		}
		cancel()
		s.fed.asked.Add(1)
		if err == nil && int(a.From) < n-1 && a.Len() == 0 && int(a.From) == int(s.fed.next.Load()) {
			err = tandem.Errorf("features", tandem.Unavailable, "position %d of %d will not come", a.From, n-1)
		}
		if more, err = d.fill(ctx, s, n, a, err); err != nil {
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

// fill learns a, unless err says that no more features will come, and computes the tokens that can be computed then, but not the last. It
// reports whether some are left. Until Drafter.held have come nothing is computed: the target is at the same prompt, on the same processors
// perhaps, and somebody waits for its first token.
func (d *Drafter) fill(ctx context.Context, s *session, n int, a tandem.Features, err error) (more bool, _ error) {
	call := schedule.NewCall(ctx)
	failed := d.sched.Do(ctx, func() error {
		if !d.sched.Holds(s) {
			return tandem.Errorf("open", tandem.UnknownSession, "session %v is not held any more", s.id)
		}
		if err == nil {
			err = d.learn(s, a)
		}
		if err != nil {
			d.cfg.Counters.Add("features.missing", int64(s.fed.giveUp(n-1)))
		}
		if more = s.fed.end() < n-1; more && s.fed.end()-s.seq.Len() < d.held {
			call.End(nil)
			return nil
		}
		if s.goal = min(s.fed.end()+1, n-1); s.Missing() == 0 {
			s.fillEnds(n, more)
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
		failed = d.sched.Do(ctx, func() error { s.fillEnds(n, more); return nil })
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

// fillEnds ends the session's filling with the last piece.
func (s *session) fillEnds(n int, more bool) {
	if s.goal = 0; !more {
		s.hindsight = s.recall.Of(n)
	}
}
