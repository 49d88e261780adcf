package published

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// kinds lists what is published by itself: an mtp layer is published inside its target.
var kinds = slices.DeleteFunc(side.Kinds(), func(k side.Kind) bool { return k == side.MTP })

// take finds out the kind of the checkpoint and takes its tensors.
func (t *taker) take() error {
	if err := t.refuseOthers(); err != nil {
		return err
	}
	kind := t.o.Kind
	if kind == "" {
		if kind = t.kind(); kind == "" {
			return t.fail(tandem.Invalid, "the names of its tensors tell of none of %v: name the kind with --kind", kinds)
		}
	}
	if t.o.Taps != nil && !kind.IsDraft() && slices.Contains(kinds, kind) {
		return t.fail(tandem.Invalid, "taps %d: side files of %s have none to choose: want the checkpoint alone", t.o.Taps, kind)
	}
	target := t.o.Target
	t.c.Spec = &side.Spec{Kind: kind, Lineage: target.Lineage, Vocabulary: target.Vocabulary, Dim: target.Dim, Vocab: target.Vocab}
	var err error
	switch kind {
	case side.Medusa:
		err = t.medusa()
	case side.PPD:
		if t.config.MaskToken != nil {
			err = t.pard()
		} else {
			err = t.ppd()
		}
	case side.Dovetail:
		err = t.dovetail()
	case side.Eagle:
		err = t.eagle()
	case side.Eagle3:
		err = t.eagle3()
	case side.DFlash:
		err = t.dflash()
	default:
		err = t.fail(tandem.Invalid, "kind %q: want one of %v", kind, kinds)
	}
	if err != nil {
		return err
	}
	return t.rest()
}

// kind tells the kind from names that only it has.
func (t *taker) kind() side.Kind {
	if t.config.MaskToken != nil {
		return side.PPD
	}
	if t.config.isDFlash() {
		return side.DFlash
	}
	for _, k := range []struct {
		kind  side.Kind
		names []string
	}{
		{side.Eagle3, []string{"midlayer.self_attn.q_proj.weight", "midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight", "d2t"}},
		{side.PPD, promptNames},
		{side.Dovetail, []string{"fc1.weight"}},
		{side.Eagle, []string{"fc.weight"}},
		{side.Medusa, []string{"0.0.linear.weight", "blocks.0.layers.0.weight"}},
	} {
		for _, name := range k.names {
			if t.has(name) {
				return k.kind
			}
		}
	}
	return ""
}

// medusa takes heads in one of two layouts. Medusa's own (medusa_model.py of FasterDecoding/Medusa): K.B.linear.weight and .bias are
// the residual blocks of head K, and K.B.weight with the next B is its output matrix. vLLM's (model_executor/models/medusa.py):
// blocks.K.layers.B.weight, lm_heads.K.weight, of which original_lm_head leaves the first, which is the target's.
func (t *taker) medusa() error {
	s := t.c.Spec
	s.Taps = []int{side.LastNorm}
	block, output := "%d.%d.linear", func(k int) string { return fmt.Sprintf("%d.%d.weight", k, s.Blocks) }
	if t.has("blocks.0.layers.0.weight") {
		block, output = "blocks.%d.layers.%d", func(k int) string { return fmt.Sprintf("lm_heads.%d.weight", k) }
	}
	named := func(k, b int) string { return fmt.Sprintf(block, k, b) }
	for s.Levels <= side.MaxHeads && t.has(named(s.Levels, 0)+".weight") {
		s.Levels++
	}
	for s.Blocks <= side.MaxResidual && t.has(named(0, s.Blocks)+".weight") {
		s.Blocks++
	}
	if err := s.Check(); err != nil {
		return t.fail(tandem.Invalid, "%w", err)
	}
	if t.config.OriginalHead {
		if err := t.copies("lm_heads.0.weight", "output.weight", s.Dim, s.Vocab, false); err != nil {
			return err
		}
		output = func(int) string { return "" }
	}
	if err := t.copies("lm_head.weight", "output.weight", s.Dim, s.Vocab, false); err != nil {
		return err
	}
	t.note("%d heads of %d residual blocks", s.Levels, s.Blocks)
	return t.fill(func(slot string) origin {
		var k, b int
		if n, _ := fmt.Sscanf(slot, "medusa.%d.output.weight", &k); n == 1 && strings.HasSuffix(slot, ".output.weight") {
			return origin{name: output(k)}
		}
		fmt.Sscanf(slot, "medusa.%d.%d.", &k, &b)
		return origin{name: named(k, b) + slot[strings.LastIndex(slot, "."):]}
	})
}

// Names of the prompt embeddings: PEFT's in an adapter file, and in a whole model.
var promptNames = []string{"prompt_embeddings", "prompt_encoder.default.embedding.weight", "prompt_encoder.embedding.weight"}

