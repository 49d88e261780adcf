package system

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
)

// chain returns the shape of a single path of n tokens.
func chain(n int) tandem.Bounds { return tandem.Bounds{Nodes: n + 1, Depth: n, Width: 1} }

// as returns a variant: the command line's request with a change.
func (b *runner) as(name string, change func(*tandem.Request)) variant {
	v := variant{name, b.base}
	change(&v.request)
	return v
}

func (b *runner) plainly() variant { return variant{"plain", b.plain} }

// strategy returns a variant of a strategy without further choices.
func (b *runner) strategy(s tandem.Strategy) variant {
	return b.as(string(s), func(r *tandem.Request) { r.Strategy, r.Vote, r.Without, r.Bounds = s, tandem.VoteAuto, 0, b.bounds(s) })
}

// bounds returns the bounds of a strategy's trees: those asked for, or its own.
func (b *runner) bounds(s tandem.Strategy) tandem.Bounds {
	if b.cfg.Tree != nil {
		return *b.cfg.Tree
	}
	return tandem.DefaultBounds(s)
}

// fixed returns a variant with one drafter and trees of one shape.
func (b *runner) fixed(drafter string, p tandem.Bounds) variant {
	return b.as(fmt.Sprintf("%s %s", drafter, p), func(r *tandem.Request) {
		r.Strategy, r.Vote, r.Without, r.Drafters, r.Bounds = tandem.StrategyFixed, tandem.VoteNone, 0, []string{drafter}, p
	})
}

// expert returns the drafter trained for a domain, "" if there is none.
func (b *runner) expert(domain string) string {
	mark := map[string]string{"go": "-go-", "python": "-py-", "prose": "-prose-"}[domain]
	i := slices.IndexFunc(b.drafters, func(d string) bool { return mark != "" && strings.Contains(d, mark) })
	if i < 0 {
		return ""
	}
	return b.drafters[i]
}

// own returns the drafter for a domain: its expert, or the first of all.
func (b *runner) own(domain string) string { return cmp.Or(b.expert(domain), b.drafters[0]) }

// add puts a comparison into the result.
func (r *suiteResult) add(c *comparison) { r.Sets = append(r.Sets, c.result()) }

// scenario puts a comparison with plain decoding, variant 0, into the result.
func (r *suiteResult) scenario(b *runner, c *comparison, v int) {
	s, res := c.sum(v), c.result().Variants[v]
	req := c.variants[v].request
	draft := strings.Join(req.Drafters, " ")
	if draft == "" {
		draft = "any"
		if len(b.drafters) == 1 {
			draft = b.drafters[0]
		}
	}
	r.scenarios = append(r.scenarios, scenarioResult{
		Name: c.set, Draft: draft, Strategy: string(req.Strategy), Tree: req.Bounds.String(),
		Sessions: b.cfg.Parallel, Prompts: c.prompts, Tokens: s.tokens,
		PlainTokS: c.sum(0).rate(), SpecTokS: s.rate(), Ratio: res.Ratio.Total, MedianRatio: res.Ratio.Median,
		TokensPerRound: res.TokensPerRound, Acceptance: res.PerNode, VerifierBusy: res.VerifierBusy, DrafterBusy: res.DrafterBusy,
		Equal:   c.equal,
		Choices: res.Choices, Reasons: res.Reasons,
	})
	r.coordination = append(r.coordination, s.stats.Coordination...)
}

// each calls do with each set and an equal share of the time left.
func (b *runner) each(sets []promptSet, do func(*runner, promptSet) error) error {
	for i, s := range sets {
		if err := do(b.within(len(sets)-i), s); err != nil {
			return err
		}
	}
	return nil
}

// plainSuite compares the strategy asked for with plain decoding: with all drafters, and with the domain's expert alone.
func (b *runner) plainSuite() (*suiteResult, error) {
	r := &suiteResult{}
	err := b.each(b.pick(append(b.domains(), setHostile)...), func(b *runner, set promptSet) error {
		variants := []variant{b.plainly(), {"any draft", b.base}}
		if e := b.expert(set.Name); e != "" && len(b.drafters) > 1 && b.base.Drafters == nil {
			variants = append(variants, b.as("expert draft", func(r *tandem.Request) { r.Drafters = []string{e} }))
		}
		c, err := b.compare(set, variants...)
		if err != nil {
			return err
		}
		r.add(c)
		for i, v := range variants[1:] {
			name, value := set.Name+", "+v.name+": tokens/s over plain", c.ratio(i+1, 0).Total
			r.figure(name, value, "")
			r.scenario(b, c, i+1)
		}
		return nil
	})
	if len(r.coordination) > 0 && b.cfg.Parallel == 1 {
		r.figure("coordination p50, ms", figures.MS(figures.Quantile(r.coordination, 0.5)), "")
		r.figure("coordination p99, ms", figures.MS(figures.Quantile(r.coordination, 0.99)), "")
	}
	return r, err
}

