package roles

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/tandem-llm/tandem/engine/memory"
)

func TestGoBound(t *testing.T) {
	for _, c := range []struct{ group, models, want int64 }{
		{512 << 20, 0, 512<<20 - 512<<20/10},
		{4 << 30, 3 << 30, 4<<30 - 4<<30/10 - 3<<30},
		{4 << 30, 4 << 30, leastGo},
		{10 << 20, 0, leastGo},
	} {
		if got := goBound(c.group, c.models); got != c.want {
			t.Errorf("of %d, with models of %d: %d, want %d", c.group, c.models, got, c.want)
		}
	}
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	group, bounded := memory.GroupLimit()
	want := int64(math.MaxInt64)
	if bounded {
		want = goBound(group, 0)
	}
	t.Setenv("GOMEMLIMIT", "")
	debug.SetMemoryLimit(math.MaxInt64)
	if BoundGo(0); debug.SetMemoryLimit(-1) != want {
		t.Errorf("the bound is %d, want %d", debug.SetMemoryLimit(-1), want)
	}
	if BoundGateway(); debug.SetMemoryLimit(-1) != gatewayGo {
		t.Errorf("a gateway's bound is %d, want %d", debug.SetMemoryLimit(-1), gatewayGo)
	}
	t.Setenv("GOMEMLIMIT", "1GiB")
	debug.SetMemoryLimit(12345 << 20)
	BoundGo(0)
	if BoundGateway(); debug.SetMemoryLimit(-1) != 12345<<20 {
		t.Error("GOMEMLIMIT is overruled")
	}
}
