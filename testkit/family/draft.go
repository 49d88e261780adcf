package family

import (
	"fmt"

	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Draft makes a random draft that reads the target's hidden states, of kind eagle3, eagle or dovetail (docs/sidefiles.md), for a target
// of `layers` layers with that lineage and fingerprint of its vocabulary.
func Draft(kind string, target *Model, layers int, lineage, vocabulary string, seed uint64) *Model {
	dim := target.Tensor("output_norm.weight").Shape[0]
	own, tokens := dim, target.Vocab-10
	s := Shape{Layers: 1, Dim: dim, Heads: 4, KV: 2, HeadDim: 16, RopeDim: 16, FFN: 64}
	b := newBuilder(kind, kind, s, seed)
	b.m.w = gguf.NewWriter()
	b.m.SetAny("general.architecture", kind)
	b.m.SetAny("general.name", kind)
	b.m.SetAny("tandem.target.lineage", lineage)
	b.m.SetAny("tandem.target.vocabulary", vocabulary)
	b.key("block_count", u(1))
	b.key("context_length", u(512))
	b.key("embedding_length", u(dim))
	b.key("vocab_size", u(target.Vocab))
	b.key("feed_forward_length", u(s.FFN))
	b.key("attention.layer_norm_rms_epsilon", float32(1e-5))
	b.attentionKeys(s.HeadDim, s.KV)
	b.vector(b.at("attn_norm.weight"), dim, 1, 0.2)
	b.vector(b.at("ffn_norm.weight"), dim, 1, 0.2)
	b.vector("output_norm.weight", dim, 1, 0.2)
	b.matrix(b.at("attn_output.weight"), dim, s.Heads*s.HeadDim)
	b.dense("", s.FFN)
	if kind == "eagle3" {
		taps, ids := []int32{1, int32((layers + 1) / 2), int32(layers)}, make([]int32, tokens)
		for i := range taps {
			taps[i] = max(taps[i], 1)
			b.matrix(fmt.Sprintf("fc.%d.weight", i), own, dim)
		}
		for i := range ids {
			ids[i] = int32(i + 3)
		}
		b.key("taps", taps)
		b.key("draft_length", u(own))
		b.key("draft_vocab_size", u(tokens))
		b.key("d2t", ids)
		b.vector(b.at("hidden_norm.weight"), own, 1, 0.2)
		for _, half := range []string{"hidden", "embd"} {
			b.matrix(b.at("attn_q."+half+".weight"), s.Heads*s.HeadDim, own)
			b.matrix(b.at("attn_k."+half+".weight"), s.KV*s.HeadDim, own)
			b.matrix(b.at("attn_v."+half+".weight"), s.KV*s.HeadDim, own)
		}
		b.matrix("output.weight", tokens, own)
		return b.m
	}
	b.key("taps", []int32{-1})
	b.matrix(b.at("attn_q.weight"), s.Heads*s.HeadDim, dim)
	b.matrix(b.at("attn_k.weight"), s.KV*s.HeadDim, dim)
	b.matrix(b.at("attn_v.weight"), s.KV*s.HeadDim, dim)
	for _, name := range map[string][]string{"eagle": {"fc.embd", "fc.hidden"},
		"dovetail": {"fuse.hidden", "fuse.embd", "fuse.gate.hidden", "fuse.gate.embd"}}[kind] {
		b.matrix(name+".weight", dim, dim)
	}
	return b.m
}
