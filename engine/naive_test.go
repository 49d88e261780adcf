package engine

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// naive is a tiny model with random weights, computed by the published formulas of its architecture: nothing here is read
// back from a file or shared with the engine.
type naive struct {
	arch                  string
	dim, headDim, ropeDim int
	heads, kv, ffn        []int // per layer
	context               int
	keys                  map[string]any // further keys of the file, without the architecture's name
	fused, tied           bool           // layout of the file
	biases                string         // which of "qkvogud" have a bias
	halves, gelu          bool
	headNorms, postNorms  bool
	embedScale            float64                    // 0: 1, as of the next two
	residualScale         float64                    // of the outputs of attention and feed-forward
	logitDivisor          float64                    // logits are divided by it
	attnScale             float64                    // 0: 1/√headDim
	attnCap, finalCap     float64                    // 0: none
	window                func(layer int) int        // nil: none
	unturned              func(layer int) bool       // has no RoPE; nil: none
	angle                 func(layer, i int) float64 // of pair i, per position; nil: 10000^(-2i/ropeDim)
	temperature           func(pos int) float64      // factor of queries; nil: none
	magnitude             float64                    // 0: 1
	factors               map[string][]float64       // rope factor tensors
	eps                   float64                    // of norms; 0: 1e-5
	floats                bool                       // keys and values are not rounded to halves
	mix                   naiveMixture               // in place of feed-forward blocks
	latent                naiveLatent                // attention of its kind
	delta                 naiveDelta                 // recurrent layers
	sinks                 bool                       // of attention
	ffnNorm               string                     // name of the norm before the feed-forward block; "": ffn_norm
	weights               map[string][]float64       // by tensor name; row-major
	shapes                map[string][2]int          // rows (outputs; 1 for a vector), columns
}

const naiveVocab = 260

func (n *naive) layers() int { return len(n.heads) }

// generate draws the weights; every matrix keeps the size of what it multiplies.
func (n *naive) generate(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 11))
	n.weights, n.shapes = map[string][]float64{}, map[string][2]int{}
	add := func(name string, rows, cols int, mean, deviation float64) {
		w := make([]float64, rows*cols)
		for i := range w {
			w[i] = float64(float32(mean + deviation*r.NormFloat64()))
		}
		n.weights[name], n.shapes[name] = w, [2]int{rows, cols}
	}
	matrix := func(name string, rows, cols int) { add(name+".weight", rows, cols, 0, 1.5/math.Sqrt(float64(cols))) }
	norm := func(name string, size int) { add(name+".weight", 1, size, 1, 0.2) }
	add("token_embd.weight", naiveVocab, n.dim, 0, 1)
	norm("output_norm", n.dim)
	if !n.tied {
		matrix("output", naiveVocab, n.dim)
	}
	for i := range n.heads {
		at := fmt.Sprintf("blk.%d.", i)
		q, kv := n.heads[i]*n.headDim, n.kv[i]*n.headDim
		for _, m := range []struct {
			letter, name string
			rows, cols   int
		}{{"q", "attn_q", q, n.dim}, {"k", "attn_k", kv, n.dim}, {"v", "attn_v", kv, n.dim}, {"o", "attn_output", n.dim, q},
			{"g", "ffn_gate", n.ffn[i], n.dim}, {"u", "ffn_up", n.ffn[i], n.dim}, {"d", "ffn_down", n.dim, n.ffn[i]}} {
			if n.latent.rank > 0 && strings.HasPrefix(m.name, "attn") {
				continue
			}
			if n.mix.at(i) && strings.HasPrefix(m.name, "ffn") {
				m.name, m.rows = m.name+"_exps", n.mix.count*m.rows
			}
			matrix(at+m.name, m.rows, m.cols)
			for _, b := range n.biases {
				if string(b) == m.letter {
					add(at+m.name+".bias", 1, m.rows, 0, 0.5)
				}
			}
		}
		if n.mix.at(i) {
			n.mix.generate(at, n, add)
		}
		if n.latent.rank > 0 {
			n.latent.generate(at, n, n.heads[i], matrix, norm)
		}
		if n.sinks {
			add(at+"attn_sinks.weight", 1, n.heads[i], 0, 1)
		}
		norm(at+"attn_norm", n.dim)
		norm(at+cmp.Or(n.ffnNorm, "ffn_norm"), n.dim)
		if n.headNorms {
			norm(at+"attn_q_norm", n.headDim)
			norm(at+"attn_k_norm", n.headDim)
		}
		if n.postNorms {
			norm(at+"post_attention_norm", n.dim)
			norm(at+"post_ffw_norm", n.dim)
		}
	}
}

