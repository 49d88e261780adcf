package roles

import (
	"errors"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/processes/settings"
)

func sizes(ctx, sessions int) settings.Sizes { return settings.Sizes{Ctx: ctx, Sessions: sessions} }

// Two models, of which the first has 1 MiB of weights and a MiB of cache for each page.
func testRoom(sessions, ctx int) *Room {
	return &Room{Sizes: sizes(ctx, sessions), Options: engine.Options{KVType: "q8_0"}, Models: []Tenant{
		{path: "a.gguf", nodes: 1, Context: 100 * kernels.PageRows, Footprint: memory.Footprint{Weights: 1 << 20, PageBytes: 1 << 20}},
		{path: "b.gguf", nodes: 0, Context: 10 * kernels.PageRows, Footprint: memory.Footprint{Weights: 1 << 20, PageBytes: 1 << 16}},
	}}
}

func TestRoom(t *testing.T) {
	const mib = 1 << 20
	base := testRoom(0, 2).total(sizes(2, 0)) - 2*mib - mib/16 // a session's three pages apart
	for _, tc := range []struct {
		sessions, ctx int
		available     int64
		says          []string // nil: fits
	}{
		{3, 640, base + 11*mib + 10*mib/16, nil},
		{3, 640, base + 11*mib + 10*mib/16 - 1,
			[]string{"a needs ", "of memory", "and b needs", "the test allows", ": --ctx 576 would fit"}},
		{1, 0, base + 5*mib + 4*mib/16, nil}, // by default the context is as long as memory allows, down to 256
		{1, 0, base + 4*mib, []string{": --ctx 128 would fit"}},
		{4, 128, base, []string{": one session of 64 tokens needs "}},
	} {
		r := testRoom(tc.sessions, tc.ctx)
		err := r.Check(memory.Available{Bytes: tc.available, By: "the test"})
		if tc.says == nil {
			if err != nil {
				t.Errorf("%+v: %v", tc, err)
			}
			continue
		}
		if tandem.KindOf(err) != tandem.Exhausted {
			t.Errorf("%+v: error %v: want Exhausted", tc, err)
			continue
		}
		for _, part := range tc.says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%+v: error %q does not say %q", tc, err, part)
			}
		}
	}
}

// A bound of each process by itself is not one of their sum.
func TestRoomOfEach(t *testing.T) {
	r := testRoom(3, 640)
	largest := (&Room{Models: r.Models[:1]}).total(sizes(640, 3))
	for each, want := range map[bool]bool{true: true, false: false} {
		if got := r.fits(memory.Available{Bytes: largest, Each: each}, sizes(640, 3)); got != want {
			t.Errorf("for each %v: fits %v", each, got)
		}
	}
	if r.fits(memory.Available{Bytes: largest - 1, Each: true}, sizes(640, 3)) {
		t.Error("a process larger than the bound fits")
	}
}

// What the advice names fits, and one page or session more does not.
func TestAdviceIsTight(t *testing.T) {
	for extra := range int64(40) {
		available := memory.Available{Bytes: testRoom(0, 2).total(sizes(64, 1)) + extra*3<<19, By: "the test"}
		r := testRoom(8, 2000)
		if r.Check(available) == nil {
			continue
		}
		ctx, sessions := 0, 0
		for _, word := range strings.Split(r.Advice(available), "--") {
			var n int
			if k, rest, ok := strings.Cut(word, " "); ok {
				for _, c := range rest {
					if c < '0' || c > '9' {
						break
					}
					n = 10*n + int(c-'0')
				}
				switch k {
				case "ctx":
					ctx = n
				case "sessions":
					sessions = n
				}
			}
		}
		if ctx > 0 && (r.total(sizes(ctx, 8)) > available.Bytes || r.total(sizes(ctx+kernels.PageRows, 8)) <= available.Bytes) {
			t.Errorf("%d bytes: --ctx %d is not the largest that fits", available.Bytes, ctx)
		}
		if sessions > 0 && (r.total(sizes(2000, sessions)) > available.Bytes || r.total(sizes(2000, sessions+1)) <= available.Bytes) {
			t.Errorf("%d bytes: --sessions %d is not the largest that fits", available.Bytes, sessions)
		}
	}
}

// Memory of a GPU's own is compared by itself, with advice of its own, and is none of the machine's.
func TestRoomOfOwnMemory(t *testing.T) {
	const mib = 1 << 20
	r := testRoom(3, 640)
	r.Models[0].Footprint = memory.Footprint{Own: kernels.Space{Weights: 20 * mib, Page: mib, Buffers: mib}}
	needs := 21*mib + 11*int64(mib)
	available := memory.Available{Bytes: r.total(r.Sizes), By: "the test", Own: &memory.Own{Bytes: needs, Of: "the GPU"}}
	if err := r.Check(available); err != nil {
		t.Error(err)
	}
	available.Own.Bytes--
	err := r.Check(available)
	if tandem.KindOf(err) != tandem.Exhausted || !errors.As(err, new(*kernels.OutOfMemory)) {
		t.Fatalf("error %v: want Exhausted, and that the device has no memory", err)
	}
	for _, part := range []string{"a needs 32.0 MiB (weights 20.0 MiB, KV cache 11.0 MiB, buffers 1.0 MiB)",
		" of the GPU's memory: the GPU: ",
		": --ctx 576 would fit"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
	available.Own.Bytes = 20 * mib
	if err := r.Check(available); err == nil || !strings.Contains(err.Error(), "one session of 64 tokens needs 23.0 MiB of it") {
		t.Errorf("a GPU that holds no session: %v", err)
	}
}

// TestMoreMemory: a budget that is too small is answered with one that works, but not with one that is more than is available.
func TestMoreMemory(t *testing.T) {
	const mib = 1 << 20
	for _, tc := range []struct {
		budget, limit, least int64
		want                 string
	}{
		{100 * mib, 100 * mib, 150*mib - 1, "--memory-budget 150MiB"},
		{200 * mib, 100 * mib, 150*mib - 1, "158 MiB of memory, more than is free or the control group allows"},
		{0, 150 * mib, 152*mib - 1, "--memory-budget 152MiB"}, // of 160, with the slack
		{0, 150 * mib, 152 * mib, "161 MiB of memory, more than is free or the control group allows"},
	} {
		if got := (&Streaming{Budget: tc.budget}).more(tc.limit, tc.least); got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}
