package gateway

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/round"
	"github.com/tandem-llm/tandem/test/testkit"
)

// word is one progress of a peer that reads a prompt, and how long after the one before it comes.
type word struct {
	after time.Duration
	tandem.Progress
}

// attempt is one Open of a peer that reads a prompt.
type attempt struct {
	words []word
	then  time.Duration // from the last word to the end
	err   error         // with which it ends; nil: the session is held
}

// slowly is a peer whose first Opens are attempts.
type slowly struct {
	process
	attempts []attempt
	opens    atomic.Int32
	ended    []time.Duration // how long each Open took
}

func (s *slowly) Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) {
	begun := time.Now()
	defer func() { s.ended = append(s.ended, time.Since(begun)) }()
	n := int(s.opens.Add(1)) - 1
	if n >= len(s.attempts) {
		return s.process.Open(ctx, o)
	}
	a, cached := s.attempts[n], 0
	for _, w := range a.words {
		if err := pause(ctx, w.after); err != nil {
			return tandem.Opened{}, err
		}
		cached = w.Cached
		o.Progress(w.Progress)
	}
	if err := pause(ctx, a.then); err != nil {
		return tandem.Opened{}, err
	}
	if a.err != nil {
		return tandem.Opened{}, a.err
	}
	opened, err := s.process.Open(ctx, o)
	opened.Cached = cached
	return opened, err
}

// steps returns n words, each after every, of which each tells a step more and held tokens more.
func steps(n int, every time.Duration, held, cached int) (out []word) {
	for i := range n {
		out = append(out, word{every, tandem.Progress{Held: cached + i*held, Cached: cached, Steps: uint64(i)}})
	}
	return out
}

var killed = tandem.Errorf("fake", tandem.Unavailable, "connection closed")

// prefill runs a request whose verifier opens it so, with a stall time of one second, and ends the gateway.
func prefill(t *testing.T, attempts ...attempt) (v *slowly, c Config, res tandem.Result, err error) {
	t.Helper()
	return prefillTo(t, &sink{}, false, attempts...)
}

// prefillTo is prefill for a client that is told the progress, or is not.
func prefillTo(t *testing.T, s *sink, progress bool, attempts ...attempt) (v *slowly, c Config, res tandem.Result, err error) {
	t.Helper()
	w := newWorld()
	w.quiet = true
	c = w.config()
	c.Timeouts.VerifierWait = 10 * time.Second
	v = &slowly{process: w.peer("verifier"), attempts: attempts}
	c.Verifier = v
	w.gw, _ = New(c)
	r := tandem.Request{Prompt: strings.Repeat("word ", 200), MaxTokens: 20, Sampling: tandem.Sampling{TopP: 1}, Progress: progress}
	res, err = w.gw.Generate(context.Background(), r, s)
	if want, text, _ := w.plain(r, 4096); err == nil && (!slices.Equal(s.tokens, want) || s.text != text) {
		t.Errorf("%d tokens, text as plain: %v", len(s.tokens), s.text == text)
	}
	if p := unsettled(w.gw); p != "" || len(w.gw.Prefills()) > 0 {
		t.Errorf("%s; prefills left: %v", p, w.gw.Prefills())
	}
	if err := w.gw.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	w.flights.Wait()
	if len(w.violations) > 0 || w.held() > 0 {
		t.Errorf("contracts broken: %q; %d sessions left", w.violations, w.held())
	}
	return v, c, res, err
}

// TestPrefillIsBoundedByProgress: an Open may take many times the stall time, and many times as long as a lost verifier is waited for, as
// long as the verifier gets on: with this session, with others before it, or with the one long pass that it has announced.
func TestPrefillIsBoundedByProgress(t *testing.T) {
	const every = 900 * time.Millisecond
	announced := steps(100, every, 0, 0)
	for i := range announced { // passes that should take 4 s each end after 36 s
		announced[i].Progress = tandem.Progress{Steps: uint64(i / 40), Pass: 4 * time.Second}
	}
	for name, words := range map[string][]word{
		"tokens":         steps(200, every, 5, 0),
		"others' passes": steps(200, every, 0, 0),
		"long passes":    announced,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v, c, res, err := prefill(t, attempt{words: words})
				if err != nil || res.Stats.Reopened != 0 || v.opens.Load() != 1 || res.CachedTokens != 0 {
					t.Errorf("%v after %d Opens, %d cached tokens: want one, of %v, and none cached; %v", err, v.opens.Load(),
						res.CachedTokens,
						time.Duration(len(words))*every, c.Counters.Snapshot())
				}
				if least := time.Duration(len(words)) * every; res.Stats.Prefill < least {
					t.Errorf("prefill of %v: want %v", res.Stats.Prefill, least)
				}
			})
		})
	}
}

