package emulated_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/test/testkit"
)

// lost checks that the device is lost with an error that has all of the parts, and that every later call tells so.
func lost(r rig, name string, err error, parts ...string) {
	r.t.Helper()
	if err == nil {
		r.t.Errorf("%s: no error", name)
		return
	}
	for _, p := range append(parts, "device is lost") {
		if !regexp.MustCompile(p).MatchString(err.Error()) {
			r.t.Errorf("%s: error %q: want one with %q", name, err, p)
		}
	}
	m := cuda.Memory{At: 1, Size: 1}
	calls := map[string]error{"Wait": r.Wait(), "Launch": r.Launch("copy", line(1, 1), 0, 0), "Read": r.Read(make([]byte, 1), m.At),
		"Write": r.Write(m.At, make([]byte, 1)), "Release": r.Release(m), "Run": r.Run(nil)}
	_, calls["Alloc"] = r.Alloc(1)
	_, calls["Free"] = r.Free()
	_, calls["Capture"] = r.Capture(func() error { return nil })
	for call, err := range calls {
		if err == nil || !strings.Contains(err.Error(), "device is lost") {
			r.t.Errorf("%s: then %s: %v, want that the device is lost", name, call, err)
		}
	}
}

// TestBrokenKernels: what a kernel does wrong is told with the kernel, block and thread.
func TestBrokenKernels(t *testing.T) {
	inside := line(1, 1)
	inside.Shared = 100
	for _, tc := range []struct {
		name, kernel string
		shape        cuda.Shape
		in           int64 // what the kernel reads
		want, asan   string
	}{
		{"some threads end before a barrier", "half_ends", line(2, 64), 0,
			`kernel half_ends, block \(\d,0,0\).*deadlock: .*waits at __syncthreads, tandem.cu:\d+, but thread .* has ended`, ""},
		{"threads at two places", "two_places", line(1, 64), 0,
			`kernel two_places, block .*, thread .*: the thread waits at __syncthreads, tandem.cu:\d+, but others wait at`, ""},
		{"a lane ends before a shuffle", "lane_ends", line(1, 64), 0, `deadlock: .*waits at __shfl_xor_sync.*thread \(3,0,0\) has ended`, ""},
		{"a partial mask", "half_mask", line(1, 64), 0, `mask 0000ffff: want all 32 lanes`, ""},
		{"a kernel that never waits for those before", "begins_never", line(1, 1), 0,
			`kernel begins_never, block .*: the thread ends without a grid_begin`, ""},
		{"endless", "never_ends", line(1, 1), 0, `kernel never_ends, block \(0,0,0\), thread \(0,0,0\): the launch takes more than 1 s`, ""},
		{"endless recursion", "recurse", line(1, 1), 1 << 20, `kernel recurse.*stack overflow: a thread has`,
			`kernel recurse[\s\S]*stack-overflow`},
		{"far outside of memory", "write_at", line(1, 1), 1 << 45, `kernel write_at.*Segmentation fault at address`, `SEGV`},
		{"before shared memory ends", "write_shared_at", inside, 99, "", ""},
		{"behind shared memory", "write_shared_at", inside, 112, `kernel write_shared_at.*Segmentation fault`, `(use-after-poison|SEGV)`},
		{"just behind shared memory", "write_shared_at", inside, 100, "", `use-after-poison`},
		{"the last byte", "write_at", line(1, 1), 999, "", ""},
		{"behind memory", "write_at", line(1, 1), 1000, "", `kernel write_at, block \(0,0,0\), thread \(0,0,0\)[\s\S]*use-after-poison[\s\S]*tandem.cu:\d+`},
		{"before memory", "write_at", line(1, 1), -1, "", `use-after-poison`},
	} {
		for _, sanitize := range []bool{false, true} {
			want := tc.want
			if sanitize && tc.asan != "" {
				want = tc.asan
			}
			r := open(t, emulated.Options{Sanitize: sanitize, Limit: time.Second})
			upload(r, make([]byte, 3000))
			in, out := upload(r, append([]int64{tc.in}, make([]int64, 99)...)), r.alloc(1000)
			r.launch(tc.kernel, tc.shape, in, out.At)
			err := r.Wait()
			if want != "" {
				lost(r, tc.name, err, want)
			} else if err != nil {
				t.Errorf("%s, sanitize %v: %v", tc.name, sanitize, err)
			}
			r.Close()
		}
	}
}

