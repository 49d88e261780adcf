package settings

import (
	"github.com/tandem-llm/tandem"
)

// Speculation says how drafts are made.
type Speculation struct {
	Strategy string   `help:"Who drafts how much: ${strategies}. Decided round by round; planner is the default. ${drafts}." placeholder:"NAME" completes:"strategies" group:"Speculation"`
	Tree     string   `help:"Bounds of the strategy's trees, nodes/depth/width. Width 1 drafts chains; none drafts nothing. Default: ${trees}. With fixed each tree has this size." placeholder:"N/D/W" group:"Speculation"`
	Vote     string   `help:"How the drafts of several drafters become one tree: auto, none, majority or tree." default:"auto" more:"" group:"Speculation"`
	Drafters []string `help:"Only these drafters, by name, may draft (default: all that are alive)." placeholder:"NAME,…" more:"" group:"Speculation"`
	Without  []string `help:"Parts of the strategy to leave out, for comparisons: branches, adaptive, ahead." placeholder:"NAME,…" more:"" group:"Speculation"`
}

// Speculate sets r's fields about speculation; r.Validate checks the values. A tree bounds the strategy and never chooses one.
func (s Speculation) Speculate(r *tandem.Request) (err error) {
	r.Strategy, r.Vote, r.Drafters = tandem.Strategy(s.Strategy), tandem.Vote(s.Vote), s.Drafters
	if r.Strategy == "" {
		r.Strategy = tandem.StrategyPlanner
	}
	r.Bounds = tandem.DefaultBounds(r.Strategy)
	if s.Tree != "" {
		if r.Bounds, err = tandem.ParseBounds(s.Tree); err != nil {
			return err
		}
	}
	r.Without, err = tandem.ParseTechniques(s.Without)
	return err
}

// Strategies are the constants of the strategies, which a gateway uses for all of its requests.
type Strategies struct {
	LLMCad  `section:"strategies.llmcad"`
	Minions `section:"strategies.minions"`
	Planner `section:"strategies.planner"`
}

// LLMCad are the constants of LLMCad's trees.
type LLMCad struct {
	Alpha  float64 `help:"LLMCad: initial α, which then adapts; drafting ends when no branch is likelier than α." default:"0.01" check:">0 <1" more:"" group:"Speculation"`
	Branch float64 `help:"LLMCad: least probability with which a candidate opens a branch." default:"0.3" check:">0 <1" more:"" group:"Speculation"`
}

// Minions are the constants of Minions' speculation length and of its drafters' weights.
type Minions struct {
	LengthRule        string  `help:"Minions: how s moves: curve, by the cost of a token over the lengths near s, or paper, by its slope over time." default:"curve" more:"" group:"Speculation"`
	LengthStart       int     `help:"Minions: first speculation length s, in tokens; one s for all sessions." default:"4" more:"" group:"Speculation"`
	LengthMax         int     `help:"Minions: s_max." default:"12" more:"" group:"Speculation"`
	LengthPunish      int     `help:"Minions: s_punish, taken off s when longer drafts cost more per token." default:"1" more:"" group:"Speculation"`
	LengthReward      int     `help:"Minions: s_reward, added to s when longer drafts cost less per token." default:"1" more:"" group:"Speculation"`
	DecisionThreshold int     `help:"Minions: passes between two decisions about s." default:"8" more:"" group:"Speculation"`
	AcceptanceWindow  int     `help:"Minions: number of voted outputs over which a drafter's acceptance rate is taken." default:"8" more:"" group:"Speculation"`
	RewardThreshold   float64 `help:"Minions: acceptance rate above which a drafter's weight grows." default:"0.4" more:"" group:"Speculation"`
	Reward            float64 `help:"Minions: factor by which it grows." default:"1.5" more:"" group:"Speculation"`
	PunishThreshold   float64 `help:"Minions: acceptance rate below which a drafter's weight shrinks." default:"0.25" more:"" group:"Speculation"`
	Punish            float64 `help:"Minions: factor by which it shrinks." default:"0.6" more:"" group:"Speculation"`
	WeightLeast       float64 `help:"Minions: least weight; the mean of all is 1." default:"0.1" more:"" group:"Speculation"`
	Weights           string  `help:"JSON file with the initial weights of drafters: an object that maps names to numbers." placeholder:"FILE" more:"" group:"Speculation"`
}

// Planner are the constants of the planner.
type Planner struct {
	Explore float64 `help:"Planner: share of the tokens that looks at other ways to draft may cost." default:"0.015" check:">0 <1" more:"" group:"Speculation"`
}
