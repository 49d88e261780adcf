package engine

import (
	"math"
	"strings"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// naiveLatent is the attention of models that make keys and values of all heads from one vector, as published: it makes them for every
// position that a head sees. The zero value is a model without.
type naiveLatent struct {
	rank, key, value int  // of the vector; of a head's key and value
	query            int  // rank of queries; 0: none
	together         bool // layout of the file
}

func (m naiveLatent) generate(at string, n *naive, heads int, matrix func(name string, rows, cols int), norm func(name string, size int)) {
	if m.query > 0 {
		matrix(at+"attn_q_a", m.query, n.dim)
		norm(at+"attn_q_a_norm", m.query)
		matrix(at+"attn_q_b", heads*m.key, m.query)
	} else {
		matrix(at+"attn_q", heads*m.key, n.dim)
	}
	matrix(at+"attn_kv_a_mqa", m.rank+n.ropeDim, n.dim)
	norm(at+"attn_kv_a_norm", m.rank)
	matrix(at+"attn_output", n.dim, heads*m.value)
	plain := m.key - n.ropeDim
	if m.together {
		matrix(at+"attn_kv_b", heads*(plain+m.value), m.rank)
		return
	}
	matrix(at+"attn_k_b", heads*m.rank, plain)
	matrix(at+"attn_v_b", heads*m.value, m.rank)
}

// write writes a tensor of heads; it returns false for any other.
func (m naiveLatent) write(w *gguf.Writer, name string, data []float64, cols, heads int) bool {
	if !strings.HasSuffix(name, "attn_k_b.weight") && !strings.HasSuffix(name, "attn_v_b.weight") {
		return false
	}
	w.Tensor(name, gguf.Type(kernels.F32), []int{cols, len(data) / cols / heads, heads}, bytesOfFloats(data))
	return true
}

// attendLatent returns the attention of the last position, whose normed state is y. keys takes the turned part of keys, values the vector.
func (n *naive) attendLatent(at string, l, pos int, y []float64, keys, values *[][]float64) []float64 {
	m, heads := n.latent, n.heads[l]
	plain, of := m.key-n.ropeDim, *n
	of.headDim = n.ropeDim
	var q []float64
	if m.query > 0 {
		q = n.mul(at+"attn_q_b", n.norm(at+"attn_q_a_norm", n.mul(at+"attn_q_a", y)))
	} else {
		q = n.mul(at+"attn_q", y)
	}
	both := n.mul(at+"attn_kv_a_mqa", y)
	turned := both[m.rank:]
	of.turn(turned, l, pos)
	*values, *keys = append(*values, n.half(n.norm(at+"attn_kv_a_norm", both[:m.rank]))), append(*keys, n.half(turned))
	scale := n.attnScale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(m.key))
	}
	out := make([]float64, heads*m.value)
	for h := range heads {
		mine := q[h*m.key:][:m.key]
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
				out[h*m.value+d] += w / sum * x
			}
		}
	}
	return n.mul(at+"attn_output", out)
}

// keyOf returns a head's key, without its turned part, and its value.
func (n *naive) keyOf(at string, head int, latent []float64) (key, value []float64) {
	m, plain := n.latent, n.latent.key-n.ropeDim
	times := func(w []float64) (out []float64) {
		for ; len(w) > 0; w = w[m.rank:] {
			sum := 0.0
			for i, x := range latent {
				sum += w[i] * x
			}
			out = append(out, sum)
		}
		return out
	}
	if m.together {
		each := n.weights[at+"attn_kv_b.weight"][head*(plain+m.value)*m.rank:][:(plain+m.value)*m.rank]
		return times(each[:plain*m.rank]), times(each[plain*m.rank:])
	}
	w := n.weights[at+"attn_k_b.weight"][head*m.rank*plain:]
	key = make([]float64, plain)
	for i, x := range latent {
		for d := range key {
			key[d] += w[i*plain+d] * x
		}
	}
	return key, times(n.weights[at+"attn_v_b.weight"][head*m.value*m.rank:][:m.value*m.rank])
}

// tinyLatent returns a small model with latent attention, in one of the two layouts of files.
func tinyLatent(layers, query int, together bool) *naive {
	n := tiny("deepseek2", layers)
	n.halves, n.ropeDim = false, 8
	n.latent = naiveLatent{rank: 40, key: 24, value: 12, query: query, together: together}
	n.mix = naiveMixture{count: 6, used: 2, dense: 1, shared: 66, sigmoid: true, choosing: true, scale: 2.5}
	n.ffn = append([]int{80}, make([]int, layers-1)...)
	for i := 1; i < layers; i++ {
		n.ffn[i] = 33
	}
	n.with("attention.kv_lora_rank", uint32(40)).with("expert_count", uint32(6)).with("expert_used_count", uint32(2)).with(
		"expert_shared_count", uint32(2)).with("leading_dense_block_count", uint32(1)).with("expert_gating_func", uint32(2)).with(
		"expert_weights_norm", true).with("expert_weights_scale", float32(2.5)).with("expert_feed_forward_length", uint32(33)).with(
		"feed_forward_length", uint32(80)).with("expert_group_count", uint32(1))
	if query > 0 {
		n.with("attention.q_lora_rank", uint32(query))
	}
	if n.with("attention.head_count_kv", uint32(4)); together {
		return n.with("attention.key_length", uint32(24)).with("attention.value_length", uint32(12))
	}
	return n.with("attention.head_count_kv", uint32(1)).with("attention.key_length", uint32(48)).with("attention.value_length",
		uint32(40)).with("attention.key_length_mla", uint32(24)).with("attention.value_length_mla", uint32(12))
}
