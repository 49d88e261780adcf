package states

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/schedule/owner"
)

const (
	featurePause = 2 * time.Millisecond // before a verifier that does not hold the session yet is asked again; doubles
	longPause    = 50 * time.Millisecond
)

// text fills a session's cache with the text that it is opened with, as its features come. It implements grow.Opener.
type text struct {
	fs    *Feeds
	f     *Feed
	asked atomic.Uint64 // answers of the verifier, of whatever kind
}

// Open returns the feed of a session that is being opened, and the part that fills its cache. The cache begins with held rows.
func (fs *Feeds) Open(s *grow.Session, held int) (*Feed, grow.Opener) {
	f := newFeed(s, held, fs.width)
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.open[s.ID] = f
	return f, &text{fs: fs, f: f}
}

// Open implements grow.Opener. Progress is told.
func (t *text) Open(ctx context.Context, o tandem.Opening) error {
	n := len(o.Tokens)
	t.f.addr.Store(&o.Place.Addr)
	if o.Progress == nil {
		return t.fill(ctx, n)
	}
	ended, every := make(chan error, 1), time.NewTicker(tandem.ProgressEvery)
	defer every.Stop()
	go func() { ended <- owner.Guard(func() error { return t.fill(ctx, n) }) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-every.C:
			p := t.fs.draft.Sched.Progress()
			p.Held, p.Steps = int(t.f.next.Load()), p.Steps+t.asked.Load()
			o.Progress(p)
		}
	}
}

// fill brings the first n-1 tokens of the session into the cache, as the features of its n tokens come. It waits as long as some come.
// When none have come for Config.FeatureWait, the rest goes without. The session is dropped after an error.
func (t *text) fill(ctx context.Context, n int) error {
	begun, pause := time.Now(), featurePause
	for more := n > 1; more; begun, pause = time.Now(), featurePause {
		most, cancel := context.WithDeadline(ctx, begun.Add(t.fs.draft.Config.FeatureWait))
		a, err := t.f.ask(most, n-1)
		for ; soon(err) && most.Err() == nil; pause = min(2*pause, longPause) {
			select {
			case <-time.After(pause):
			case <-most.Done():
			}
			a, err = t.f.ask(most, n-1)
		}
		cancel()
		t.asked.Add(1)
		if err == nil && int(a.From) < n-1 && a.Len() == 0 && int(a.From) == int(t.f.next.Load()) {
			err = tandem.Errorf("features", tandem.Unavailable, "position %d of %d will not come", a.From, n-1)
		}
		if more, err = t.fillPiece(ctx, n, a, err); err != nil {
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
// It reports whether some are left. Until Config.FeatureRows have come nothing is computed: the target is at the same prompt, on the same
// processors perhaps, and somebody waits for its first token.
func (t *text) fillPiece(ctx context.Context, n int, a tandem.Features, err error) (more bool, _ error) {
	f, s, sched, call := t.f, t.f.s, t.fs.draft.Sched, schedule.NewCall(ctx)
	failed := sched.Do(ctx, func() error {
		if !sched.Holds(s) {
			return tandem.Errorf("open", tandem.UnknownSession, "session %v is not held any more", s.ID)
		}
		if err == nil {
			err = f.learn(a)
		}
		if err != nil {
			s.Draft.Config.Counters.Add("features.missing", int64(f.giveUp(n-1)))
		}
		if more = f.end() < n-1; more && f.end()-s.Cache.Len() < t.fs.draft.Config.FeatureRows {
			call.End(nil)
		} else if !s.Fill(call, min(f.end()+1, n-1)) {
			s.Filled(n, !more)
			call.End(nil)
		}
		return nil
	})
	if failed == nil {
		failed = call.Wait()
	}
	if failed == nil {
		failed = sched.Do(ctx, func() error { s.Filled(n, !more); return nil })
	}
	if failed != nil {
		sched.Post(func() {
			if sched.Holds(s) {
				sched.Drop(s, failed)
			}
		})
	}
	return more, failed
}

// Closed implements grow.Opener.
func (t *text) Closed() { t.fs.closed(t.f) }
