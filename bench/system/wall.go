package system

import (
	"fmt"

	"github.com/tandem-llm/tandem"
)

// The bars of the suite wall, for a target of 5e8 weights or more whose weights are streamed: tokens per second over plain decoding.
var wallRule = map[string]float64{"go": 3.5, "prose": 2.2}

// wallChain is the length of the chains that stand for drafting of a fixed length (SP in LLMCad's Figure 14).
const wallChain = 7

// wallSuite compares ways to decode with a target that is larger than its memory: plainly, which streams the weights for each token
// (StdPL in LLMCad's Figure 14), with chains of a fixed length, with LLMCad's techniques one after the other (Figure 15), and with the
// planner, in trees of the usual size and in the wide ones that are its default here.
func (b *runner) wallSuite() (*suiteResult, error) {
	r := &suiteResult{}
	if !b.cfg.Streamed {
		b.note("the target is not larger than a memory budget: nothing to measure")
		return r, nil
	}
	return r, b.each(b.pick(b.domains()...), func(b *runner, set promptSet) error {
		wide := b.strategy(tandem.StrategyPlanner)
		wide.name, wide.request.Bounds = fmt.Sprintf("planner %s", tandem.StreamedBounds), tandem.StreamedBounds
		variants := []variant{b.plainly(), b.fixed(b.own(set.Name), chain(wallChain))}
		variants = append(append(variants, b.techniques(set)...), b.strategy(tandem.StrategyPlanner), wide)
		c, err := b.compare(set, variants...)
		if err != nil {
			return err
		}
		r.add(c)
		planned := len(variants) - 1
		for i := 1; i < len(variants); i++ {
			name, value := fmt.Sprintf("%s: %s over plain", set.Name, variants[i].name), c.ratio(i, 0).Total
			if want := wallRule[set.Name]; want > 0 && i == planned && b.headline(set.Name) > 0 {
				r.Bars = append(r.Bars, atLeast(name, value, want))
			} else {
				r.Bars = append(r.Bars, figure(name, value, "no bar"))
			}
		}
		r.scenario(b, c, planned)
		return nil
	})
}
