package convert

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/safetensors/sttest"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// A block draft of each published layout, imported and run by the engine, gives the logits of its publisher's code for all rows of a block.
func TestPublishedBlocks(t *testing.T) {
	for name, c := range map[string]struct {
		file   string // in the folder; "": the folder itself
		levels int
		notes  string
	}{
		"dflash":             {"", 5, "layers [0] do not see later rows"},
		"dflash-speculators": {"", 5, "as Speculators reads it"},
		"dflash-llamacpp":    {"draft.gguf", 3, "taps [2 3]: dflash.target_layers"},

		"dflash2":             {"", 5, "convolutions over 2 rows in groups of 4 columns; a selector of rank 8 for 5 candidates"},
		"dflash2-speculators": {"", 4, "convolutions over 3 rows"},
		"dflash2-llamacpp":    {"draft.gguf", 3, "taps [2 3]: dflash.target_layers"},
	} {
		t.Run(name, func(t *testing.T) {
			path, notes, err := imported(t, filepath.Join(publishedDir, name, c.file), nil)
			if err != nil {
				t.Fatal(err)
			}
			if all := strings.Join(notes, "; "); !strings.Contains(all, c.notes) {
				t.Errorf("notes %q: want %q", all, c.notes)
			}
			if _, s := readSide(t, path); s.Kind != side.DFlash || s.Draft.Block.Levels() != c.levels {
				t.Errorf("%s: want %d levels", s, c.levels)
			}
			for device, o := range map[string]engine.Options{"cpu": {Device: testdevice.CPU(t, 0)}, "ref": {Device: testdevice.Ref()}} {
				for _, piece := range []int{1, 4, 11} {
					if a := blockApart(t, path, name, piece, o); !(a <= publishedTolerance) {
						t.Errorf("%s, text in pieces of %d: logits differ by up to %.4f", device, piece, a)
					} else {
						t.Logf("%s: up to %.4f apart", device, a)
					}
				}
			}
		})
	}
}

// The golden files tell each setting from its opposite.
func TestPublishedBlockSettings(t *testing.T) {
	zlab := func(more map[string]any) map[string]any {
		all := map[string]any{"mask_token_id": 7, "target_layer_ids": []int{0, 1, 2}}
		for k, v := range more {
			all[k] = v
		}
		return all
	}
	for _, c := range []struct {
		name, key string
		value     any
	}{
		{"dflash", "layer_types", nil}, {"dflash", "layer_types", []string{"full_attention", "sliding_attention"}},
		{"dflash", "sliding_window", 4}, {"dflash", "rope_theta", 500.0},
		{"dflash", "dflash_config", zlab(map[string]any{"causal": true})},
		{"dflash", "dflash_config", zlab(map[string]any{"causal": false})},
		{"dflash", "dflash_config", zlab(map[string]any{"mask_token_id": 8})},
		{"dflash", "dflash_config", zlab(map[string]any{"target_layer_ids": []int{0, 2, 1}})},
		{"dflash", "dflash_config", zlab(map[string]any{"swa_window_size": 3})},
		{"dflash-speculators", "sliding_window_non_causal", false}, {"dflash-speculators", "rope_parameters", nil},
		{"dflash-speculators", "mask_token_id", 10}, {"dflash-speculators", "aux_hidden_state_layer_ids", []int{3, 1}},
		{"dflash-speculators", "layer_types", nil},
	} {
		path, _, err := imported(t, changedConfig(t, c.name, c.key, c.value), nil)
		if err != nil {
			t.Errorf("%s with %s %v: %v", c.name, c.key, c.value, err)
		} else if a := blockApart(t, path, c.name, 11, engine.Options{Device: testdevice.CPU(t, 0)}); a < 10*publishedTolerance {
			t.Errorf("%s with %s %v: only %.4f apart", c.name, c.key, c.value, a)
		}
	}
	path, _, err := imported(t, changedConfig(t, "dflash", "block_size", 5), nil)
	if err != nil {
		t.Fatal(err)
	}
	if a := blockApart(t, path, "dflash", 11, engine.Options{Device: testdevice.CPU(t, 0)}); a < 10*publishedTolerance {
		t.Errorf("blocks of 5 rows give logits only %.4f apart", a)
	}
}

