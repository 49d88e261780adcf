package cpu_test

import (
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

func TestDeviceErrors(t *testing.T) {
	for _, n := range []int{0, -1, 5000} {
		_, err := cpu.New(n, cpu.Auto)
		wantError(t, "threads", err, "threads, want 1 to 1024")
	}
	_, err := cpu.New(1, cpu.ISA(9))
	wantError(t, "isa", err, "isa(9)")
	d := testdevice.CPU(t, 2)
	all := cpu.Supported()
	if d.Threads() != 2 || d.ISA() != all[len(all)-1] {
		t.Errorf("%d threads of %v, want 2 of %v", d.Threads(), d.ISA(), all[len(all)-1])
	}
	r, _, _ := scaling(t, d)
	for _, n := range []int{3, 1} {
		if err := d.SetThreads(n); err != nil || d.Threads() != n {
			t.Errorf("%v, %d threads: want %d", err, d.Threads(), n)
		}
		run(t, r, &kernels.Pass{Rows: 1})
	}
	wantError(t, "threads", d.SetThreads(0), "pool of 0 threads")
	run(t, r, &kernels.Pass{Rows: 1})
	d.Close()
	d.Close()
	wantError(t, "closed", r.Run(&kernels.Pass{Rows: 1}), "closed")
	wantError(t, "closed", d.SetThreads(2), "closed")
}

// scaling returns a small product and its buffers.
func scaling(t testing.TB, d *cpu.Device) (r kernels.Runner, in, out kernels.Buf) {
	const n, k, rows = 96, 64, 3
	p := kernels.NewProgram(rows, 0)
	in, out = p.Buf(k), p.Buf(n)
	act, w := p.Act(k), p.Weight(matrix(kernels.Q8_0, n, k))
	p.SiLUMul(in, in, act)
	p.MatMul(w, act, out, kernels.MatMulOpt{})
	return compile(t, d, p, [][]byte{kerneltest.RandomRows(rng(4), kernels.Q8_0, n, k)}, nil), in, out
}

// TestDevicesShareCores: several devices with more threads than cores run many short passes at the same
// time, all of them right, and several programs share one device.
func TestDevicesShareCores(t *testing.T) {
	const rows, k = 3, 64
	x := kerneltest.RandomFloats(rng(4), rows*k, false)
	shared := testdevice.CPU(t, 3)
	alone, in, out := scaling(t, testdevice.CPU(t, 1))
	setRows(alone, in, rows, x)
	run(t, alone, &kernels.Pass{Rows: rows})
	want := getRows(alone, out, rows)
	var wg sync.WaitGroup
	for i := range 3 {
		own, _, _ := scaling(t, testdevice.CPU(t, 2+i))
		common, _, _ := scaling(t, shared)
		wg.Go(func() {
			for j := range 200 {
				r := own
				if j%5 == 0 {
					r = common
				}
				setRows(r, in, rows, x)
				for row := range rows {
					clear(r.Row(out, row))
				}
				if err := r.Run(&kernels.Pass{Rows: rows}); err != nil {
					t.Error(err)
					return
				}
				if at := kerneltest.FirstDifference(getRows(r, out, rows), want); at >= 0 {
					t.Errorf("pass %d: element %d is wrong", j, at)
					return
				}
			}
		})
	}
	wg.Wait()
}

func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestIdleDeviceSleeps: threads that wait for a pass use no time.
func TestIdleDeviceSleeps(t *testing.T) {
	r, _, _ := scaling(t, testdevice.CPU(t, 4))
	run(t, r, &kernels.Pass{Rows: 1})
	time.Sleep(5 * time.Millisecond)
	before := cpuTime(t)
	time.Sleep(100 * time.Millisecond)
	if used := cpuTime(t) - before; used > 20*time.Millisecond {
		t.Errorf("idle threads used %v in 100 ms", used)
	}
}

func TestLimits(t *testing.T) {
	for _, d := range testdevice.CPUs(t, 2) {
		l, err := limitsOf(d, 1<<22, 30*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if l.ReadBytes < 1e8 || l.IntMACs < 1e7 || l.FloatMACs < 1e6 {
			t.Errorf("%v: %+v", d.About(), l)
		}
	}
}
