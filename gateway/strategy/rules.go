package strategy

import (
	"maps"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/learn"
	"github.com/tandem-llm/tandem/spec/worth"
)

// DefaultBranch is the least probability with which a candidate opens a branch (LLMCad), if Rules.Branch is 0.
const DefaultBranch = 0.3

// Rules are the constants of the strategies. A zero field is its default, the paper's where there is one.
type Rules struct {
	Weights        learn.WeightRule   // Minions: reward and punishment of drafters
	Length         learn.LengthRule   // Minions: speculation length
	Alpha          float64            // LLMCad: the first threshold below which drafting ends, 0.01
	Branch         float64            // LLMCad: least probability with which a candidate opens a branch, 0.3
	Explore        float64            // planner: share of the tokens that looks at other ways may cost, 0.015
	InitialWeights map[string]float64 // of drafters by name; 1 for those not in it
}

// WithDefaults returns r with every default filled in. Errors: Invalid for a value that cannot be.
func (r Rules) WithDefaults() (Rules, error) {
	const op = "gateway"
	if r.Weights == (learn.WeightRule{}) {
		r.Weights = learn.DefaultWeightRule
	}
	if r.Length == (learn.LengthRule{}) {
		r.Length = learn.DefaultLengthRule
	}
	for _, f := range []struct {
		name string
		v    *float64
		def  float64
	}{{"alpha", &r.Alpha, learn.DefaultAlpha}, {"branch threshold", &r.Branch, DefaultBranch},
		{"explore", &r.Explore, worth.Tuned.Explore}} {
		if *f.v == 0 {
			*f.v = f.def
		}
		if !(*f.v > 0 && *f.v < 1) {
			return r, tandem.Errorf(op, tandem.Invalid, "%s is %v: want more than 0 and less than 1", f.name, *f.v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.InitialWeights)) {
		if v := r.InitialWeights[name]; !(v > 0) || math.IsInf(v, 1) {
			return r, tandem.Errorf(op, tandem.Invalid, "weight of drafter %q is %v: want a number above 0", name, v)
		}
	}
	for _, err := range []error{r.Weights.Validate(), r.Length.Validate()} {
		if err != nil {
			return r, tandem.Errorf(op, tandem.Invalid, "%w", err)
		}
	}
	return r, nil
}
