package family

import (
	"fmt"

	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// DraftShape says what a random draft that reads the target's hidden states is like (docs/sidefiles.md).
type DraftShape struct {
	Kind   string // eagle3, eagle, dovetail or dflash
	Taps   []int
	Bare   int  // eagle and dovetail: the entry of Taps that has no matrix; −1: all have one
	Tokens int  // that it knows; 0: all
	Output bool // it has an output matrix of its own, for those tokens
	Two    bool // dflash: it has convolutions and a selector (DFlash2)
}

func (s DraftShape) String() string {
	what := fmt.Sprintf("%s of taps %d, without matrix %d, %d tokens, output %v", s.Kind, s.Taps, s.Bare, s.Tokens, s.Output)
	if s.Two {
		what += ", DFlash2"
	}
	return what
}

// Draft makes a random draft for a target with that lineage and fingerprint of its vocabulary.
func Draft(s DraftShape, target *Model, lineage, vocabulary string, seed uint64) *Model {
	dim := target.Tensor("output_norm.weight").Shape[0]
	b := newBuilder(s.Kind, s.Kind, Shape{Layers: 1, Dim: dim, Heads: 4, KV: 2, HeadDim: 16, RopeDim: 16, FFN: 64}, seed)
	b.m.w = gguf.NewWriter()
	b.m.SetAny("general.architecture", s.Kind)
	b.m.SetAny("general.name", s.Kind)
	b.m.SetAny("tandem.target.lineage", lineage)
	b.m.SetAny("tandem.target.vocabulary", vocabulary)
	b.key("block_count", u(1))
	b.key("context_length", u(512))
	b.key("embedding_length", u(dim))
	b.key("vocab_size", u(target.Vocab))
	b.key("feed_forward_length", u(b.FFN))
	b.key("attention.layer_norm_rms_epsilon", float32(1e-5))
	b.attentionKeys(b.HeadDim, b.KV)
	b.vector(b.at("attn_norm.weight"), dim, 1, 0.2)
	b.vector(b.at("ffn_norm.weight"), dim, 1, 0.2)
	b.vector("output_norm.weight", dim, 1, 0.2)
	b.matrix(b.at("attn_output.weight"), dim, b.Heads*b.HeadDim)
	b.dense("", b.FFN)
	b.draftTokens(s, target.Vocab)
	taps := make([]int32, len(s.Taps))
	for i, n := range s.Taps {
		taps[i] = int32(n)
	}
	b.key("taps", taps)
	switch s.Kind {
	case "eagle3":
		b.eagle3(len(taps))
		return b.m
	case "dflash":
		if b.dflash(len(taps)); s.Two {
			b.dflash2(target.Vocab)
		}
		return b.m
	}
	for i := range taps {
		if i != s.Bare {
			b.matrix(fmt.Sprintf("taps.%d.weight", i), dim, dim)
		}
	}
	b.matrix(b.at("attn_q.weight"), b.Heads*b.HeadDim, dim)
	b.matrix(b.at("attn_k.weight"), b.KV*b.HeadDim, dim)
	b.matrix(b.at("attn_v.weight"), b.KV*b.HeadDim, dim)
	for _, name := range map[string][]string{"eagle": {"fc.embd", "fc.hidden"},
		"dovetail": {"fuse.hidden", "fuse.embd", "fuse.gate.hidden", "fuse.gate.embd"}}[s.Kind] {
		b.matrix(name+".weight", dim, dim)
	}
	return b.m
}

// dflash makes what only a block draft has; its width is the target's.
func (b *builder) dflash(taps int) {
	b.key("draft_length", u(b.Dim))
	b.key("block_size", u(7))
	b.key("mask_token_id", u(1))
	b.fusion(taps)
	b.vector("hidden_norm.weight", b.Dim, 1, 0.2)
	b.matrix(b.at("attn_q.weight"), b.Heads*b.HeadDim, b.Dim)
	b.matrix(b.at("attn_k.weight"), b.KV*b.HeadDim, b.Dim)
	b.matrix(b.at("attn_v.weight"), b.KV*b.HeadDim, b.Dim)
	b.vector(b.at("attn_q_norm.weight"), b.HeadDim, 1, 0.2)
	b.vector(b.at("attn_k_norm.weight"), b.HeadDim, 1, 0.2)
}

// dflash2 makes what DFlash2 adds: convolutions over three rows in groups of eight columns, and a selector of four candidates.
func (b *builder) dflash2(vocab int) {
	const taps, group, rank = 3, 8, 32
	b.key("conv_kernel_size", u(taps))
	b.key("conv_group_size", u(group))
	b.key("selector_rank", u(rank))
	b.key("selector_top_k", u(4))
	b.key("draft_logit_scale", float32(0.5))
	for _, part := range []string{"attn", "ffn"} {
		b.vector(b.at(part+"_conv_base"), 2*taps*b.Dim, 0.5, 0.5)
		b.matrix(b.at(part+"_conv_proj.weight"), 2*taps*b.Dim/group, b.Dim)
	}
	b.matrix("selector_hidden.weight", rank, b.Dim)
	b.matrix("selector_predecessor.weight", vocab, rank)
	b.matrix("selector_successor.weight", vocab, rank)
}

// fusion makes the matrices of taps.
func (b *builder) fusion(taps int) {
	for i := range taps {
		b.matrix(fmt.Sprintf("fc.%d.weight", i), b.Dim, b.Dim)
	}
}

// draftTokens makes the table of the tokens that a draft knows, in no order, and its output matrix.
func (b *builder) draftTokens(s DraftShape, vocab int) {
	if s.Tokens == 0 {
		return
	}
	ids := make([]int32, s.Tokens)
	for i, id := range b.r.Perm(vocab)[:s.Tokens] {
		ids[i] = int32(id)
	}
	b.key("draft_vocab_size", u(s.Tokens))
	b.key("d2t", ids)
	if s.Output {
		b.matrix("output.weight", s.Tokens, b.Dim)
	}
}

// eagle3 makes what only a draft of EAGLE-3 has; its width is the target's.
func (b *builder) eagle3(taps int) {
	b.key("draft_length", u(b.Dim))
	b.fusion(taps)
	b.vector(b.at("hidden_norm.weight"), b.Dim, 1, 0.2)
	for _, half := range []string{"hidden", "embd"} {
		b.matrix(b.at("attn_q."+half+".weight"), b.Heads*b.HeadDim, b.Dim)
		b.matrix(b.at("attn_k."+half+".weight"), b.KV*b.HeadDim, b.Dim)
		b.matrix(b.at("attn_v."+half+".weight"), b.KV*b.HeadDim, b.Dim)
	}
}
