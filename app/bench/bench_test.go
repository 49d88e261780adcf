package bench

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

func TestKernelsText(t *testing.T) {
	l := limits{Read: 21.34, MAC: 0.4567, FloatMAC: 0.0891}
	r := KernelsResult{ISA: "avx2", Threads: 2, Limits: l, Before: l, After: l, Kernels: []kernelResult{
		{Type: "q8_0", Rows: 8192, Cols: 2048, Width: 1,
			US: 812.34, LimitUS: 801.2, Share: 0.986, MedianUS: 830, MedianShare: 0.97, GBs: 21.1, MACs: 0.0206},
		{Type: "q4_k", Rows: 8192, Cols: 2048, Width: 64,
			US: 12000, LimitUS: 3000.5, Share: 0.25, MedianUS: 12500, MedianShare: 0.24, GBs: 1.4, MACs: 0.0894},
	}}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "testdata/kernels.golden", out.Bytes())
}

func TestDecodeText(t *testing.T) {
	l := limits{Read: 21.34, MAC: 0.4567, FloatMAC: 0.0891}
	r := DecodeResult{Model: "gopher-19m-q8_0", ISA: "avx2", Threads: 2, KVType: "f16", Weights: 20 << 20, Limits: l, Before: l, After: l,
		Passes: []passResult{
			{Width: 1, Context: 256, MS: 1.234, LimitMS: 0.98, Share: 0.79,
				MedianMS: 1.3, MedianShare: 0.75, Spread: 0.05, MACShare: 0.08, KVLimitMS: 0.01, AttentionMS: 0.11},
			{Width: 512, Prefill: true, MS: 123.4, LimitMS: 98.7, Share: 0.8,
				MedianMS: 130, MedianShare: 0.76, Spread: 0.02, MACShare: 0.8, KVLimitMS: 1, AttentionMS: 2},
		},
		Ops: []passOps{
			{Width: 8, Context: 256, MS: 4.56, Matrices: 0.84, Idle: []float64{0.03, 0.125}, Ops: []opTime{
				{"matmul q8_0", 3.83, 0.84, []float64{0.001, 0.5}}, {"rope+store", 0.027, 0.006, []float64{0, 0.01}}}},
			{Width: 512, Prefill: true, MS: 123.4, Matrices: 0.9, Idle: []float64{0}, Ops: []opTime{{"gate", 1, 0.01, []float64{0}}}},
		}}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "testdata/decode.golden", out.Bytes())
}

func TestKernelsValidate(t *testing.T) {
	for _, tc := range []struct {
		k    Kernels
		says string // "" if it is right
	}{
		{Kernels{Types: []string{"q8_0", "f16"}, Rows: 16, Cols: 256, Passes: Passes{[]int{1}, 1}}, ""},
		{Kernels{Rows: 16, Cols: 256, Passes: Passes{[]int{1}, 1}}, ""},
		{Kernels{Types: []string{"q9_0"}, Rows: 16, Cols: 256, Passes: Passes{[]int{1}, 1}}, "--type q9_0: want of f32, f16, q4_0"},
		{Kernels{Types: []string{"q4_k"}, Rows: 16, Cols: 64, Passes: Passes{[]int{1}, 1}}, "a multiple of 256 for q4_k"},
		{Kernels{Types: []string{"q8_0"}, Rows: 0, Cols: 64, Passes: Passes{[]int{1}, 1}}, "--rows 0 --cols 64"},
		{Kernels{Rows: 16, Cols: 256, Passes: Passes{[]int{1, 0}, 1}}, "--width 0: want 1 to 1024"},
		{Kernels{Rows: 16, Cols: 256, Passes: Passes{[]int{1}, 0}}, "--rounds is 0"},
		{Kernels{Rows: 16, Cols: 256, Passes: Passes{nil, 5}}, "with 0 widths"},
	} {
		types, err := tc.k.types()
		if tc.says == "" {
			if err != nil || len(types) == 0 {
				t.Errorf("%+v: %v, %v", tc.k, types, err)
			}
		} else if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%+v: error %v: want Invalid that says %q", tc.k, err, tc.says)
		}
	}
}

// TestRun measures for real: shares lie between 0 and about 1, and widths, limits and what computes are told.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("measures over more memory than caches hold")
	}
	passes := Passes{Widths: []int{1, 3}, Rounds: 1}
	sound := func(l limits) bool { return l.Read > 0 && l.MAC > 0 && l.FloatMAC > 0 }
	t.Run("kernels", func(t *testing.T) {
		var r *KernelsResult
		for range 5 { // a limit is too low if others use the memory while it is measured
			var err error
			r, err = Kernels{Types: []string{"q8_0"}, Rows: 4096, Cols: 2048, Passes: passes}.Run(t.Context(), testdevice.CPU(t, 1))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(r.Kernels, func(k kernelResult) bool { return k.Share > 2 }) {
				break
			}
		}
		if r.Threads != 1 || !sound(r.Limits) || !sound(r.Before) || !sound(r.After) || len(r.Kernels) != 2 {
			t.Errorf("%+v", r)
		}
		for i, k := range r.Kernels {
			if k.Type != "q8_0" || k.Width != passes.Widths[i] || k.US <= 0 || k.MedianUS < k.US || k.Share <= 0 || k.Share > 2 {
				t.Errorf("%+v", k)
			}
		}
	})
	t.Run("decode", func(t *testing.T) {
		d := Decode{Name: "draft", Context: 40, Prefill: 8, KVType: "f16", Passes: passes, ByOperation: true}
		if _, err := d.Options(39); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "--context 40") {
			t.Errorf("a context of 39 for 40 tokens: %v", err)
		}
		o, err := d.Options(2048)
		if err != nil {
			t.Fatal(err)
		}
		o.Device = testdevice.CPU(t, 1)
		m, err := engine.Open("../../models/gopher-draft-go-f16.gguf", o)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		r, err := d.Run(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		if r.Model != "draft" || r.Threads != 1 || r.Weights <= 0 || !sound(r.Limits) || len(r.Passes) != 3 || !r.Passes[2].Prefill {
			t.Fatalf("%+v", r)
		}
		for i, p := range r.Passes[:2] {
			if p.Width != passes.Widths[i] || p.Context != 40 || p.MS <= 0 || p.LimitMS <= 0 || p.KVBytes <= 0 {
				t.Errorf("%+v", p)
			}
		}
		if len(r.Ops) != len(r.Passes) {
			t.Fatalf("operations of %d kinds of passes, want %d", len(r.Ops), len(r.Passes))
		}
		for i, o := range r.Ops {
			idle := 1.0
			for _, x := range o.Ops {
				idle -= x.Share
			}
			if p := r.Passes[i]; o.Width != p.Width || o.Prefill != p.Prefill || o.MS <= 0 || len(o.Idle) != 1 ||
				math.Abs(o.Idle[0]-idle) > 1e-6 || o.Matrices <= 0 || o.Matrices >= 1 || idle < 0 || idle >= 1 {
				t.Errorf("%+v: want %g idle", o, idle)
			}
		}
	})
}
