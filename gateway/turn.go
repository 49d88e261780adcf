package gateway

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/round"
	"github.com/tandem-llm/tandem/gateway/source"
	"github.com/tandem-llm/tandem/gateway/strategy"
)

// turn is a round while its session carries it out.
type turn struct {
	round.Round
	sources  *source.Set
	strategy strategy.Strategy
	asks     []source.Source // of Asks
	delta    tandem.Delta    // set by commit
	wall     time.Duration   // from the start of the round to its commit
	why      string          // explain's answer, once asked
	put      time.Time       // of the first ticket that the session put itself, for a report
}

// answer tells the round what a source has answered.
func (t *turn) answer(d round.Draft, err error) round.Action {
	if err != nil {
		return t.Answer(nil)
	}
	return t.Answer(&d)
}

// apply does what goes with an action: it counts, and passes on what the round says about its sources.
func (t *turn) apply(a round.Action, c *tandem.Counters) {
	if a.Count != "" {
		c.Add(a.Count, 1)
	}
	if a.Judge != round.Fine {
		for i := range t.Drafts {
			x := slices.IndexFunc(t.asks, func(x source.Source) bool { return x.Name() == t.Drafts[i].Drafter })
			t.asks[x].Judge(a.Judge)
		}
	}
	if a.Prompts {
		t.sources.PromptsRefused(t.Guesses)
	}
}
