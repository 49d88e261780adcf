package engine_test

import (
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// TestCoupleModels: whole models of every family, golden ones and others, with keys and values in both types, give the same bits on a
// processor and a GPU in the same memory as on two groups of cores, while fences take longer or shorter. Without -long there are a few.
func TestCoupleModels(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{Integrated: true, Delay: 50 * time.Microsecond})
	coherent, _ := testdevice.GPU(t, emulated.Options{Coherent: true, Delay: 50 * time.Microsecond})
	host, other := testdevice.CPU(t, 1), testdevice.CPU(t, 1)
	uneven := []kernels.Division{{Rows: 1, Columns: 0.2, Blocks: 0.7}, {Rows: 9, Columns: 0.6, Blocks: 0.1}}
	cores := enginetest.Halves(t, host, other, uneven)
	couples := []kernels.Device{enginetest.Halves(t, host, gpu, uneven), enginetest.Halves(t, coherent, host, uneven)}
	long, count := 40, 0
	if kerneltest.Long() {
		long = 270 // more than a block of keys
	}
	dir := t.TempDir()
	for i, f := range family.All(1) {
		if !kerneltest.Long() && i%12 != 0 {
			continue
		}
		path := f.Write(t, dir)
		info, err := engine.Inspect(path)
		if err != nil {
			t.Fatal(err)
		}
		for j, kvType := range []string{"f16", "q8_0"} {
			if kvType == "q8_0" && info.Config.HeadDim%32 != 0 {
				continue // refused: Q8_0 has blocks of 32
			}
			t.Run(f.Name+"/"+kvType, func(t *testing.T) {
				count++
				o := engine.Options{KVType: kvType, KVPages: 24, MaxRows: 300, Device: cores}
				want := enginetest.Dialogue(t, enginetest.Open(t, path, o), long)
				o.Device = couples[(i+j)%2]
				if err := enginetest.SameBits(enginetest.Dialogue(t, enginetest.Open(t, path, o), long), want); err != nil {
					t.Error(err)
				}
			})
		}
	}
	t.Logf("%d pairs of a model and a type of keys and values", count)
}

// TestOneCopy: a model on a processor and a GPU in the same memory takes the weights and pages that it takes on the processor alone, and is
// told to; both meet at most 6 times a layer, and nothing but the pass is copied to the GPU, nothing but the best logits from it.
func TestOneCopy(t *testing.T) {
	gpu, driver := testdevice.GPU(t, emulated.Options{Integrated: true})
	host := testdevice.CPU(t, 1)
	free := func() int64 {
		n, _, err := gpu.Free()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	o := engine.Options{KVPages: 64, MaxRows: 64, MaxWanted: 8, Device: host}
	alone, err := engine.Measure(enginetest.Target, o)
	if err != nil {
		t.Fatal(err)
	}
	for name, both := range map[string]struct {
		d     *split.Device
		reads int64 // of what TopK found
	}{"cpu+cuda": {enginetest.Halves(t, host, gpu, nil), 0}, "cuda+cpu": {enginetest.Halves(t, gpu, host, nil), 1}} {
		o.Device = both.d
		need, err := engine.Measure(enginetest.Target, o)
		if err != nil {
			t.Fatal(err)
		}
		before := free()
		m := enginetest.Open(t, enginetest.Target, o)
		took, want := before-free(), alone.Weights+int64(alone.Pages)*alone.PageBytes
		t.Logf("%s: %d bytes are taken where both see them; weights and pages alone are %d", name, took, want)
		if got := need.Weights + int64(need.Pages)*need.PageBytes; got < want || got > want+want/50 {
			t.Errorf("%s: weights and pages need %d bytes, want %d and at most 2 %% more", name, got, want)
		}
		if took < want || took > want+want/50+need.Scratch {
			t.Errorf("%s: %d bytes are taken, want at least %d, and at most 2 %% more and %d of buffers", name, took, want, need.Scratch)
		}
		if n, most := both.d.Meetings(m.Passes().Plan()), 6*m.Config().Layers+5; n < 1 || n > most {
			t.Errorf("%s: %d meetings of a pass of %d layers, want at most %d", name, n, m.Config().Layers, most)
		}
		s := enginetest.NewSeq(t, m, 64, 16)
		enginetest.Forward(t, m, 3, engine.Part{Seq: s, Extend: []tandem.Token{1, 2, 3}, Want: engine.WantTail})
		driver.Calls()
		enginetest.Forward(t, m, 3, engine.Part{Seq: s, Extend: []tandem.Token{4, 5}, Want: engine.WantTail})
		if c := driver.Calls(); c.Writes != 1 || c.Reads != both.reads {
			t.Errorf("%s: %d writes and %d reads in a pass, want 1 and %d", name, c.Writes, c.Reads, both.reads)
		}
		s.Close()
		m.Close()
	}
}
