package convert

import (
	"fmt"
	"math"
	"testing"

	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/published/layouttest"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// reference computes a target and its side files in float64 by the formulas of docs/sidefiles.md, from files of f32 weights. Nothing of
// it is shared with the engine.
type reference struct {
	t               *testing.T
	f               *gguf.File
	values          map[string][]float64
	heads, kv, turn int
	head            int
	eps, base       float64
	blocks, width   int
}

func newReference(t *testing.T, path string) *reference {
	t.Helper()
	r := &reference{t: t, f: open(t, path), values: map[string][]float64{}}
	arch, err := r.f.String("general.architecture")
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.f.Tensors() {
		name := r.f.Tensors()[i].Name
		for _, v := range layouttest.Values(t, r.f, name) {
			r.values[name] = append(r.values[name], float64(v))
		}
	}
	if arch == "ppd" || arch == "medusa" {
		return r
	}
	number := func(key string) float64 {
		v, err := r.f.Float(arch + "." + key)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	r.heads, r.kv = int(number("attention.head_count")), int(number("attention.head_count_kv"))
	r.eps, r.base = number("attention.layer_norm_rms_epsilon"), number("rope.freq_base")
	r.blocks, r.width = int(number("block_count")), int(number("embedding_length"))
	if arch == "eagle3" {
		r.width = int(number("draft_length"))
	}
	r.head = r.width / r.heads
	if r.f.Has(arch + ".attention.key_length") {
		r.head = int(number("attention.key_length"))
	}
	r.turn = r.head
	if r.f.Has(arch + ".rope.dimension_count") {
		r.turn = int(number("rope.dimension_count"))
	}
	return r
}

// mul returns the matrix of that name times x, without a bias.
func (r *reference) mul(name string, x []float64) []float64 {
	w, ok := r.values[name]
	if !ok || r.f.Tensor(name).Shape[0] != len(x) {
		r.t.Fatalf("%s times a vector of %d", name, len(x))
	}
	out := make([]float64, len(w)/len(x))
	for i := range out {
		for j, v := range x {
			out[i] += w[i*len(x)+j] * v
		}
	}
	return out
}

// linear returns w·x + b of a layer of that name; the bias is optional.
func (r *reference) linear(name string, x []float64) []float64 {
	return sum(r.mul(name+".weight", x), r.values[name+".bias"])
}

// sum adds b, if there is one, to a.
func sum(a, b []float64) []float64 {
	out := append([]float64(nil), a...)
	for i, v := range b {
		out[i] += v
	}
	return out
}

// norm returns x after the RMS norm of that name; x itself if there is none.
func (r *reference) norm(name string, x []float64) []float64 {
	w, ok := r.values[name]
	if !ok {
		return x
	}
	var squares float64
	for _, v := range x {
		squares += v * v
	}
	scale := 1 / math.Sqrt(squares/float64(len(x))+r.eps)
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v * scale * w[i]
	}
	return out
}

func silu(x float64) float64 { return x / (1 + math.Exp(-x)) }

// rotate turns the pairs (2i, 2i+1) of each head.
func (r *reference) rotate(x []float64, position int) {
	for first := 0; first < len(x); first += r.head {
		for i := 0; i < r.turn; i += 2 {
			angle := float64(position) * math.Pow(r.base, -float64(i)/float64(r.turn))
			a, b := x[first+i], x[first+i+1]
			x[first+i], x[first+i+1] = a*math.Cos(angle)-b*math.Sin(angle), a*math.Sin(angle)+b*math.Cos(angle)
		}
	}
}

// cache holds keys and values by block and row.
type cache struct{ keys, values map[int][][]float64 }

func newCache() *cache { return &cache{map[int][][]float64{}, map[int][][]float64{}} }

// attend rotates and stores keys and values, and returns what the queries find in the rows so far.
func (r *reference) attend(c *cache, block, position int, q, k, v []float64) []float64 {
	r.rotate(q, position)
	r.rotate(k, position)
	c.keys[block], c.values[block] = append(c.keys[block], k), append(c.values[block], v)
	out := make([]float64, len(q))
	for h := range r.heads {
		kv := h / (r.heads / r.kv) * r.head
		scores, most := make([]float64, len(c.keys[block])), math.Inf(-1)
		for i, key := range c.keys[block] {
			for j := range r.head {
				scores[i] += q[h*r.head+j] * key[kv+j]
			}
			scores[i] /= math.Sqrt(float64(r.head))
			most = max(most, scores[i])
		}
		var all float64
		for i := range scores {
			scores[i] = math.Exp(scores[i] - most)
			all += scores[i]
		}
		for i, value := range c.values[block] {
			for j := range r.head {
				out[h*r.head+j] += scores[i] / all * value[kv+j]
			}
		}
	}
	return out
}

// block returns x after a block. projections are q, k and v.
func (r *reference) block(c *cache, i, position int, x []float64, project func(name string) []float64) []float64 {
	name := fmt.Sprintf("blk.%d.", i)
	out := r.attend(c, i, position, project("attn_q"), project("attn_k"), project("attn_v"))
	x = sum(x, r.linear(name+"attn_output", out))
	n := r.norm(name+"ffn_norm.weight", x)
	gate, up := r.linear(name+"ffn_gate", n), r.linear(name+"ffn_up", n)
	for j := range gate {
		gate[j] = silu(gate[j]) * up[j]
	}
	return sum(x, r.linear(name+"ffn_down", gate))
}

// row returns x after all blocks, and the states after each of them.
func (r *reference) row(c *cache, position int, x []float64) (states [][]float64) {
	for i := range r.blocks {
		name := fmt.Sprintf("blk.%d.", i)
		n := r.norm(name+"attn_norm.weight", x)
		x = r.block(c, i, position, x, func(p string) []float64 { return r.linear(name+p, n) })
		states = append(states, x)
	}
	return states
}

// target is a target's reference.
type targetReference struct{ *reference }

func (r targetReference) embedding(token int) []float64 {
	return r.values["token_embd.weight"][token*r.width : (token+1)*r.width]
}

func (r targetReference) output(state []float64) []float64 {
	if _, ok := r.values["output.weight"]; ok {
		return r.mul("output.weight", state)
	}
	return r.mul("token_embd.weight", state)
}

// tap returns a state of those after the blocks.
func (r targetReference) tap(states [][]float64, tap int) []float64 {
	if tap == side.LastNorm {
		return r.norm("output_norm.weight", states[len(states)-1])
	}
	return states[tap-1]
}

// states returns the states after each block of each token.
func (r targetReference) states(tokens []int) (all [][][]float64) {
	c := newCache()
	for i, token := range tokens {
		all = append(all, r.row(c, i, r.embedding(token)))
	}
	return all
}

// guesses returns the logits of each head of a medusa file for a state.
func (r targetReference) guesses(m *reference, s *side.Spec, state []float64) (all [][]float64) {
	for k := range s.Levels {
		z := state
		for b := range s.Blocks {
			inner := m.linear(fmt.Sprintf("medusa.%d.%d", k, b), z)
			for i := range inner {
				inner[i] = silu(inner[i])
			}
			z = sum(z, inner)
		}
		if own := fmt.Sprintf("medusa.%d.output.weight", k); m.values[own] != nil {
			all = append(all, m.mul(own, z))
		} else {
			all = append(all, r.output(z))
		}
	}
	return all
}

// prompts returns the logits of each prompt token after the tokens, the mean over the members.
func (r targetReference) prompts(p *reference, s *side.Spec, tokens []int) [][]float64 {
	all := make([][]float64, s.Levels)
	for j := range s.Members {
		c := newCache()
		for i, token := range tokens {
			r.row(c, i, r.embedding(token))
		}
		for i := range s.Levels {
			x := p.values["ppd.embd.weight"][(j*s.Levels+i)*s.Dim:][:s.Dim]
			logits := r.output(r.tap(r.row(c, len(tokens)+i, x), side.LastNorm))
			for v := range logits {
				logits[v] /= float64(s.Members)
			}
			all[i] = sum(logits, all[i])
		}
	}
	return all
}

// fuse returns a draft's input of the target's states, or of the draft's own output, and the embedding.
func fuse(d *reference, s *side.Spec, h, e []float64) []float64 {
	if s.Kind == side.Eagle {
		return sum(sum(d.mul("fc.embd.weight", e), d.mul("fc.hidden.weight", h)), d.values["fc.bias"])
	}
	h1, h2 := d.linear("fuse.hidden", h), d.linear("fuse.embd", e)
	gate := sum(sum(d.mul("fuse.gate.hidden.weight", h1), d.mul("fuse.gate.embd.weight", h2)), d.values["fuse.gate.bias"])
	x := make([]float64, len(h1))
	for i, g := range gate {
		g = 1 / (1 + math.Exp(-g))
		x[i] = g*h1[i] + (1-g)*h2[i]
	}
	return x
}

// drafts returns what a draft gives for the tokens from position 1 on: its states and its logits. The first fed rows get the target's
// states of the position before, the others the draft's own.
func (r targetReference) drafts(d *reference, s *side.Spec, tokens []int, fed int) (states, logits [][]float64) {
	seen, c := r.states(tokens), newCache()
	var own []float64
	for i, token := range tokens[1:] {
		taps := make([][]float64, len(s.Taps))
		for j, tap := range s.Taps {
			taps[j] = r.tap(seen[i], tap)
		}
		if s.Kind == side.Eagle3 {
			own = r.eagle3(d, c, i+1, taps, own, i < fed, token)
			states = append(states, own)
			logits = append(logits, r.draftOutput(d, s, d.norm("output_norm.weight", own)))
			continue
		}
		h := own
		if i < fed {
			h = nil
			for j, tap := range taps {
				if name := fmt.Sprintf("taps.%d.weight", j); d.values[name] != nil {
					tap = d.mul(name, tap)
				}
				h = sum(tap, h)
			}
		}
		after := d.row(c, i+1, fuse(d, s, h, r.embedding(token)))
		own = d.norm("output_norm.weight", after[len(after)-1])
		states, logits = append(states, own), append(logits, r.draftOutput(d, s, own))
	}
	return states, logits
}

// draftOutput returns the logits of the tokens that a draft knows.
func (r targetReference) draftOutput(d *reference, s *side.Spec, state []float64) []float64 {
	if d.values["output.weight"] != nil {
		return d.mul("output.weight", state)
	}
	all := r.output(state)
	if s.Draft.IDs == nil {
		return all
	}
	known := make([]float64, len(s.Draft.IDs))
	for i, id := range s.Draft.IDs {
		known[i] = all[id]
	}
	return known
}

// eagle3 returns the state of a row of an EAGLE-3 draft.
func (r targetReference) eagle3(d *reference, c *cache, position int, taps [][]float64, own []float64, fed bool, token int) []float64 {
	h := own
	if fed {
		h = nil
		for i, tap := range taps {
			h = sum(d.mul(fmt.Sprintf("fc.%d.weight", i), tap), h)
		}
	}
	e := r.embedding(token)
	if own, ok := d.values["token_embd.weight"]; ok {
		e = own[token*d.width : (token+1)*d.width]
	}
	en, hn := d.norm("blk.0.attn_norm.weight", e), d.norm("blk.0.hidden_norm.weight", h)
	return d.block(c, 0, position, h, func(p string) []float64 {
		return sum(sum(d.mul("blk.0."+p+".embd.weight", en), d.mul("blk.0."+p+".hidden.weight", hn)), d.values["blk.0."+p+".bias"])
	})
}
