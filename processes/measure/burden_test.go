package measure

import (
	"testing"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestBurden: passes on the cores that the host's work needs cost it a large share; passes on a device that leaves the cores alone cost
// next to nothing.
func TestBurden(t *testing.T) {
	host := testdevice.CPU(t, 0)
	probe, err := host.NewProbe(64 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()
	burden := func(d kernels.Device) float64 {
		m, err := engine.Open(draftPath, engine.Options{Device: d, MaxRows: 64, KVPages: engine.PagesFor(1, burdenContext, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		share, err := Burden(t.Context(), m, probe)
		if err != nil || share < 0 || share > 1 || m.FreePages() != m.Pages() {
			t.Fatalf("%v: share %v, %d of %d pages free", err, share, m.FreePages(), m.Pages())
		}
		return share
	}
	var same, own float64
	for range 4 { // other tests run at the same time
		same = burden(testdevice.CPU(t, 0))
		own = burden(testdevice.Slow(testdevice.CPU(t, 1), func(int) time.Duration { return 200 * time.Millisecond }))
		t.Logf("on the same cores %.2f, on a device of its own %.2f", same, own)
		if own <= same/2 {
			return
		}
	}
	t.Errorf("a draft on a device of its own costs %.2f of the host's speed, one on its cores %.2f: want at most half", own, same)
}
