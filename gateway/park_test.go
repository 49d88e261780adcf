package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// reader is a client that takes its pauses. It holds the gateway to the contract of a sink.
type reader struct {
	sink
	pause  func(n int) time.Duration // before it has read delta n, from 1 on; 0: Started
	n      int
	inside atomic.Bool
	broken string
}

func (r *reader) call(f func() error) error {
	if r.inside.Swap(true) {
		r.broken = "called by two goroutines at a time"
	}
	defer r.inside.Store(false)
	testkit.Sleep(r.pause(r.n))
	if (r.n == 0) != (r.started.Session == 0) {
		r.broken = fmt.Sprintf("call %d, started as session %v", r.n, r.started.Session)
	}
	r.n++
	return f()
}

func (*reader) Progress(tandem.PromptProgress) error { return nil }
func (r *reader) Started(s tandem.Started) error {
	return r.call(func() error { return r.sink.Started(s) })
}

func (r *reader) Delta(d tandem.Delta) error {
	return r.call(func() error { return r.sink.Delta(d) })
}

// TestSlowClientsGiveTheirPlacesBack: as many clients as there are places read nothing for 25 s. Beside them a request
// is answered at once; then each goes on, and its text is that of plain decoding.
func TestSlowClientsGiveTheirPlacesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places, tokens, sleep = 3, 2000, 25 * time.Second
		w := newWorld()
		w.quiet = true
		c := w.config()
		c.Sessions, c.Queue = places, 10
		w.gw, _ = New(c)
		var all sync.WaitGroup
		for i := range places {
			all.Go(func() {
				r := tandem.Request{Prompt: fmt.Sprint("func ", i), MaxTokens: tokens, Sampling: tandem.Sampling{TopP: 1, Seed: uint64(i)},
					Bounds: tandem.Bounds{Nodes: 8, Depth: 4, Width: 2}}
				s := &reader{pause: func(n int) time.Duration {
					if n == 1 {
						return sleep
					}
					return 0
				}}
				res, err := w.gw.Generate(context.Background(), r, s)
				want, text, _ := w.plain(r, 4096)
				if err != nil || s.broken != "" || !slices.Equal(s.tokens, want) || s.text != text {
					t.Errorf("slow client %d: %v, contract %q, text as plain: %v", i, err, s.broken, s.text == text)
				}
				if res.Stats.Reopened != 1 || res.OutputTokens != tokens || res.Stats.Decode > 15*time.Second {
					t.Errorf("slow client %d: reopened %d times, %d tokens, decoded for %v: want once, %d tokens, and the time that it "+
						"was parked not counted",
						i, res.Stats.Reopened, res.OutputTokens, res.Stats.Decode, tokens)
				}
			})
		}
		testkit.Sleep(15 * time.Second) // their buffers are full by then
		counts := c.Counters.Snapshot()
		if running, waiting := w.gw.Load(); running != 0 || waiting != 0 || counts["sessions.parked"] != places ||
			counts["sessions.parkings"] != places {
			t.Errorf("%d run, %d wait, %d are parked: want %d parked and no place taken", running, waiting, counts["sessions.parked"],
				places)
		}
		w.mu.Lock()
		if w.held() > 0 {
			t.Errorf("the peers hold %d sessions of clients that do not read", w.held())
		}
		w.mu.Unlock()
		begun := time.Now()
		if _, err := w.gw.Generate(context.Background(), tandem.Request{Prompt: "x", MaxTokens: 10, Sampling: tandem.Sampling{TopP: 1}},
			&sink{}); err != nil || time.Since(begun) > time.Second {
			t.Errorf("a request beside clients that do not read took %v: %v", time.Since(begun), err)
		}
		all.Wait()
		if p := unsettled(w.gw); p != "" {
			t.Error(p)
		}
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
		if len(w.violations) > 0 || w.held() > 0 {
			t.Errorf("contracts broken: %q; %d sessions left", w.violations, w.held())
		}
	})
}