// TestPromptProgress: who asks for it is told how far the prompt has been read, before the answer begins; a client that takes
// long, the latest.
func TestPromptProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		words := attempt{words: steps(4, tandem.ProgressEvery, 5, 10), then: time.Second / 4}
		var s sink
		if _, _, res, err := prefillTo(t, &s, true, words); err != nil || len(s.told) != 4 || s.late > 0 {
			t.Fatalf("%v: told %+v, %d times too late", err, s.told, s.late)
		} else {
			for i, p := range s.told {
				if want := (tandem.PromptProgress{Total: res.PromptTokens, Cached: 10, Processed: 10 + 5*i,
					Time: time.Duration(i+1) * tandem.ProgressEvery}); p != want {
					t.Errorf("told %+v: want %+v", p, want)
				}
			}
		}
		var unasked sink
		if _, _, _, err := prefillTo(t, &unasked, false, words); err != nil || len(unasked.told) > 0 {
			t.Errorf("%v: told %+v, which nobody asked for", err, unasked.told)
		}
		slow := sink{slow: 20 * time.Second}
		if _, _, _, err := prefillTo(t, &slow, true, words); err != nil || len(slow.told) != 2 ||
			slow.told[1].Processed != 25 || slow.late > 0 {
			t.Errorf("%v: a client that takes long is told %+v: want the first and the last", err, slow.told)
		}
		// what is read again behind output is not the prompt
		again := sink{}
		if _, _, _, err := prefillTo(t, &again, true, attempt{words: words.words, err: killed}, words); err != nil || len(again.told) != 8 {
			t.Errorf("%v: of two attempts told %+v", err, again.told)
		}
	})
}

// TestStallIsFound: a verifier that has fallen silent, or whose passes stand still, is found in the stall time, and the session is opened
// again.
func TestStallIsFound(t *testing.T) {
	still := steps(60, 500*time.Millisecond, 0, 0)
	for i := range still {
		still[i].Progress = tandem.Progress{Steps: uint64(min(i, 3)), Pass: 10 * time.Millisecond}
	}
	long := slices.Clone(still)
	for i := range long {
		long[i].Pass = time.Second
	}
	for name, x := range map[string]struct {
		attempt
		least, most time.Duration
	}{
		"silent from the start": {attempt{then: time.Hour}, time.Second, 1100 * time.Millisecond},
		"falls silent": {attempt{words: steps(10, 500*time.Millisecond, 5, 0), then: time.Hour}, 5900 * time.Millisecond,
			6100 * time.Millisecond},
		"stands still":          {attempt{words: still}, 2900 * time.Millisecond, 3200 * time.Millisecond},
		"in a pass of a second": {attempt{words: long}, 11900 * time.Millisecond, 12200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v, c, _, err := prefill(t, x.attempt)
				if err != nil || v.opens.Load() != 2 || c.Counters.Snapshot()["verifier.open_deadline"] != 1 {
					t.Errorf("%v after %d Opens, %v: want two, the first given up", err, v.opens.Load(), c.Counters.Snapshot())
				}
				if took := v.ended[0]; took < x.least || took > x.most {
					t.Errorf("found after %v: want %v to %v", took, x.least, x.most)
				}
			})
		})
	}
}

// TestKillsDuringPrefill: a verifier that dies in the middle is waited for, also if it had read longer than a lost one is waited for; what
// the request has computed itself does not count as cached; and it ends if the verifier never gets through.
func TestKillsDuringPrefill(t *testing.T) {
	long := func(cached int) attempt {
		return attempt{words: steps(40, 900*time.Millisecond, 5, cached), err: killed}
	}
	whole := func(cached int) attempt { return attempt{words: steps(3, 900*time.Millisecond, 5, cached)} }
	for _, x := range []struct {
		name     string
		attempts []attempt
		cached   int
	}{
		{"one", []attempt{long(64), whole(320)}, 64},
		{"its memory is gone", []attempt{long(64), whole(0)}, 0},
		{"before a word", []attempt{{then: 100 * time.Millisecond, err: killed}, whole(128)}, 128},
		{"several", []attempt{long(0), long(192), long(448), long(192), whole(512)}, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, c, res, err := prefill(t, x.attempts...)
				if err != nil || res.CachedTokens != x.cached {
					t.Errorf("%v, %d cached tokens: want %d; %v", err, res.CachedTokens, x.cached, c.Counters.Snapshot())
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		v, _, _, err := prefill(t, slices.Repeat([]attempt{long(0)}, 50)...)
		if n := v.opens.Load(); tandem.KindOf(err) != tandem.Unavailable || n > round.MostRepairs+1 {
			t.Errorf("a verifier that never gets through: %v after %d Opens: want unavailable after at most %d", err, n,
				round.MostRepairs+1)
		}
	})
}

// TestCancelDuringPrefill: a client that goes away while its prompt is read leaves nothing behind, at once.
func TestCancelDuringPrefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet = true
		c := w.config()
		c.Verifier = &slowly{process: w.peer("verifier"), attempts: []attempt{{words: steps(1000, 100*time.Millisecond, 1, 0)}}}
		w.gw, _ = New(c)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			_, err := w.gw.Generate(ctx, tandem.Request{Prompt: strings.Repeat("word ", 300), MaxTokens: 5,
				Sampling: tandem.Sampling{TopP: 1}},
				&sink{})
			ended <- err
		}()
		testkit.Sleep(30050 * time.Millisecond)
		if got := w.gw.Prefills(); len(got) != 1 || got[0].Held != 299 || got[0].Total != 1500 {
			t.Errorf("prefills while it is read: %v: want one with 299 of 1500 tokens", got)
		}
		cancel()
		asked := time.Now()
		if err := <-ended; tandem.KindOf(err) != tandem.Canceled {
			t.Error(err)
		}
		if took := time.Since(asked); took > 50*time.Millisecond {
			t.Errorf("it took %v to end", took)
		}
		if running, waiting := w.gw.Load(); running+waiting+len(w.gw.Prefills()) > 0 {
			t.Errorf("%d run, %d wait, prefills %v", running, waiting, w.gw.Prefills())
		}
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
	})
}

