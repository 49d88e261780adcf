package naive

import (
	"math"
	"strings"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Latent is the attention of models that make keys and values of all heads from one vector, as published: it makes them for every
// position that a head sees. The zero value is a model without.
type Latent struct {
	Rank, Key, Value int  // of the vector; of a head's key and value
	Query            int  // rank of queries; 0: none
	Together         bool // layout of the file
}

func (m Latent) generate(at string, n *Model, heads int, matrix func(name string, rows, cols int), norm func(name string, size int)) {
	if m.Query > 0 {
		matrix(at+"attn_q_a", m.Query, n.Dim)
		norm(at+"attn_q_a_norm", m.Query)
		matrix(at+"attn_q_b", heads*m.Key, m.Query)
	} else {
		matrix(at+"attn_q", heads*m.Key, n.Dim)
	}
	matrix(at+"attn_kv_a_mqa", m.Rank+n.RopeDim, n.Dim)
	norm(at+"attn_kv_a_norm", m.Rank)
	matrix(at+"attn_output", n.Dim, heads*m.Value)
	plain := m.Key - n.RopeDim
	if m.Together {
		matrix(at+"attn_kv_b", heads*(plain+m.Value), m.Rank)
		return
	}
	matrix(at+"attn_k_b", heads*m.Rank, plain)
	matrix(at+"attn_v_b", heads*m.Value, m.Rank)
}

// write writes a tensor of heads; it returns false for any other.
func (m Latent) write(w *gguf.Writer, name string, data []float64, cols, heads int) bool {
	if !strings.HasSuffix(name, "attn_k_b.weight") && !strings.HasSuffix(name, "attn_v_b.weight") {
		return false
	}
	w.Tensor(name, gguf.Type(kernels.F32), []int{cols, len(data) / cols / heads, heads}, BytesOfFloats(data))
	return true
}

// attendLatent returns the attention of the last position, whose normed state is y. keys takes the turned part of keys, values the vector.
func (n *Model) attendLatent(at string, l, pos int, y []float64, keys, values *[][]float64) []float64 {
	m, heads := n.Latent, n.heads[l]
	plain, of := m.Key-n.RopeDim, *n
	of.HeadDim = n.RopeDim
	var q []float64
	if m.Query > 0 {
		q = n.mul(at+"attn_q_b", n.norm(at+"attn_q_a_norm", n.mul(at+"attn_q_a", y)))
	} else {
		q = n.mul(at+"attn_q", y)
	}
	both := n.mul(at+"attn_kv_a_mqa", y)
	turned := both[m.Rank:]
	of.turn(turned, l, pos)
	*values, *keys = append(*values, n.half(n.norm(at+"attn_kv_a_norm", both[:m.Rank]))), append(*keys, n.half(turned))
	scale := n.AttnScale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(m.Key))
	}
	out := make([]float64, heads*m.Value)
	for h := range heads {
		mine := q[h*m.Key:][:m.Key]
		of.turn(mine[plain:], l, pos)
		sum, weights, made := 0.0, make([]float64, pos+1), make([][]float64, pos+1)
		for j, latent := range *values {
			key, value := n.keyOf(at, h, latent)
			s := 0.0
			for d, x := range append(key, (*keys)[j]...) {
				s += mine[d] * x
			}
			weights[j], made[j] = math.Exp(s*scale), value
			sum += weights[j]
		}
		for j, w := range weights {
			for d, x := range made[j] {
				out[h*m.Value+d] += w / sum * x
			}
		}
	}
	return n.mul(at+"attn_output", out)
}

// keyOf returns a head's key, without its turned part, and its value.
func (n *Model) keyOf(at string, head int, latent []float64) (key, value []float64) {
	m, plain := n.Latent, n.Latent.Key-n.RopeDim
	times := func(w []float64) (out []float64) {
		for ; len(w) > 0; w = w[m.Rank:] {
			sum := 0.0
			for i, x := range latent {
				sum += w[i] * x
			}
			out = append(out, sum)
		}
		return out
	}
	if m.Together {
		each := n.Weights[at+"attn_kv_b.weight"][head*(plain+m.Value)*m.Rank:][:(plain+m.Value)*m.Rank]
		return times(each[:plain*m.Rank]), times(each[plain*m.Rank:])
	}
	w := n.Weights[at+"attn_k_b.weight"][head*m.Rank*plain:]
	key = make([]float64, plain)
	for i, x := range latent {
		for d := range key {
			key[d] += w[i*plain+d] * x
		}
	}
	return key, times(n.Weights[at+"attn_v_b.weight"][head*m.Value*m.Rank:][:m.Value*m.Rank])
}

// TinyLatent returns a small model with latent attention, in one of the two layouts of files.
func TinyLatent(layers, query int, together bool) *Model {
	n := Tiny("deepseek2", layers)
	n.Halves, n.RopeDim = false, 8
	n.Latent = Latent{Rank: 40, Key: 24, Value: 12, Query: query, Together: together}
	n.Mix = Mixture{Count: 6, Used: 2, Dense: 1, Shared: 66, Sigmoid: true, choosing: true, Scale: 2.5}
	n.FFN = append([]int{80}, make([]int, layers-1)...)
	for i := 1; i < layers; i++ {
		n.FFN[i] = 33
	}
	n.With("attention.kv_lora_rank", uint32(40)).With("expert_count", uint32(6)).With("expert_used_count", uint32(2)).With(
		"expert_shared_count", uint32(2)).With("leading_dense_block_count", uint32(1)).With("expert_gating_func", uint32(2)).With(
		"expert_weights_norm", true).With("expert_weights_scale", float32(2.5)).With("expert_feed_forward_length", uint32(33)).With(
		"feed_forward_length", uint32(80)).With("expert_group_count", uint32(1))
	if query > 0 {
		n.With("attention.q_lora_rank", uint32(query))
	}
	if n.With("attention.head_count_kv", uint32(4)); together {
		return n.With("attention.key_length", uint32(24)).With("attention.value_length", uint32(12))
	}
	return n.With("attention.head_count_kv", uint32(1)).With("attention.key_length", uint32(48)).With("attention.value_length",
		uint32(40)).With("attention.key_length_mla", uint32(24)).With("attention.value_length_mla", uint32(12))
}
