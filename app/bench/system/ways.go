package system

import (
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
)

// temperatures are those of the suite ways: what was asked for, else 0 and 1.
func (b *runner) temperatures() []float64 {
	if t := b.base.Sampling.Temperature; t != 0 {
		return []float64{t}
	}
	return []float64{0, 1}
}

// waysSuite compares the planner that may use what guesses from the target's own states with the planner that may not, and with plain
// decoding; each of those alone stands beside them.
func (b *runner) waysSuite() (*suiteResult, error) {
	r := &suiteResult{}
	if len(b.cfg.Informed) == 0 {
		b.note("no side file was given: nothing to compare")
		return r, nil
	}
	return r, b.each(b.pick(b.domains()...), func(b *runner, set promptSet) error {
		for i, t := range b.temperatures() {
			if err := b.within(len(b.temperatures())-i).ways(r, warm(set, t), t); err != nil {
				return err
			}
		}
		return nil
	})
}

// warm returns the prompts of a set under names of their own for a temperature, since its texts are others.
func warm(set promptSet, temperature float64) promptSet {
	set.Name = fmt.Sprintf("%s, temperature %v", set.Name, temperature)
	set.Prompts = slices.Clone(set.Prompts)
	for i := range set.Prompts {
		set.Prompts[i].ID += fmt.Sprintf(", temperature %v", temperature)
	}
	return set
}

// ways compares with and without at one temperature.
func (b *runner) ways(r *suiteResult, set promptSet, temperature float64) error {
	informed := b.cfg.Informed
	others := slices.DeleteFunc(slices.Clone(b.drafters), func(d string) bool { return slices.Contains(informed, d) })
	at := func(v variant, names []string) variant {
		v.request.Sampling.Temperature = temperature
		if names != nil {
			v.request.Drafters = names
		}
		return v
	}
	plain, planner := b.plainly(), b.strategy(tandem.StrategyPlanner)
	named := func(name string, names []string) variant {
		v := at(planner, names)
		v.name = name
		return v
	}
	without := named("without", others)
	if len(others) == 0 {
		without = at(plain, nil)
		without.name = "without (plain)"
	}
	variants := []variant{at(plain, nil), without, named("with", slices.Concat(informed, others))}
	for _, name := range informed {
		variants = append(variants, named(name+" alone", []string{name}))
	}
	c, err := b.compare(set, variants...)
	if err != nil {
		return err
	}
	r.add(c)
	ratio := c.ratio(2, 1)
	r.figure(fmt.Sprintf("%s: with over without (median %.3f)", set.Name, ratio.Median), ratio.Total, "")
	for i, name := range informed {
		r.figure(fmt.Sprintf("%s: %s alone over plain", set.Name, name), c.ratio(3+i, 0).Total, "")
	}
	first := figures.Share(float64(c.sum(2).stats.Prefill), float64(c.sum(1).stats.Prefill))
	r.figure(set.Name+": time to the first token, with over without", first, "")
	return nil
}
