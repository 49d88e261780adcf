package emulated_test

import (
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
)

// TestGauge: a megabyte that is copied is read and written once each. A cache that holds both has then nothing to read, and writes nothing
// back; one that holds a part writes back what does not stay.
func TestGauge(t *testing.T) {
	const kib, n = 1 << 10, 1 << 20
	r := open(t, emulated.Options{Gauge: []int{64, 4 * kib}})
	in, out := r.alloc(n), r.alloc(n)
	for round := range 2 {
		r.launch("copy", line(n/4/256, 256), in.At, out.At)
		all, err := r.Moved()
		r.must(err)
		if len(all) != 1 || all[0].Kernel != "copy" || all[0].Launches != 1 || all[0].Blocks != n/4/256 || all[0].Threads != n/4 {
			t.Fatalf("%+v", all)
		}
		m := all[0]
		if m.NearRead != n || m.NearWritten != n || m.Read[0] != n || m.Written[0] < n-64*kib || m.Written[0] > n+64*kib {
			t.Errorf("round %d: %+v, want %d bytes each way", round, m, n)
		}
		if want := int64(n * (1 - round)); m.Read[1] != want || m.Written[1] != 0 {
			t.Errorf("round %d: %+v, want %d read and none written with 4 MiB", round, m, want)
		}
	}
	shared, err := r.AllocShared(n)
	r.must(err)
	r.launch("copy", line(n/4/256, 256), in.At, shared.At)
	r.launch("twice_and_one", line(n/4/256, 256), 0, in.At)
	all, err := r.Moved()
	r.must(err)
	if all[0].MappedRead != 0 || all[0].MappedWritten != n || all[1].MappedRead+all[1].MappedWritten != 0 {
		t.Errorf("%+v, want %d bytes of mapped memory written once", all, n)
	}
	r.must(r.Release(shared))
	late := open(t, emulated.Options{Gauge: []int{64}})
	in, out = late.alloc(4), late.alloc(4)
	late.launch("begins_late", line(1, 1), in.At, out.At)
	if err := late.Wait(); err == nil || !strings.Contains(err.Error(), "an access to memory before a grid_begin") {
		t.Errorf("a kernel that reads before it waits for those before: %v", err)
	}
	if _, err := open(t, emulated.Options{}).Moved(); err == nil {
		t.Error("Moved without a gauge: no error")
	}
	for _, o := range []emulated.Options{{Gauge: []int{1}}, {Gauge: make([]int, 5)}, {Gauge: []int{64}, Resident: -1}} {
		if d, err := emulated.New(o); err == nil {
			d.Close()
			t.Errorf("%+v: no error", o)
		}
	}
}