// TestWholeOutputKeepsNoPlace: a request whose text is whole has given its place back, though its client has not read it.
func TestWholeOutputKeepsNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet = true
		c := w.config()
		c.Sessions = 1 // and nobody may wait
		w.gw, _ = New(c)
		r := tandem.Request{Prompt: "x", MaxTokens: 10, Sampling: tandem.Sampling{TopP: 1}}
		var all sync.WaitGroup
		all.Go(func() {
			s := &reader{pause: func(n int) time.Duration { return 5 * time.Second }}
			if res, err := w.gw.Generate(context.Background(), r, s); err != nil || s.broken != "" || len(s.tokens) != 10 ||
				res.Stats.Reopened != 0 {
				t.Errorf("a client that takes 5 s for each piece got %d tokens, contract %q, opened again %d times: %v", len(s.tokens),
					s.broken, res.Stats.Reopened, err)
			}
		})
		testkit.Sleep(time.Second)
		if _, err := w.gw.Generate(context.Background(), r, &sink{}); err != nil {
			t.Errorf("beside it: %v", err)
		}
		all.Wait()
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
	})
}

// TestUnreadOutputIsBounded: what waits for a client that does not read is 64 KiB and a round's output, also with log-probabilities
// and reports, and after 30 s its request fails and says why.
func TestUnreadOutputIsBounded(t *testing.T) {
	for _, r := range []tandem.Request{
		{},
		{Report: true, Bounds: tandem.Bounds{Nodes: 16, Depth: 7, Width: 4}},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.quiet = true
			c := w.config()
			c.Sessions = 1
			w.gw, _ = New(c)
			r.Prompt, r.MaxTokens, r.Sampling = "x", 4000, tandem.Sampling{TopP: 1}
			g := w.gw
			release := make(chan struct{})
			s := &sink{each: func(tandem.Delta) { <-release }}
			var res tandem.Result
			var err error
			var all sync.WaitGroup
			all.Go(func() { res, err = g.Generate(context.Background(), r, s) })
			testkit.Sleep(29 * time.Second)
			if n := c.Counters.Snapshot()["sessions.parked"]; n != 1 {
				t.Errorf("%d sessions are parked after 29 s: want 1", n)
			}
			testkit.Sleep(2 * time.Second)
			synctest.Wait()
			if n := c.Counters.Snapshot()["sessions.parked"]; n != 0 || w.held() > 0 {
				t.Errorf("%d sessions are parked after 31 s, and %d held: want none", n, w.held())
			}
			close(release) // the sink returns when its front end gives up
			all.Wait()
			if tandem.KindOf(err) != tandem.Deadline || !strings.Contains(err.Error(), "the client has read nothing for 30s") {
				t.Errorf("the request ended with %v: want a deadline that names the client", err)
			}
			if s.deltas != 1 {
				t.Errorf("the client got %d pieces: want none after the error", s.deltas)
			}
			if res.OutputTokens < 100 || res.OutputTokens > 3000 {
				t.Errorf("%d tokens were kept for a client that does not read", res.OutputTokens)
			}
			if err := g.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
			w.flights.Wait()
		})
	}
}

// TestSize: what counts as unread is about what it takes of memory.
func TestSize(t *testing.T) {
	d := tandem.Delta{Text: strings.Repeat("x", 1000), Tokens: make([]tandem.Token, 100), Origins: make([]tandem.Origin, 100)}
	base := size(&d)
	if base < 1500 || base > 2000 {
		t.Errorf("1,000 bytes of text and 100 tokens count as %d bytes", base)
	}
	d.Logprobs = make([]tandem.Logprob, 100)
	for i := range d.Logprobs {
		d.Logprobs[i].Top = make([]tandem.TopLogprob, 20)
	}
	if n := size(&d) - base; n != 100*(32+20*8) {
		t.Errorf("the log-probabilities of 100 tokens with 20 others each count as %d bytes", n)
	}
	d.Logprobs, d.Round = nil, &tandem.Round{Choice: "go 8/4", Why: strings.Repeat("y", 100), Drafters: []string{"a", "b"},
		Votes: make([]uint16, 200),
		Tree:  tandem.Tree{Tokens: make([]tandem.Token, 200), Parents: make([]int32, 200), LogProbs: make([]float32, 200)},
		Path:  make([]int32, 7), Lanes: make([]tandem.Lane, 5)}
	if n := size(&d) - base; n < 200*14+5*48+100 || n > 200*14+5*48+100+500 {
		t.Errorf("a report of 200 nodes counts as %d bytes", n)
	}
}

