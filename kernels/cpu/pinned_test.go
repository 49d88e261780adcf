package cpu_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// allowed returns where the threads of this process may run, by /proc.
func allowed(t *testing.T, tasks string) (all []string) {
	t.Helper()
	files, err := filepath.Glob(tasks)
	if err != nil || len(files) == 0 {
		t.Fatalf("%v: no tasks in %s", err, tasks)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
				all = append(all, strings.TrimSpace(rest))
			}
		}
	}
	return all
}

// TestPinned: a device has its threads on the cores that it was given, the caller's only during a pass, and gives the same bits; cores that
// are not there are refused.
func TestPinned(t *testing.T) {
	cores, err := cpu.Cores()
	if err != nil || len(cores) == 0 {
		t.Fatal(cores, err)
	}
	on := []int{cores[len(cores)-1]}
	if len(cores) > 1 {
		on = append(on, cores[0])
	}
	d, err := cpu.Pinned(on, cpu.Auto)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if len(on) > 1 && !slices.Contains(allowed(t, "/proc/self/task/*/status"), fmt.Sprint(on[1])) {
		t.Errorf("no thread stays on core %d: %v", on[1], allowed(t, "/proc/self/task/*/status"))
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := allowed(t, "/proc/thread-self/status")
	const rows = 3
	x := kerneltest.RandomFloats(rng(4), rows*64, false)
	results := func(d *cpu.Device) []float32 {
		r, in, out := scaling(t, d)
		setRows(r, in, rows, x)
		run(t, r, &kernels.Pass{Rows: rows})
		return getRows(r, out, rows)
	}
	if at := kerneltest.FirstDifference(results(d), results(testdevice.CPU(t, 1))); at >= 0 {
		t.Errorf("element %d is wrong", at)
	}
	if after := allowed(t, "/proc/thread-self/status"); !slices.Equal(before, after) {
		t.Errorf("the caller may run on %v after a pass, on %v before", after, before)
	}
	if about := d.About(); !strings.HasSuffix(about.Kernels, " on cores "+cpu.CoreList(on)) || about.Threads != len(on) {
		t.Errorf("it says that it is %v", about)
	}
	wantError(t, "more threads", d.SetThreads(len(on)+1), "at most one for each")
	if err := d.SetThreads(1); err != nil || d.Threads() != 1 || !strings.HasSuffix(d.About().Kernels, fmt.Sprint(" on cores ", on[0])) {
		t.Errorf("%v: with one thread it is %v", err, d.About())
	}
	for what, cores := range map[string][]int{"no core": {}, "one that is not there": {100000}, "one below 0": {-1},
		"one twice": {on[0], on[0]}} {
		if d, err := cpu.Pinned(cores, cpu.Auto); err == nil {
			d.Close()
			t.Errorf("a device on %s", what)
		}
	}
}

func TestCoreList(t *testing.T) {
	for want, cores := range map[string][]int{"": nil, "3": {3}, "0-1": {0, 1}, "0,2,4-6": {0, 2, 4, 5, 6}, "5,4": {5, 4}} {
		if got := cpu.CoreList(cores); got != want {
			t.Errorf("%v is %q, want %q", cores, got, want)
		}
	}
}
