package profile

import (
	"math"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/shape"
)

// TestLines: corrections are means by samples, each kind of temperature for itself; tables of other levels or none do not count.
func TestLines(t *testing.T) {
	table := func(temperature, samples float64, slopes ...float64) Table {
		a := &shape.Accuracy{Samples: samples}
		for _, s := range slopes {
			a.Own = append(a.Own, tandem.Line{Slope: s, Bias: -s})
		}
		return Table{Temperature: temperature, Accuracy: a}
	}
	greedy, sampled := Lines([]Table{table(0, 100, 1, 2), table(0, 300, 2, 4), table(1, 10, 3, 5), table(0, 1e9, 7), table(0, 0, 8, 8),
		{Temperature: 1}}, 2)
	for i, want := range []float64{1.75, 3.5, 0} {
		if math.Abs(greedy[i].Slope-want) > 1e-9 || math.Abs(greedy[i].Bias+want) > 1e-9 {
			t.Errorf("level %d: %+v, want slope %v", i, greedy[i], want)
		}
	}
	if sampled[0] != (tandem.Line{Slope: 3, Bias: -3}) || sampled[1] != (tandem.Line{Slope: 5, Bias: -5}) {
		t.Errorf("sampled %v", sampled[:2])
	}
}
