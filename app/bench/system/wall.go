package system

import (
	"fmt"

	"github.com/tandem-llm/tandem"
)

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
			r.figure(fmt.Sprintf("%s: %s over plain", set.Name, variants[i].name), c.ratio(i, 0).Total, "")
		}
		r.scenario(b, c, planned)
		return nil
	})
}