// ppd takes prompt embeddings as hmarkc/parallel-prompt-decoding saves them through PEFT: a matrix with a row for each virtual token, those
// of prompt token 0 first, and adapter_config.json with their numbers.
func (t *taker) ppd() error {
	s, k := t.c.Spec, t.config
	if k.PromptTokens == 0 {
		return t.fail(tandem.Invalid, "want adapter_config.json beside it, with num_special_tokens and virtual_tokens_per_special_token")
	}
	s.Levels, s.Members = k.PromptTokens, orDefault(k.Ensemble, 1)
	switch {
	case s.Members > 1 && !strings.Contains(strings.ToLower(k.Attention), "ensemble"):
		return t.fail(tandem.Unsupported, "vt_attention_type %.40q with %d members: side files have ensemble attention", k.Attention,
			s.Members)
	case s.Members > 1 && k.Aggregation != "" && !strings.Contains(strings.ToLower(k.Aggregation), "mean"):
		return t.fail(tandem.Unsupported, "aggregation_type %.40q: side files have the mean", k.Aggregation)
	case k.Exits > 1 || k.OwnHead || k.Prefix:
		return t.fail(tandem.Unsupported, "num_exits %d, use_custom_lm_head %v, use_prefix_tuning %v: side files have none of them",
			k.Exits,
			k.OwnHead, k.Prefix)
	}
	if err := s.Check(); err != nil {
		return t.fail(tandem.Invalid, "%w", err)
	}
	t.note("%d prompt tokens of %d ensemble members", s.Levels, s.Members)
	from := promptNames[0]
	for _, name := range promptNames {
		if t.has(name) {
			from = name
		}
	}
	tokens, members := s.Levels, s.Members
	return t.fill(func(string) origin {
		return origin{name: from, rows: func(row int) int { return row%tokens*members + row/tokens }}
	})
}

// dovetail takes a draft with gated fusion. No checkpoint is published; these are the natural names: fc1 for the hidden state, fc2 for the
// embedding, gate on both with the hidden state first, layers.N. as in llama, and target_layer in config.json.
func (t *taker) dovetail() error {
	s := t.c.Spec
	if err := t.shape("layers.%d."); err != nil {
		return err
	}
	d := s.Dim
	s.Taps = t.o.Taps
	if s.Taps == nil {
		layer, source := t.config.TargetLayer, "target_layer in config.json"
		if layer == 0 {
			layer, source = t.o.Target.Layers-1, "the second-to-top layer's, as in the paper"
		}
		s.Taps = []int{layer}
		t.note("tap %d: %s", layer, source)
	}
	return t.draft(func(slot string) origin {
		part, ending, _ := strings.Cut(strings.TrimPrefix(slot, "fuse."), ".")
		switch {
		case !strings.HasPrefix(slot, "fuse."):
			return t.blockOrigin(slot, "layers.%d.")
		case part == "gate" && ending == "bias":
			return origin{name: "gate.bias"}
		case part == "gate" && ending == "hidden.weight":
			return origin{name: "gate.weight", inputs: 2 * d}
		case part == "gate":
			return origin{name: "gate.weight", inputs: 2 * d, col: d}
		case part == "hidden":
			return origin{name: "fc1." + ending}
		}
		return origin{name: "fc2." + ending}
	})
}

// eagle takes a draft of EAGLE-1 or EAGLE-2 (cnets1.py of SafeAILab/EAGLE): fc on the embedding and the hidden state, in this order,
// layers without an input norm in the first, the target's embedding and head. The hidden state is the target's after its final norm.
func (t *taker) eagle() error {
	s := t.c.Spec
	if err := t.shape("layers.%d."); err != nil {
		return err
	}
	s.Taps = t.o.Taps
	if s.Taps == nil {
		s.Taps = []int{side.LastNorm}
		t.note("tap %d: the state after the final norm, as in EAGLE-1 and EAGLE-2", side.LastNorm)
	}
	d := s.Dim
	return t.draft(func(slot string) origin {
		switch slot {
		case "fc.embd.weight":
			return origin{name: "fc.weight", inputs: 2 * d}
		case "fc.hidden.weight":
			return origin{name: "fc.weight", inputs: 2 * d, col: d}
		case "fc.bias":
			return origin{name: slot}
		}
		return t.blockOrigin(slot, "layers.%d.")
	})
}

// draft takes a draft that uses the target's embedding and head.
func (t *taker) draft(where func(slot string) origin) error {
	s := t.c.Spec
	if err := s.Check(); err != nil {
		return t.fail(tandem.Invalid, "%w", err)
	}
	if err := t.copies("embed_tokens.weight", "token_embd.weight", s.Dim, s.Vocab, false); err != nil {
		return err
	}
	if err := t.copies("lm_head.weight", "output.weight", s.Dim, s.Vocab, false); err != nil {
		return err
	}
	return t.fill(where)
}

