package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-llm/tandem/client"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// TestGenerateTakenUp: a stream that breaks off goes on where it was, over another that breaks off before it says anything.
func TestGenerateTakenUp(t *testing.T) {
	whole := script()
	whole[0].GetStarted().Identity = "cpu-1"
	away := status.Error(codes.Unavailable, "the gateway stops")
	again := script()[:1]
	again[0].GetStarted().Resumed = true
	last := &gateway{events: append(again, &tandemv1.GenerateResponse{Sequence: 1, Event: whole[2].GetEvent()})}
	first := &gateway{events: whole[:2], err: away, next: &gateway{err: away, next: last}}
	c := serve(t, first)
	text, started, finished := "", 0, false
	for e, err := range c.Generate(context.Background(), client.Request{Prompt: "x"}) {
		switch {
		case err != nil:
			t.Fatal(err)
		case e.Started != nil:
			started++
		case e.Delta != nil:
			text += e.Delta.Text
		case e.Finished != nil:
			finished = true
		}
	}
	if text != "ab" || started != 1 || !finished {
		t.Errorf("text %q, started %d times, finished %v: want ab, once, and the end", text, started, finished)
	}
	if first.got.GetResume() != nil || first.got.GetSampling().Seed != nil {
		t.Errorf("the first request is %v: want no resume, and no seed", first.got)
	}
	for _, g := range []*gateway{first.next, last} {
		r := g.got.GetResume()
		if r.GetIdentity() != "cpu-1" || r.GetTokens() != 2 || r.GetText() != 2 || g.got.GetSampling().GetSeed() != 4 ||
			g.got.GetText() != "x" {
			t.Errorf("a later request is %v: want the same with seed 4, behind 2 tokens and 2 bytes of cpu-1", g.got)
		}
	}
}

// TestGenerateNotTakenUp: before it began, where the caller does not want it, and where the gateway refuses.
func TestGenerateNotTakenUp(t *testing.T) {
	away, wrong := status.Error(codes.Unavailable, "the gateway stops"), status.Error(codes.InvalidArgument, "another verifier")
	for name, tc := range map[string]struct {
		g      *gateway
		opts   []client.Option
		events int
		kind   client.Kind
	}{
		"not begun":  {&gateway{err: away}, nil, 0, client.Unavailable},
		"not wanted": {&gateway{events: script()[:2], err: away}, []client.Option{client.WithResume(0)}, 2, client.Unavailable},
		"not for now": {&gateway{events: script()[:2], err: away, next: &gateway{err: away}},
			[]client.Option{client.WithResume(200 * time.Millisecond)}, 2, client.Unavailable},
		"refused": {&gateway{events: script()[:2], err: away, next: &gateway{err: wrong}}, nil, 2, client.Invalid},
		"older":   {&gateway{events: script()[:2], err: away}, nil, 2, client.Unsupported},
		"wrong":   {&gateway{events: script()[:2], err: wrong}, nil, 2, client.Invalid},
	} {
		events, last := 0, error(nil)
		for _, err := range serve(t, tc.g, tc.opts...).Generate(context.Background(), client.Request{Prompt: "x"}) {
			if last = err; err == nil {
				events++
			}
		}
		if events != tc.events || !errors.Is(last, tc.kind) {
			t.Errorf("%s: %d events, then %v: want %d, then %s", name, events, last, tc.events, tc.kind)
		}
	}
}