// What of a block draft is not carried out is refused by name.
func TestPublishedBlocksRefused(t *testing.T) {
	zlab := func(key string, value any) map[string]any {
		return map[string]any{"mask_token_id": 7, "target_layer_ids": []int{0, 1, 2}, key: value}
	}
	for _, c := range []struct {
		key   string
		value any
		kind  tandem.Kind
		says  string
	}{
		{"dflash_config", zlab("attention_sink_bias", true), tandem.Unsupported, `dflash_config has "attention_sink_bias" true`},
		{"dflash_config", zlab("projector_type", "domino"), tandem.Unsupported, `dflash_config has "projector_type" "domino"`},
		{"dflash_config", zlab("conv_kernel_size", 2), tandem.Invalid, "convolutions of 2 taps in groups of 0 columns"},
		{"dflash_config", zlab("selector_rank", 2), tandem.Invalid, "a selector of rank 2 for 0 candidates"},
		{"dflash_config", zlab("output_multiplier", 0.5), tandem.Unsupported, "output_multiplier 0.5 and final_logit_softcapping 0"},
		{"dflash_config", zlab("mask_token_id", 260), tandem.Invalid, "mask token 260: want one of the target's, 0 to 259"},
		{"dflash_config", zlab("target_layer_ids", []int{0, 0, 1}), tandem.Invalid, "taps [1 1 2]: 1 is there twice"},
		{"dflash_config", zlab("target_layer_ids", []int{0, 1}), tandem.Invalid, `tensor "fc.weight" has shape [32 96]: want [32 64]`},
		{"dflash_config", zlab("target_layer_ids", []int{0, 1, 9}), tandem.Invalid, "it reads the state after layer 10"},
		{"dflash_config", []int{1}, tandem.Corrupt, "dflash_config in"},
		{"dflash_config", map[string]any{"target_layer_ids": []int{0, 1, 2}}, tandem.Invalid, "has no mask_token_id"},
		{"block_size", 1, tandem.Invalid, "blocks of 1 rows: want 2 to 32"},
		{"block_size", 64, tandem.Invalid, "blocks of 64 rows"},
		{"layer_types", []string{"full_attention"}, tandem.Invalid, "layer_types has 1 entries: want one for each of 2 layers"},
		{"layer_types", []string{"full_attention", "linear_attention"}, tandem.Unsupported, `layer_types has "linear_attention"`},
		{"sliding_window", 0, tandem.Invalid, "want a window of at least 1"},
		{"target_hidden_size", 64, tandem.Invalid, "target_hidden_size 64: the target has 32"},
		{"markov_rank", 2, tandem.Unsupported, "has markov_rank 2, a part of DSpark"},
		{"draft_ffn_type", "moe", tandem.Unsupported, `draft_ffn_type "moe"`},
		{"architectures", []string{"DFlash2DraftModel"}, tandem.Invalid, "of DFlash2 with conv_kernel_size 0 and selector_rank 0"},
		{"architectures", []string{"Qwen3DSparkModel"}, tandem.Unsupported, "is DSpark"},
	} {
		_, _, err := imported(t, changedConfig(t, "dflash", c.key, c.value), nil)
		refused(t, err, "", c.kind, c.says)
	}
}

// What of llama.cpp's block drafts is not carried out is refused by the name of its key or tensor.
func TestLlamaBlocksRefused(t *testing.T) {
	for _, c := range []struct {
		change func(w *gguf.Writer)
		kind   tandem.Kind
		says   string
	}{
		{func(w *gguf.Writer) { w.Set("dflash.conv_kernel_size", uint32(2)) }, tandem.Invalid, "convolutions of 2 taps in groups of 0"},
		{func(w *gguf.Writer) { w.Set("dflash.selector_rank", uint32(256)) }, tandem.Invalid, "a selector of rank 256 for 0 candidates"},
		{func(w *gguf.Writer) { w.Set("dflash.sample_from_anchor", true) }, tandem.Unsupported, `"dflash.sample_from_anchor" is true`},
		{func(w *gguf.Writer) { w.DropKey("dflash.block_size") }, tandem.Corrupt, "dflash.block_size"},
		{func(w *gguf.Writer) { w.DropKey("tokenizer.ggml.mask_token_id") }, tandem.Corrupt, "tokenizer.ggml.mask_token_id"},
		{func(w *gguf.Writer) { w.DropKey("dflash.target_layers") }, tandem.Corrupt, "dflash.target_layers"},
		{func(w *gguf.Writer) { w.Set("dflash.rope.scaling.type", "longrope") }, tandem.Unsupported, "longrope"},
		{func(w *gguf.Writer) { w.Set("dflash.attention.sliding_window_pattern", []bool{true}) }, tandem.Invalid, "windows of 4 positions"},
		{func(w *gguf.Writer) { w.Tensor("markov_w1.weight", gguf.F32, []int{4, 4}, make([]byte, 64)) }, tandem.Unsupported,
			"DSpark's Markov head"},
		{func(w *gguf.Writer) { w.Tensor("blk.0.attn_sinks.weight", gguf.F32, []int{2}, make([]byte, 8)) }, tandem.Unsupported,
			`"blk.0.attn_sinks.weight" has no place`},
		{func(w *gguf.Writer) { w.DropTensor("enc.output_norm.weight") }, tandem.Invalid, `"enc.output_norm.weight" is missing`},
	} {
		f, err := gguf.Open(publishedDir + "dflash-llamacpp/draft.gguf")
		if err != nil {
			t.Fatal(err)
		}
		w := gguf.CopyOf(f)
		c.change(w)
		var b bytes.Buffer
		if _, err := w.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		f.Close()
		path := filepath.Join(t.TempDir(), "draft.gguf")
		sttest.Put(t, path, b.Bytes())
		_, _, err = imported(t, path, nil)
		refused(t, err, "", c.kind, c.says)
	}
}

