package passes

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/testkit"
)

func TestKernelsText(t *testing.T) {
	l := bench.Limits{Read: 21.34, MAC: 0.4567, FloatMAC: 0.0891}
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

func TestKernelsValidate(t *testing.T) {
	for _, tc := range []struct {
		k    Kernels
		says string // "" if it is right
	}{
		{Kernels{Types: []string{"q8_0", "f16"}, Rows: 16, Cols: 256, Passes: bench.Passes{Widths: []int{1}, Rounds: 1}}, ""},
		{Kernels{Rows: 16, Cols: 256, Passes: bench.Passes{Widths: []int{1}, Rounds: 1}}, ""},
		{Kernels{Types: []string{"q9_0"}, Rows: 16, Cols: 256, Passes: bench.Passes{Widths: []int{1}, Rounds: 1}},
			"--type q9_0: want of f32, f16, q4_0"},
		{Kernels{Types: []string{"q4_k"}, Rows: 16, Cols: 64, Passes: bench.Passes{Widths: []int{1}, Rounds: 1}},
			"a multiple of 256 for q4_k"},
		{Kernels{Types: []string{"q8_0"}, Rows: 0, Cols: 64, Passes: bench.Passes{Widths: []int{1}, Rounds: 1}}, "--rows 0 --cols 64"},
		{Kernels{Rows: 16, Cols: 256, Passes: bench.Passes{Widths: []int{1, 0}, Rounds: 1}}, "--width 0: want 1 to 1024"},
		{Kernels{Rows: 16, Cols: 256, Passes: bench.Passes{Widths: []int{1}}}, "--rounds is 0"},
		{Kernels{Rows: 16, Cols: 256, Passes: bench.Passes{Rounds: 5}}, "with 0 widths"},
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

// TestKernels measures for real: shares lie between 0 and about 1, and widths, limits and what computes are told.
func TestKernels(t *testing.T) {
	if testing.Short() {
		t.Skip("measures over more memory than caches hold")
	}
	passes := bench.Passes{Widths: []int{1, 3}, Rounds: 1}
	sound := func(l bench.Limits) bool { return l.Read > 0 && l.MAC > 0 && l.FloatMAC > 0 }
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
}

func TestMatrices(t *testing.T) {
	dev := testdevice.CPU(t, 1)
	probe, err := dev.NewProbe(1)
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()
	for _, typ := range kernels.Types() {
		set, err := NewMatrices(dev, typ, 40, 512, 3, 1)
		if err != nil {
			t.Fatalf("%v: %v", typ, err)
		}
		var limits kernels.Limits
		products, err := set.Measure(t.Context(), probe, []int{1, 3}, 2, &limits)
		if err != nil {
			t.Fatalf("%v: %v", typ, err)
		}
		if limits.ReadBytes <= 0 || limits.IntMACs <= 0 || limits.FloatMACs <= 0 {
			t.Errorf("%v: limits %+v", typ, limits)
		}
		for i, p := range products {
			p.Settle(limits)
			if len(p.Times) != 2 || p.Width != []int{1, 3}[i] || p.Best != slices.Min(p.Times) || p.Share <= 0 || p.Type != typ {
				t.Errorf("%+v", p)
			}
		}
		set.Close()
	}
}
