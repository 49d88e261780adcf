package convert

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// The selector of DFlash2 gives all steps between candidates the scores of its publishers' code, and so the same path.
func TestPublishedSelector(t *testing.T) {
	for name, file := range map[string]string{"dflash2": "", "dflash2-speculators": "", "dflash2-llamacpp": "draft.gguf"} {
		var g struct {
			Candidates [][]tandem.Token
			Steps      [][][]float64
			Path       []tandem.Token
		}
		readJSON(t, publishedDir+name+"/golden.json", &g)
		path, _, err := imported(t, filepath.Join(publishedDir, name, file), nil)
		if err != nil {
			t.Fatal(err)
		}
		o := engine.Options{Device: testdevice.CPU(t, 0)}
		runBlock(t, sides+"target.gguf", path, 11, o, func(s *side.Spec, out *engine.Output, last tandem.Token) {
			if n := len(g.Candidates); n != out.Len() || len(g.Candidates[0]) != s.Draft.Block.Best {
				t.Fatalf("%s: %d levels of %d candidates: want %d of %d", name, out.Len(), s.Draft.Block.Best, n, len(g.Candidates[0]))
			}
			before, at := []tandem.Token{last}, 0
			for i, list := range g.Candidates {
				steps, err := out.Steps(i, before, list)
				if err != nil {
					t.Fatal(err)
				}
				logits := out.Logits(i)
				for b := range steps {
					for j, token := range list {
						if steps[b][j] += logits[token]; math.Abs(float64(steps[b][j])-g.Steps[i][b][j]) > 0.02 {
							t.Errorf("%s, level %d: %d behind %d scores %.4f, want %.4f", name, i, token, before[b], steps[b][j],
								g.Steps[i][b][j])
						}
					}
				}
				at = slices.Index(steps[at], slices.Max(steps[at]))
				if before = list; list[at] != g.Path[i] {
					t.Errorf("%s, level %d: the path goes on with %d, want %d", name, i, list[at], g.Path[i])
				}
			}
		})
	}
}

// The golden files tell each setting of DFlash2 from its opposite.
func TestPublishedDFlash2Settings(t *testing.T) {
	numbers := func(key string, value any) map[string]any {
		all := map[string]any{"block_size": 6, "mask_token_id": 7, "target_layer_ids": []int{0, 1, 2}, "conv_kernel_size": 2,
			"conv_group_size": 4, "selector_rank": 8, "selector_top_k": 5, "input_embedding_scale": 1.5, "output_multiplier": 0.75,
			"final_logit_softcapping": 4.0}
		all[key] = value
		return all
	}
	for _, c := range []struct {
		name, key string
		value     any
	}{
		{"dflash2", "is_causal", true}, {"dflash2", "is_causal", nil}, {"dflash2", "dflash_config", numbers("causal", true)},
		{"dflash2", "dflash_config", numbers("input_embedding_scale", 1)}, {"dflash2", "dflash_config", numbers("output_multiplier", 1)},
		{"dflash2", "dflash_config", numbers("final_logit_softcapping", nil)},
		{"dflash2-speculators", "sliding_window_non_causal", false},
	} {
		path, _, err := imported(t, changedConfig(t, c.name, c.key, c.value), nil)
		if err != nil {
			t.Errorf("%s with %s %v: %v", c.name, c.key, c.value, err)
		} else if a := blockApart(t, path, c.name, 11, engine.Options{Device: testdevice.CPU(t, 0)}); a < 10*publishedTolerance {
			t.Errorf("%s with %s %v: only %.4f apart", c.name, c.key, c.value, a)
		}
	}
	for key, says := range map[string]string{
		"conv_kernel_size": `attention_conv.base_kernel" has shape [2 2 32]: want [2 3 32]`,
		"conv_group_size":  "convolutions in groups of 3 columns: want a number that divides the draft's width 32",
		"selector_rank":    `"candidate_selector.hidden_projection.weight" has shape [8 32]: want [3 32]`,
	} {
		_, _, err := imported(t, changedConfig(t, "dflash2", "dflash_config", numbers(key, 3)), nil)
		refused(t, err, "", tandem.Invalid, says)
	}
}

// TestExpandConvolutions: a draft with convolutions is refused by name where its rows would become wider.
func TestExpandConvolutions(t *testing.T) {
	path, _, err := imported(t, publishedDir+"dflash2", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Expand(t.Context(), path, filepath.Join(t.TempDir(), "big.gguf"), Shape{5, 128, 0, 0, 256, 0}, "", Options{})
	refused(t, err, "", tandem.Invalid, "its convolutions have weights for groups of columns")
}
