// Package arch says what each architecture computes: a file a family, each with the formula of a layer at its head. A family reads the keys
// of a file, names its tensors and lays its layers out, all by calling package blocks. It knows nothing of other families.
package arch

import (
	"maps"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Families are the architectures that run, by the name in a file's general.architecture.
var Families = map[string]blocks.Family{
	"llama":      llama,
	"qwen2":      qwen2,
	"qwen3":      qwen3,
	"qwen3moe":   qwen3moe,
	"qwen35":     qwen35,
	"qwen35moe":  qwen35moe,
	"gemma":      gemma,
	"gemma2":     gemma2,
	"gemma3":     gemma3,
	"gemma4":     gemma4,
	"phi3":       phi3,
	"granite":    granite,
	"granitemoe": granitemoe,
	"glm4":       glm4,
	"smollm3":    smollm3,
	"mistral3":   mistral3,
	"deepseek2":  deepseek2,
	"gpt-oss":    gptoss,
}

// Read reads and checks the hyper-parameters of the language model in f; vocab is the size of its vocabulary. Errors: Corrupt for missing
// or impossible values, Unsupported for an architecture or a feature that tandem does not run.
func Read(f *gguf.File, vocab int) (blocks.Config, error) {
	name, err := f.String("general.architecture")
	if err != nil {
		return blocks.Config{}, err
	}
	r := blocks.NewReader(f, name)
	family, ok := Families[name]
	if !ok {
		names := slices.Sorted(maps.Keys(Families))
		r.Fail(tandem.Unsupported, "architecture %q: supported are %s", name, strings.Join(names, ", "))
	}
	if r.Err != nil {
		return blocks.Config{}, r.Err
	}
	c, err := r.Config(family, vocab, r.Count("embedding_length", -1, blocks.MaxDim))
	if err != nil {
		return c, err
	}
	c.Outputs, err = f.OutputIDs(vocab)
	return c, err
}
