package cpu_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestTimes has a program of a gate and a product say where its time goes: sums of all passes since it was asked, for each thread, and no
// more than the passes took.
func TestTimes(t *testing.T) {
	const n, k, rows, passes = 1024, 1024, 3, 5
	for _, threads := range []int{1, 3} {
		d := testdevice.CPU(t, threads)
		p := kernels.NewProgram(rows, 0)
		in, out := p.Buf(k), p.Buf(n)
		act, w := p.Act(k), p.Weight(matrix(kernels.Q8_0, n, k))
		p.SiLUMul(in, in, act)
		p.MatMul(w, act, out, kernels.MatMulOpt{})
		r := compile(t, d, p, [][]byte{kerneltest.RandomRows(rng(4), kernels.Q8_0, n, k)}, nil).(kernels.Timer)
		pass := &kernels.Pass{Rows: rows}
		run(t, r, pass)
		if got := r.Times(); got != nil {
			t.Errorf("%d threads: times nobody asked for: %v", threads, got)
		}
		for range 2 { // the second time from zero on
			if err := r.Time(true); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			for range passes {
				run(t, r, pass)
			}
			took := time.Since(start)
			got := r.Times()
			if len(got) != 2 || got[0].Kind != "gate" || got[1].Kind != "matmul q8_0" {
				t.Fatalf("%d threads: %v: want gate and matmul q8_0", threads, got)
			}
			of := make([]time.Duration, threads)
			var busy time.Duration
			for _, o := range got {
				if len(o.Busy) != threads || len(o.Wait) != threads {
					t.Fatalf("%d threads: %v", threads, o)
				}
				for i := range threads {
					of[i] += o.Busy[i] + o.Wait[i]
					busy += o.Busy[i]
				}
			}
			// A thread that is still waiting when the pass is over adds that after it.
			if busy <= 0 || slices.Max(of) > took+time.Second || of[0] > took {
				t.Errorf("%d threads: %v in %v: %v", threads, of, took, got)
			}
		}
		if err := d.SetThreads(threads + 1); err != nil { // the times have no room for the new thread
			t.Fatal(err)
		}
		run(t, r, pass)
		if err := r.Time(false); err != nil {
			t.Fatal(err)
		}
		if got := r.Times(); got != nil {
			t.Errorf("%d threads: times that are switched off: %v", threads, got)
		}
		r.Close()
		if err := r.Time(true); err == nil {
			t.Error("a closed runner takes times")
		}
	}
}
