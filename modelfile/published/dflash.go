package published

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
)

// block holds what configurations of DFlash say of a block, at the top (Speculators, and z-lab's block_size) or in dflash_config.
type block struct {
	Size         int   `json:"block_size"`
	Mask         *int  `json:"mask_token_id"` // nil: not said
	Anchor       bool  `json:"sample_from_anchor"`
	Bidirected   *bool `json:"sliding_window_non_causal"` // Speculators: layers with a window see later rows too
	States       []int `json:"aux_hidden_state_layer_ids"`
	TargetLayers int   `json:"num_target_layers"`

	convNumbers
	FeedForward string `json:"draft_ffn_type"` // Speculators' DFlash2: dense, or experts
	Markov      int    `json:"markov_rank"`    // DSpark
}

// convNumbers holds the numbers of DFlash2, in dflash_config (z-lab) or at the top (Speculators).
type convNumbers struct {
	ConvTaps     int `json:"conv_kernel_size"`
	ConvGroup    int `json:"conv_group_size"`
	SelectorRank int `json:"selector_rank"`
	SelectorTopK int `json:"selector_top_k"`
}

// dflashConfig holds dflash_config.
type dflashConfig struct {
	block
	Layers []int `json:"target_layer_ids"`
	Causal *bool `json:"causal"` // of all layers; nil: of those with a window
	UseSWA bool  `json:"use_swa"`
	Window int   `json:"swa_window_size"`

	EmbedScale *float64 `json:"input_embedding_scale"` // DFlash2; nil: 1
	LogitScale *float64 `json:"output_multiplier"`
	LogitCap   *float64 `json:"final_logit_softcapping"` // nil: none
}

// knownDFlash are the keys of dflash_config that are carried out. Another one is refused unless it says nothing: false, 0 or null.
var knownDFlash = []string{"block_size", "mask_token_id", "num_target_layers", "target_layer_ids", "causal", "use_swa", "swa_window_size",
	"target_hidden_size", "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k", "input_embedding_scale",
	"output_multiplier", "final_logit_softcapping"}

// blockPrefix is the prefix of a block's tensors.
const blockPrefix = "layers.%d."

// dflash takes a block draft of DFlash: fc on some hidden states of the target, hidden_norm, layers of Qwen 3's kind, norm (dflash/model.py
// of z-lab/dflash; specforge/modeling/draft/dflash.py of SpecForge). Speculators adds lm_head over a draft vocabulary, d2t and t2d
// (models/dflash). Layers with a window are causal inside the block unless the configuration says otherwise, as SpecForge trains them
// (create_dflash_sdpa_mask) and vLLM runs them (qwen3_dflash.py).
func (t *taker) dflash() error {
	k, s := t.config, t.c.Spec
	c, err := t.dflashConfig()
	if err != nil {
		return err
	}
	if err := t.shape(blockPrefix); err != nil {
		return err
	}
	if err := t.dflash2(c); err != nil {
		return err
	}
	b := &s.Draft.Block
	b.Rows, b.Anchor = orDefault(k.block.Size, c.Size), k.block.Anchor
	switch mask := k.block.Mask; {
	case c.Mask != nil:
		b.Mask = *c.Mask
	case mask != nil:
		b.Mask = *mask
	default:
		return t.fail(tandem.Invalid, "%s has no mask_token_id: want it, at the top or in dflash_config", k.path)
	}
	if err := t.dflashWindows(c); err != nil {
		return err
	}
	if err := t.dflashTaps(c); err != nil {
		return err
	}
	return t.dflashTensors()
}

// dflashConfig reads dflash_config and refuses what of it is not carried out.
func (t *taker) dflashConfig() (*dflashConfig, error) {
	c, k := &dflashConfig{}, t.config
	if k.TargetHidden != 0 && k.TargetHidden != t.c.Spec.Dim {
		return nil, t.fail(tandem.Invalid, "target_hidden_size %d: the target has %d", k.TargetHidden, t.c.Spec.Dim)
	}
	if k.block.Markov != 0 {
		return nil, t.fail(tandem.Unsupported, "%s has markov_rank %d, a part of DSpark: tandem runs DFlash and DFlash2", k.path,
			k.block.Markov)
	}
	if len(k.DFlash) == 0 || string(k.DFlash) == "null" {
		return c, nil
	}
	all := map[string]json.RawMessage{}
	err := json.Unmarshal(k.DFlash, &all)
	if err == nil {
		err = json.Unmarshal(k.DFlash, c)
	}
	if err != nil {
		return nil, t.fail(tandem.Corrupt, "dflash_config in %s: %w", k.path, err)
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		value := string(all[key])
		if !slices.Contains(knownDFlash, key) && !slices.Contains([]string{"false", "0", "null", `""`, "[]"}, value) {
			return nil, t.fail(tandem.Unsupported, "dflash_config has %.40q %.40s: tandem runs DFlash without it", key, value)
		}
	}
	return c, nil
}