// TestExpandBlocks: a block draft for an expanded target guesses what it did.
func TestExpandBlocks(t *testing.T) {
	dir, shape := t.TempDir(), Shape{5, 128, 0, 0, 256, 0}
	target := filepath.Join(dir, "target.gguf")
	if _, err := Expand(t.Context(), sides+"target.gguf", target, shape, "f32", Options{}); err != nil {
		t.Fatal(err)
	}
	o := engine.Options{Device: testdevice.CPU(t, 0)}
	for _, name := range []string{"dflash", "dflash-speculators"} {
		small, _, err := imported(t, publishedDir+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		big := filepath.Join(dir, name+".gguf")
		if _, err := Expand(t.Context(), small, big, shape, "", Options{}); err != nil {
			t.Fatal(err)
		}
		if a := apart(blockLogits(t, sides+"target.gguf", small, 11, o), blockLogits(t, target, big, 11, o)); a > 1e-3 {
			t.Errorf("%s: logits differ by up to %g", name, a)
		}
	}
}

// blockApart returns how far the logits of the block draft at path are from the golden file of that name. The text comes in pieces.
func blockApart(t *testing.T, path, name string, piece int, o engine.Options) (apart float64) {
	t.Helper()
	var g struct{ Logits [][]float64 }
	readJSON(t, publishedDir+name+"/golden.json", &g)
	_, s := readSide(t, path)
	for i, logits := range blockLogits(t, sides+"target.gguf", path, piece, o) {
		var got []float32
		for _, v := range logits {
			got = append(got, float32(v))
		}
		apart = max(apart, relative(got, g.Logits[i+s.Draft.Block.Rows-s.Draft.Block.Levels()]))
	}
	return apart
}

// blockLogits returns the logits of a block, of the tokens that the draft knows, behind 12 tokens of the tiny target, which come in pieces.
func blockLogits(t *testing.T, target, path string, piece int, o engine.Options) (all [][]float64) {
	t.Helper()
	runBlock(t, target, path, piece, o, func(s *side.Spec, out *engine.Output, _ tandem.Token) {
		for i := range out.Len() {
			var row []float64
			logits := out.Logits(i)
			for _, id := range s.Draft.IDs {
				row = append(row, float64(logits[id]))
			}
			for id := range logits {
				if len(s.Draft.IDs) == 0 {
					row = append(row, float64(logits[id]))
				}
			}
			all = append(all, row)
		}
	})
	return all
}

// runBlock calls use with what a block draft computes of a block behind a text, and the block's last token.
func runBlock(t *testing.T, target, path string, piece int, o engine.Options, use func(*side.Spec, *engine.Output, tandem.Token)) {
	t.Helper()
	const text = 12
	of, s, m, seq := openedDraft(t, target, path, o)
	forward := func(part engine.Part) *engine.Output {
		part.Seq = seq
		out, err := m.Forward([]engine.Part{part}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for seq.Len() < text-1 {
		var part engine.Part
		for i := seq.Len(); i < min(seq.Len()+piece, text-1); i++ {
			part.Extend = append(part.Extend, of.Tokens[i+1])
			part.States = append(part.States, engine.State{Target: padded(tapsOf(s, of.Taps, i), len(s.Taps), s.Dim)})
		}
		forward(part)
	}
	b := m.Block()
	part := engine.Part{States: make([]engine.State, b.Rows), Want: engine.WantTail}
	for i := range b.Rows {
		part.Nodes, part.Parents = append(part.Nodes, tandem.Token(b.Mask)), append(part.Parents, int32(i-1))
	}
	part.Nodes[0] = of.Tokens[text-1]
	out := forward(part)
	if out.Len() != b.Levels() {
		t.Fatalf("%d rows have logits: want %d", out.Len(), b.Levels())
	}
	use(s, out, part.Nodes[0])
}

// padded returns n states with zeros after each, as an expanded target has them.
func padded(states []float32, n, width int) (all []float32) {
	for i := range n {
		part := states[i*len(states)/n : (i+1)*len(states)/n]
		all = append(append(all, part...), make([]float32, width-len(part))...)
	}
	return all
}
