// Package naive computes tiny models with random weights by the published formulas of their architectures, in float64: what tests compare
// passes with. Nothing here is shared with the engine. Only tests import it.
package naive

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

// Model is a tiny model of an architecture. Generate draws its weights, Write writes it as a file, Forward computes logits.
type Model struct {
	Arch                  string
	Dim, HeadDim, RopeDim int
	heads, kv, FFN        []int // per layer
	Context               int
	Keys                  map[string]any // further keys of the file, without the architecture's name
	Fused, tied           bool           // layout of the file
	biases                string         // which of "qkvogud" have a bias
	Halves, GELU          bool
	HeadNorms, PostNorms  bool
	EmbedScale            float64                    // 0: 1, as of the next two
	ResidualScale         float64                    // of the outputs of attention and feed-forward
	LogitDivisor          float64                    // logits are divided by it
	AttnScale             float64                    // 0: 1/√headDim
	AttnCap, FinalCap     float64                    // 0: none
	Window                func(layer int) int        // nil: none
	Unturned              func(layer int) bool       // has no RoPE; nil: none
	Angle                 func(layer, i int) float64 // of pair i, per position; nil: 10000^(-2i/ropeDim)
	Temperature           func(pos int) float64      // factor of queries; nil: none
	Magnitude             float64                    // 0: 1
	Factors               map[string][]float64       // rope factor tensors
	eps                   float64                    // of norms; 0: 1e-5
	Floats                bool                       // keys and values are not rounded to halves
	Mix                   Mixture                    // in place of feed-forward blocks
	Latent                Latent                     // attention of its kind
	delta                 Delta                      // recurrent layers
	Sinks                 bool                       // of attention
	FFNNorm               string                     // name of the norm before the feed-forward block; "": ffn_norm
	Weights               map[string][]float64       // by tensor name; row-major
	Shapes                map[string][2]int          // rows (outputs; 1 for a vector), columns
}

const naiveVocab = 260

func (n *Model) Layers() int { return len(n.heads) }

// Generate draws the weights; every matrix keeps the size of what it multiplies.
func (n *Model) Generate(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 11))
	n.Weights, n.Shapes = map[string][]float64{}, map[string][2]int{}
	add := func(name string, rows, cols int, mean, deviation float64) {
		w := make([]float64, rows*cols)
		for i := range w {
			w[i] = float64(float32(mean + deviation*r.NormFloat64()))
		}
		n.Weights[name], n.Shapes[name] = w, [2]int{rows, cols}
	}
	matrix := func(name string, rows, cols int) { add(name+".weight", rows, cols, 0, 1.5/math.Sqrt(float64(cols))) }
	norm := func(name string, size int) { add(name+".weight", 1, size, 1, 0.2) }
	add("token_embd.weight", naiveVocab, n.Dim, 0, 1)
	norm("output_norm", n.Dim)
	if !n.tied {
		matrix("output", naiveVocab, n.Dim)
	}
	for i := range n.heads {
		at := fmt.Sprintf("blk.%d.", i)
		q, kv := n.heads[i]*n.HeadDim, n.kv[i]*n.HeadDim
		for _, m := range []struct {
			letter, name string
			rows, cols   int
		}{{"q", "attn_q", q, n.Dim}, {"k", "attn_k", kv, n.Dim}, {"v", "attn_v", kv, n.Dim}, {"o", "attn_output", n.Dim, q},
			{"g", "ffn_gate", n.FFN[i], n.Dim}, {"u", "ffn_up", n.FFN[i], n.Dim}, {"d", "ffn_down", n.Dim, n.FFN[i]}} {
			if n.Latent.Rank > 0 && strings.HasPrefix(m.name, "attn") {
				continue
			}
			if n.Mix.at(i) && strings.HasPrefix(m.name, "ffn") {
				m.name, m.rows = m.name+"_exps", n.Mix.Count*m.rows
			}
			matrix(at+m.name, m.rows, m.cols)
			for _, b := range n.biases {
				if string(b) == m.letter {
					add(at+m.name+".bias", 1, m.rows, 0, 0.5)
				}
			}
		}
		if n.Mix.at(i) {
			n.Mix.generate(at, n, add)
		}
		if n.Latent.Rank > 0 {
			n.Latent.generate(at, n, n.heads[i], matrix, norm)
		}
		if n.Sinks {
			add(at+"attn_sinks.weight", 1, n.heads[i], 0, 1)
		}
		norm(at+"attn_norm", n.Dim)
		norm(at+cmp.Or(n.FFNNorm, "ffn_norm"), n.Dim)
		if n.HeadNorms {
			norm(at+"attn_q_norm", n.HeadDim)
			norm(at+"attn_k_norm", n.HeadDim)
		}
		if n.PostNorms {
			norm(at+"post_attention_norm", n.Dim)
			norm(at+"post_ffw_norm", n.Dim)
		}
	}
}

