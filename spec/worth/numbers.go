package worth

import "time"

// The tuned numbers: each with its unit, its source, and what the replays lose without it.
const (
	// CostGain, a share of the difference to what was expected: weight of a new observation in what is learned of times. Source: runs of
	// "tandem bench system" with the shipped models.
	CostGain = 0.1
	// NominalRows, rows: as many take as long to multiply as the weights take to read, on a machine that nobody has measured. Source:
	// between two cores of Zen 3 (6) and eight with the same memory (some 40).
	NominalRows = 16
	// nominalRead, a time: of the weights, on a machine that nobody has measured. Source: a gigabyte at 50 GB/s.
	nominalRead = 20 * time.Millisecond
	// AssumedRight, a chance: of a token of a draft if those before it are right, where nobody has measured it. Source: the mean of
	// Qwen2.5-Coder 0.5B beside 1.5B over programs, prose and data.
	AssumedRight = 0.7
	// UsualOutput, tokens: of an answer, before any was seen. Source: runs of "tandem bench system".
	UsualOutput = 256
)

// Numbers are the tuned numbers: no formula stands behind them. Each has its unit, its source, and what is lost without it: tokens a second
// of the replays of gateway/strategy with the number at the value in brackets (TestAblation).
type Numbers struct {
	Explore   float64 // share of the tokens that looks at other ways may cost
	Credit    float64 // tokens that looks may cost at once
	Memory    float64 // rounds that the past of a session counts for
	Inherited float64 // rounds that what other sessions have seen counts for
	Free      float64 // share of a round below which a draft counts as free

	Bin    float64 // nodes that the line through all bins counts for in one bin of chances
	Shift  float64 // strength, in nodes, with which that line keeps to what the drafter says
	Forget float64 // factor on the counts of chances with each later tree
}

// Tuned are the numbers in use. Only a test of ablation changes them.
var Tuned = Numbers{Explore: 0.015, Credit: 2, Memory: 25, Inherited: 3, Free: 0.01, Bin: 8, Shift: 1, Forget: 0.99}