// shape reads the shape of a draft's blocks. layer is the prefix of a block's tensors.
func (t *taker) shape(layer string) error {
	k, s := t.config, t.c.Spec
	if k.path == "" {
		return t.fail(tandem.Invalid, "want config.json beside it, with num_attention_heads and the like")
	}
	if k.Act != "" && k.Act != "silu" {
		return t.fail(tandem.Unsupported, "hidden_act %.40q: side files have silu", k.Act)
	}
	if k.Heads < 1 || k.Hidden < 1 {
		return t.fail(tandem.Invalid, "%s has hidden_size %d and num_attention_heads %d: want both", k.path, k.Hidden, k.Heads)
	}
	d := &s.Draft
	// Defaults are those of Hugging Face's LlamaConfig.
	d.Context, d.Eps = orDefault(k.Context, 2048), orDefault(k.Eps, 1e-6)
	d.Heads, d.KVHeads = k.Heads, orDefault(k.KVHeads, k.Heads)
	d.Width = k.Hidden
	d.HeadDim = orDefault(k.HeadDim, k.Hidden/k.Heads)
	var err error
	if t.ropeFactors, err = k.setRope(d); err != nil {
		return t.fail(tandem.Unsupported, "%w", err)
	}
	if s.Kind != side.DFlash { // which has windows in some layers
		if d.Window, err = k.window(); err != nil {
			return t.fail(tandem.Unsupported, "%w", err)
		}
	}
	s.Blocks = 1
	gate := strings.ReplaceAll(layer, "%d", "0") + "mlp.gate_proj.weight"
	if strings.Contains(layer, "%d") {
		s.Blocks = min(t.count(layer+"mlp.gate_proj.weight"), side.MaxBlocks+1)
	}
	if d.FFN, err = t.outputs(gate); err != nil {
		return err
	}
	switch {
	case k.Vocab != 0 && k.Vocab != s.Vocab:
		return t.fail(tandem.Invalid, "%s has vocab_size %d: the target has %d tokens", k.path, k.Vocab, s.Vocab)
	case k.FFN != 0 && k.FFN != d.FFN:
		return t.fail(tandem.Invalid, "%s has intermediate_size %d: tensor %q has %d rows", k.path, k.FFN, t.named[gate], d.FFN)
	case k.Layers != 0 && k.Layers != s.Blocks: // some have the target's number here
		t.note("%d blocks, as many as there are tensors of; config.json says %d", s.Blocks, k.Layers)
	}
	return nil
}

// parts are the names of a block's tensors in side files and in Hugging Face's llama models.
var parts = []struct{ ours, theirs string }{
	{"attn_norm", "input_layernorm"}, {"hidden_norm", "hidden_norm"}, {"ffn_norm", "post_attention_layernorm"},
	{"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
	{"attn_q", "self_attn.q_proj"}, {"attn_k", "self_attn.k_proj"}, {"attn_v", "self_attn.v_proj"}, {"attn_output", "self_attn.o_proj"},
	{"ffn_gate", "mlp.gate_proj"}, {"ffn_up", "mlp.up_proj"}, {"ffn_down", "mlp.down_proj"},
}

// blockOrigin returns the origin of a tensor in the blocks or after them. Hugging Face rotates the elements i and i+n/2 of a head, side
// files 2i and 2i+1: the rows of queries and keys are reordered.
func (t *taker) blockOrigin(slot, layer string) origin {
	if slot == "output_norm.weight" {
		return origin{name: "norm.weight"}
	}
	var block int
	var rest string
	if n, _ := fmt.Sscanf(slot, "blk.%d.%s", &block, &rest); n != 2 {
		return origin{}
	}
	d := &t.c.Spec.Draft
	prefix := layer
	if strings.Contains(layer, "%d") {
		prefix = fmt.Sprintf(layer, block)
	}
	part, ending, _ := strings.Cut(rest, ".")
	for _, p := range parts {
		if p.ours != part {
			continue
		}
		o := origin{}
		if strings.HasPrefix(part, "attn_q") || strings.HasPrefix(part, "attn_k") {
			o.rows = paired(d.HeadDim, d.RopeDim)
		}
		switch {
		case strings.HasPrefix(ending, "embd."):
			o.inputs, ending = 2*d.Width, "weight"
		case strings.HasPrefix(ending, "hidden."):
			o.inputs, o.col, ending = 2*d.Width, d.Width, "weight"
		}
		o.name = prefix + p.theirs + "." + ending
		return o
	}
	return origin{}
}

// paired returns, for a row of queries or keys whose rotated elements are in pairs, the row in which halves are rotated.
func paired(head, turned int) func(int) int {
	return func(row int) int {
		first, i := row/head*head, row%head
		if i >= turned {
			return row
		}
		return first + i%2*(turned/2) + i/2
	}
}