// draftsSuite takes each draft model alone, with trees of one shape.
func (b *runner) draftsSuite() (*suiteResult, error) {
	r := &suiteResult{}
	return r, b.each(b.pick(b.domains()...), func(b *runner, set promptSet) error {
		variants := []variant{b.plainly()}
		for _, d := range b.drafters {
			variants = append(variants, b.fixed(d, b.bounds(tandem.StrategyFixed)))
		}
		c, err := b.compare(set, variants...)
		if err != nil {
			return err
		}
		r.add(c)
		for i := range b.drafters {
			r.scenario(b, c, i+1)
		}
		return nil
	})
}

// strategiesSuite runs all strategies: the planner should be at least as good as either system.
func (b *runner) strategiesSuite() (*suiteResult, error) {
	r := &suiteResult{}
	return r, b.each(b.pick(append(b.domains(), setHostile, setMixed)...), func(b *runner, set promptSet) error {
		c, err := b.compare(set, b.plainly(), b.strategy(tandem.StrategyPlanner), b.strategy(tandem.StrategyLLMCad),
			b.strategy(tandem.StrategyMinions), b.strategy(tandem.StrategyFixed))
		if err != nil {
			return err
		}
		r.add(c)
		for other := 2; other <= 3; other++ {
			r.figure(fmt.Sprintf("%s: planner over %s", set.Name, c.variants[other].name), c.ratio(1, other).Total, "")
		}
		return nil
	})
}

// Shapes of the sweep for the best fixed tree; levels are as wide as the command line says.
var (
	sweepNodes = []int{2, 4, 6, 8, 12, 16, 24, 32}
	sweepDepth = []int{1, 2, 3, 4, 5, 7, 11, 15, 31}
)

// plannerSuite finds the best fixed (drafter, nodes, depth) of each class by a sweep and then runs it against the planner and plain
// decoding on all prompts, so that a lucky winner has to win again.
func (b *runner) plannerSuite() (*suiteResult, error) {
	r := &suiteResult{}
	return r, b.each(b.pick(append(b.domains(), setHostile, setMixed)...), func(b *runner, set promptSet) error {
		best, err := b.sweep(set)
		if err != nil {
			return err
		}
		c, err := b.compare(set, b.plainly(), best, b.strategy(tandem.StrategyPlanner))
		if err != nil {
			return err
		}
		r.add(c)
		value, against := c.ratio(2, 1), best.name
		if p := c.ratio(2, 0); p.Total < value.Total {
			value, against = p, "plain"
		}
		name := fmt.Sprintf("%s: planner over the best fixed, %s (median %.3f)", set.Name, against, value.Median)
		r.figure(name, value.Total, "")
		return nil
	})
}

// sweep returns the best fixed (drafter, nodes, depth) for the first prompts of a set: one axis at a time, twice.
func (b *runner) sweep(set promptSet) (variant, error) {
	few := set.Take(min(2, len(set.Prompts)))
	drafter, shape := b.own(set.Name), tandem.Bounds{Nodes: 8, Depth: 4, Width: b.bounds(tandem.StrategyFixed).Width}
	var failed error
	// axis returns the best of n values, of which try makes variants.
	axis := func(n int, try func(i int) variant) int {
		variants := make([]variant, n)
		for i := range variants {
			variants[i] = try(i)
		}
		if failed != nil {
			return 0
		}
		var best variant
		best, _, failed = b.best(few, variants...)
		return max(0, slices.IndexFunc(variants, func(v variant) bool { return v.name == best.name }))
	}
	with := func(nodes, depth int) tandem.Bounds {
		return tandem.Bounds{Nodes: nodes, Depth: depth, Width: shape.Width}
	}
	for pass := range 2 {
		drafter = b.drafters[axis(len(b.drafters), func(i int) variant { return b.fixed(b.drafters[i], shape) })]
		shape.Nodes = sweepNodes[axis(len(sweepNodes), func(i int) variant { return b.fixed(drafter, with(sweepNodes[i], shape.Depth)) })]
		depths := slices.DeleteFunc(slices.Clone(sweepDepth), func(d int) bool { return d >= shape.Nodes })
		shape.Depth = depths[axis(len(depths), func(i int) variant { return b.fixed(drafter, with(shape.Nodes, depths[i])) })]
		if failed != nil {
			return variant{}, failed
		}
		if pass == 0 && b.over() {
			break
		}
	}
	return b.fixed(drafter, shape), nil
}

