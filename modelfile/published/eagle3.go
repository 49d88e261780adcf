package published

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// eagle3 takes a draft of EAGLE-3 (cnets.py of SafeAILab/EAGLE): fc on three hidden states, one layer called midlayer, or layers.0 by
// SpecForge and speculators, whose attention reads the embedding and the hidden state, norm, lm_head over the draft vocabulary, d2t with
// the difference between a token's id in the target's vocabulary and in the draft's, and t2d with what the draft vocabulary holds.
func (t *taker) eagle3() error {
	k, s := t.config, t.c.Spec
	layer := "midlayer."
	if !t.has("midlayer.mlp.gate_proj.weight") && t.has("layers.0.mlp.gate_proj.weight") {
		layer = "layers.0."
	}
	if err := t.shape(layer); err != nil {
		return err
	}
	if k.NormBeforeResidual || k.NormBeforeFC {
		return t.fail(tandem.Unsupported,
			"norm_before_residual %v, norm_before_fc %v: the residual stream of side files begins with the hidden "+
				"state before any norm", k.NormBeforeResidual, k.NormBeforeFC)
	}
	if use := k.EagleConfig.UseAux; use != nil && !*use {
		return t.fail(tandem.Unsupported, "use_aux_hidden_state false: side files of eagle3 read several hidden states")
	}
	if k.TargetHidden != 0 && k.TargetHidden != s.Dim {
		return t.fail(tandem.Invalid, "target_hidden_size %d: the target has %d", k.TargetHidden, s.Dim)
	}
	if err := t.eagle3Taps(); err != nil {
		return err
	}
	if err := t.draftIDs(); err != nil {
		return err
	}
	if err := s.Check(); err != nil {
		return t.fail(tandem.Invalid, "%w", err)
	}
	if s.Draft.Width == s.Dim { // only then can it be the target's
		if err := t.copies("embed_tokens.weight", "token_embd.weight", s.Dim, s.Vocab, true); err != nil {
			return err
		}
	} else if !t.has("embed_tokens.weight") {
		return t.fail(tandem.Invalid, "a draft of width %d without \"embed_tokens.weight\": the target's embeddings have %d",
			s.Draft.Width, s.Dim)
	}
	return t.fill(func(slot string) origin {
		var i int
		if n, _ := fmt.Sscanf(slot, "fc.%d.weight", &i); n == 1 {
			return origin{name: "fc.weight", inputs: len(s.Taps) * s.Dim, col: i * s.Dim}
		}
		switch {
		case slot == "output.weight":
			return origin{name: "lm_head.weight"}
		case slot == "token_embd.weight" && s.Draft.Width != s.Dim:
			return origin{name: "embed_tokens.weight"}
		case slot == "token_embd.weight":
			return origin{} // one of the copies
		}
		return t.blockOrigin(slot, layer)
	})
}

// eagle3Taps finds the layers whose states the draft reads. Programs count differently: EAGLE takes the states before layers 2, n/2 and
// n-3 (modeling_llama_kv.py), so after as many. A list outside of eagle_config is vLLM's and speculators', whose number j is the state
// before layer j too; SGLang and SpecForge, who write eagle_config, mean the state after layer j, counted from 0.
func (t *taker) eagle3Taps() error {
	s, k, n := t.c.Spec, t.config, t.o.Target.Layers
	source := "given"
	switch {
	case t.o.Taps != nil:
		s.Taps = t.o.Taps
	case len(k.EagleConfig.Aux) > 0:
		for _, id := range k.EagleConfig.Aux {
			s.Taps = append(s.Taps, id+1)
		}
		source = fmt.Sprintf("eagle_config in config.json has layers %d, counted from 0 and meaning their outputs, as SGLang reads it",
			k.EagleConfig.Aux)
	case len(k.Aux) > 0:
		s.Taps = k.Aux
		source = "eagle_aux_hidden_state_layer_ids in config.json, as vLLM reads it"
	default:
		s.Taps = []int{2, n / 2, n - 3}
		source = fmt.Sprintf("2, n/2 and n-3 of %d layers, as in EAGLE-3; config.json names none", n)
	}
	t.note("taps %d: %s", s.Taps, source)
	return nil
}