// Write writes the model as an F32 file into dir.
func (n *Model) Write(t testing.TB, dir string) string {
	w := gguf.NewWriter()
	w.Set("general.architecture", n.Arch)
	key := func(name string, v any) { w.Set(n.Arch+"."+name, v) }
	key("block_count", uint32(n.Layers()))
	key("context_length", uint32(n.Context))
	key("embedding_length", uint32(n.Dim))
	key("attention.key_length", uint32(n.HeadDim))
	key("attention.value_length", uint32(n.HeadDim))
	key("rope.dimension_count", uint32(n.RopeDim))
	key("attention.layer_norm_rms_epsilon", float32(1e-5))
	for name, counts := range map[string][]int{"attention.head_count": n.heads, "attention.head_count_kv": n.kv,
		"feed_forward_length": n.FFN} {
		each, same := make([]uint32, len(counts)), true
		for i, c := range counts {
			each[i] = uint32(c)
			same = same && c == counts[0]
		}
		if key(name, each[0]); !same {
			key(name, each)
		}
	}
	for name, v := range n.Keys {
		key(name, v)
	}
	writeVocab(w)
	n.writeTensors(w)
	path := filepath.Join(dir, n.Arch+".gguf")
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

func (n *Model) writeTensors(w *gguf.Writer) {
	done := map[string]bool{}
	stack := func(into string, parts ...string) {
		var data []float64
		for _, p := range parts {
			data = append(data, n.Weights[p]...)
			done[p] = true
		}
		shape := []int{len(data)}
		if cols := n.Shapes[parts[0]][1]; strings.HasSuffix(into, ".weight") {
			shape = []int{cols, len(data) / cols}
		}
		w.Tensor(into, gguf.Type(kernels.F32), shape, BytesOfFloats(data))
	}
	for i := 0; n.Fused && i < n.Layers(); i++ {
		at := fmt.Sprintf("blk.%d.", i)
		for _, of := range []string{".weight", ".bias"} {
			if n.Weights[at+"attn_q"+of] != nil {
				stack(at+"attn_qkv"+of, at+"attn_q"+of, at+"attn_k"+of, at+"attn_v"+of)
			}
			if n.Weights[at+"ffn_up"+of] != nil {
				stack(at+"ffn_up"+of, at+"ffn_gate"+of, at+"ffn_up"+of)
			}
		}
	}
	for name, data := range n.Weights {
		if n.Mix.write(w, name, data, n.Shapes[name][1]) || n.Latent.write(w, name, data, n.Shapes[name][1], n.heads[0]) {
			continue
		}
		if s := n.Shapes[name]; !done[name] && s[0] == 1 {
			w.Tensor(name, gguf.Type(kernels.F32), []int{s[1]}, BytesOfFloats(data))
		} else if !done[name] {
			w.Tensor(name, gguf.Type(kernels.F32), []int{s[1], s[0]}, BytesOfFloats(data))
		}
	}
	for name, f := range n.Factors {
		w.Tensor(name, gguf.Type(kernels.F32), []int{len(f)}, BytesOfFloats(f))
	}
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

func BytesOfFloats(v []float64) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
	}
	return b
}

// mul returns the named matrix times x, plus its bias.
func (n *Model) mul(name string, x []float64) []float64 {
	w, cols := n.Weights[name+".weight"], n.Shapes[name+".weight"][1]
	out := make([]float64, len(w)/cols)
	for i := range out {
		for j, v := range x {
			out[i] += w[i*cols+j] * v
		}
		if b := n.Weights[name+".bias"]; b != nil {
			out[i] += b[i]
		}
	}
	return out
}

func (n *Model) norm(name string, x []float64) []float64 {
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
		out[i] = v / math.Sqrt(mean+eps) * n.Weights[name+".weight"][i]
	}
	return out
}

// turn rotates pair i of each head, (x, y), by position·angle: x·cos - y·sin, x·sin + y·cos.
func (n *Model) turn(x []float64, layer, pos int) {
	for h := 0; h < len(x); h += n.HeadDim {
		for i := range n.RopeDim / 2 {
			a := math.Pow(10000, -2*float64(i)/float64(n.RopeDim))
			if n.Angle != nil {
				a = n.Angle(layer, i)
			}
			at, other := h+2*i, h+2*i+1
			if n.Halves {
				at, other = h+i, h+i+n.RopeDim/2
			}
			m := orOne(n.Magnitude)
			cos, sin := m*math.Cos(float64(pos)*a), m*math.Sin(float64(pos)*a)
			x[at], x[other] = x[at]*cos-x[other]*sin, x[at]*sin+x[other]*cos
		}
	}
}

