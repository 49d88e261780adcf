package roles

import (
	"math"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels"
)

const mib = 1 << 20

// fixedOf returns what a room takes beside keys and values.
func fixedOf(r *Room) (sum int64) {
	for _, t := range r.Models {
		t.Footprint.Pages = 0
		sum += t.Total()
	}
	return sum + r.Beside
}

// TestPlan: pools are a share of what is free beside the models, hold as many tokens in each model, at least a whole context where memory
// allows and less where it does not, never more than all sessions can use; what is named is kept, or refused with what would be right.
func TestPlan(t *testing.T) {
	fixed := fixedOf(testRoom(4, 0))
	const whole = 100 * kernels.PageRows // a's context; a page of it takes 1 MiB, one of b's 1/16, of which there are at most 5 × 10
	for name, c := range map[string]struct {
		ctx      int
		free     int64 // beside the models
		machine  bool
		groups   int
		kvMemory int64
		tokens   int // in a's pool, without the page for a tree
		one      int
		err      string
	}{
		"half of a machine":                {free: 408 * mib, machine: true, groups: 1, tokens: 199 * 64, one: whole},
		"three quarters of a group":        {free: 272 * mib, groups: 1, tokens: 199 * 64, one: whole},
		"half of the share by hand":        {free: 816 * mib, machine: true, groups: 2, tokens: 199 * 64, one: whole},
		"all that sessions can use":        {free: 4000 * mib, machine: true, groups: 1, tokens: 504 * 64, one: whole},
		"a whole context, not half":        {free: 128 * mib, machine: true, groups: 1, tokens: whole, one: whole},
		"less than a context":              {free: 64 * mib, machine: true, groups: 1, tokens: 55 * 64, one: 55 * 64},
		"a short context that is asked":    {ctx: 640, free: 11*mib + 10*mib/16, machine: true, groups: 1, tokens: 640, one: 640},
		"as little as will do":             {free: 5*mib + 4*mib/16, machine: true, groups: 1, tokens: 256, one: 256},
		"too little":                       {free: 5 * mib, machine: true, groups: 1, err: "would fit"},
		"a size that is named":             {free: 408 * mib, groups: 1, kvMemory: 51*mib + 50*mib/16, tokens: 50 * 64, one: 50 * 64},
		"a size of a megabyte":             {free: 408 * mib, machine: true, groups: 1, kvMemory: mib, err: "256 tokens need 6.0 MiB"},
		"too small for what is asked":      {ctx: 640, free: 408 * mib, groups: 1, kvMemory: 9 * mib, err: "640 tokens need 12.0 MiB"},
		"a size that is more than is free": {free: 100 * mib, groups: 1, kvMemory: 200 * mib, err: "the test allows at most 99."},
	} {
		r := testRoom(4, c.ctx)
		r.KVMemory = c.kvMemory
		err := r.Plan(memory.Available{Bytes: fixed + c.free, By: "the test", Machine: c.machine}, c.groups)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v, want %q", name, err, c.err)
			}
			continue
		}
		f := r.Fit()
		if err != nil || f.Tokens != c.tokens || f.One != c.one || f.Sessions != 4 {
			t.Errorf("%s: %v, %+v; want %d tokens, %d of one session", name, err, f, c.tokens, c.one)
		}
		if first, others := r.Pools(); first+others != f.Bytes || r.Total() != fixed+f.Bytes || f.Bytes > c.free {
			t.Errorf("%s: pools of %d and %d bytes, %d in all, with %d free", name, first, others, f.Bytes, c.free)
		}
		if c.kvMemory == 0 { // whoever is told the sizes chooses the same pools
			child := testRoom(4, c.ctx)
			child.Models = child.Models[:1]
			child.KVMemory, _ = r.Pools()
			if err := child.Plan(memory.Available{Bytes: math.MaxInt64}, 2); err != nil || child.Models[0].Pages != r.Models[0].Pages {
				t.Errorf("%s: told %d bytes a process has %d pages, not %d: %v", name, child.KVMemory, child.Models[0].Pages,
					r.Models[0].Pages, err)
			}
		}
	}
}

// TestPlanNeverRefusesMore: for any amount of memory, if one session of the least context fits, a default plan fits too, and more memory
// never gives a smaller pool.
func TestPlanNeverRefusesMore(t *testing.T) {
	for _, each := range []bool{false, true} {
		last := 0
		for free := int64(0); free < 600*mib; free += mib / 3 {
			r := testRoom(3, 0)
			a := memory.Available{Bytes: fixedOf(r) + free, By: "the test", Machine: true, Each: each}
			fits, err := r.fits(a, r.Sizes), r.Plan(a, 1)
			if fits != (err == nil) || err != nil && tandem.KindOf(err) != tandem.Exhausted {
				t.Fatalf("%d bytes: fits %v, and planned %v", free, fits, err)
			}
			if err != nil {
				continue
			}
			f := r.Fit()
			if f.Tokens < last || f.One < min(LeastContext, f.Context) || !each && r.Total() > a.Bytes {
				t.Fatalf("%d bytes: %+v, before that %d tokens; takes %d of %d", free, f, last, r.Total(), a.Bytes)
			}
			last = f.Tokens
		}
	}
}

// TestPlanOfOwnMemory: the pool in a GPU's memory takes half of what the models leave there.
func TestPlanOfOwnMemory(t *testing.T) {
	r := testRoom(3, 0)
	r.Models = r.Models[:1]
	r.Models[0].Footprint = memory.Footprint{Own: kernels.Space{Weights: 20 * mib, Page: mib, Buffers: mib}}
	a := memory.Available{Bytes: 1 << 40, By: "the test", Machine: true, Own: &memory.Own{Bytes: 21*mib + 240*mib, Of: "the GPU"}}
	if err := r.Plan(a, 1); err != nil || r.Models[0].Pages != 120 {
		t.Errorf("%d pages: %v", r.Models[0].Pages, err)
	}
	if err := r.Plan(a, 2); err != nil || r.Models[0].Pages != 101 { // a whole context
		t.Errorf("of two groups: %d pages: %v", r.Models[0].Pages, err)
	}
}