// TestSlownessNeverChangesTheText: whatever is lost, wrong or restarted, and however a client reads, it gets what plain
// decoding says, in order, and the places and the peers' memory are free in the end.
func TestSlownessNeverChangesTheText(t *testing.T) {
	parkings := int64(0)
	rapid.Check(t, func(rt *rapid.T) {
		const requests = 3
		var rs [requests]tandem.Request
		var pauses [requests]map[int]time.Duration
		for i := range rs {
			rs[i] = genRequest(rt)
			rs[i].Tenant = rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "tenant")
			pauses[i] = map[int]time.Duration{}
			for range rapid.IntRange(0, 6).Draw(rt, "pauses") {
				pauses[i][rapid.IntRange(0, 40).Draw(rt, "before")] = time.Duration(rapid.IntRange(0, 3000).Draw(rt,
					"pause")) * time.Millisecond
			}
		}
		places := rapid.IntRange(1, 2).Draw(rt, "places")
		room := rapid.IntRange(1, 2000).Draw(rt, "room")
		faults := genFaults(rt, 7)
		var problem string
		synctest.Test(t, func(*testing.T) {
			w := newWorld()
			w.quiet, w.faults = true, faults
			c := w.config()
			c.Sessions, c.Queue, c.Unread, c.Limits.Context = places, requests, room, 120
			w.gw, _ = New(c)
			var all sync.WaitGroup
			var mu sync.Mutex
			for i, r := range rs {
				all.Go(func() {
					s := &reader{pause: func(n int) time.Duration { return pauses[i][n] }}
					res, err := w.gw.Generate(context.Background(), r, s)
					want, text, finish := w.plain(r, 120)
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err != nil:
						problem = fmt.Sprintf("request %d failed: %v", i, err)
					case !slices.Equal(s.tokens, want) || s.text != text || res.Finish != finish:
						problem = fmt.Sprintf("request %d: text %q, %s: want %q, %s", i, s.text, res.Finish, text, finish)
					case s.broken != "":
						problem = s.broken
					case res.OutputTokens != len(want) || res.Stats.Accepted+res.Stats.Rounds != len(want) || s.deltas != res.Stats.Rounds:
						problem = fmt.Sprintf("request %d: figures contradict each other: %+v", i, res)
					}
				})
			}
			all.Wait()
			w.flights.Wait()
			if err := w.gw.Shutdown(context.Background()); err != nil {
				problem = err.Error()
			}
			if p := unsettled(w.gw); p != "" {
				problem = p
			}
			parkings += c.Counters.Snapshot()["sessions.parkings"]
			if running, waiting := w.gw.Load(); running+waiting > 0 || w.held() > 0 || len(w.violations) > 0 {
				problem = fmt.Sprintf("%d places taken, %d wait, %d sessions held, contracts broken: %q", running, waiting, w.held(),
					w.violations)
			}
		})
		if problem != "" {
			rt.Fatal(problem)
		}
	})
	if !t.Failed() && parkings == 0 { // what rapid draws parks 7 to 35 sessions in the short form
		t.Error("no session was parked: the readers are too fast, or the room is too large, for this test to mean anything")
	}
}

