package cuda_test

import (
	"flag"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/replay"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

var replayed = flag.String("replay", "", "a wrong result that test/scripts/gpu-check has saved: TestReplay computes it on an emulated GPU")

// TestReplay: a wrong result of a GPU, here of an emulated one whose exponential function is wrong by a bit, is found in the operation that
// gives it, saved, and comes out again: wrong on that GPU, right on another. With -replay it says how that file's comes out.
func TestReplay(t *testing.T) {
	right, _ := testdevice.GPU(t, emulated.Options{})
	if *replayed != "" {
		r, err := replay.Load(*replayed)
		if err != nil {
			t.Fatal(err)
		}
		verdict, err := r.Again(testdevice.Ref(), right)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s on %v: %s", r.What, r.On, verdict)
		return
	}
	sources, err := emulated.Inexact()
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := cuda.New(func() (cuda.Driver, error) { return emulated.New(emulated.Options{Sources: sources}) })
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	const rows, dim = 3, 64
	p := kernels.NewProgram(rows, 0)
	p.KV = kernels.UniformKV(1, 2, 32, kernels.KVF16)
	q, k, v, out, act := p.Buf(dim), p.Buf(dim), p.Buf(dim), p.Buf(dim), p.Act(dim)
	w := p.Weight(kernels.Weight{Name: "w", Type: kernels.Q8_0, Rows: dim, Cols: dim, Layout: kernels.Groups16})
	p.Scale(q, 2)
	p.StoreKV(k, v, 0)
	p.Attention(q, 0, 2, kernels.AttentionOpt{Scale: 0.3}, act)
	p.MatMul(w, act, out, kernels.MatMulOpt{})
	file, found := filepath.Join(t.TempDir(), "wrong"), 0
	d := replay.Beside(testdevice.CPU(t, 1), wrong, func(r *replay.Record, err error) {
		if err != nil {
			t.Error(err)
		}
		if found++; !strings.Contains(r.What, "operation 3, kernels.MatMul: row ") || len(r.Programs[len(r.Programs)-1].Ops) != 2 {
			t.Errorf("%+v: want the product behind attention, with attention", r)
		}
		if err := r.Save(file); err != nil {
			t.Error(err)
		}
	})
	random := rand.New(rand.NewPCG(1, 2))
	c, err := d.NewCache(p.KV, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := d.NewWeights(p)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Pack(w, 0, kerneltest.RandomRows(random, kernels.Q8_0, dim, dim)); err != nil {
		t.Fatal(err)
	}
	r, err := d.Compile(p, s, c)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	a := &kernels.Pass{Rows: rows, Pages: []int32{0}, Table: make([]int32, rows), AncOff: make([]int32, rows), AncLen: make([]int32, rows)}
	for first := range int32(2) { // the second pass reads keys of the first
		a.Pos, a.Prefix, a.Store = nil, nil, nil
		for i := first * rows; i < (first+1)*rows; i++ {
			a.Pos, a.Prefix, a.Store = append(a.Pos, i), append(a.Prefix, i+1), append(a.Store, kernels.Cell(i))
		}
		for _, b := range []kernels.Buf{q, k, v} {
			for i := range rows {
				copy(r.Row(b, i), kerneltest.RandomFloats(random, dim, false))
			}
		}
		if err := r.Run(a); err != nil {
			t.Fatal(err)
		}
	}
	if found != 1 {
		t.Fatalf("%d wrong results: want the first alone", found)
	}
	again, err := replay.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	for want, on := range map[string]kernels.Device{"the same wrong bits on": wrong, "right on": right} {
		if said, err := again.Again(testdevice.Ref(), on); err != nil || !strings.HasPrefix(said, want) {
			t.Errorf("%q, %v: want %q", said, err, want)
		}
	}
	for i, x := range again.Events[len(again.Events)-2].Numbers {
		again.Events[len(again.Events)-2].Numbers[i] = -x
	}
	if said, err := again.Again(testdevice.Ref(), right); err == nil || !strings.Contains(err.Error(), "does not hold all that was read") {
		t.Errorf("with another input: %q, %v", said, err)
	}
	const want = "want a file that test/scripts/gpu-check has saved"
	if _, err := replay.Load("replay_test.go"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("another file: %v", err)
	}
}
