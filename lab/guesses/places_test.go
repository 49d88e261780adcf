package guesses

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestCompare: one group of cores and a pass divided between two say the same text with heads' trees of all sizes, and each place's speed
// is told.
func TestCompare(t *testing.T) {
	both, err := split.New(testdevice.CPU(t, 1), testdevice.CPU(t, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer both.Close()
	on := func(d kernels.Device) Opener {
		return func(path string, o engine.Options) (*engine.Model, error) {
			o.Device = d
			return engine.Open(path, o)
		}
	}
	r, err := Compare(t.Context(), config(t, []string{"medusa-shared"}, nil), []Place{{"one group", on(testdevice.CPU(t, 1))},
		{"both", on(both)}})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Places) != 2 || r.Tokens == 0 {
		t.Fatalf("%+v", r)
	}
	for i, p := range r.Places {
		if len(p.Rates) != 3 {
			t.Fatalf("%+v: want plain decoding and trees of two sizes", p)
		}
		for k, x := range p.Rates {
			if first := r.Places[0].Rates[k]; x.PerSecond <= 0 || x.Tau < 1 || x.Tau != first.Tau || x.Width != []int{1, 4, 16}[k] {
				t.Errorf("place %d: %+v: want the tokens a round of %+v", i, x, first)
			}
		}
	}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "in brackets: of the speed of one group") {
		t.Error(out.String(), err)
	}
}
