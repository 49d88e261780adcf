package engine_test

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/naive"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestLaunchesOfFamilies: a GPU computes a pass with as many launches as its layers and what is beside them need. docs/guides/cuda.md says
// why those of some layers are more than six.
func TestLaunchesOfFamilies(t *testing.T) {
	const dense, experts, latent, shared, delta = 5, 6, 3, 2, 2 // latent, shared and delta: beside those of a layer without
	for name, want := range map[string]int{
		"mistral":      7 + 2*dense,
		"per layer":    7 + 3*dense,
		"llama biases": 7 + 2*dense,
		"qwen2 yarn":   7 + 2*dense,
		"qwen3":        7 + 2*dense,
		"gemma":        7 + 2*dense,
		"gemma2":       7 + 4*dense,
		"gemma3":       8 + 7*dense, // two rotations
		"phi3":         7 + 2*dense,
		"phi3 long":    7 + 2*dense,
		"granite":      7 + 2*dense,
		"smollm3":      7 + 5*dense,
		"mistral3":     7 + 2*dense,
		"glm4":         7 + 2*dense,
		"granitemoe":   7 + 2*experts,
		"qwen3moe":     7 + 2*experts,
		"gpt-oss":      7 + 3*experts,
		"deepseek2":    7 + 3*latent + dense + 2*(experts+shared),
		"qwen35":       7 + 4*dense + 3*delta,
		"gemma4":       11 + 6*(dense+2), // inputs of layers: two products, and beside them an embedding and a product
		"gemma4-moe":   8 + 3*8,          // one of five products in turn and one of three
		"qwen35moe":    7 + 4*(experts+shared) + 3*delta,
	} {
		var path string
		if c, ok := naive.Cases()[name]; ok {
			c.Model.Generate(3)
			path = c.Model.Write(t, t.TempDir())
		} else {
			path = enginetest.GoldenPath(t, name)
		}
		gpu, driver := testdevice.GPU(t, emulated.Options{Gauge: []int{4 << 10}})
		if driver == nil {
			t.Skip("a real GPU does not tell what is launched")
		}
		m := enginetest.Open(t, path, engine.Options{KVPages: 4, MaxRows: 64, Device: gpu})
		part := engine.Part{Seq: enginetest.NewSeq(t, m, 128, 64), Extend: enginetest.RandomTokens(rand.New(rand.NewPCG(1, 2)), m, 8),
			Want: engine.WantTail}
		enginetest.Forward(t, m, 3, part)
		if _, err := driver.Moved(); err != nil {
			t.Fatal(err)
		}
		enginetest.Forward(t, m, 3, part)
		all, err := driver.Moved()
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for _, k := range all {
			got += int(k.Launches)
		}
		if got != want {
			t.Errorf("%s: %d launches of %d layers, want %d: %+v", name, got, m.Config().Layers, want, all)
		}
	}
}