// draftIDs reads which of the target's tokens the draft knows.
func (t *taker) draftIDs() error {
	s := t.c.Spec
	n, err := t.outputs("lm_head.weight")
	if err != nil {
		return err
	}
	if n > s.Vocab {
		return t.fail(tandem.Invalid, "tensor \"lm_head.weight\" is for %d tokens: the target has %d", n, s.Vocab)
	}
	if k := t.config.DraftVocab; k != 0 && k != n {
		return t.fail(tandem.Invalid, "%s has draft_vocab_size %d: tensor \"lm_head.weight\" is for %d tokens", t.config.path, k, n)
	}
	ids := make([]int, n)
	for i := range ids {
		ids[i] = i
	}
	if x, ok := t.from["d2t"]; ok {
		t.used["d2t"] = true
		offsets, err := x.Safetensor.Ints(s.Vocab)
		if err != nil {
			return err
		}
		if len(offsets) != n || len(x.Safetensor.Shape) != 1 {
			return t.fail(tandem.Invalid, "tensor \"d2t\" has shape %d: want [%d], a number for each row of lm_head", x.Safetensor.Shape, n)
		}
		for i, o := range offsets {
			if o < int64(-i) || o >= int64(s.Vocab-i) {
				return t.fail(tandem.Invalid, "tensor \"d2t\" has %d for draft token %d: want the difference to an id from 0 to %d", o, i,
					s.Vocab-1)
			}
			ids[i] = i + int(o)
		}
	} else if n != s.Vocab {
		return t.fail(tandem.Invalid, "tensor \"d2t\" is missing: lm_head has %d tokens, the target %d", n, s.Vocab)
	}
	s.Draft.IDs = ids
	return t.checkT2D(ids)
}

// checkT2D refuses a t2d that says otherwise than d2t.
func (t *taker) checkT2D(ids []int) error {
	x, ok := t.from["t2d"]
	if !ok {
		return nil
	}
	t.used["t2d"] = true
	vocab := t.c.Spec.Vocab
	known, err := x.Safetensor.Ints(vocab)
	if err != nil {
		return err
	}
	if len(known) != vocab || len(x.Safetensor.Shape) != 1 {
		return t.fail(tandem.Invalid, "tensor \"t2d\" has shape %d: want [%d], the target's tokens", x.Safetensor.Shape, vocab)
	}
	left := 0
	for i, k := range known {
		if left += int(k); k != 0 && k != 1 {
			return t.fail(tandem.Invalid, "t2d is %d for token %d: want 0 or 1", k, i)
		}
	}
	for i, id := range ids {
		if known[id] != 1 {
			return t.fail(tandem.Invalid, "d2t maps draft token %d to %d, which t2d says is not in the draft vocabulary", i, id)
		}
		left--
	}
	if left != 0 {
		return t.fail(tandem.Invalid, "t2d has %d tokens more than d2t", left)
	}
	return nil
}

// openGGUF takes a draft of EAGLE-3 out of a GGUF file of llama.cpp (conversion/llama.py and src/models/eagle3.cpp of ggml-org/llama.cpp):
// fc.weight on the three states, attn_norm and attn_norm_2 for embedding and hidden state, queries and keys already in pairs, d2t with ids
// of the target, and extract_layers, which counts layers before the state.
func (c *Checkpoint) openGGUF(path string, o Options) error {
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	c.files = append(c.files, f)
	arch, err := f.StringOr("general.architecture", "")
	switch {
	case err != nil:
		return err
	case side.Is(f):
		return tandem.Errorf(op, tandem.Invalid, "%s is a side file already", c.path)
	case arch != string(side.Eagle3):
		return tandem.Errorf(op, tandem.Invalid, "%s: architecture %q: want safetensors, or a GGUF file of architecture eagle3", c.path,
			arch)
	case o.Kind != "" && o.Kind != side.Eagle3:
		return tandem.Errorf(op, tandem.Invalid, "%s is an eagle3 draft: want kind auto or eagle3, not %s", c.path, o.Kind)
	}
	t := &taker{c: c, o: o, config: &config{}, from: map[string]Source{}, named: map[string]string{}, used: map[string]bool{}}
	for i := range f.Tensors() {
		x := &f.Tensors()[i]
		t.from[x.Name], t.named[x.Name] = Source{GGUF: x}, x.Name
	}
	if err := t.llamaKeys(f); err != nil {
		return err
	}
	if err := t.llamaIDs(f); err != nil {
		return err
	}
	s := c.Spec
	if err := s.Check(); err != nil {
		return t.fail(tandem.Invalid, "%w", err)
	}
	if s.Draft.Width == s.Dim {
		if err := t.copies("token_embd.weight", "token_embd.weight", s.Dim, s.Vocab, true); err != nil {
			return err
		}
	}
	if err := t.fill(t.llamaOrigin); err != nil {
		return err
	}
	return t.rest()
}

// llamaOrigin returns the origin of a tensor in llama.cpp's layout.
func (t *taker) llamaOrigin(slot string) origin {
	s := t.c.Spec
	var i int
	if n, _ := fmt.Sscanf(slot, "fc.%d.weight", &i); n == 1 {
		return origin{name: "fc.weight", inputs: len(s.Taps) * s.Dim, col: i * s.Dim}
	}
	switch slot {
	case "token_embd.weight":
		if s.Draft.Width == s.Dim {
			return origin{} // one of the copies
		}
	case "blk.0.hidden_norm.weight":
		return origin{name: "blk.0.attn_norm_2.weight"}
	}
	for _, m := range []string{"attn_q", "attn_k", "attn_v"} {
		switch slot {
		case "blk.0." + m + ".embd.weight":
			return origin{name: "blk.0." + m + ".weight", inputs: 2 * s.Draft.Width}
		case "blk.0." + m + ".hidden.weight":
			return origin{name: "blk.0." + m + ".weight", inputs: 2 * s.Draft.Width, col: s.Draft.Width}
		}
	}
	return origin{name: slot}
}