func TestMisaligned(t *testing.T) {
	r := open(t, emulated.Options{Sanitize: true})
	in, out := upload(r, []int64{8}), r.alloc(1000)
	r.launch("write_misaligned", line(1, 1), in, out.At)
	lost(r, "a misaligned vector", r.Wait(), "kernel write_misaligned", `tandem.cu:\d+.*misaligned address`)
}

func TestReleasedMemory(t *testing.T) {
	r := open(t, emulated.Options{Sanitize: true})
	in, out := upload(r, []int64{0}), r.alloc(1000)
	r.launch("write_at", line(1, 1), in, out.At)
	r.must(r.Release(out))
	r.launch("write_at", line(1, 1), in, out.At)
	lost(r, "a kernel that writes to released memory", r.Wait(), "use-after-poison")
}

func TestWrongLaunches(t *testing.T) {
	r := open(t, emulated.Options{})
	for _, name := range []string{"no_such_kernel", "malloc", "exp", ""} {
		if err := r.Launch(name, line(1, 1), 0, 0); err == nil || !strings.Contains(err.Error(), "no kernel") {
			t.Errorf("kernel %q: %v", name, err)
		}
	}
	for _, s := range []cuda.Shape{line(0, 1), line(1, 0), line(1, 1025), line(-1, 1),
		{Grid: [3]int{1, 1, 1}, Block: [3]int{64, 64, 1}}, {Grid: [3]int{1, 1, 1}, Block: [3]int{1, 1, 65}},
		{Grid: [3]int{1, 65536, 1}, Block: [3]int{1, 1, 1}}, {Grid: [3]int{1, 1, 1}, Block: [3]int{1, 1, 1}, Shared: 96<<10 + 1},
		{Grid: [3]int{1, 1, 1}, Block: [3]int{1, 1, 1}, Shared: -1}} {
		if err := r.Launch("copy", s, 0, 0); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("shape %v: %v", s, err)
		}
	}
	r.must(r.Wait())
}

// TestFailingLaunch: the n-th launch fails, alone or in a graph; what came before it has run.
func TestFailingLaunch(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		for _, graph := range []bool{false, true} {
			r := open(t, emulated.Options{})
			out, err := r.AllocShared(4 * 64)
			r.must(err)
			launch := func() error { return r.Launch("twice_and_one", line(1, 64), 0, out.At) }
			r.must(launch())
			two, err := r.Capture(func() error {
				if err := launch(); err != nil {
					return err
				}
				return launch()
			})
			r.must(err)
			r.FailLaunch(n)
			for range 3 {
				if err != nil {
					break
				}
				if graph {
					err = r.Run(two)
				} else if err = launch(); err == nil {
					err = launch()
				}
			}
			if err == nil {
				err = r.Wait()
			}
			lost(r, "a failing launch", err, "kernel twice_and_one", "the launch failed, as the test asked for")
			if got, want := out.Host[0], byte(1<<n-1); got != want {
				t.Errorf("launch %d of graph %v failed: got %d, want %d", n, graph, got, want)
			}
		}
	}
	r := open(t, emulated.Options{})
	out := r.alloc(4 * 64)
	r.FailLaunch(1)
	r.FailLaunch(0)
	r.launch("twice_and_one", line(1, 64), 0, out.At)
	r.must(r.Wait())
}

func TestClose(t *testing.T) {
	r := open(t, emulated.Options{Limit: time.Hour})
	out := r.alloc(4)
	r.launch("never_ends", line(1, 1), 0, out.At)
	start := time.Now()
	r.Close()
	r.Close()
	if took := time.Since(start); took > 30*time.Second { // of an hour
		t.Errorf("Close took %v while a kernel ran", took)
	}
	if err := r.Wait(); err == nil || !strings.Contains(err.Error(), "after Close") {
		t.Errorf("Wait after Close: %v", err)
	}
	if err := r.Launch("copy", line(1, 1), 0, 0); err == nil || !strings.Contains(err.Error(), "after Close") {
		t.Errorf("Launch after Close: %v", err)
	}
}

const helper = "TANDEM_EMULATED_HELPER"

// TestTestDies: a kernel that never ends does not outlive the process that launched it.
func TestTestDies(t *testing.T) {
	if os.Getenv(helper) != "" {
		r := open(t, emulated.Options{Limit: time.Hour})
		r.launch("never_ends", line(1, 1), 0, r.alloc(4).At)
		fmt.Println(r.Pid())
		select {} // until it is killed
	}
	open(t, emulated.Options{}).Close() // skips without g++
	cmd := exec.Command(os.Args[0], "-test.run=^TestTestDies$")
	cmd.Env = append(os.Environ(), helper+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	_, err = fmt.Fscan(out, &pid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the process ends after its test was killed", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}
