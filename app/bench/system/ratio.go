package system

import (
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
)

// ratios are the times of a pass of the draft over one of the target, with one row, at which the suite ratio measures: from a draft that
// costs next to nothing to the smaller model of a family of two.
var ratios = []float64{0.02, 0.07, 0.16, 0.32, 0.45}

// longestChain is the length of the longest chain that the planner is compared with.
const longestChain = 6

// ratioSuite compares the planner with plain decoding and with chains of each length, with drafts that guess equally well and cost more
// and more. It starts processes of its own for each ratio.
func (b *runner) ratioSuite() (*suiteResult, error) {
	r := &suiteResult{}
	if b.cfg.AtRatio == nil {
		return r, tandem.Errorf("", tandem.Unsupported, "drafts of other costs cannot be made here")
	}
	for i, want := range ratios {
		g, release, err := b.cfg.AtRatio(b.ctx, want)
		if err != nil {
			return r, err
		}
		var failed error
		err = b.within(len(ratios)-i).group(g, func(b *runner) {
			r.Target, r.Drafts = b.target, append(r.Drafts, b.drafters...)
			failed = b.each(b.pick("go", setCopy), func(b *runner, set promptSet) error { return b.atRatio(r, want, set) })
		})
		release()
		if failed != nil {
			return r, failed
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

// atRatio compares on one set with one draft. Only this draft may guess, so that its costs decide.
func (b *runner) atRatio(r *suiteResult, want float64, set promptSet) error {
	draft := b.own(set.Name)
	planner := b.strategy(tandem.StrategyPlanner)
	planner.request.Drafters = []string{draft}
	variants := []variant{b.plainly(), planner}
	for n := 1; n <= longestChain; n++ {
		v := b.fixed(draft, chain(n))
		v.name = fmt.Sprintf("chain %d", n)
		variants = append(variants, v)
	}
	c, err := b.compare(set, variants...)
	if err != nil {
		return err
	}
	c.set = fmt.Sprintf("%s, T_D/T_V %.2f", set.Name, want)
	r.add(c)
	best := 2
	for i := range variants[2:] {
		if c.ratio(2+i, 0).Median > c.ratio(best, 0).Median {
			best = 2 + i
		}
	}
	one, plain := c.sum(2).stats, c.sum(0).stats
	measured := figures.Share(float64(one.DraftBusy)/float64(max(one.Rounds, 1)), float64(plain.VerifyBusy)/float64(max(plain.Rounds, 1)))
	r.figure(c.set+": measured", measured, "a round's drafting of one token over a pass of one row")
	for _, over := range []int{0, best} {
		pairs := c.pairs(1, over)
		name := fmt.Sprintf("%s: planner over %s", c.set, variants[over].name)
		r.figure(name, figures.Median(pairs), figures.SpreadOf(pairs).String())
	}
	return nil
}
