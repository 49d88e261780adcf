package gateway_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/lookup"
)

// TestRecyclingInOneProcess: with a model's own successors, alone, beside lookup and beside a draft model, greedy and drawn, the text is
// that of plain decoding, and recycling has a share in it.
func TestRecyclingInOneProcess(t *testing.T) {
	g, _, _ := assemble(t, "go", lookup.Name, tandem.Recycling)
	prompts := []string{"func (r *Reader) Read(", "def main(", "It was a dark night, and the old man"}
	for _, temperature := range []float64{0, 0.8} {
		request := tandem.Request{MaxTokens: 60, IgnoreEOS: true, Sampling: tandem.Sampling{TopP: 1, Temperature: temperature, Seed: 5}}
		plain := make([]tokensOf, len(prompts))
		for i, p := range prompts {
			r := request
			r.Prompt = p
			if _, err := g.Generate(context.Background(), r, &plain[i]); err != nil {
				t.Fatal(err)
			}
		}
		accepted := 0
		for _, drafters := range [][]string{{tandem.Recycling}, {lookup.Name, tandem.Recycling}, nil} {
			for _, strategy := range []tandem.Strategy{tandem.StrategyFixed, tandem.StrategyMinions, tandem.StrategyPlanner} {
				var group sync.WaitGroup
				var mu sync.Mutex
				for i, p := range prompts {
					group.Go(func() {
						var got tokensOf
						r := request
						r.Prompt, r.Strategy, r.Drafters = p, strategy, drafters
						r.Bounds = tandem.Bounds{Nodes: 16, Depth: 7, Width: 4}
						res, err := g.Generate(context.Background(), r, &got)
						if err != nil || !slices.Equal(got, plain[i]) {
							t.Errorf("%s, %v, temperature %v: tokens %v, error %v, want %v", strategy, drafters, temperature, got, err,
								plain[i])
						}
						mu.Lock()
						defer mu.Unlock()
						for _, d := range res.Stats.Drafters {
							if d.Name == tandem.Recycling {
								accepted += d.Accepted
							}
						}
					})
				}
				group.Wait()
			}
		}
		if accepted < 50 {
			t.Errorf("temperature %v: recycling guessed %d of the committed tokens: want 50 at least", temperature, accepted)
		}
	}
}