// lengthSuite compares Minions' length rule with fixed lengths, for one drafter, so that nothing but the length differs.
func (b *runner) lengthSuite() (*suiteResult, error) {
	r := &suiteResult{}
	return r, b.each(b.pick(b.domains()...), func(b *runner, set promptSet) error {
		drafter := b.own(set.Name)
		minions := func(name string, p tandem.Bounds, without tandem.Technique) variant {
			return b.as(name, func(r *tandem.Request) {
				r.Strategy, r.Vote, r.Drafters, r.Bounds = tandem.StrategyMinions, tandem.VoteNone, []string{drafter}, p
				r.Without = without | tandem.TechniqueAhead
			})
		}
		var lengths []variant
		for n := 1; n <= 8; n++ {
			lengths = append(lengths, minions(fmt.Sprintf("length %d", n), chain(n), tandem.TechniqueAdaptive))
		}
		best, swept, err := b.best(set.Take(min(2, len(set.Prompts))), lengths...)
		if err != nil {
			return err
		}
		swept.set += ", sweep"
		r.add(swept)
		c, err := b.compare(set, best, minions("length rule", chain(12), 0))
		if err != nil {
			return err
		}
		r.add(c)
		v := c.ratio(1, 0)
		r.figure(fmt.Sprintf("%s: length rule over %s (median %.3f)", set.Name, best.name, v.Median), v.Total, "")
		return nil
	})
}

// voteSuite compares votes of all drafters with each drafter alone, by acceptance: drafted tokens accepted in a round, for drafts of one
// shape. With chains of one length, as in Minions with adaptive weights: the path of the weighted majority, and all chains in one tree.
// With trees grown by levels: all trees in one, cut to the same number of nodes.
func (b *runner) voteSuite() (*suiteResult, error) {
	r := &suiteResult{}
	if len(b.drafters) < 2 {
		return r, tandem.Errorf("", tandem.Invalid, "%d draft model: a vote wants several, give --draft more than once", len(b.drafters))
	}
	path, tree := chain(b.cfg.LengthStart), b.bounds(tandem.StrategyFixed)
	voting := func(name string, s tandem.Strategy, v tandem.Vote, p tandem.Bounds) variant {
		return b.as(name, func(r *tandem.Request) { r.Strategy, r.Vote, r.Without, r.Bounds = s, v, tandem.TechniqueAhead, p })
	}
	kinds := []struct {
		name  string
		alone tandem.Bounds
		votes []variant
	}{
		{"chains", path, []variant{
			voting("majority", tandem.StrategyMinions, tandem.VoteMajority, path),
			voting("merged", tandem.StrategyMinions, tandem.VoteTree, tandem.Bounds{Nodes: tree.Nodes, Depth: path.Depth, Width: 1}),
		}},
		{"trees", tree, []variant{voting("merged", tandem.StrategyFixed, tandem.VoteTree, tree)}},
	}
	return r, b.each(b.pick(append(b.domains(), setMixed, setChanging)...), func(b *runner, set promptSet) error {
		for i, k := range kinds {
			variants, first := slices.Clone(k.votes), len(k.votes)
			for _, d := range b.drafters {
				variants = append(variants, b.fixed(d, k.alone))
			}
			c, err := b.within(len(kinds)-i).compare(set, variants...)
			if err != nil {
				return err
			}
			c.set += ", " + k.name
			r.add(c)
			best := first
			for i := range variants[first:] {
				if c.sum(first+i).perRound() > c.sum(best).perRound() {
					best = first + i
				}
			}
			for i, v := range k.votes {
				name := fmt.Sprintf("%s %s: acceptance over %s", c.set, v.name, variants[best].name)
				r.figure(name, figures.Share(c.sum(i).perRound(), c.sum(best).perRound()), "")
			}
			if k.votes[0].request.Strategy == tandem.StrategyMinions {
				r.figure(c.set+": weights move, largest over smallest at the end", spread(c.sum(0)), "")
			}
		}
		return nil
	})
}

// spread returns the median over texts of the largest weight over the smallest.
func spread(t *tally) float64 {
	var ratios []float64
	for i := 0; ; i++ {
		lo, hi := 0.0, 0.0
		for _, w := range t.weights {
			if i < len(w) && w[i] > 0 {
				if lo == 0 || w[i] < lo {
					lo = w[i]
				}
				hi = max(hi, w[i])
			}
		}
		if lo == 0 {
			return figures.Median(ratios)
		}
		ratios = append(ratios, hi/lo)
	}
}

