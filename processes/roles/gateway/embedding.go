package gateway

import (
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/gateway"
)

// embedding returns how vectors of texts are made: as the setting says, else as the target's file does. file is the file's name.
func embedding(said, file string, target *engine.Info) gateway.Embedding {
	out := gateway.Embedding{Width: target.Config.Dim}
	if said == "" || said == "auto" {
		said = target.Pooling
	}
	var err error
	if out.Pooling, err = tandem.ParsePooling(said); err == nil {
		return out
	}
	const how = "start it with --pooling last or --pooling mean, as its makers say"
	switch key := target.Config.Arch + ".pooling_type"; said {
	case "":
		out.Unknown = fmt.Sprintf("model %s: its file does not say how vectors are made (%s), so it is probably no embedding model; "+
			"if it is one, %s", file, key, how)
	case "rank":
		out.Unknown = fmt.Sprintf("model %s ranks texts (%s is rank) and makes no vectors: want an embedding model", file, key)
	default: // the first token of a causal model sees no other: cls would be the same vector for all texts
		out.Unknown = fmt.Sprintf("model %s: its file says that vectors are made in another way (%s is %s) than the two that tandem has; "+
			"%s", file, key, said, how)
	}
	return out
}
