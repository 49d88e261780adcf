package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/files"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/roles"
	"github.com/tandem-llm/tandem/spec/learn"
)

// speculationFlags say how drafts are made.
type speculationFlags struct {
	Strategy string   `help:"Who drafts and how much, round by round: planner, fixed, llmcad or minions (default: planner; fixed with --tree)." placeholder:"NAME"`
	Tree     string   `help:"Bounds of the drafted trees, nodes/depth/width; width 1 drafts chains; none drafts nothing (default: 32/31/8; llmcad and minions 32/8/8; fixed 16/7/10)." placeholder:"N/D/W"`
	Vote     string   `help:"How the drafts of several drafters become one tree: auto, none, majority or tree." default:"auto"`
	Drafters []string `help:"Only these drafters, by name, may draft (default: all that are alive)." placeholder:"NAME,…"`
	Without  []string `help:"Parts of the strategy to leave out, for comparisons: branches, adaptive, ahead." placeholder:"NAME,…"`
}

// speculate sets r's fields about speculation; r.Validate checks the values.
func (s speculationFlags) speculate(r *tandem.Request) (err error) {
	r.Strategy, r.Vote, r.Drafters = tandem.Strategy(s.Strategy), tandem.Vote(s.Vote), s.Drafters
	if r.Strategy == "" {
		if r.Strategy = tandem.StrategyPlanner; s.Tree != "" {
			r.Strategy = tandem.StrategyFixed
		}
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

// args returns the flags for a gateway that uses s as default for its requests.
func (s speculationFlags) args() (args []string) {
	for _, f := range []struct{ name, v string }{{"strategy", s.Strategy}, {"tree", s.Tree}, {"vote", s.Vote},
		{"drafters", strings.Join(s.Drafters, ",")}, {"without", strings.Join(s.Without, ",")}} {
		if f.v != "" {
			args = append(args, "--"+f.name+"="+f.v)
		}
	}
	return args
}

// ruleFlags are the constants of the strategies, which a gateway uses for all of its requests.
type ruleFlags struct {
	Alpha             float64 `help:"LLMCad: initial α, which then adapts; drafting ends when no branch is likelier than α." default:"${alpha}"`
	Branch            float64 `help:"LLMCad: least probability with which a candidate opens a branch." default:"${branch}"`
	LengthRule        string  `help:"Minions: how s moves: curve, by the cost of a token over the lengths near s, or paper, by its slope over time." default:"${length_rule}"`
	LengthStart       int     `help:"Minions: first speculation length s, in tokens; one s for all sessions." default:"${length_start}"`
	LengthMax         int     `help:"Minions: s_max." default:"${length_max}"`
	LengthPunish      int     `help:"Minions: s_punish, taken off s when longer drafts cost more per token." default:"${length_punish}"`
	LengthReward      int     `help:"Minions: s_reward, added to s when longer drafts cost less per token." default:"${length_reward}"`
	DecisionThreshold int     `help:"Minions: passes between two decisions about s." default:"${decision_threshold}"`
	AcceptanceWindow  int     `help:"Minions: number of voted outputs over which a drafter's acceptance rate is taken." default:"${acceptance_window}"`
	RewardThreshold   float64 `help:"Minions: acceptance rate above which a drafter's weight grows." default:"${reward_threshold}"`
	Reward            float64 `help:"Minions: factor by which it grows." default:"${reward}"`
	PunishThreshold   float64 `help:"Minions: acceptance rate below which a drafter's weight shrinks." default:"${punish_threshold}"`
	Punish            float64 `help:"Minions: factor by which it shrinks." default:"${punish}"`
	WeightLeast       float64 `help:"Minions: least weight; the mean of all is 1." default:"${weight_least}"`
	Weights           string  `help:"JSON file with the initial weights of drafters: an object that maps names to numbers." placeholder:"FILE"`
	Hysteresis        float64 `help:"Planner: share by which another choice must be better to replace the current one." default:"${hysteresis}"`
	ProbeFirst        int     `help:"Planner: rounds after which a losing choice is tried again; doubles each time." default:"${probe_first}"`
	ProbeMax          int     `help:"Planner: most rounds between two such trials." default:"${probe_max}"`
}

// ruleDefaults fills in the defaults of ruleFlags. They are not kong.Vars, because kong applies a regular expression to all
// variables for every flag of every command, which took longer than the rest of the start.
func ruleDefaults() kong.Option {
	w, l, p := learn.DefaultWeightRule, learn.DefaultLengthRule, learn.DefaultPlannerRule
	defaults := map[string]string{}
	for name, v := range map[string]any{"alpha": 0.01, "branch": 0.3,
		"length_rule": l.Rule, "length_start": l.Start, "length_max": l.Most, "length_punish": l.Punish, "length_reward": l.Reward,
		"decision_threshold": l.Records,
		"acceptance_window":  w.Window, "reward_threshold": w.RewardAbove, "reward": w.Reward, "punish_threshold": w.PunishBelow,
		"punish":       w.Punish,
		"weight_least": w.Least, "hysteresis": p.Hysteresis, "probe_first": p.ProbeFirst, "probe_max": p.ProbeMost} {
		defaults["${"+name+"}"] = fmt.Sprint(v)
	}
	return kong.PostBuild(func(k *kong.Kong) error {
		return kong.Visit(k.Model, func(n kong.Visitable, next kong.Next) error {
			if f, ok := n.(*kong.Flag); ok {
				if v, ok := defaults[f.Default]; ok {
					f.Default = v
				}
			}
			return next(nil)
		})
	})
}

// args returns the flags for a gateway of the same rules.
func (f ruleFlags) args() []string {
	number := func(name string, v any) string { return fmt.Sprintf("--%s=%v", name, v) }
	args := []string{number("alpha", f.Alpha), number("branch", f.Branch), number("length-rule", f.LengthRule),
		number("length-start", f.LengthStart), number("length-max", f.LengthMax),
		number("length-punish", f.LengthPunish), number("length-reward", f.LengthReward), number("decision-threshold", f.DecisionThreshold),
		number("acceptance-window", f.AcceptanceWindow), number("reward-threshold", f.RewardThreshold), number("reward", f.Reward),
		number("punish-threshold", f.PunishThreshold), number("punish", f.Punish), number("weight-least", f.WeightLeast),
		number("hysteresis", f.Hysteresis), number("probe-first", f.ProbeFirst), number("probe-max", f.ProbeMax)}
	if f.Weights != "" {
		args = append(args, number("weights", f.Weights))
	}
	return args
}

// rules returns the rules that the flags describe. Errors: Invalid, naming the flag or the drafter.
func (f ruleFlags) rules() (gateway.Rules, error) {
	r := gateway.Rules{Alpha: f.Alpha, Branch: f.Branch, Planner: learn.DefaultPlannerRule,
		Length: learn.LengthRule{Rule: f.LengthRule, Start: f.LengthStart, Most: f.LengthMax, Punish: f.LengthPunish,
			Reward: f.LengthReward, Records: f.DecisionThreshold},
		Weights: learn.WeightRule{Window: f.AcceptanceWindow, RewardAbove: f.RewardThreshold, Reward: f.Reward,
			PunishBelow: f.PunishThreshold, Punish: f.Punish, Least: f.WeightLeast}}
	r.Planner.Hysteresis, r.Planner.ProbeFirst, r.Planner.ProbeMost = f.Hysteresis, f.ProbeFirst, f.ProbeMax
	for name, v := range map[string]float64{"alpha": f.Alpha, "branch": f.Branch} {
		if !(v > 0 && v < 1) {
			return r, tandem.Errorf("", tandem.Invalid, "--%s is %v: want more than 0 and less than 1", name, v)
		}
	}
	switch {
	case !(f.Hysteresis >= 0 && f.Hysteresis < 1):
		return r, tandem.Errorf("", tandem.Invalid, "--hysteresis is %v: want 0 or more and less than 1", f.Hysteresis)
	case f.ProbeFirst < 1 || f.ProbeMax < f.ProbeFirst:
		return r, tandem.Errorf("", tandem.Invalid,
			"--probe-first is %d and --probe-max %d: want 1 or more, the first not above the second", f.ProbeFirst, f.ProbeMax)
	}
	if err := r.Length.Validate(); err != nil {
		return r, err
	}
	if err := r.Weights.Validate(); err != nil {
		return r, err
	}
	var err error
	if f.Weights != "" {
		r.InitialWeights, err = readWeights(f.Weights)
	}
	return r, err
}

// maxWeights bounds a weights file in bytes.
const maxWeights = 1 << 20

// maxDrafterName bounds the name of a drafter in bytes, as a request's validation does.
const maxDrafterName = 200

// readWeights reads a JSON object of drafter names and weights. It parses it as YAML, which includes JSON,
// because then the error can name the drafter whose weight is NaN.
func readWeights(path string) (map[string]float64, error) {
	bad := func(format string, args ...any) (map[string]float64, error) {
		return nil, tandem.Errorf("", tandem.Invalid, "--weights %s: %w", path, fmt.Errorf(format, args...))
	}
	data, err := files.ReadFile(path, maxWeights)
	if err != nil {
		return bad("%w", roles.Reason(err))
	}
	var doc, more yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(data))
	if err := documents.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return bad("%w", err)
	}
	if err := documents.Decode(&more); !errors.Is(err, io.EOF) {
		return bad("goes on after the first object: want one")
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return bad(`want an object of names and numbers, like {"go": 1.5}`)
	}
	weights := map[string]float64{}
	for nodes := doc.Content[0].Content; len(nodes) > 1; nodes = nodes[2:] {
		name, value := nodes[0].Value, nodes[1]
		v, err := strconv.ParseFloat(value.Value, 64)
		_, twice := weights[name]
		switch {
		case name == "" || len(name) > maxDrafterName:
			return bad("drafter %.50q: want a name of 1 to %d bytes", name, maxDrafterName)
		case twice:
			return bad("drafter %q is there twice", name)
		case value.Kind != yaml.ScalarNode || err != nil || !(v > 0) || math.IsInf(v, 0):
			return bad("weight of drafter %q is %.50s: want a number above 0", name, oneLine(value.Value))
		}
		weights[name] = v
	}
	return weights, nil
}
