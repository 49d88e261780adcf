package system

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// emptyHops send empty rounds that take 50 µs, and 80 µs if memory was read.
type emptyHops struct {
	asked *[]string // what was asked for, if wanted
	err   error
}

func (e emptyHops) Rounds(_ context.Context, n int, s EmptyRound) ([]time.Duration, error) {
	if e.asked != nil {
		*e.asked = append(*e.asked, fmt.Sprintf("%d %v+%d %v", n, s.Bounds, s.Accepted, s.Read))
	}
	times := make([]time.Duration, n)
	for i := range times {
		if times[i] = 50 * time.Microsecond; s.Read > 0 {
			times[i] = 80 * time.Microsecond
		}
	}
	return times, e.err
}

// TestHops: real and empty rounds take turns in alternating order, empty ones are as many as the real ones and have their shape, and
// the result sets the real ones' times over theirs.
func TestHops(t *testing.T) {
	var groups []Group
	var asked []string
	c := scriptedConfig(t, &groups, nil)
	c.Suites, c.Scenario = []string{"hops"}, []string{"go"}
	c.StartHops = func(ctx context.Context, do func(context.Context, Hops) error) error {
		return do(ctx, emptyHops{asked: &asked})
	}
	r, err := Run(t.Context(), c)
	if err != nil || r.Err() != nil {
		t.Fatal(err, r.Err())
	}
	// scripted: 16 tokens in 8 rounds with drafts, of 2 nodes of which 1 is accepted; a pass takes 0.5 ms, a plain one 1 ms
	want := "8 3/1/1+1 0s, 8 3/1/1+1 500µs, 16 none+0 0s, 16 none+0 1ms, 16 none+0 1ms, 16 none+0 0s, 8 3/1/1+1 500µs, 8 3/1/1+1 0s"
	if got := strings.Join(asked, ", "); got != want {
		t.Errorf("empty rounds\n%s: want\n%s", got, want)
	}
	s := r.Suites[0]
	if len(s.Hops) != 2 || len(s.Figures) != 8 {
		t.Fatalf("%+v: want two kinds of rounds with four bars each", s)
	}
	for i, rounds := range []int{16, 32} { // of two prompts
		for way, want := range []wayTimes{{"real", rounds, quantiles{100, 100}, quantiles{1, 1}},
			{"empty", rounds, quantiles{50, 50}, quantiles{2, 2}},
			{"empty, cold caches", rounds, quantiles{80, 80}, quantiles{1.25, 1.25}}} {
			if got := s.Hops[i].Ways[way]; got != want {
				t.Errorf("%s: %+v, want %+v", s.Hops[i].Kind, got, want)
			}
		}
		for j, want := range []float64{2, 2, 1.25, 1.25} {
			if f := s.Figures[4*i+j]; f.Value != want || !strings.HasPrefix(f.Name, s.Hops[i].Kind+": ") {
				t.Errorf("%+v: want %v", f, want)
			}
		}
	}
	if k := s.Hops[0]; k.Kind != "drafted" || k.Tree != "3/1/1" || k.Nodes != 3 || k.Accepted != 1 || k.PassMS != 0.5 {
		t.Errorf("drafted rounds are %+v", k)
	}
	if k := s.Hops[1]; k.Kind != "plain" || k.Tree != "none" || k.Nodes != 1 || k.Accepted != 0 || k.PassMS != 1 {
		t.Errorf("plain rounds are %+v", k)
	}
}

// TestHopsFail: the suite ends with the reason, and keeps what was measured before.
func TestHopsFail(t *testing.T) {
	var groups []Group
	c := scriptedConfig(t, &groups, nil)
	c.Suites, c.Scenario = []string{"hops"}, []string{"go"}
	lost := errors.New("no verdict came")
	c.StartHops = func(ctx context.Context, do func(context.Context, Hops) error) error {
		return do(ctx, emptyHops{err: lost})
	}
	r, err := Run(t.Context(), c)
	if err != nil || !strings.Contains(r.Suites[0].Error, "empty rounds: no verdict came") || len(r.Suites[0].Hops) != 1 {
		t.Errorf("%v, %+v", err, r)
	}
	c.StartHops = nil
	if r, err = Run(t.Context(), c); err != nil || tandem.KindOf(r.Err()) != tandem.Internal || r.Suites[0].Hops != nil {
		t.Errorf("without a way to send them: %v, %+v", err, r)
	}
}
