package verifier_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/verifier"
)

// garbage is trees as a broken drafter may send them, below root.
func garbage(root tandem.Token) map[string]tandem.Tree {
	huge := tandem.Tree{Tokens: make([]tandem.Token, 1_000_000), Parents: make([]int32, 1_000_000)}
	huge.Tokens[0], huge.Parents[0] = root, -1
	return map[string]tandem.Tree{
		"a cycle":                   {Tokens: []tandem.Token{root, 1, 2}, Parents: []int32{-1, 2, 1}},
		"its own parent":            {Tokens: []tandem.Token{root, 1}, Parents: []int32{-1, 1}},
		"a parent out of range":     {Tokens: []tandem.Token{root, 1}, Parents: []int32{-1, math.MinInt32}},
		"a million nodes":           huge,
		"a token out of vocabulary": {Tokens: []tandem.Token{root, 4096}, Parents: []int32{-1, 0}},
		"a negative token":          {Tokens: []tandem.Token{root, -1}, Parents: []int32{-1, 0}},
		"another root":              tandem.Root(root + 1),
		"equal siblings":            {Tokens: []tandem.Token{root, 1, 1}, Parents: []int32{-1, 0, 0}},
		"fewer parents":             {Tokens: []tandem.Token{root, 1}, Parents: []int32{-1}},
		"refused by the pool":       {Tokens: []tandem.Token{}},
	}
}

// TestGarbageIsPutAside: each kind of garbage is refused at once, naming the drafter; the third within a minute makes
// the verifier deaf to that drafter, and to nobody else.
func TestGarbageIsPutAside(t *testing.T) {
	for name := range garbage(70) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigOptions{})
			s := openStream(t, r, 1, 50, 60, 70)
			for n := range 4 {
				tick := s.ticket()
				tick.Drafter, tick.Tree = "broken", garbage(s.text[len(s.text)-1])[name]
				begun := time.Now()
				v := s.ask(tick)
				if took := time.Since(begun); took > 10*time.Second { // nobody waits for anything
					t.Errorf("answered after %v", took)
				}
				if n < 3 {
					if v.Kind != tandem.Invalid || !strings.Contains(v.Message, `drafter "broken"`) {
						t.Errorf("ticket %d: %+v, want invalid", n, v)
					}
					continue
				}
				if v.Kind != tandem.OK || v.Nodes != 1 || len(v.Tokens) != 1 {
					t.Errorf("ticket %d: %+v, want the root verified", n, v)
				}
				s.text = append(s.text, v.Tokens...)
			}
			good := s.ticket()
			good.Drafter = "good"
			good.Tree = tandem.Tree{Tokens: []tandem.Token{good.Tree.Tokens[0], 1, 2}, Parents: []int32{-1, 0, 1}}
			v := s.ask(good)
			if v.Kind != tandem.OK || v.Nodes != 3 {
				t.Errorf("another drafter's tree: %+v", v)
			}
			if n := r.counters.Snapshot(); n["tickets.invalid"] != 3 || n["tickets.garbage_from.broken"] != 3 ||
				n["tickets.distrusted"] != 1 || n["faults"] != 0 {
				t.Errorf("counters %v", n)
			}
		})
	}
}

// TestGarbageUnderManyNames: neither memory nor counters grow with the names, and good drafters are heard.
func TestGarbageUnderManyNames(t *testing.T) {
	r := newRig(t, rigOptions{})
	s := openStream(t, r, 1, 50, 60, 70)
	bad := s.ticket()
	bad.Tree = tandem.Root(71)
	for i := range 300 {
		bad.Drafter = fmt.Sprintf("drafter %d\n%s", i%100, strings.Repeat("x", i%200))
		if i%3 == 0 {
			bad.Drafter = fmt.Sprintf("d%d", i)
		}
		if v := s.ask(bad); v.Kind != tandem.Invalid {
			t.Fatalf("name %d: %+v", i, v)
		}
	}
	counted := int64(0)
	names := slices.DeleteFunc(slices.Collect(maps.Keys(r.counters.Snapshot())),
		func(k string) bool { return !strings.HasPrefix(k, "tickets.garbage_from.") })
	for _, k := range names {
		counted += r.counters.Snapshot()[k]
		if strings.ContainsAny(k, " \n") {
			t.Errorf("counter %q", k)
		}
	}
	if len(names) > 65 || counted != 300 {
		t.Errorf("%d names, %d trees counted: want at most 65, and 300", len(names), counted)
	}
	good := s.ticket()
	good.Drafter = "good"
	good.Tree = tandem.Tree{Tokens: []tandem.Token{70, 1}, Parents: []int32{-1, 0}}
	if v := s.ask(good); v.Kind != tandem.OK || v.Nodes != 2 {
		t.Errorf("a good drafter's tree: %+v", v)
	}
}

// TestSubmit: tickets that go past the pool are answered as those in it, and bounded in number.
func TestSubmit(t *testing.T) {
	const batch = 4
	r := newRig(t, rigOptions{verifier: verifier.Config{MaxWaiting: batch}})
	s := openStream(t, r, 1, 50, 60, 70)
	ctx := context.Background()
	if err := r.v.Submit(ctx, s.ticket()); err != nil {
		t.Fatal(err)
	}
	v := <-s.verdicts
	if v.Kind != tandem.OK || v.Rows != 1 || v.Batch != 1 {
		t.Errorf("verdict %+v", v)
	}
	release := make(chan struct{})
	r.v.Hold(release)
	unknown := tandem.Ticket{Session: 9}
	answers := r.expect(unknown.Session)
	for i := range batch + 1 {
		err := r.v.Submit(ctx, unknown)
		if want := map[bool]tandem.Kind{true: tandem.OK, false: tandem.Exhausted}[i < batch]; tandem.KindOf(err) != want {
			t.Errorf("ticket %d: %v, want %v", i, err, want)
		}
	}
	close(release)
	for range batch {
		if v := <-answers; v.Kind != tandem.UnknownSession {
			t.Errorf("verdict %+v", v)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := r.v.Submit(ended, unknown); !errors.Is(err, tandem.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if err := r.v.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	for range batch + 1 { // refused tickets take no room
		if err := r.v.Submit(ctx, unknown); !errors.Is(err, tandem.Unavailable) {
			t.Errorf("after shutdown: %v", err)
		}
	}
}
