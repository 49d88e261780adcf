package kernels_test

import (
	"sync"
	"syscall"
	"testing"
	"time"

	kernels "github.com/tandem-llm/tandem/kernels/cpu"
)

func TestPoolErrors(t *testing.T) {
	for _, n := range []int{0, -1, 5000} {
		_, err := kernels.NewPool(n, kernels.Auto)
		wantError(t, "threads", err, "threads, want 1 to 1024")
	}
	_, err := kernels.NewPool(1, kernels.ISA(9))
	wantError(t, "isa", err, "isa(9)")
	p := newPool(t, 2, kernels.Auto)
	all := kernels.Supported()
	if p.Threads() != 2 || p.ISA() != all[len(all)-1] {
		t.Errorf("%d threads of %v, want 2 of %v", p.Threads(), p.ISA(), all[len(all)-1])
	}
	w := packed(t, kernels.F32, 16, 16, make([]byte, 1024))
	m := newProduct(t, w, 1, kernels.MatMulOpt{}, false)
	p.Close()
	p.Close()
	wantError(t, "closed", m.Run(p, &kernels.Pass{Rows: 1}), "closed")
}

// TestPoolsShareCores: several pools with more threads than cores run many short passes at the same
// time, all of them right, and each program moves between pools.
func TestPoolsShareCores(t *testing.T) {
	const n, k, rows = 96, 64, 3
	r := rng(4)
	w, x := randomRows(r, kernels.Q8_0, n, k), randomFloats(r, rows*k, false)
	want := refProduct(kernels.Q8_0, w, n, k, x, nil, rows, false)
	m := packed(t, kernels.Q8_0, n, k, w)
	shared := newPool(t, 3, kernels.Auto)
	var wg sync.WaitGroup
	for i := 0; i < 3; i++ {
		p, own := newProduct(t, m, rows, kernels.MatMulOpt{}, false), newPool(t, 2+i, kernels.Auto)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := 0; j < 200; j++ {
				pool := own
				if j%5 == 0 {
					pool = shared
				}
				copy(p.Rows(p.up), x)
				clear(p.Rows(p.out))
				if err := p.Run(pool, &kernels.Pass{Rows: rows}); err != nil {
					t.Error(err)
					return
				}
				if at := firstDifference(p.Rows(p.out), want); at >= 0 {
					t.Errorf("pass %d: element %d is wrong", j, at)
					return
				}
			}
		}()
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

// TestIdlePoolSleeps: threads that wait for a pass use no time.
func TestIdlePoolSleeps(t *testing.T) {
	pool := newPool(t, 4, kernels.Auto)
	m := newProduct(t, packed(t, kernels.F32, 16, 16, make([]byte, 1024)), 1, kernels.MatMulOpt{}, false)
	run(t, m.Program, pool, &kernels.Pass{Rows: 1})
	time.Sleep(5 * time.Millisecond)
	before := cpuTime(t)
	time.Sleep(100 * time.Millisecond)
	if used := cpuTime(t) - before; used > 20*time.Millisecond {
		t.Errorf("an idle pool of 4 threads used %v in 100 ms", used)
	}
}

func TestLimits(t *testing.T) {
	for _, pool := range pools(t, 2) {
		l, err := pool.Limits(1<<22, 30*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if l.ReadBytes < 1e8 || l.IntMACs < 1e7 || l.FloatMACs < 1e6 {
			t.Errorf("%v: %+v", pool.ISA(), l)
		}
	}
}
