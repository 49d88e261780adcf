package worth

// Numbers are the tuned numbers: no formula stands behind them. Each has its unit, its source, and what is lost without it: tokens a second
// of the replays of gateway/strategy with the number at the value in brackets (TestAblation).
type Numbers struct {
	Explore   float64 // share of the tokens that looks at other ways may cost
	Credit    float64 // tokens that looks may cost at once
	Memory    float64 // rounds that the past of a session counts for
	Inherited float64 // rounds that what other sessions have seen counts for
	Answer    float64 // tokens of an answer, before any was seen
	Free      float64 // share of a round below which a draft counts as free
	Dearer    float64 // how many times as much as another drafter costs one without which sets of several are there as well

	Bin    float64 // nodes that the line through all bins counts for in one bin of chances
	Shift  float64 // strength, in nodes, with which that line keeps to what the drafter says
	Forget float64 // factor on the counts of chances with each later tree
	Begin  float64 // weight in a new session of the chances that others have seen
}

// Tuned are the numbers in use. Only a test of ablation changes them.
var Tuned = Numbers{Explore: 0.015, Credit: 2, Memory: 25, Inherited: 3, Answer: 256, Free: 0.01, Dearer: 3, Bin: 8, Shift: 1, Forget: 0.99,
	Begin: 0.2}
