package worth

import "time"

// The tuned numbers: each with its unit, its source, and what the replays (the tests of gateway/strategy) lose without it.
const (
	// CostGain, a share of the difference to what was expected: weight of a new observation in running means, of times above all. Source:
	// runs of "tandem bench system" with the shipped models. Ablation: it bounds how long a disturbed start is believed: .05 takes twice
	// as long.
	CostGain = 0.1
	// NominalRows, rows: as many take as long to multiply as the weights take to read, on a machine that nobody has measured. Source:
	// between two cores of Zen 3 (6) and eight with the same memory (some 40). Ablation: only rounds before the first pass see it.
	NominalRows = 16
	// nominalRead, a time: of the weights, on a machine that nobody has measured. Source: a gigabyte at 50 GB/s. Ablation: as NominalRows.
	nominalRead = 20 * time.Millisecond
	// AssumedRight, a chance: of a token of a draft if those before it are right, where nobody has measured it. Source: the mean of
	// Qwen2.5-Coder 0.5B beside 1.5B over programs, prose and data. Ablation: it decides only which draft a streamed target gets.
	AssumedRight = 0.7
	// UsualOutput, tokens: of an answer, before any was seen. Source: runs of "tandem bench system". Ablation: it decides only where a
	// session is placed that may write more.
	UsualOutput = 256
	// GuessShare, a share of the time that a prompt takes: what guesses beside it may add to that. Source: the first token may come as much
	// later. Ablation: 0 takes the guesses from the first round.
	GuessShare = 0.02
	// Overdue, times the usual time of an answer: one that takes longer is taken to be lost. Source: the faults of the simulated gateway.
	// Ablation: what was lost is asked for again later or earlier; no choice of drafts changes.
	Overdue = 10

	// Prior, samples: what is expected of a cell counts for, before anything was counted in it. Source: the replays. Ablation: the replays
	// passed as well with 4 in children and matches.
	Prior = 8
	// Memory, samples: of one text that a cell remembers. Of all texts it is four times as many. Source: the replays. Ablation: the replays
	// passed as well with eight times as many for prompt tokens.
	Memory = 64
	// PromptShare, a weight: of a round that spec.Foretold replays in the prompt, against 1 in the output, because the target did not write
	// the prompt. Source: the replays. Ablation: not replayed alone.
	PromptShare = 0.1
	// MostCertain, a chance: the most that any guess, or all guesses for one place, count as. Source: the replays. Ablation: the
	// replays passed as well with .998 for a guess of spec.Mix.
	MostCertain = 0.98
	// LeastChance, a chance: less likely nodes are not worth keeping or preparing for, nor as small a gain a pass. Source: the replays.
	// Ablation: 0 makes trees as wide as their bounds.
	LeastChance = 0.005
	// ShapePrior, a share of the visited places: what the table of all places counts for when a shape of self-drafts is fitted. Source: the
	// calibration texts of "tandem profile". Ablation: 0 fits rare paths to single places.
	ShapePrior = 0.02
	// OtherShare, a share: of what its likeliest token leaves that the second of a list has. The third has half as much, and so on. Source:
	// the recorded texts. Ablation: it is only the beginning of what is counted.
	OtherShare = 0.2
	// CopyOdds, a divisor: with it the odds that a text goes on as behind a match of m tokens are m√m ÷ CopyOdds. Source: a fit to the
	// recorded texts (.25 .49 .73 .88 .96 for 1 2 4 8 16). Ablation: as OtherShare.
	CopyOdds = 3
	// MixRate, nats: the step of online gradient descent in spec.Mix. Source: the replays. Ablation: 0 never
	// learns; no other value was replayed for this table.
	MixRate = 0.03
	// GreedyTemper, a temperature: of drafts for a target at temperature 0. Source: 3.1 tokens a round on prose against 2.4 with 1.
	// Ablation: .25 to .5 do about as well.
	GreedyTemper = 0.4
	// HeldLess, nats: weight that a drafter loses for each token that it held fewer than the best, where votes go by weights. Source: three
	// shipped experts. Ablation: 0 never finds the expert of a text.
	HeldLess = 0.35
)

// Numbers of papers.
const (
	// SpecExecDecay, a factor per step of depth. Source: Svirschevski et al., 2024.
	SpecExecDecay = 0.95
	// MedusaTop, candidates of a level. Source: the trees of Cai et al., 2024.
	MedusaTop = 10
)

// Numbers are those of the choice. TestAblation sets each to a value at which it does nothing, to half and to twice its value.
type Numbers struct {
	// Explore, a share of the tokens: what looks at other ways earn. Source: the setting explore. Ablation: -.1 % at 0 on texts of 160
	// tokens, which the first credit serves; without it a way that becomes good in a long text is never found.
	Explore float64
	// Credit, tokens: what looks may cost at once, and at the start. Source: the replays. Ablation: -10 % at 0, -.6 at 1, -1.5 at 4.
	Credit float64
	// Rounds, rounds: that the past of a session counts for. Source: the replays. Ablation: -1.4 % without end, +.3 at 12, 0 at 50.
	Rounds float64
	// Inherited, rounds: that what other sessions have seen counts for. Source: the replays. Ablation: -3.6 % at 0, -.3 at 1.5, +.2 at 6.
	Inherited float64
	// Free, a share of a pass: a draft without a model that costs less is free. Source: the replays. Ablation: -2.7 % at 0, 0 at half or
	// twice.
	Free float64
	// Shift, nodes: strength with which the line through the bins of chances keeps to what the drafter says. Source: the replays. Ablation:
	// -1.3 % at 0, -.2 at half, 0 at twice.
	Shift float64
	// Forget, a factor: on the counts of chances with each later tree. Source: the replays. Ablation: 0 at 1, -2.5 % at .98; a text that
	// turns to another kind needs it.
	Forget float64
}

// Tuned are the numbers in use. Only a test of ablation changes them.
var Tuned = Numbers{Explore: 0.015, Credit: 2, Rounds: 25, Inherited: 3, Free: 0.01, Shift: 1, Forget: 0.99}