// write writes the model as an F32 file into dir.
func (n *naive) write(t testing.TB, dir string) string {
	w := gguf.NewWriter()
	w.Set("general.architecture", n.arch)
	key := func(name string, v any) { w.Set(n.arch+"."+name, v) }
	key("block_count", uint32(n.layers()))
	key("context_length", uint32(n.context))
	key("embedding_length", uint32(n.dim))
	key("attention.key_length", uint32(n.headDim))
	key("attention.value_length", uint32(n.headDim))
	key("rope.dimension_count", uint32(n.ropeDim))
	key("attention.layer_norm_rms_epsilon", float32(1e-5))
	for name, counts := range map[string][]int{"attention.head_count": n.heads, "attention.head_count_kv": n.kv,
		"feed_forward_length": n.ffn} {
		each, same := make([]uint32, len(counts)), true
		for i, c := range counts {
			each[i] = uint32(c)
			same = same && c == counts[0]
		}
		if key(name, each[0]); !same {
			key(name, each)
		}
	}
	for name, v := range n.keys {
		key(name, v)
	}
	writeVocab(w)
	done := map[string]bool{}
	stack := func(into string, parts ...string) {
		var data []float64
		for _, p := range parts {
			data = append(data, n.weights[p]...)
			done[p] = true
		}
		shape := []int{len(data)}
		if cols := n.shapes[parts[0]][1]; strings.HasSuffix(into, ".weight") {
			shape = []int{cols, len(data) / cols}
		}
		w.Tensor(into, gguf.Type(kernels.F32), shape, bytesOfFloats(data))
	}
	for i := 0; n.fused && i < n.layers(); i++ {
		at := fmt.Sprintf("blk.%d.", i)
		for _, of := range []string{".weight", ".bias"} {
			if n.weights[at+"attn_q"+of] != nil {
				stack(at+"attn_qkv"+of, at+"attn_q"+of, at+"attn_k"+of, at+"attn_v"+of)
			}
			if n.weights[at+"ffn_up"+of] != nil {
				stack(at+"ffn_up"+of, at+"ffn_gate"+of, at+"ffn_up"+of)
			}
		}
	}
	for name, data := range n.weights {
		if n.mix.write(w, name, data, n.shapes[name][1]) || n.latent.write(w, name, data, n.shapes[name][1], n.heads[0]) {
			continue
		}
		if s := n.shapes[name]; !done[name] && s[0] == 1 {
			w.Tensor(name, gguf.Type(kernels.F32), []int{s[1]}, bytesOfFloats(data))
		} else if !done[name] {
			w.Tensor(name, gguf.Type(kernels.F32), []int{s[1], s[0]}, bytesOfFloats(data))
		}
	}
	for name, f := range n.factors {
		w.Tensor(name, gguf.Type(kernels.F32), []int{len(f)}, bytesOfFloats(f))
	}
	path := filepath.Join(dir, n.arch+".gguf")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := w.WriteTo(f); err != nil {
		t.Fatal(err)
	}
	return path
}

