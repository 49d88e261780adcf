package gateway

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
)

// span is a recorded stage.
type span struct {
	stage  tandem.Stage
	parent *span
	attrs  []tandem.Attr
	ended  int
	late   bool // ended after its request
}

func (s *span) int(key string) int {
	for _, a := range s.attrs {
		if a.Key == key {
			return int(a.Int)
		}
	}
	return 0
}

// recorder records stages as telemetry does.
type recorder struct {
	mu    sync.Mutex
	spans []*span
}

type spanKey struct{}
type mutedKey struct{}

func (r *recorder) events() tandem.Events {
	return tandem.Events{
		BeginFunc: func(ctx context.Context, stage tandem.Stage, attrs []tandem.Attr) (context.Context, tandem.End) {
			if ctx.Value(mutedKey{}) != nil {
				return ctx, func(error, ...tandem.Attr) {}
			}
			parent, _ := ctx.Value(spanKey{}).(*span)
			s := &span{stage: stage, parent: parent, attrs: attrs}
			r.mu.Lock()
			r.spans = append(r.spans, s)
			r.mu.Unlock()
			return context.WithValue(ctx, spanKey{}, s), func(_ error, attrs ...tandem.Attr) {
				r.mu.Lock()
				defer r.mu.Unlock()
				s.ended++
				s.attrs = append(s.attrs, attrs...)
				for p := s.parent; p != nil; p = p.parent {
					s.late = s.late || p.ended > 0 && p.stage == tandem.StageRequest
				}
			}
		},
		CarrierFunc: func(ctx context.Context) string {
			if s, _ := ctx.Value(spanKey{}).(*span); s != nil && ctx.Value(mutedKey{}) == nil {
				return string(s.stage)
			}
			return ""
		},
		MuteFunc: func(ctx context.Context) context.Context { return context.WithValue(ctx, mutedKey{}, true) },
	}
}

func (r *recorder) of(stage tandem.Stage) (out []*span) {
	for _, s := range r.spans {
		if s.stage == stage {
			out = append(out, s)
		}
	}
	return out
}

// problem returns what is wrong with a request's trace, if it said the given number of tokens.
func (r *recorder) problem(tokens int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.of(tandem.StageRequest)); n != 1 {
		return fmt.Sprintf("%d request stages: want 1", n)
	}
	sum := 0
	for _, s := range r.spans {
		switch {
		case s.ended != 1:
			return fmt.Sprintf("stage %s ended %d times", s.stage, s.ended)
		case s.late:
			return fmt.Sprintf("stage %s ended after its request", s.stage)
		case s.parent == nil && s.stage != tandem.StageRequest:
			return fmt.Sprintf("stage %s has no parent", s.stage)
		case s.stage == tandem.StageRounds:
			sum += s.int("accepted") + s.int("rounds")
		}
	}
	if got := r.of(tandem.StageRequest)[0].int("tokens_out"); got != tokens || sum != tokens {
		return fmt.Sprintf("trace says %d tokens in the request and %d in its rounds: want %d", got, sum, tokens)
	}
	return ""
}

func TestTrace(t *testing.T) {
	for _, test := range []struct {
		name                    string
		tokens                  int
		full, drafts            bool
		groups, rounds, commits int
	}{
		{"short", 8, false, true, 1, 1, 1},
		{"plain", 100, false, false, 4, 4, 4},
		{"full", 64, true, false, 2, 64, 64},
		{"long", 200000, false, false, 214, 121, 121},
		{"long and full", 3000, true, false, 94, 135, 135},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.quiet = true
				rec := &recorder{}
				c := w.config()
				c.Events = rec.events()
				r := tandem.Request{Prompt: "x", MaxTokens: test.tokens, Sampling: tandem.Sampling{TopP: 1}, FullTrace: test.full}
				var s tandem.Sink = &sink{}
				if test.drafts {
					r.Bounds = tandem.Bounds{Nodes: 8, Depth: 4, Width: 2}
				}
				if test.tokens > 10000 { // a verifier without delay, without the cost of a world
					c.Verifier, c.Drafters, s = echo{g: &w.gw}, nil, deaf{}
				}
				w.gw, _ = New(c)
				res, err := w.gw.Generate(context.Background(), r, s)
				if err != nil {
					t.Fatal(err)
				}
				if err := w.gw.Shutdown(context.Background()); err != nil {
					t.Fatal(err)
				}
				w.flights.Wait()
				if p := rec.problem(res.OutputTokens); p != "" {
					t.Error(p)
				}
				// Of a round the other processes add draft, process and verify; of a prefill, open.
				all := len(rec.spans) + 3*len(rec.of(tandem.StageRound)) + len(rec.of(tandem.StagePrefill))
				if all > 1000 {
					t.Errorf("%d spans: want at most 1000", all)
				}
				prefills := 1
				if test.drafts {
					prefills = 2
				}
				got := []int{len(rec.of(tandem.StagePrefill)), len(rec.of(tandem.StageRounds)), len(rec.of(tandem.StageRound)),
					len(rec.of(tandem.StageCommit))}
				if want := []int{prefills, test.groups, test.rounds, test.commits}; !slices.Equal(got, want) {
					t.Errorf("prefills, groups, rounds, commits are %v: want %v", got, want)
				}
			})
		})
	}
}

// echo is a verifier that answers every ticket at once.
type echo struct {
	tandem.Verifier // nil: of the rest nothing is asked
	g               **Gateway
}

func (e echo) Submit(_ context.Context, t tandem.Ticket) error {
	(*e.g).Deliver(tandem.Verdict{Session: t.Session, Epoch: t.Epoch, Base: t.Base, Hash: t.Hash, Nodes: 1, Tokens: []tandem.Token{9},
		Busy: time.Microsecond})
	return nil
}
func (echo) Open(context.Context, tandem.Opening) (tandem.Opened, error) { return tandem.Opened{}, nil }
func (echo) Close(context.Context, tandem.SessionID) error               { return nil }

// deaf is a sink that keeps nothing.
type deaf struct{}

func (deaf) Progress(tandem.PromptProgress) error { return nil }
func (deaf) Started(tandem.Started) error         { return nil }
func (deaf) Delta(tandem.Delta) error             { return nil }
