package kv

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// keptOf returns how many tokens of a text a sequence would find.
func keptOf(t *testing.T, c *Cache, tokens []tandem.Token) int {
	t.Helper()
	h, found := begin(t, c, "", tokens)
	h.Release()
	return found
}

// TestShortTextsDoNotCostALongOne: in a cache with room for a long text and little else, short ones come and go, some of them with the
// long one's beginning. The long text is still found, whole; a short one is found as long as no others took its place. A long text that
// nobody uses any more goes in the end.
func TestShortTextsDoNotCostALongOne(t *testing.T) {
	const pages, room = 40, 6 // each text takes a page more for tree rows
	c := newCache(pages + room)
	long := prefix(1, pages*kernels.PageRows-20)
	put(t, c, "", long)
	for n := range 30 {
		short := prefix(2+n, 2*kernels.PageRows)
		if n%3 == 0 {
			short = append(slices.Clone(long[:kernels.PageRows]), short...)
		}
		put(t, c, "", short)
		if n%10 == 5 {
			continue
		}
		if found := put(t, c, "", short); found < len(short)-1 {
			t.Errorf("of short text %d %d of %d tokens are found just after it was there", n, found, len(short))
		}
	}
	if found := keptOf(t, c, long); found < len(long)-1 || c.Evicted() == 0 {
		t.Errorf("%d of %d tokens of the long text are found, after %d pages were evicted", found, len(long), c.Evicted())
	}
	for n := range 2 * pages { // looked at just now: as many rounds of short texts as it has pages, and more
		put(t, c, "", prefix(100+n, 4*kernels.PageRows))
	}
	if found := keptOf(t, c, long); found > len(long)/2 {
		t.Errorf("%d of %d tokens of a long text are found that nobody used", found, len(long))
	}
}

// TestLongTextsTakeTurns: of long texts of about the same length the one that was used last stays.
func TestLongTextsTakeTurns(t *testing.T) {
	c := newCache(50)
	var texts [4][]tandem.Token
	for i := range texts {
		texts[i] = prefix(1+i, (20+i%2)*kernels.PageRows)
	}
	for i := range 12 {
		text := texts[i%4]
		put(t, c, "", text)
		if found := put(t, c, "", text); found < len(text)-1 {
			t.Errorf("%d of %d tokens are found just after they were there", found, len(text))
		}
	}
}

// TestShortTextsDoNotCostStates: with slots for few states, short texts do not take those of a long one.
func TestShortTextsDoNotCostStates(t *testing.T) {
	const slots, pages = 10, 80
	c := New(&memory{cells: make([]uint64, 200*kernels.PageRows)}, slots)
	run := func(tokens []tandem.Token, marks ...int) (found int) {
		h, found := begin(t, c, "", tokens)
		for _, at := range marks {
			if at > found {
				h.Mark(at * kernels.PageRows)
			}
		}
		h.write(tokens[found:]...)
		h.Keep(h.tokens)
		return found
	}
	long := prefix(1, pages*kernels.PageRows+10)
	run(long, 16, 32, 48, 64, pages)
	for n := range 12 {
		run(prefix(2+n, 2*kernels.PageRows+5), 2)
	}
	if found := run(append(slices.Clone(long), 7)); found < len(long)-kernels.PageRows {
		t.Errorf("%d of %d tokens of the long text are found; %d states are kept, %d were given up", found, len(long), c.KeptStates(),
			c.LostStates())
	}
	changed := slices.Clone(long)
	changed[40*kernels.PageRows] = 1
	if found := run(changed); found != 32*kernels.PageRows {
		t.Errorf("of a text that differs behind %d tokens %d are found: want those up to the last state before", 40*kernels.PageRows, found)
	}
	if c.LostStates() == 0 {
		t.Error("there was room for all states")
	}
}
