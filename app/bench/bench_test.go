package bench

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

func TestDecodeText(t *testing.T) {
	l := Limits{Read: 21.34, MAC: 0.4567, FloatMAC: 0.0891}
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

// TestRun measures for real: shares lie between 0 and about 1, and widths, limits and what computes are told.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("measures over more memory than caches hold")
	}
	passes := Passes{Widths: []int{1, 3}, Rounds: 1}
	sound := func(l Limits) bool { return l.Read > 0 && l.MAC > 0 && l.FloatMAC > 0 }
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
