package strategy

import (
	"reflect"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/learn"
)

// TestTogether: drafters are compared on the tokens that the reports of all of them cover.
func TestTogether(t *testing.T) {
	h := newHindsights(learn.DefaultTuning())
	ready := []string{"a", "b", "c"}
	if of, _ := h.together(ready); of != nil {
		t.Errorf("nobody has reported: %v", of)
	}
	h.hear("a", 95, tandem.Hindsight{Tokens: 9}, 0)
	h.hear("a", 100, tandem.Hindsight{Tokens: 64, Hits: 0b110101}, 0)
	h.hear("b", 98, tandem.Hindsight{Tokens: 10, Hits: 0b11}, 0)
	h.hear("c", 60, tandem.Hindsight{Tokens: 60, Hits: 1}, 0) // too far behind
	h.hear("gone", 100, tandem.Hindsight{Tokens: 4}, 0)
	of, output := h.together(ready)
	want := map[string]tandem.Hindsight{"a": {Tokens: 10, Hits: 0b1101}, "b": {Tokens: 10, Hits: 0b11}} // of the tokens 88 to 97
	if output != 3 || !reflect.DeepEqual(of, want) {
		t.Errorf("together %v, %d of the output, want %v, 3", of, output, want)
	}
	if again, _ := h.together(ready); !reflect.DeepEqual(again, want) {
		t.Errorf("the same reports say %v: want %v", again, want)
	}
	h.hear("b", 100, tandem.Hindsight{Tokens: 3}, 0) // it has lost what it knew
	want = map[string]tandem.Hindsight{"a": {Tokens: 64, Hits: 0b110101}}
	if of, _ := h.together(ready); !reflect.DeepEqual(of, want) {
		t.Errorf("together %v, want %v", of, want)
	}
	h.committed(125, 0) // the reports are of too long ago
	if of, _ := h.together(ready); len(of) > 0 {
		t.Errorf("together %v after 25 tokens", of)
	}
}

// TestFollow: who lags behind is told, as far as that takes no more than its part of the time; the others do not suffer from one that
// takes long, and one that would take too long is not told at all.
func TestFollow(t *testing.T) {
	h := newHindsights(learn.DefaultTuning())
	ready := []string{"a", "b", "c", "long"}
	takes := func(d string) time.Duration { return map[string]time.Duration{"long": 9 * time.Millisecond}[d] }
	for _, d := range ready {
		h.hear(d, 100, tandem.Hindsight{Tokens: 64}, 0)
	}
	h.committed(103, 40*time.Millisecond)
	if got := h.follow(ready, ready[:1], takes); got != nil {
		t.Errorf("%v follow after three tokens", got)
	}
	h.committed(106, 40*time.Millisecond)
	if got := h.follow(ready, ready[:1], takes); !reflect.DeepEqual(got, []string{"b", "c"}) {
		t.Errorf("%v follow: want b and c", got)
	}
	h.hear("b", 106, tandem.Hindsight{Tokens: 64}, 3*time.Millisecond)
	h.committed(120, 10*time.Millisecond)
	if got := h.follow(ready, ready[:1], takes); got != nil {
		t.Errorf("%v follow although 3 ms of 90 were spent", got)
	}
	h.hear("long", 106, tandem.Hindsight{Tokens: 64}, 90*time.Millisecond)
	h.committed(123, 80*time.Millisecond)
	if got := h.follow(ready, ready[:1], takes); !reflect.DeepEqual(got, []string{"b", "c"}) {
		t.Errorf("%v follow: want b and c", got)
	}
	h.committed(200, 5*time.Second)
	if got := h.follow(ready, ready[:1], takes); !reflect.DeepEqual(got, []string{"b", "c", "long"}) {
		t.Errorf("%v follow after 5 s: want all but a", got)
	}
}
