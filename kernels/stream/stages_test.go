package stream

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
)

// TestChoose: for any stages and memory from the least on, a budget keeps to the memory, its ring has room for every streamed stage,
// nothing is streamed that could stay, and what is streamed lies spread over the pass.
func TestChoose(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		sizes, total := make([]int64, 1+r.IntN(40)), int64(0)
		for i := range sizes {
			sizes[i] = page * int64(r.IntN(50))
			total += sizes[i]
		}
		looked := page * int64(r.IntN(20))
		var small *kernels.TooSmall
		if _, err := choose(sizes, looked, -1); !errors.As(err, &small) {
			t.Fatalf("no memory: %v", err)
		}
		if _, err := choose(sizes, looked, small.Least-1); err == nil {
			t.Fatalf("%v: less than the least, %d, is enough", sizes, small.Least)
		}
		memory := small.Least + r.Int64N(total+1)
		p, err := choose(sizes, looked, memory)
		if err != nil || p.bytes() > memory {
			t.Fatalf("%v in %d bytes: %+v, %v", sizes, memory, p, err)
		}
		streamed, held := int64(0), int64(0)
		for i, n := range sizes {
			if p.resident[i] {
				held += n
				continue
			}
			streamed += n
			if n > p.slot || n > 0 && n <= memory-p.bytes() {
				t.Fatalf("%v in %d bytes: stage %d is streamed: %+v", sizes, memory, i, p)
			}
		}
		if streamed != p.streamed || held != p.held || memory >= total+looked && streamed > 0 || streamed > 0 && p.slots < leastSlots {
			t.Fatalf("%v in %d bytes: %+v", sizes, memory, p)
		}
	}
	even := make([]int64, 60)
	for i := range even {
		even[i] = page
	}
	p, err := choose(even, 0, 33*page)
	if err != nil {
		t.Fatal(err)
	}
	run, longest := 0, 0
	for _, in := range p.resident {
		if run++; in {
			run = 0
		}
		longest = max(longest, run)
	}
	if longest > 2 {
		t.Errorf("%d stages are streamed one after the other, half of 60: %v", longest, p.resident)
	}
}
