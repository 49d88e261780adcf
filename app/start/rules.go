package start

import (
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/processes/settings/config"
	"github.com/tandem-llm/tandem/spec/learn"
)

// Rules returns the rules that the settings describe. Errors: Invalid, naming the flag or the drafter.
func Rules(f settings.Strategies) (gateway.Rules, error) {
	r := gateway.Rules{Alpha: f.Alpha, Branch: f.Branch, Explore: f.Explore,
		Length: learn.LengthRule{Rule: f.LengthRule, Start: f.LengthStart, Most: f.LengthMax, Punish: f.LengthPunish,
			Reward: f.LengthReward, Records: f.DecisionThreshold},
		Weights: learn.WeightRule{Window: f.AcceptanceWindow, RewardAbove: f.RewardThreshold, Reward: f.Reward,
			PunishBelow: f.PunishThreshold, Punish: f.Punish, Least: f.WeightLeast}}
	if err := settings.Check(&f); err != nil {
		return r, err
	}
	if err := r.Length.Validate(); err != nil {
		return r, err
	}
	if err := r.Weights.Validate(); err != nil {
		return r, err
	}
	var err error
	if f.Weights != "" {
		r.InitialWeights, err = config.Weights(f.Weights)
	}
	return r, err
}
