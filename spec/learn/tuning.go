package learn

import (
	"time"

	"github.com/tandem-llm/tandem/spec/worth"
)

// Tuning holds every number of the planner, and of what is learned beside it, that was tuned by hand. Unless a field says otherwise, its
// value was chosen by replaying rounds (the tests of gateway/strategy) and by runs of "tandem bench system" with the shipped models, and
// no formula stands behind it. Numbers of papers are not here: see PlannerRule, LengthRule, WeightRule and strategy.Rules.
type Tuning struct {
	Planner     PlannerTuning
	Costs       worth.CostTuning
	Calibration CalibrationTuning
	Length      LengthTuning
	Alpha       AlphaTuning
	// Compare is how much of its weight, in nats, a drafter loses for each token that it held fewer than the best (Weights.Compare).
	Compare float64

	// The rest is package gateway/strategy's.
	Hindsight  HindsightTuning
	SelfDrafts SelfDraftTuning
	Choice     ChoiceTuning
}

// PlannerTuning is Planner's.
type PlannerTuning struct {
	Guess      float64 // accepted tokens expected of a round of an unknown arm
	Prior      float64 // rounds that the experience of other sessions counts for, at most
	Least      float64 // accepted tokens that other sessions' experience predicts at least, so that an arm is still tried
	Stale      float64 // rounds in which what is known of an arm loses half its weight
	Start      float64 // credit for probes at the start, in rounds of the arm in use
	Save       float64 // most that this credit grows to, in the same rounds
	Young      int     // rounds within which a session tests all drafters together
	AheadProbe int     // rounds of a probe that drafts ahead
	Own        float64 // foretold tokens after which an arm's own scale counts as much as that of all arms
	Common     float64 // foretold tokens after which the scale of all arms counts as much as hindsight alone
	Low        float64 // least scale of all arms
	High       float64 // largest one
	TextFade   float64 // factor on a round's weight in the judgement of the text with each later round
}

// CalibrationTuning is Calibration's.
type CalibrationTuning struct {
	Prior  float64 // nodes of a bin that what all bins say counts for
	Shift  float64 // strength with which the line of all bins keeps to what the drafter says: of its shift,
	Slope  float64 // and of its slope
	Forget float64 // factor on the counts of older trees with each new one: at 0.99 about 100 trees are remembered
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

// HindsightTuning says how drafters that are not asked are kept up to date, to compare them by hindsight.
type HindsightTuning struct {
	Every int // committed tokens that a drafter lags behind before it is told of them
	// Share bounds the drafting time that this takes, as a share of that of the rounds. What much dearer drafters take does not count for
	// a drafter, so that one that takes long does not keep the others from being compared.
	Share float64
	Start time.Duration // that a drafter may take for it in any case, as long as the time is not spent
	Lag   int           // most tokens that a drafter lags behind the text and is still compared with others
	Least int           // tokens that all hindsights must cover before they are compared
}

// SelfDraftTuning says when the target's own guesses are asked for.
type SelfDraftTuning struct {
	Share   float64 // share of the time of rounds that guesses may take which no round uses, to see what they are worth now
	Start   float64 // credit for such guesses at the start, in rounds
	Lasting int     // rounds that a self-draft is asked on after the last round whose best choice had it: a guess may be missing in between
}

// ChoiceTuning says which arms the planner has and how trees are sized.
type ChoiceTuning struct {
	WideEvery int     // one in so many rounds with a draft is wider than costs say that it pays, so that wrong costs show
	WideSlope float64 // factor on the cost of more rows in such a round
	Floor     float64 // share of the latest rounds' tokens per second that a further pass of a draft model must bring
	Free      float64 // share of a round's time below which a drafter is asked whenever another one is
	Dearer    float64 // how many times as much as the next cheaper one a drafter costs that votes are also held without
	Felt      float64 // share of a round's time from which on a draft is felt
	Shown     float64 // share of the time in which a slow drafter reads the text that rounds without it must have cost before it is opened
	// Late is the share of the time of a usual answer above which a drafter that has to read the text is opened late: not before it might
	// have saved as much in this answer as reading takes. Usual are the tokens of such an answer before any was seen.
	Late, Usual float64
	// Inherited is the weight in a new session of the acceptance that other sessions have seen: enough to begin well, little enough that a
	// text of another kind shows within some ten rounds.
	Inherited float64
	HandedOn  float64 // weight of an ended session's drafter weights in those with which new sessions begin
}

// DefaultTuning returns the numbers in use.
func DefaultTuning() Tuning {
	return Tuning{
		Planner: PlannerTuning{Guess: 1, Prior: 3, Least: 0.5, Stale: 40, Start: 1, Save: 3, Young: 6, AheadProbe: 3, Own: 60, Common: 5,
			Low: 0.5, High: 3, TextFade: 0.95},
		Costs:       worth.DefaultCostTuning,
		Calibration: CalibrationTuning{Prior: 8, Shift: 1, Slope: 4, Forget: 0.99},
		Length:      LengthTuning{Fade: 0.995, Near: 2, Load: 1.0 / 8},
		Alpha:       AlphaTuning{Least: 1e-6, Most: 0.99, Range: 10},
		Compare:     0.35,
		Hindsight:   HindsightTuning{Every: 6, Share: 0.02, Start: 2 * time.Millisecond, Lag: 24, Least: 4},
		SelfDrafts:  SelfDraftTuning{Share: 0.01, Start: 0.3, Lasting: 4},
		Choice: ChoiceTuning{WideEvery: 24, WideSlope: 0.4, Floor: 0.85, Free: 0.01, Dearer: 3, Felt: 0.1, Shown: 0.05, Late: 0.5,
			Usual: 256, Inherited: 0.2, HandedOn: 0.25},
	}
}