// techniques returns variants with LLMCad's techniques switched on one after the other, as in the paper's ablation (Figure 15), with the
// drafter of the set's domain if there is one.
func (b *runner) techniques(set promptSet) (variants []variant) {
	e := b.expert(set.Name)
	for _, step := range []struct {
		name    string
		without tandem.Technique
	}{
		{"chain", tandem.TechniqueBranches | tandem.TechniqueAdaptive | tandem.TechniqueAhead},
		{"+ branches", tandem.TechniqueAdaptive | tandem.TechniqueAhead},
		{"+ adaptive α", tandem.TechniqueAhead},
		{"+ ahead", 0},
	} {
		variants = append(variants, b.as(step.name, func(r *tandem.Request) {
			r.Strategy, r.Vote, r.Without, r.Bounds = tandem.StrategyLLMCad, tandem.VoteAuto, step.without, b.bounds(tandem.StrategyLLMCad)
			if e != "" {
				r.Drafters = []string{e}
			}
		}))
	}
	return variants
}

// llmcadSuite switches LLMCad's techniques on one after the other.
func (b *runner) llmcadSuite() (*suiteResult, error) {
	r := &suiteResult{}
	return r, b.each(b.pick(b.domains()...), func(b *runner, set promptSet) error {
		variants := append([]variant{b.plainly()}, b.techniques(set)...)
		c, err := b.compare(set, variants...)
		if err != nil {
			return err
		}
		r.add(c)
		for i := 2; i < len(variants); i++ {
			v := c.ratio(i, i-1)
			name := fmt.Sprintf("%s: %s over the step before (median %.3f)", set.Name, variants[i].name, v.Median)
			r.figure(name, v.Total, "")
		}
		return nil
	})
}

// overlapSuite compares drafting while the target verifies with drafting and verifying in turn.
func (b *runner) overlapSuite() (*suiteResult, error) {
	r := &suiteResult{}
	return r, b.each(b.pick(b.domains()...), func(b *runner, set promptSet) error {
		variants := []variant{b.plainly()}
		for _, s := range []tandem.Strategy{tandem.StrategyPlanner, tandem.StrategyLLMCad} {
			for _, without := range []tandem.Technique{tandem.TechniqueAhead, 0} {
				name := string(s) + map[bool]string{true: ", ahead", false: ", in turn"}[without == 0]
				variants = append(variants, b.as(name, func(r *tandem.Request) {
					r.Strategy, r.Vote, r.Without, r.Drafters, r.Bounds = s, tandem.VoteNone, without, b.one(set.Name), b.bounds(s)
				}))
			}
		}
		c, err := b.compare(set, variants...)
		if err != nil {
			return err
		}
		r.add(c)
		for on := 2; on < len(variants); on += 2 {
			off := c.sum(on - 1).stats
			drafting, v := figures.Share(float64(off.DraftBusy), float64(off.VerifyBusy)), c.ratio(on, on-1)
			r.figure(fmt.Sprintf("%s: %s over in turn (median %.3f)", set.Name, variants[on].name, v.Median), v.Total,
				fmt.Sprintf("drafting takes %.2f of verifying", drafting))
		}
		return nil
	})
}

// one returns the one drafter for a set: what was asked for, its expert, or the first.
func (b *runner) one(set string) []string {
	if b.base.Drafters != nil {
		return b.base.Drafters
	}
	return []string{b.own(set)}
}

// costSuite measures what deciding costs: votes, fitting, weights, planner.
func (b *runner) costSuite() (*suiteResult, error) {
	r := &suiteResult{}
	return r, b.each(b.pick(setMixed), func(b *runner, set promptSet) error {
		minionsTree := b.strategy(tandem.StrategyMinions)
		minionsTree.name, minionsTree.request.Vote = "minions, tree", tandem.VoteTree
		c, err := b.compare(set, b.plainly(), b.strategy(tandem.StrategyPlanner), b.strategy(tandem.StrategyLLMCad),
			b.strategy(tandem.StrategyMinions), minionsTree)
		if err != nil {
			return err
		}
		r.add(c)
		for _, v := range c.result().Variants[1:] {
			r.figure(v.Name+": planning, share of a round", v.Planning, "")
		}
		return nil
	})
}

// pause is how long the processes get to forget ended sessions.
const pause = 300 * time.Millisecond
