package learn

// Tuning holds the numbers of LLMCad and Minions that their papers do not give.
type Tuning struct {
	Length LengthTuning
	Alpha  AlphaTuning
	// Compare is how much of its weight, in nats, a drafter loses for each token that it held fewer than the best (Weights.Compare).
	Compare  float64
	HandedOn float64 // weight of an ended session's drafter weights in those with which new sessions begin
}

// LengthTuning is Length's, for LengthCurve.
type LengthTuning struct {
	Fade float64 // factor on the weight of a chain with each later one
	Near int     // how far compared lengths may be from the one in use, in tokens: over a wider range the cost is not linear
	Load float64 // weight of the latest pass in the running means of what a pass holds
}

// AlphaTuning is Alpha's.
type AlphaTuning struct {
	Least float64 // smallest threshold
	Most  float64 // largest one
	Range float64 // largest one as a multiple of the first, until Bound says what a pass costs
}

// DefaultTuning returns the numbers in use.
func DefaultTuning() Tuning {
	return Tuning{
		Length:  LengthTuning{Fade: 0.995, Near: 2, Load: 1.0 / 8},
		Alpha:   AlphaTuning{Least: 1e-6, Most: 0.99, Range: 10},
		Compare: 0.35, HandedOn: 0.25,
	}
}
