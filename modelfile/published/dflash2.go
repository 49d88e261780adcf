package published

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// dflash2 reads what DFlash2 adds (dflash/model.py of z-lab/dflash, models/dflash2 of vllm-project/speculators, qwen3_dflash2.py of vLLM):
// convolutions over the rows of a block and a selector.
func (t *taker) dflash2(c *dflashConfig) error {
	k, b := t.config, &t.c.Spec.Draft.Block
	top, own := &k.block.convNumbers, &c.block.convNumbers
	b.ConvTaps, b.ConvGroup = orDefault(own.ConvTaps, top.ConvTaps), orDefault(own.ConvGroup, top.ConvGroup)
	b.Rank, b.Best = orDefault(own.SelectorRank, top.SelectorRank), orDefault(own.SelectorTopK, top.SelectorTopK)
	if k.isDFlash2() && (b.ConvTaps == 0 || b.Rank == 0) {
		return t.fail(tandem.Invalid, "%s is of DFlash2 with conv_kernel_size %d and selector_rank %d: want both", k.path, b.ConvTaps,
			b.Rank)
	}
	if f := k.block.FeedForward; f != "" && f != "dense" {
		return t.fail(tandem.Unsupported, "draft_ffn_type %.40q: tandem runs drafts with a dense feed-forward block", f)
	}
	value := func(v *float64, usual float64) float64 {
		if v == nil {
			return usual
		}
		return *v
	}
	b.EmbedScale, b.LogitScale, b.LogitCap = value(c.EmbedScale, 1), value(c.LogitScale, 1), value(c.LogitCap, 0)
	switch scaled := b.EmbedScale != 1 || b.LogitScale != 1 || b.LogitCap != 0; {
	case b.Two():
		t.note("convolutions over %d rows in groups of %d columns; a selector of rank %d for %d candidates", b.ConvTaps, b.ConvGroup,
			b.Rank, b.Best)
	case scaled:
		return t.fail(tandem.Unsupported, "dflash_config has input_embedding_scale %g, output_multiplier %g and final_logit_softcapping "+
			"%g: tandem runs drafts of DFlash as their target scales and caps", b.EmbedScale, b.LogitScale, b.LogitCap)
	default:
		b.EmbedScale, b.LogitScale = 0, 0
	}
	return nil
}

// isDFlash2 reports whether the configuration names DFlash2.
func (k *config) isDFlash2() bool {
	return slices.ContainsFunc(append(slices.Clone(k.Architectures), k.Speculator), func(name string) bool {
		return strings.Contains(strings.ToLower(name), "dflash2")
	})
}

// dflash2Origin returns the origin of a tensor that only DFlash2 has.
func (t *taker) dflash2Origin(slot string) (origin, bool) {
	const tables = "candidate_selector."
	b, n := &t.c.Spec.Draft.Block, t.c.Spec.Draft.Width
	table := func(name string) origin { // a parameter, or the weight of an embedding
		if o := tables + name; t.has(o) {
			return origin{name: o}
		}
		return origin{name: tables + name + ".weight"}
	}
	switch slot {
	case side.SelectorHidden:
		return origin{name: tables + "hidden_projection.weight"}, true
	case side.SelectorBefore:
		return table("predecessor_codebook"), true
	case side.SelectorAfter:
		return table("successor_codebook"), true
	}
	var i int
	if k, _ := fmt.Sscanf(slot, "blk.%d.", &i); k == 0 {
		return origin{}, false
	}
	for _, part := range []struct{ ours, theirs string }{{"attn", "attention"}, {"ffn", "mlp"}} {
		from := fmt.Sprintf("layers.%d.%s_conv.", i, part.theirs)
		switch strings.TrimPrefix(slot, fmt.Sprintf("blk.%d.%s_conv_", i, part.ours)) {
		case "base":
			return origin{name: from + "base_kernel", shape: []int{n, b.ConvTaps, 2}}, true
		case "proj.weight":
			return origin{name: from + "kernel_projection.weight"}, true
		}
	}
	return origin{}, false
}

// llamaDFlash2 reads the keys of DFlash2 in llama.cpp's files (src/models/dflash.cpp).
func (t *taker) llamaDFlash2(k *keys) error {
	b := &t.c.Spec.Draft.Block
	for _, n := range []struct {
		key string
		at  *int
	}{{"conv_kernel_size", &b.ConvTaps}, {"conv_group_size", &b.ConvGroup}, {"selector_rank", &b.Rank}, {"selector_top_k", &b.Best}} {
		if k.Has(k.name(n.key)) {
			*n.at = k.int(n.key, 0, 1<<20, 0)
		}
	}
	if !b.Two() || k.err != nil {
		return k.err
	}
	var err error
	b.EmbedScale = 1
	if b.LogitScale, err = k.FloatOr(k.name("logit_scale"), 1); err == nil {
		b.LogitCap, err = k.FloatOr(k.name("final_logit_softcapping"), 0)
	}
	if b.LogitScale == 0 { // llama.cpp's for none
		b.LogitScale = 1
	}
	return err
}

// isWhole reports whether ids are all tokens, in order.
func isWhole(ids []int, vocab int) bool {
	for i, id := range ids {
		if id != i {
			return false
		}
	}
	return len(ids) == vocab
}
