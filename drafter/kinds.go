package drafter

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/blocks"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/drafter/prompts"
	"github.com/tandem-llm/tandem/drafter/states"
	"github.com/tandem-llm/tandem/drafter/tokens"
	"github.com/tandem-llm/tandem/engine"
)

// kinds are the kinds of drafts. A draft model is of the first whose question it answers with yes. Whoever adds a kind adds its package and
// a line here.
var kinds = []struct {
	is  func(*engine.Model) bool
	new func(*grow.Draft) (grow.Kind, error)
}{
	{blocks.Is, blocks.New}, // these read states as well
	{states.Is, states.New},
	{prompts.Is, prompts.New},
	{tokens.Is, tokens.New}, // any model
}

// kindOf returns the kind of a draft. Errors: Invalid if its configuration does not fit the kind.
func kindOf(d *grow.Draft) (k grow.Kind, err error) {
	for _, kind := range kinds {
		if kind.is(d.Config.Model) {
			return kind.new(d)
		}
	}
	return nil, tandem.Errorf("drafter", tandem.Unsupported, "a draft model of no known kind")
}
