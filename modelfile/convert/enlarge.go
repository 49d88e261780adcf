package convert

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// part is a tensor of an expanded model: the original tensor in one corner, zeros or random weights elsewhere.
type part struct {
	name     string
	was, to  []int   // shapes in the model and in the expanded one, inputs first
	optional bool    // the model may lack it
	random   bool    // additional outputs are random, not zero
	scale    float64 // factor on the original values; 0 = 1
}

// collect lists the tensors to make; the first error sticks. Unexpected tensors are refused: without
// them, or with them unchanged, the model would compute something else.
func (e *expansion) collect() {
	old, to, head := e.old, e.new, e.headDim
	vocab := 0
	if t := e.file.Tensor("token_embd.weight"); t != nil && len(t.Shape) == 2 {
		vocab = t.Shape[1]
	}
	turned, err := e.file.IntOr("llama.rope.dimension_count", 2, maxDim, head)
	if err != nil {
		e.err = err
		return
	}
	shrink := math.Sqrt(float64(old.Dim) / float64(to.Dim))
	wide, bigWide := []int{old.Dim, vocab}, []int{to.Dim, vocab}
	e.add(-1,
		part{name: "token_embd.weight", was: wide, to: bigWide},
		part{name: "output.weight", was: wide, to: bigWide, optional: true},
		part{name: "output_norm.weight", was: []int{old.Dim}, to: []int{to.Dim}, scale: shrink},
		part{name: "rope_freqs.weight", was: []int{turned / 2}, to: []int{turned / 2}, optional: true})
	q, kv, bigQ, bigKV := old.Heads*head, old.KVHeads*head, to.Heads*head, to.KVHeads*head
	for l := range to.Layers {
		e.add(l,
			part{name: "attn_norm.weight", was: []int{old.Dim}, to: []int{to.Dim}, scale: shrink},
			part{name: "ffn_norm.weight", was: []int{old.Dim}, to: []int{to.Dim}, scale: shrink},
			part{name: "attn_q.weight", was: []int{old.Dim, q}, to: []int{to.Dim, bigQ}, random: true},
			part{name: "attn_k.weight", was: []int{old.Dim, kv}, to: []int{to.Dim, bigKV}, random: true},
			part{name: "attn_v.weight", was: []int{old.Dim, kv}, to: []int{to.Dim, bigKV}, random: true},
			part{name: "attn_output.weight", was: []int{q, old.Dim}, to: []int{bigQ, to.Dim}},
			part{name: "ffn_gate.weight", was: []int{old.Dim, old.FFN}, to: []int{to.Dim, to.FFN}, random: true},
			part{name: "ffn_up.weight", was: []int{old.Dim, old.FFN}, to: []int{to.Dim, to.FFN}, random: true},
			part{name: "ffn_down.weight", was: []int{old.FFN, old.Dim}, to: []int{to.FFN, to.Dim}},
			part{name: "attn_q.bias", was: []int{q}, to: []int{bigQ}, optional: true},
			part{name: "attn_k.bias", was: []int{kv}, to: []int{bigKV}, optional: true},
			part{name: "attn_v.bias", was: []int{kv}, to: []int{bigKV}, optional: true},
			part{name: "attn_output.bias", was: []int{old.Dim}, to: []int{to.Dim}, optional: true})
	}
	for i := range e.file.Tensors() {
		if name := e.file.Tensors()[i].Name; !e.taken[name] {
			e.fail(tandem.Unsupported, "tensor %q has no place in the llama architecture: leaving it out would change the text", name)
		}
	}
}

func (e *expansion) fail(k tandem.Kind, format string, args ...any) {
	if e.err == nil {
		e.err = tandem.Errorf(op, k, "%s: %w", e.file.Path(), fmt.Errorf(format, args...))
	}
}

// add lists parts of a layer, or of none: -1.
func (e *expansion) add(layer int, parts ...part) {
	for _, p := range parts {
		if layer >= 0 {
			p.name = fmt.Sprintf("blk.%d.%s", layer, p.name)
		}
		var t *gguf.Tensor
		if layer < e.old.Layers {
			t = e.source(&p)
		}
		if t == nil && p.optional || e.err != nil {
			continue
		}
		to := tensor{name: p.name, typ: e.mix.typeOf(p.name, p.to, gguf.F32), shape: p.to}
		if len(p.to) == 1 {
			to.fill = p.vector(t)
		} else {
			to.fill = p.matrix(t)
		}
		e.tensors = append(e.tensors, to)
	}
}

// source returns a tensor of the model; nil if it is missing or wrong.
func (e *expansion) source(p *part) *gguf.Tensor {
	t := e.file.Tensor(p.name)
	e.taken[p.name] = true
	switch {
	case t == nil && !p.optional:
		e.fail(tandem.Corrupt, "tensor %q is missing", p.name)
	case t == nil:
	case !slices.Equal(t.Shape, p.was):
		e.fail(tandem.Corrupt, "tensor %q has shape %d: the hyper-parameters want %d", p.name, t.Shape, p.was)
	case !decodable(t.Type):
		e.fail(tandem.Unsupported, "tensor %q is %s, which tandem cannot convert", p.name, t.Type)
	default:
		return t
	}
	return nil
}

// vector returns a function that fills in t and then zeros; ones for an additional layer.
func (p part) vector(t *gguf.Tensor) func([]float32, *[]byte, int) error {
	return func(dst []float32, buf *[]byte, _ int) error {
		clear(dst)
		if t == nil {
			for i := range dst[:p.was[0]] {
				dst[i] = 1
			}
		} else if err := readRows(t, dst, len(dst), buf, 0, 1); err != nil {
			return err
		}
		if p.scale != 0 {
			for i, v := range dst {
				dst[i] = float32(float64(v) * p.scale)
			}
		}
		return nil
	}
}

// matrix returns a function that fills in rows of t, zeros right of them, and zeros or random rows below;
// t is nil for an additional layer.
func (p part) matrix(t *gguf.Tensor) func([]float32, *[]byte, int) error {
	cols := p.to[0]
	name := fnv.New64a()
	name.Write([]byte(p.name))
	seed := name.Sum64()
	return func(dst []float32, buf *[]byte, row int) error {
		clear(dst)
		n, have := len(dst)/cols, 0
		if t != nil {
			have = max(0, min(n, p.was[1]-row))
		}
		if have > 0 {
			if err := readRows(t, dst, cols, buf, row, have); err != nil {
				return err
			}
		}
		for r := have; p.random && r < n; r++ {
			fillRandom(dst[r*cols:(r+1)*cols], mixBits(seed+uint64(row+r)), float64(p.was[0]))
		}
		return nil
	}
}

// mixBits is the finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014).
func mixBits(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fillRandom fills a row with random weights, uniform with variance 1/inputs: so that many inputs of mean square 1
// give an output of about 1. No weight is zero in any type.
func fillRandom(row []float32, seed uint64, inputs float64) {
	const levels = 1 << 11 // few enough for the least to be above zero as f16
	scale := float32(math.Sqrt(3/inputs)) / levels
	for i := range row {
		odd := int32(mixBits(seed+uint64(i)<<32)&(levels-1))*2 + 1 - levels
		row[i] = float32(odd) * scale
	}
}
