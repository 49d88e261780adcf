package drafter

import (
	"github.com/tandem-llm/tandem/drafter/blocks"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/drafter/prompts"
	"github.com/tandem-llm/tandem/drafter/states"
	"github.com/tandem-llm/tandem/drafter/tokens"
	"github.com/tandem-llm/tandem/engine"
)

// kinds are the kinds of drafts that not every model can be. A draft model is of the first whose question it answers with yes; without any
// it is a draft of tokens. Whoever adds a kind adds its package and a line here.
var kinds = []struct {
	is  func(*engine.Model) bool
	new func(*grow.Draft) (grow.Kind, error)
}{
	{blocks.Is, blocks.New}, // before states: it reads those too
	{states.Is, states.New},
	{prompts.Is, prompts.New},
}

// kindOf returns the kind of a draft. Errors: Invalid if the configuration does not fit the kind.
func kindOf(d *grow.Draft) (grow.Kind, error) {
	for _, k := range kinds {
		if k.is(d.Config.Model) {
			return k.new(d)
		}
	}
	return tokens.New(), nil
}
