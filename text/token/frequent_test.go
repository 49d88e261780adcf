package token

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestFrequent: the needed tokens are always kept, then those of usual answers, those that a text has, and those that training made first.
func TestFrequent(t *testing.T) {
	v := shipped(t)
	needed := v.Needed()
	first := append(v.Encode(usual, false), needed...)
	for b := range 256 {
		if !slices.Contains(needed, v.bytes[b]) {
			t.Errorf("byte %d is not needed", b)
		}
	}
	for _, id := range []tandem.Token{0, 1, 2} {
		if !slices.Contains(needed, id) {
			t.Errorf("control token %d is not needed", id)
		}
	}
	if !slices.IsSorted(needed) || len(needed) < 259 || len(needed) > 500 {
		t.Errorf("%d needed tokens", len(needed))
	}
	text := strings.Repeat("func (r *Reader) Read(p []byte) (n int, err error) {\n", 3)
	counts := make([]int, v.Size())
	v.Count(counts, text)
	for _, n := range []int{len(needed) + 1, 1000, v.Size() - 1} {
		plain, err := v.Frequent(n, nil)
		told, also := v.Frequent(n, counts)
		if err != nil || also != nil {
			t.Fatal(err, also)
		}
		for _, all := range [][]tandem.Token{plain, told} {
			if len(all) != n || !slices.IsSorted(all) || len(slices.Compact(slices.Clone(all))) != n {
				t.Errorf("%d tokens, want %d ascending", len(all), n)
			}
			for _, id := range needed {
				if !slices.Contains(all, id) {
					t.Fatalf("%d kept: %d, which is needed, is not", n, id)
				}
			}
		}
		for id, c := range counts {
			if n == 1000 && c > 0 && !slices.Contains(told, tandem.Token(id)) {
				t.Errorf("token %d, which the text has, is not kept", id)
			}
		}
		made, last := v.made(), 0
		for _, id := range plain {
			if !slices.Contains(first, id) {
				last = max(last, made[id])
			}
		}
		for id, at := range made {
			if at < last && !slices.Contains(plain, tandem.Token(id)) {
				t.Fatalf("%d kept: token %d, made as number %d, is left out, and number %d is kept", n, id, at, last)
			}
		}
	}
	for _, n := range []int{-1, 0, len(needed), v.Size(), v.Size() + 1} {
		if _, err := v.Frequent(n, nil); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%d kept: %v, want kind invalid", n, err)
		}
	}
}