// keys reads llama.cpp's keys; the first error sticks.
type keys struct {
	*gguf.File
	err error
}

func (k *keys) int(name string, lo, hi, def int) int {
	n, err := k.IntOr("eagle3."+name, lo, hi, def)
	if def == 0 {
		n, err = k.Int("eagle3."+name, lo, hi)
	}
	if k.err == nil {
		k.err = err
	}
	return n
}

func (k *keys) float(name string, def float64) float64 {
	v, err := k.FloatOr("eagle3."+name, def)
	if def == 0 {
		v, err = k.Float("eagle3." + name)
	}
	if k.err == nil {
		k.err = err
	}
	return v
}

func (t *taker) llamaKeys(f *gguf.File) error {
	const most = 1 << 28
	k, target := &keys{File: f}, t.o.Target
	s := &side.Spec{Kind: side.Eagle3, Lineage: target.Lineage, Vocabulary: target.Vocabulary, Dim: target.Dim, Vocab: target.Vocab}
	t.c.Spec = s
	d := &s.Draft
	s.Blocks = k.int("block_count", 1, 1, 0)
	d.Width = k.int("embedding_length", 1, most, 0)
	d.Context = k.int("context_length", 1, most, 0)
	d.FFN = k.int("feed_forward_length", 1, most, 0)
	d.Heads = k.int("attention.head_count", 1, most, 0)
	d.KVHeads = k.int("attention.head_count_kv", 1, most, max(1, d.Heads))
	d.HeadDim = k.int("attention.key_length", 1, most, max(1, d.Width/max(1, d.Heads)))
	values := k.int("attention.value_length", 1, most, d.HeadDim)
	d.RopeDim = k.int("rope.dimension_count", 2, most, d.HeadDim)
	d.Eps, d.RopeBase = k.float("attention.layer_norm_rms_epsilon", 0), k.float("rope.freq_base", 10000)
	if n := k.int("target_hidden_size", 1, most, s.Dim); k.err == nil && n != s.Dim {
		return t.fail(tandem.Invalid, "key \"eagle3.target_hidden_size\" is %d: the target has %d", n, s.Dim)
	}
	if k.err != nil {
		return k.err
	}
	if values != d.HeadDim {
		return t.fail(tandem.Unsupported, "heads of %d keys and %d values: want equal sizes", d.HeadDim, values)
	}
	for _, key := range []string{"norm_before_residual", "fc_norm", "norm_output"} {
		if on, err := f.BoolOr("eagle3."+key, false); err != nil || on {
			return t.fail(tandem.Unsupported, "key %q is %s: side files have no such norm", "eagle3."+key, f.Describe("eagle3."+key))
		}
	}
	if kind, err := f.StringOr("eagle3.rope.scaling.type", "none"); err != nil || kind != "none" {
		return t.fail(tandem.Unsupported, "key \"eagle3.rope.scaling.type\" is %.40q: side files have no scaling of RoPE", kind)
	}
	if s.Taps = t.o.Taps; s.Taps != nil {
		return nil
	}
	var err error
	if s.Taps, err = f.Ints("eagle3.extract_layers", 1, most); err != nil {
		return err
	}
	t.note("taps %d: eagle3.extract_layers", s.Taps)
	return nil
}

// llamaIDs reads d2t, whose elements are ids of the target, i64 or i32.
func (t *taker) llamaIDs(f *gguf.File) error {
	s := t.c.Spec
	n, err := t.outputs("output.weight")
	if err != nil {
		return err
	}
	name := "d2t"
	if f.Tensor(name) == nil {
		name = "d2t.weight" // as forks have it
	}
	x := f.Tensor(name)
	if x == nil && n == s.Vocab {
		s.Draft.IDs = make([]int, n)
		for i := range s.Draft.IDs {
			s.Draft.IDs[i] = i
		}
		return nil
	}
	if x == nil {
		return t.fail(tandem.Invalid, "tensor \"d2t\" is missing: output.weight has %d tokens, the target %d", n, s.Vocab)
	}
	t.used[name] = true
	block, size := x.Type.Block()
	if typ := x.Type.String(); typ != "i64" && typ != "i32" || block != 1 || !slices.Equal(x.Shape, []int{n}) || n > s.Vocab {
		return t.fail(tandem.Invalid, "tensor %q is %s of shape %d: want i64 of shape [%d], and at most the target's %d tokens", name,
			x.Type,
			x.Shape, n, s.Vocab)
	}
	data, err := x.Bytes()
	if err != nil {
		return err
	}
	s.Draft.IDs = make([]int, n)
	for i := range s.Draft.IDs {
		if size == 8 {
			s.Draft.IDs[i] = int(int64(binary.LittleEndian.Uint64(data[8*i:])))
		} else {
			s.Draft.IDs[i] = int(int32(binary.LittleEndian.Uint32(data[4*i:])))
		}
	}
	return nil
}