func writeVocab(w *gguf.Writer) {
	tokens, types := []string{"<unk>", "<s>", "</s>"}, []int32{2, 3, 3}
	for i := range 256 {
		tokens, types = append(tokens, fmt.Sprintf("<0x%02X>", i)), append(types, 6)
	}
	tokens, types = append(tokens, "\u2581"), append(types, 1)
	w.Set("tokenizer.ggml.model", "llama")
	w.Set("tokenizer.ggml.tokens", tokens)
	w.Set("tokenizer.ggml.scores", make([]float32, len(tokens)))
	w.Set("tokenizer.ggml.token_type", types)
	w.Set("tokenizer.ggml.bos_token_id", uint32(1))
	w.Set("tokenizer.ggml.eos_token_id", uint32(2))
	w.Set("tokenizer.ggml.unknown_token_id", uint32(0))
}

func bytesOfFloats(v []float64) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
	}
	return b
}

// mul returns the named matrix times x, plus its bias.
func (n *naive) mul(name string, x []float64) []float64 {
	w, cols := n.weights[name+".weight"], n.shapes[name+".weight"][1]
	out := make([]float64, len(w)/cols)
	for i := range out {
		for j, v := range x {
			out[i] += w[i*cols+j] * v
		}
		if b := n.weights[name+".bias"]; b != nil {
			out[i] += b[i]
		}
	}
	return out
}

func (n *naive) norm(name string, x []float64) []float64 {
	mean := 0.0
	for _, v := range x {
		mean += v * v / float64(len(x))
	}
	eps := n.eps
	if eps == 0 {
		eps = 1e-5
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v / math.Sqrt(mean+eps) * n.weights[name+".weight"][i]
	}
	return out
}

// turn rotates pair i of each head, (x, y), by position·angle: x·cos - y·sin, x·sin + y·cos.
func (n *naive) turn(x []float64, layer, pos int) {
	for h := 0; h < len(x); h += n.headDim {
		for i := range n.ropeDim / 2 {
			a := math.Pow(10000, -2*float64(i)/float64(n.ropeDim))
			if n.angle != nil {
				a = n.angle(layer, i)
			}
			at, other := h+2*i, h+2*i+1
			if n.halves {
				at, other = h+i, h+i+n.ropeDim/2
			}
			m := orOne(n.magnitude)
			cos, sin := m*math.Cos(float64(pos)*a), m*math.Sin(float64(pos)*a)
			x[at], x[other] = x[at]*cos-x[other]*sin, x[at]*sin+x[other]*cos
		}
	}
}

// half rounds to an IEEE half, as the cache of the engine does: nearest multiple of 2^(exponent-10).
func (n *naive) half(v []float64) []float64 {
	for i, x := range v {
		if n.floats {
			break
		}
		_, e := math.Frexp(x)
		unit := math.Ldexp(1, max(e-11, -24))
		v[i] = math.RoundToEven(x/unit) * unit
	}
	return v
}

func softCap(x, limit float64) float64 {
	if limit == 0 {
		return x
	}
	return limit * math.Tanh(x/limit)
}

// forward returns the logits after each of the tokens.
func (n *naive) forward(tokens []tandem.Token) [][]float64 {
	keys, values := make([][][]float64, n.layers()), make([][][]float64, n.layers())
	var logits [][]float64
	for pos, token := range tokens {
		x := append([]float64(nil), n.weights["token_embd.weight"][int(token)*n.dim:][:n.dim]...)
		for i := range x {
			x[i] *= orOne(n.embedScale)
		}
		for l := range n.heads {
			at := fmt.Sprintf("blk.%d.", l)
			y := n.norm(at+"attn_norm", x)
			switch {
			case n.latent.rank > 0:
				n.residual(x, n.attendLatent(at, l, pos, y, &keys[l], &values[l]), "")
			case n.delta.at(l):
				n.residual(x, n.deltaNet(at, y, &keys[l], &values[l]), "")
			default:
				n.attention(at, l, pos, x, y, &keys[l], &values[l])
			}
			y = n.norm(at+cmp.Or(n.ffnNorm, "ffn_norm"), x)
			if n.mix.at(l) {
				n.residual(x, n.mixture(at, y), at+"post_ffw_norm")
				continue
			}
			gate, up := n.mul(at+"ffn_gate", y), n.mul(at+"ffn_up", y)
			n.gated(gate, up)
			n.residual(x, n.mul(at+"ffn_down", up), at+"post_ffw_norm")
		}
		head := "output"
		if n.tied {
			head = "token_embd"
		}
		out := n.mul(head, n.norm("output_norm", x))
		for i := range out {
			out[i] = softCap(out[i]/orOne(n.logitDivisor), n.finalCap)
		}
		logits = append(logits, out)
	}
	return logits
}

