package bench

import (
	"math"
	"testing"

	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/measure"
)

// TestPredict: tokens of a pass over its time, with a draft's passes for the guesses, by plain decoding's.
func TestPredict(t *testing.T) {
	r := &DecodeResult{Passes: []passResult{{Width: 1, MedianMS: 20}, {Width: 3, MedianMS: 26}, {Width: 3, MedianMS: 90, Prefill: true}}}
	for _, c := range []struct {
		n                 int
		right, draft, ask float64
	}{{2, 0.5, 7, 1.75 * 20 / (26 + 14)}, {2, 1, 0, 3 * 20.0 / 26}, {2, 0, 7, 20.0 / 40}, {1, 0.5, 7, 0}} {
		if got := r.predict(c.n, c.right, c.draft); math.Abs(got-c.ask) > 1e-9 {
			t.Errorf("%d guesses, right %v, %v ms each: %v, want %v", c.n, c.right, c.draft, got, c.ask)
		}
	}
}

// TestChainsWithDraft: a draft's passes run for the guesses, so that a pass with guesses takes longer, and the texts stay the same.
func TestChainsWithDraft(t *testing.T) {
	open := func(o engine.Options) *engine.Model {
		o.Device = testdevice.CPU(t, 1)
		m, err := engine.Open("../../models/gopher-draft-go-f16.gguf", o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	d := Decode{Name: "draft", Context: 20, KVType: "f16", Passes: Passes{Widths: []int{1, 3}, Rounds: 3},
		Guessing: measure.Guessing{Chains: []int{2}, Right: 1, Tokens: 24, Rounds: 1}}
	o, err := d.Options(2048)
	if err != nil {
		t.Fatal(err)
	}
	m := open(o)
	d.Draft = open(engine.Options{KVPages: engine.PagesFor(1, d.Context+1, 1)})
	r, err := d.Run(t.Context(), m)
	if err != nil || len(r.Chains) != 2 {
		t.Fatalf("%v, %+v", err, r)
	}
	c := r.Chains[1]
	if c.Guesses != 2 || c.DraftMS <= 0 || c.Predicted <= 0 || c.PassMS < 2*c.DraftMS/3 || r.Chains[0].DraftMS != 0 {
		t.Errorf("%+v: want the time of two passes of a draft in each pass", c)
	}
	if want := figures.Share(24, 8); c.PerPass != want {
		t.Errorf("%v tokens a pass, want %v", c.PerPass, want)
	}
}
