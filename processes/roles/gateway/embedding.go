package gateway

import (
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/processes/roles"
)

// embedding returns how vectors of texts are made: as the setting says, else as the target's file does.
func (c Config) embedding(target *engine.Info) gateway.Embedding {
	out := gateway.Embedding{Width: target.Config.Dim}
	said := c.Pooling
	if said == "" || said == "auto" {
		said = target.Pooling
	}
	var err error
	if out.Pooling, err = tandem.ParsePooling(said); err == nil {
		return out
	}
	const how = "start it with --pooling last or --pooling mean, as its makers say"
	switch name, key := roles.ModelName(c.Target), target.Config.Arch+".pooling_type"; said {
	case "":
		out.Unknown = fmt.Sprintf("model %s: its file does not say how vectors are made (%s), so it is probably no embedding model; "+
			"if it is one, %s", name, key, how)
	case "rank":
		out.Unknown = fmt.Sprintf("model %s ranks texts (%s is rank) and makes no vectors: want an embedding model", name, key)
	default: // the first token of a causal model sees no other: cls would be the same vector for all texts
		out.Unknown = fmt.Sprintf("model %s: its file says that vectors are made in another way (%s is %s) than the two that tandem has; "+
			"%s", name, key, said, how)
	}
	return out
}
