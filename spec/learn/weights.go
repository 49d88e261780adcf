package learn

import (
	"maps"
	"math"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// WeightRule is Minions' reward and punishment of drafters (Wang et al., 2024, section 3.2: "speculation
// quality metric"). The paper names the two thresholds and their factors but gives them no values.
type WeightRule struct {
	Window      int     // number of latest voted outputs in the mean acceptance rate ACR
	RewardAbove float64 // reward_threshold
	Reward      float64 // factor of the weight while the ACR is above it
	PunishBelow float64 // punish_threshold
	Punish      float64 // factor of the weight while the ACR is below it
	Least       float64 // least weight, so that a drafter can come back; the mean of all is 1
}

// DefaultWeightRule separates an expert within its domain from one outside it, for the lengths that pay on a
// CPU (4 to 8), where even good drafts have less than half of their tokens accepted.
var DefaultWeightRule = WeightRule{Window: 8, RewardAbove: 0.4, Reward: 1.5, PunishBelow: 0.25, Punish: 0.6, Least: 0.1}

// Validate returns Invalid for a rule with meaningless values.
func (r WeightRule) Validate() error {
	const op = "weights"
	switch {
	case r.Window < 1:
		return tandem.Errorf(op, tandem.Invalid, "window of %d outputs: want at least 1", r.Window)
	case !(r.PunishBelow >= 0 && r.PunishBelow <= r.RewardAbove && r.RewardAbove <= 1):
		return tandem.Errorf(op, tandem.Invalid, "punished below %v and rewarded above %v: want 0 to 1, the first at most the second",
			r.PunishBelow, r.RewardAbove)
	case !(r.Reward >= 1) || math.IsInf(r.Reward, 1):
		return tandem.Errorf(op, tandem.Invalid, "reward factor is %v: want 1 or more", r.Reward)
	case !(r.Punish > 0 && r.Punish <= 1):
		return tandem.Errorf(op, tandem.Invalid, "punish factor is %v: want more than 0 and at most 1", r.Punish)
	case !(r.Least > 0 && r.Least < 1):
		return tandem.Errorf(op, tandem.Invalid, "least weight is %v: want more than 0 and less than 1", r.Least)
	}
	return nil
}

// Weights holds the weights of named drafters. Not safe for concurrent use.
type Weights struct {
	rule    WeightRule
	weights map[string]float64 // positive, of any scale: only their ratios count
	rates   map[string][]float64
	normal  map[string]float64 // weights normalised; nil when they have changed
}

// NewWeights returns weights of 1. A zero rule means DefaultWeightRule; r must be valid.
func NewWeights(r WeightRule) *Weights {
	if r == (WeightRule{}) {
		r = DefaultWeightRule
	}
	return &Weights{rule: r, weights: map[string]float64{}, rates: map[string][]float64{}}
}

// Of returns the weight of a drafter, at least the rule's Least. The mean weight of all drafters ever passed to
// a method is 1, and so is the weight of a new one.
func (w *Weights) Of(name string) float64 {
	w.meet(name)
	return w.normalised()[name]
}

// meet adds a new drafter, with the mean of the others as its weight.
func (w *Weights) meet(name string) {
	if _, known := w.weights[name]; !known {
		w.weights = w.Snapshot()
		w.weights[name], w.normal = 1, nil
	}
}

// Record takes the verification of an output for which the drafter was voted: accepted of its proposed tokens
// were right. Its mean acceptance rate over the window then earns a reward or a punishment, or neither.
func (w *Weights) Record(name string, accepted, proposed int) {
	if proposed < 1 {
		return
	}
	w.meet(name)
	rate := float64(min(max(accepted, 0), proposed)) / float64(proposed)
	rates := append(w.rates[name], rate)
	rates = rates[max(len(rates)-w.rule.Window, 0):]
	w.rates[name] = rates
	mean := 0.0
	for _, r := range rates {
		mean += r / float64(len(rates))
	}
	factor := 1.0
	switch {
	case mean > w.rule.RewardAbove:
		factor = w.rule.Reward
	case mean < w.rule.PunishBelow:
		factor = w.rule.Punish
	default:
		return
	}
	w.weights = w.Snapshot()
	w.weights[name], w.normal = w.weights[name]*factor, nil
}

// Compare takes a round in which several drafters drafted for the same place: held[name] is how many of the
// tokens committed there the drafter's own tree held. Each loses weight by how far it is behind the
// best: multiplicative weights (Freund and Schapire, 1997), whose floor Least lets a drafter come back soon when the
// text changes (Herbster and Warmuth, 1998). It is for votes that merge all trees, so that every tree is verified.
func (w *Weights) Compare(held map[string]int) {
	best := 0
	for name, n := range held {
		w.meet(name)
		best = max(best, n)
	}
	w.weights = w.Snapshot()
	for name, n := range held {
		w.weights[name] *= math.Exp(-worth.HeldLess * float64(best-max(n, 0)))
	}
	w.normal = nil
}

// Set gives a drafter a weight relative to those of the others, such as a saved one. Invalid for NaN, infinities, 0 and less.
func (w *Weights) Set(name string, v float64) error {
	if !(v > 0) || math.IsInf(v, 1) {
		return tandem.Errorf("weights", tandem.Invalid, "weight of drafter %q is %v: want a positive number", name, v)
	}
	w.weights[name], w.normal = v, nil
	return nil
}

// Snapshot returns all weights: their mean is 1, none is less than the rule's Least.
func (w *Weights) Snapshot() map[string]float64 { return maps.Clone(w.normalised()) }

func (w *Weights) normalised() map[string]float64 {
	if w.normal == nil {
		w.normal = w.normalise()
	}
	return w.normal
}

func (w *Weights) normalise() map[string]float64 {
	out := maps.Clone(w.weights)
	largest := 0.0
	for _, v := range out {
		largest = max(largest, v)
	}
	for name := range out {
		out[name] /= largest // sums of the largest numbers would overflow
	}
	// Raise weights that are too low to the least, and let the others share the rest; that may make more of them too low.
	low := map[string]bool{}
	for {
		rest := 0.0
		for name, v := range out {
			if !low[name] {
				rest += v
			}
		}
		scale := (float64(len(out)) - w.rule.Least*float64(len(low))) / rest
		before := len(low)
		for name, v := range out {
			if !low[name] && v*scale < w.rule.Least {
				low[name] = true
			}
		}
		if len(low) > before {
			continue
		}
		for name := range out {
			if out[name] *= scale; low[name] {
				out[name] = w.rule.Least
			}
		}
		return out
	}
}