// attention adds to x the attention of the last position, whose normed state is y.
func (n *naive) attention(at string, l, pos int, x, y []float64, keys, values *[][]float64) {
	q, k, v := n.mul(at+"attn_q", y), n.mul(at+"attn_k", y), n.mul(at+"attn_v", y)
	var gates []float64
	if n.delta.every > 0 {
		q, gates = n.withoutGates(q)
	}
	if n.headNorms {
		for h := 0; h < len(q); h += n.headDim {
			copy(q[h:], n.norm(at+"attn_q_norm", q[h:h+n.headDim]))
		}
		for h := 0; h < len(k); h += n.headDim {
			copy(k[h:], n.norm(at+"attn_k_norm", k[h:h+n.headDim]))
		}
	}
	if n.unturned == nil || !n.unturned(l) {
		n.turn(q, l, pos)
		n.turn(k, l, pos)
	}
	for i := range q {
		if n.temperature != nil {
			q[i] *= n.temperature(pos)
		}
	}
	*keys, *values = append(*keys, n.half(k)), append(*values, n.half(v))
	out := n.attend(q, *keys, *values, l)
	for i, g := range gates {
		out[i] /= 1 + math.Exp(-g)
	}
	n.residual(x, n.mul(at+"attn_output", out), at+"post_attention_norm")
}

// gated multiplies up by the gate's curve.
func (n *naive) gated(gate, up []float64) {
	for i, g := range gate {
		switch {
		case n.gelu:
			up[i] *= 0.5 * g * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g+0.044715*g*g*g)))
		case n.mix.clamped:
			g = math.Min(g, 7)
			up[i] = g / (1 + math.Exp(-1.702*g)) * (math.Max(-7, math.Min(up[i], 7)) + 1)
		default:
			up[i] *= g / (1 + math.Exp(-g))
		}
	}
}

func (n *naive) residual(x, y []float64, post string) {
	if n.postNorms {
		y = n.norm(post, y)
	}
	for i := range x {
		x[i] += orOne(n.residualScale) * y[i]
	}
}

// orOne returns x, or 1 for 0.
func orOne(x float64) float64 {
	if x == 0 {
		return 1
	}
	return x
}

// attend returns the attention of the last position's heads.
func (n *naive) attend(q []float64, keys, values [][]float64, l int) []float64 {
	first := 0
	if n.window != nil && n.window(l) > 0 {
		first = max(0, len(keys)-n.window(l))
	}
	scale := n.attnScale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(n.headDim))
	}
	out := make([]float64, len(q))
	for h := range n.heads[l] {
		from := h / (n.heads[l] / n.kv[l]) * n.headDim // of the key-value head
		var weights []float64
		sum := 0.0
		if n.sinks {
			sum = math.Exp(n.weights[fmt.Sprintf("blk.%d.attn_sinks.weight", l)][h])
		}
		for _, k := range keys[first:] {
			s := 0.0
			for d := range n.headDim {
				s += q[h*n.headDim+d] * k[from+d]
			}
			w := math.Exp(softCap(s*scale, n.attnCap))
			weights, sum = append(weights, w), sum+w
		}
		for j, w := range weights {
			for d := range n.headDim {
				out[h*n.headDim+d] += w / sum * values[first+j][from+d]
			}
		}
	}
	return out
}
