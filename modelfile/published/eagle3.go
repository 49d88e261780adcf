package published

import (
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// eagle3 takes a draft of EAGLE-3: fc on some hidden states of the target; one layer called midlayer (cnets.py of SafeAILab/EAGLE,
// llama3_eagle.py of SpecForge), or layers.0, and more of them (models/eagle3 of vllm-project/speculators); the first layer's attention
// reads the embedding and the hidden state; norm, lm_head over the draft vocabulary, d2t with the difference between a token's id in the
// target's vocabulary and in the draft's, and t2d with what the draft vocabulary holds. Speculators and EAGLE-3.1 have norms before fc:
// input_norm on all states as one vector, or fc_norm.I on each.
func (t *taker) eagle3() error {
	k, s := t.config, t.c.Spec
	layer := "midlayer."
	if !t.has("midlayer.mlp.gate_proj.weight") && t.has("layers.0.mlp.gate_proj.weight") {
		layer = "layers.%d."
	}
	if err := t.shape(layer); err != nil {
		return err
	}
	var err error
	if s.Draft.Norms, err = k.norms(); err != nil {
		return t.fail(tandem.Invalid, "%w", err)
	}
	if use := k.EagleConfig.UseAux; use != nil && !*use {
		return t.fail(tandem.Unsupported, "use_aux_hidden_state false: side files of eagle3 read states after named layers")
	}
	if k.TargetHidden != 0 && k.TargetHidden != s.Dim {
		return t.fail(tandem.Invalid, "target_hidden_size %d: the target has %d", k.TargetHidden, s.Dim)
	}
	if err := t.eagle3Taps(); err != nil {
		return err
	}
	head := "lm_head.weight"
	if !t.has(head) && k.Tied && t.has("embed_tokens.weight") {
		head = "embed_tokens.weight"
	}
	if err := t.draftIDs(head); err != nil {
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
	return t.fill(func(slot string) origin { return t.eagle3Origin(slot, layer, head) })
}

// eagle3Origin returns the origin of a tensor of EAGLE-3.
func (t *taker) eagle3Origin(slot, layer, head string) origin {
	s := t.c.Spec
	switch {
	case slot == "output.weight":
		return origin{name: head}
	case slot == "token_embd.weight" && s.Draft.Width != s.Dim:
		return origin{name: "embed_tokens.weight"}
	case slot == "token_embd.weight":
		return origin{} // one of the copies
	case slot == "fc.bias":
		return origin{name: slot}
	}
	var i int
	if n, _ := fmt.Sscanf(slot, "fc.%d.", &i); n == 0 {
		return t.blockOrigin(slot, layer)
	}
	if slot != side.StateNorm(i) {
		return origin{name: "fc.weight", inputs: len(s.Taps) * s.Dim, col: i * s.Dim}
	}
	if s.Draft.Norms.States == side.NormEach {
		return origin{name: fmt.Sprintf("fc_norm.%d.weight", i)}
	}
	return origin{name: "input_norm.weight", inputs: len(s.Taps) * s.Dim, col: i * s.Dim}
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

// draftIDs reads which of the target's tokens the draft knows. head is the name of its output matrix.
func (t *taker) draftIDs(head string) error {
	s := t.c.Spec
	n, err := t.draftTokens(head)
	if err != nil {
		return err
	}
	if n > s.Vocab {
		return t.fail(tandem.Invalid, "tensor %q is for %d tokens: the target has %d", head, n, s.Vocab)
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

// draftTokens returns how many tokens the draft knows: the rows of its output matrix, or if it has none, of d2t or of the target's.
func (t *taker) draftTokens(head string) (int, error) {
	d2t, ok := t.from["d2t"]
	switch {
	case t.has(head):
		return t.outputs(head)
	case ok && len(d2t.shape()) == 1:
		return d2t.shape()[0], nil
	}
	return t.c.Spec.Vocab, nil
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