// TestSlowDrafterCostsNothing: a drafter that reads the prompt for many times the stall time keeps its Open as long as it gets on, and the
// request runs meanwhile; then it drafts.
func TestSlowDrafterCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet = true
		c := w.config()
		d := &slowly{process: w.peer("drafter"), attempts: []attempt{{words: steps(10, 900*time.Millisecond, 1, 0)}}}
		c.Drafters[0].Drafter = slowDrafter{d}
		w.gw, _ = New(c)
		r := tandem.Request{Prompt: "func ", MaxTokens: 3000, Sampling: tandem.Sampling{TopP: 1},
			Bounds: tandem.Bounds{Nodes: 8, Depth: 4, Width: 2}}
		s, begun := &sink{}, time.Now()
		var first time.Duration
		s.each = func(tandem.Delta) {
			if first == 0 {
				first = time.Since(begun)
			}
		}
		res, err := w.gw.Generate(context.Background(), r, s)
		if err != nil || d.opens.Load() != 1 || res.Stats.Accepted == 0 || res.Stats.Reopened != 0 || first > time.Second {
			t.Errorf("%v after %d Opens of the drafter, %d tokens accepted, first after %v: want one Open, some accepted, at most 1s", err,
				d.opens.Load(), res.Stats.Accepted, first)
		}
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
	})
}

// slowDrafter is a drafter of the world that opens slowly.
type slowDrafter struct{ *slowly }

func (d slowDrafter) Propose(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	return fakeDrafter{d.process}.Propose(ctx, p)
}

// TestDearDrafterIsOpenedLate: a drafter that says that it needs 1 ms for each token of a prompt, where a round takes 5 ms, is not opened
// for a long prompt with a short answer; for a short prompt it is at once, and for a long answer when that has shown to be one. Another
// drafter, which says nothing and knows little, drafts meanwhile. The text is the same.
func TestDearDrafterIsOpenedLate(t *testing.T) {
	for _, tc := range []struct {
		name           string
		prompt, output int
		dear           int // Opens of the dear drafter
	}{
		{"a long prompt, a short answer", 2000, 40, 0},
		{"a short prompt, a short answer", 10, 40, 1},
		{"a long prompt, a long answer", 2000, 6000, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.quiet, w.knows["b"] = true, 0.1
			c := w.config()
			c.Limits.Context = 10000
			late := &slowly{process: w.peer("drafter"), attempts: []attempt{{}}}
			c.Drafters = []Enlisted{{Name: "dear", Drafter: slowDrafter{late},
				Costs: []tandem.Cost{{Rows: 1, Time: 2e6}, {Rows: 64, Time: 64e6}}}, w.enlisted("b")}
			w.gw, _ = New(c)
			w.gw.VerifierIs([]tandem.Cost{{Rows: 1, Time: w.verify}, {Rows: 64, Time: 4 * w.verify}}, 0, 0, 0)
			r := tandem.Request{Prompt: strings.Repeat("x", tc.prompt), MaxTokens: tc.output, IgnoreEOS: true,
				Sampling: tandem.Sampling{TopP: 1}, Strategy: tandem.StrategyPlanner, Bounds: tandem.Bounds{Nodes: 8, Depth: 4, Width: 2}}
			s, before := &sink{}, 0 // tokens before it was opened
			s.each = func(d tandem.Delta) {
				if late.opens.Load() == 0 {
					before += len(d.Tokens)
				}
			}
			res, err := w.gw.Generate(context.Background(), r, s)
			if want, _, _ := w.plain(r, 10000); err != nil || !slices.Equal(s.tokens, want) || int(late.opens.Load()) != tc.dear {
				t.Errorf("%s: %v, %d tokens as plain: %v; %d Opens: want %d", tc.name, err, len(s.tokens), slices.Equal(s.tokens, want),
					late.opens.Load(), tc.dear)
			}
			if wait := tc.prompt > 1000 && tc.dear > 0; tc.dear > 0 && (before > 200) != wait {
				t.Errorf("%s: opened after %d tokens", tc.name, before)
			}
			if res.Stats.Accepted == 0 {
				t.Errorf("%s: nothing was accepted", tc.name)
			}
			if err := w.gw.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
			w.flights.Wait()
		})
	}
}