// dflashWindows reads which layers attend through a window, and which see later rows of their block.
func (t *taker) dflashWindows(c *dflashConfig) error {
	k, s := t.config, t.c.Spec
	d := &s.Draft
	local := make([]bool, s.Blocks)
	if len(k.LayerTypes) > 0 && len(k.LayerTypes) != s.Blocks {
		return t.fail(tandem.Invalid, "layer_types has %d entries: want one for each of %d layers", len(k.LayerTypes), s.Blocks)
	}
	for i, kind := range k.LayerTypes {
		if kind != "full_attention" && kind != "sliding_attention" {
			return t.fail(tandem.Unsupported, "layer_types has %.40q: want full_attention or sliding_attention", kind)
		}
		local[i] = kind == "sliding_attention"
	}
	causal := slices.Clone(local)
	if c.UseSWA && !slices.Contains(local, true) { // as vLLM reads it: all layers have a window, and see later rows
		for i := range local {
			local[i] = true
		}
	}
	if slices.Contains(local, true) {
		if d.Window = orDefault(c.Window, k.Window); d.Window < 1 {
			return t.fail(tandem.Invalid, "layer_types %.80q with sliding_window %d: want a window of at least 1", k.LayerTypes, d.Window)
		}
		d.Block.Local = local
	}
	switch {
	case c.Causal != nil:
		causal = slices.Repeat([]bool{*c.Causal}, s.Blocks)
	case k.Causal != nil:
		causal = slices.Repeat([]bool{*k.Causal}, s.Blocks)
	case k.block.Bidirected != nil && *k.block.Bidirected, k.block.Bidirected == nil && k.isDFlash2() && k.Speculator != "":
		clear(causal) // the default of Speculators' DFlash2
	}
	if slices.Contains(causal, true) {
		d.Block.Causal = causal
		t.note("layers %v do not see later rows of their block", numbers(causal))
	}
	return nil
}

// numbers returns the places of true.
func numbers(which []bool) (all []int) {
	for i, is := range which {
		if is {
			all = append(all, i)
		}
	}
	return all
}

// dflashTaps finds the states that the draft reads. In dflash_config number j is the state after layer j, counted from 0, as z-lab's
// program reads it; in the list of Speculators the state after j layers. A configuration without either means layers spread evenly from
// the second to the third from the end (build_target_layer_ids of z-lab/dflash).
func (t *taker) dflashTaps(c *dflashConfig) error {
	s, k := t.c.Spec, t.config
	source := "given"
	switch {
	case t.o.Taps != nil:
		s.Taps = t.o.Taps
	case len(c.Layers) > 0:
		for _, id := range c.Layers {
			s.Taps = append(s.Taps, id+1)
		}
		source = fmt.Sprintf("dflash_config in config.json has layers %d, counted from 0 and meaning their outputs", c.Layers)
	case len(k.block.States) > 0:
		s.Taps = k.block.States
		source = "aux_hidden_state_layer_ids in config.json, as Speculators reads it"
	default:
		n := orDefault(orDefault(k.block.TargetLayers, c.TargetLayers), t.o.Target.Layers)
		s.Taps = []int{n/2 + 1}
		if s.Blocks > 1 {
			s.Taps = nil
			for i := range s.Blocks {
				s.Taps = append(s.Taps, int(math.RoundToEven(1+float64(i*(n-4))/float64(s.Blocks-1)))+1)
			}
		}
		source = fmt.Sprintf("spread over %d layers as z-lab's program does; config.json names none", n)
	}
	t.note("taps %d: %s", s.Taps, source)
	return nil
}

// dflashTensors takes the tensors of a draft whose keys are known.
func (t *taker) dflashTensors() error {
	const embd, head = "embed_tokens.weight", "lm_head.weight"
	s := t.c.Spec
	if t.config.Tied && t.has(embd) && !t.has(head) {
		return t.fail(tandem.Unsupported, "tie_word_embeddings with %q and no %q: want the draft's output matrix as a tensor", embd, head)
	}
	if t.has("d2t") {
		if err := t.draftIDs(head); err != nil {
			return err
		}
		if s.Draft.Block.Rank > 0 && isWhole(s.Draft.IDs, s.Vocab) { // of Speculators' DFlash2, which has no other
			s.Draft.IDs = nil
		}
	}
	if err := s.Check(); err != nil {
		return t.fail(tandem.Invalid, "%w", err)
	}
	own := s.Draft.Width != s.Dim // else they may be the target's
	if !own {
		if err := t.copies(embd, "token_embd.weight", s.Dim, s.Vocab, true); err != nil {
			return err
		}
	}
	if !own && len(s.Draft.IDs) == 0 {
		if err := t.copies(head, "output.weight", s.Dim, s.Vocab, true); err != nil {
			return err
		}
	}
	return t.fill(func(slot string) origin {
		var i int
		if n, _ := fmt.Sscanf(slot, "fc.%d.", &i); n == 1 {
			return origin{name: "fc.weight", inputs: len(s.Taps) * s.Dim, col: i * s.Dim}
		}
		if o, ok := t.dflash2Origin(slot); ok {
			return o
		}
		switch {
		case slot == "hidden_norm.weight":
			return origin{name: slot}
		case slot == "token_embd.weight" && own:
			return origin{name: embd}
		case slot == "output.weight" && (own || len(s.Draft.IDs) > 0):
			return origin{name: head}
		case slot == "token_embd.weight" || slot == "output.weight":
			return origin{} // one of the copies
		}
		return t.blockOrigin(slot, blockPrefix)
	})
}

// isDFlash reports whether the configuration is of DFlash.
func (k *config) isDFlash() bool {
	for _, name := range append(slices.Clone(k.Architectures), k.Speculator) {
		if strings.Contains(strings.ToLower(name), "dflash") {
			return true
		}
	}
	return len(k.DFlash) > 0 && string(k.DFlash) != "null"
}
