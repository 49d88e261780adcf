package published

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// otherKeys are keys of what tandem does not run, in llama.cpp's files of architecture dflash.
var otherKeys = []struct{ key, what string }{
	{"hyper_connection_count", "DSpark with DeepSeek's layers"},
}

// llamaBlocks reads how a draft of DFlash guesses, as llama.cpp does (src/models/dflash.cpp and common/speculative.cpp of
// ggml-org/llama.cpp): target_layers counts layers before the state; the mask token is the tokenizer's; attention.causal, false unless it
// is there, is of all layers, those with a window too.
func (t *taker) llamaBlocks(k *keys) error {
	const mask = "tokenizer.ggml.mask_token_id"
	s := t.c.Spec
	d, b := &s.Draft, &s.Draft.Block
	for _, o := range otherKeys {
		if name := k.name(o.key); k.Has(name) {
			if n, err := k.Float(name); err != nil || n != 0 {
				return t.fail(tandem.Unsupported, "key %q is %s: it is of %s, and tandem runs DFlash without it", name,
					k.Describe(name), o.what)
			}
		}
	}
	anchor, err := k.BoolOr(k.name("sample_from_anchor"), false)
	if err != nil || anchor { // which llama.cpp reads of DSpark alone
		return t.fail(tandem.Unsupported, "key %q is %s: llama.cpp's DFlash guesses from mask tokens alone", k.name("sample_from_anchor"),
			k.Describe(k.name("sample_from_anchor")))
	}
	if err := t.llamaDFlash2(k); err != nil {
		return err
	}
	b.Rows = k.int("block_size", 1, side.MaxBlockRows, 0)
	if k.err != nil {
		return k.err
	}
	if b.Mask, err = k.Int(mask, 0, s.Vocab-1); err != nil {
		return err
	}
	causal, err := k.BoolOr(k.name("attention.causal"), false)
	if err != nil {
		return err
	}
	if causal {
		b.Causal = slices.Repeat([]bool{true}, s.Blocks)
	}
	if d.Window, err = k.IntOr(k.name("attention.sliding_window"), 0, 1<<28, 0); err != nil || d.Window == 0 {
		return err
	}
	if b.Local, err = k.Bools(k.name("attention.sliding_window_pattern")); err == nil && !slices.Contains(b.Local, true) {
		d.Window, b.Local = 0, nil
	}
	return err
}

// llamaBlockOrigin returns the origin of a tensor of DFlash in llama.cpp's layout. Rows of queries and keys are as Hugging Face's.
func (t *taker) llamaBlockOrigin(slot string) origin {
	s := t.c.Spec
	var i int
	if n, _ := fmt.Sscanf(slot, "fc.%d.weight", &i); n == 1 {
		return origin{name: "fc.weight", inputs: len(s.Taps) * s.Dim, col: i * s.Dim}
	}
	o := origin{name: slot}
	switch {
	case strings.HasSuffix(slot, "_conv_base"):
		o.shape = []int{s.Draft.Width, s.Draft.Block.ConvTaps, 2}
	case slot == "hidden_norm.weight":
		o.name = "enc.output_norm.weight"
	case slot == "token_embd.weight" && s.Draft.Width == s.Dim:
		return origin{} // one of the copies
	case strings.Contains(slot, ".attn_q") || strings.Contains(slot, ".attn_k"):
		o.rows = paired(s.Draft.HeadDim, s.Draft.RopeDim)
	}
	return o
}