// half rounds to an IEEE half, as the cache of the engine does: nearest multiple of 2^(exponent-10).
func (n *Model) half(v []float64) []float64 {
	for i, x := range v {
		if n.Floats {
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

// Forward returns the logits after each of the tokens.
func (n *Model) Forward(tokens []tandem.Token) [][]float64 {
	keys, values := make([][][]float64, n.Layers()), make([][][]float64, n.Layers())
	var logits [][]float64
	for pos, token := range tokens {
		x := append([]float64(nil), n.Weights["token_embd.weight"][int(token)*n.Dim:][:n.Dim]...)
		for i := range x {
			x[i] *= orOne(n.EmbedScale)
		}
		for l := range n.heads {
			at := fmt.Sprintf("blk.%d.", l)
			y := n.norm(at+"attn_norm", x)
			switch {
			case n.Latent.Rank > 0:
				n.residual(x, n.attendLatent(at, l, pos, y, &keys[l], &values[l]), "")
			case n.delta.at(l):
				n.residual(x, n.deltaNet(at, y, &keys[l], &values[l]), "")
			default:
				n.attention(at, l, pos, x, y, &keys[l], &values[l])
			}
			y = n.norm(at+cmp.Or(n.FFNNorm, "ffn_norm"), x)
			if n.Mix.at(l) {
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
			out[i] = softCap(out[i]/orOne(n.LogitDivisor), n.FinalCap)
		}
		logits = append(logits, out)
	}
	return logits
}

// attention adds to x the attention of the last position, whose normed state is y.
func (n *Model) attention(at string, l, pos int, x, y []float64, keys, values *[][]float64) {
	q, k, v := n.mul(at+"attn_q", y), n.mul(at+"attn_k", y), n.mul(at+"attn_v", y)
	var gates []float64
	if n.delta.every > 0 {
		q, gates = n.withoutGates(q)
	}
	if n.HeadNorms {
		for h := 0; h < len(q); h += n.HeadDim {
			copy(q[h:], n.norm(at+"attn_q_norm", q[h:h+n.HeadDim]))
		}
		for h := 0; h < len(k); h += n.HeadDim {
			copy(k[h:], n.norm(at+"attn_k_norm", k[h:h+n.HeadDim]))
		}
	}
	if n.Unturned == nil || !n.Unturned(l) {
		n.turn(q, l, pos)
		n.turn(k, l, pos)
	}
	for i := range q {
		if n.Temperature != nil {
			q[i] *= n.Temperature(pos)
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
func (n *Model) gated(gate, up []float64) {
	for i, g := range gate {
		switch {
		case n.GELU:
			up[i] *= 0.5 * g * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g+0.044715*g*g*g)))
		case n.Mix.clamped:
			g = math.Min(g, 7)
			up[i] = g / (1 + math.Exp(-1.702*g)) * (math.Max(-7, math.Min(up[i], 7)) + 1)
		default:
			up[i] *= g / (1 + math.Exp(-g))
		}
	}
}

func (n *Model) residual(x, y []float64, post string) {
	if n.PostNorms {
		y = n.norm(post, y)
	}
	for i := range x {
		x[i] += orOne(n.ResidualScale) * y[i]
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
func (n *Model) attend(q []float64, keys, values [][]float64, l int) []float64 {
	first := 0
	if n.Window != nil && n.Window(l) > 0 {
		first = max(0, len(keys)-n.Window(l))
	}
	scale := n.AttnScale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(n.HeadDim))
	}
	out := make([]float64, len(q))
	for h := range n.heads[l] {
		from := h / (n.heads[l] / n.kv[l]) * n.HeadDim // of the key-value head
		var weights []float64
		sum := 0.0
		if n.Sinks {
			sum = math.Exp(n.Weights[fmt.Sprintf("blk.%d.attn_sinks.weight", l)][h])
		}
		for _, k := range keys[first:] {
			s := 0.0
			for d := range n.HeadDim {
				s += q[h*n.HeadDim+d] * k[from+d]
			}
			w := math.Exp(softCap(s*scale, n.AttnCap))
			weights, sum = append(weights, w), sum+w
		}
		for j, w := range weights {
			for d := range n.HeadDim {
				out[h*n.HeadDim+d] += w / sum * values[first+j][from+d]
			}
		}
	}
	return out
}
