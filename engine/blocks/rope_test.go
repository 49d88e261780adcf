package blocks_test

import (
	"math"
	"testing"

	"github.com/tandem-llm/tandem/engine/blocks"
)

func TestLn(t *testing.T) {
	for _, x := range []float64{0x1p-1022, 1e-9, 0.5, 0.7071, 1, 1.0000001, math.Sqrt2, 2, 4, 10000, 1e15, 1e300} {
		if got, want := blocks.Ln(x), math.Log(x); math.Abs(got-want) > 1e-15*max(1, math.Abs(want)) {
			t.Errorf("ln(%v) is %v: want %v", x, got, want)
		}
	}
}

func TestInverseFrequencies(t *testing.T) {
	for _, c := range []struct {
		base float64
		n    int
	}{{10000, 64}, {10000, 128}, {500000, 128}, {1e6, 80}, {10000, 2}, {1e7, 128}, {1e9, 256}, {1e15, 4096}, {1, 64}, {1.5, 512}} {
		for i, got := range blocks.InverseFrequencies(c.base, c.n, nil) {
			want := math.Pow(c.base, -2*float64(i)/float64(c.n))
			if math.Abs(got-want) > 1e-12*want {
				t.Errorf("base %v, pair %d of %d: %v, want %v", c.base, i, c.n/2, got, want)
			}
		}
	}
}
