package profile

import "github.com/tandem-llm/tandem"

// Lines returns what corrects the probabilities of a way with that many levels, by its tables on all texts, each counted by its
// samples: at temperature 0, and above. Levels without a table have the zero Line.
func Lines(tables []Table, levels int) (greedy, sampled [tandem.MostLevels]tandem.Line) {
	var weights [2]float64
	for _, t := range tables {
		a := t.Accuracy
		if a == nil || len(a.Own) != levels || a.Samples <= 0 {
			continue
		}
		to, n := &greedy, &weights[0]
		if t.Temperature > 0 {
			to, n = &sampled, &weights[1]
		}
		*n += a.Samples
		for k, l := range a.Own {
			to[k].Slope += (l.Slope - to[k].Slope) * a.Samples / *n
			to[k].Bias += (l.Bias - to[k].Bias) * a.Samples / *n
		}
	}
	return greedy, sampled
}