// TestCancelWhileParked cancels a request in each tenth of a second of a life in which it is parked, waits for a place,
// and is opened again: place and peers are free at once, though its sink is only given up later.
func TestCancelWhileParked(t *testing.T) {
	for at := time.Duration(0); at < 4*time.Second; at += 99700 * time.Microsecond {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.quiet = true
			c := w.config()
			c.Sessions, c.Queue, c.Unread = 1, 1, 1000
			w.gw, _ = New(c)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var all sync.WaitGroup
			all.Go(func() {
				s := &reader{pause: func(n int) time.Duration {
					if n%20 == 5 {
						return time.Second
					}
					return 0
				}}
				r := tandem.Request{Prompt: "x", MaxTokens: 100, Sampling: tandem.Sampling{TopP: 1}}
				_, err := w.gw.Generate(ctx, r, s)
				want, _, _ := w.plain(r, 4096)
				if kind := tandem.KindOf(err); kind != tandem.Canceled && kind != tandem.OK || len(s.tokens) > len(want) ||
					!slices.Equal(s.tokens, want[:len(s.tokens)]) {
					t.Errorf("cancelled after %v: %v", at, err)
				}
			})
			all.Go(func() { // has the place for a while, when the other is parked
				testkit.Sleep(500 * time.Millisecond)
				if _, err := w.gw.Generate(context.Background(),
					tandem.Request{Prompt: "y", MaxTokens: 100, Sampling: tandem.Sampling{TopP: 1}}, &sink{}); err != nil {
					t.Error(err)
				}
			})
			testkit.Sleep(at)
			cancel()
			synctest.Wait()
			if counts := c.Counters.Snapshot(); counts["sessions.parked"] != 0 {
				t.Errorf("cancelled after %v: still parked", at)
			}
			all.Wait()
			testkit.Sleep(50 * time.Millisecond)
			synctest.Wait()
			if running, waiting := w.gw.Load(); running+waiting > 0 {
				t.Errorf("cancelled after %v: %d places taken, %d wait", at, running, waiting)
			}
			w.mu.Lock()
			if w.held() > 0 {
				t.Errorf("cancelled after %v: %d sessions held", at, w.held())
			}
			w.mu.Unlock()
			if err := w.gw.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
			w.flights.Wait()
		})
	}
}

// TestSinkError: a client that is gone ends its request, which is nobody else's business.
func TestSinkError(t *testing.T) {
	for failAt, want := range map[int]int{0: 0, 2: 1} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.quiet = true
			w.gw, _ = New(w.config())
			s := &sink{failAt: failAt, err: errors.New("connection reset")}
			r := tandem.Request{Prompt: "x", MaxTokens: 100, Sampling: tandem.Sampling{TopP: 1}}
			_, err := w.gw.Generate(context.Background(), r, s)
			if tandem.KindOf(err) != tandem.Canceled || !strings.Contains(err.Error(), "output not taken: connection reset") ||
				len(s.sizes) != want {
				t.Errorf("failing at %d: %d pieces taken, %v", failAt, len(s.sizes), err)
			}
			if took := time.Since(w.began); took > 50*time.Millisecond {
				t.Errorf("failing at %d: it ended after %v", failAt, took)
			}
			if err := w.gw.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
			w.flights.Wait()
			if w.held() > 0 {
				t.Error("sessions left in the peers")
			}
		})
	}
}

// TestShutdownWhileParked: a request that is parked, and one whose output is whole but unread, are cut short when the
// gateway's time is over, and said to be.
func TestShutdownWhileParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet = true
		c := w.config()
		w.gw, _ = New(c)
		var all sync.WaitGroup
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for _, tokens := range []int{2000, 10} {
			all.Go(func() {
				_, err := w.gw.Generate(ctx, tandem.Request{Prompt: "x", MaxTokens: tokens, Sampling: tandem.Sampling{TopP: 1}},
					&sink{each: func(tandem.Delta) { <-ctx.Done() }})
				if tandem.KindOf(err) != tandem.Unavailable {
					t.Errorf("%d tokens: %v: want unavailable", tokens, err)
				}
			})
		}
		testkit.Sleep(15 * time.Second)
		end, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		time.AfterFunc(1100*time.Millisecond, cancel) // the front end gives its streams up
		if err := w.gw.Shutdown(end); tandem.KindOf(err) != tandem.Deadline || !strings.Contains(err.Error(), "2 requests were cut short") {
			t.Errorf("shut down: %v: want two requests cut short", err)
		}
		all.Wait()
		w.flights.Wait()
	})
}
