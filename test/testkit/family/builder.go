package family

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// builder makes the keys and tensors of a model.
type builder struct {
	Shape
	m     *Model
	r     *rand.Rand
	draw  func() float64 // a number around 0, of deviation 1
	layer int
	sizes map[string]size // of a golden model's tensors, by kind; nil: all are as the family says

	biases, outputBias, headNorms, postNorms, fusedQKV, fusedFFN bool
	mixed, expertBiases, sinks                                   bool
	experts4                                                     bool // experts are in MXFP4
	ffnNorm                                                      string
}

// newBuilder begins a model with what all families have; the family sets further keys, or the same ones again.
func newBuilder(name, arch string, s Shape, seed uint64) *builder {
	r := rand.New(rand.NewPCG(seed, 29))
	b := &builder{Shape: s, r: r, draw: r.NormFloat64, ffnNorm: "ffn_norm",
		m: &Model{Name: fmt.Sprintf("%s-%d", name, seed), Arch: arch, w: gguf.NewWriter()}}
	b.m.w.Set("general.architecture", arch)
	b.vocabulary()
	b.key("feed_forward_length", u(s.FFN))
	return b
}

// finish makes what depends on what the family has decided.
func (b *builder) finish() {
	b.key("block_count", u(b.Layers))
	b.key("context_length", u(512))
	b.key("embedding_length", u(b.Dim))
	b.key("vocab_size", u(b.m.Vocab))
	b.key("attention.layer_norm_rms_epsilon", float32(1e-5))
	b.random("token_embd.weight", gguf.F16, cmp.Or(b.sizes["token_embd"].deviation, 1), b.Dim, b.m.Vocab)
	b.vector("output_norm.weight", b.Dim, 1, 0.2)
	if !b.Tied {
		b.matrix("output.weight", b.m.Vocab, b.Dim)
	}
}

func (b *builder) key(name string, v any) { b.m.Set(name, v) }

// vocabulary makes a SentencePiece vocabulary of all bytes and some words.
func (b *builder) vocabulary() {
	tokens, types := []string{"<unk>", "<s>", "</s>"}, []int32{2, 3, 3}
	for i := range 256 {
		tokens, types = append(tokens, fmt.Sprintf("<0x%02X>", i)), append(types, 6)
	}
	tokens, types = append(tokens, "\u2581"), append(types, 1)
	scores := make([]float32, len(tokens), len(tokens)+b.Words)
	for i := range b.Words {
		word := fmt.Sprintf("%c%c", 'a'+i/26%26, 'a'+i%26)
		if i >= 26*26 {
			word += string(rune('a' + i/(26*26) - 1))
		}
		tokens, types = append(tokens, word), append(types, 1)
		scores = append(scores, -float32(i))
	}
	w := b.m.w
	w.Set("tokenizer.ggml.model", "llama")
	w.Set("tokenizer.ggml.tokens", tokens)
	w.Set("tokenizer.ggml.scores", scores)
	w.Set("tokenizer.ggml.token_type", types)
	w.Set("tokenizer.ggml.bos_token_id", uint32(1))
	w.Set("tokenizer.ggml.eos_token_id", uint32(2))
	w.Set("tokenizer.ggml.unknown_token_id", uint32(0))
	b.m.Vocab = len(tokens)
}

// matrix makes an f16 matrix that keeps the size of what it multiplies.
func (b *builder) matrix(name string, rows, cols int) {
	b.random(name, gguf.F16, b.gain(name)/math.Sqrt(float64(cols)), cols, rows)
}

// gain returns by how much a matrix of random numbers makes larger what it multiplies.
func (b *builder) gain(name string) float64 {
	if b.sizes == nil {
		return 1.5
	}
	return cmp.Or(b.sizes[kind(name)].gain, 1)
}

// stack makes the matrices of n experts or heads.
func (b *builder) stack(name string, n, rows, cols int) {
	if b.experts4 {
		b.mxfp4(name, cols, rows, n)
		return
	}
	b.random(name, gguf.F16, b.gain(name)/math.Sqrt(float64(cols)), cols, rows, n)
}

// router makes the matrix that chooses experts: f32, as in published files.
func (b *builder) router(rows, cols int) {
	b.random(b.at("ffn_gate_inp.weight"), gguf.F32, b.gain("ffn_gate_inp.weight")/math.Sqrt(float64(cols)), cols, rows)
}

// random makes a tensor with numbers around 0.
func (b *builder) random(name string, typ gguf.Type, deviation float64, shape ...int) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	elems, bytes := typ.Block()
	data := make([]byte, 0, n/elems*bytes)
	for range n {
		v := float32(deviation * b.draw())
		if typ == gguf.F16 {
			data = binary.LittleEndian.AppendUint16(data, half.From(v))
		} else {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
	}
	b.m.Tensors = append(b.m.Tensors, Tensor{name, typ, shape, data})
}

// mxfp4 makes blocks with exponents around that of 1/√cols.
func (b *builder) mxfp4(name string, shape ...int) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	data := make([]byte, n/32*17)
	small := int(math.Log2(math.Sqrt(float64(shape[0])))) - int(math.Round(math.Log2(b.gain(name)/1.5)))
	for i := range data {
		if data[i] = byte(b.r.Uint32()); i%17 == 0 {
			data[i] = byte(127 - small - b.r.IntN(3))
		}
	}
	b.m.Tensors = append(b.m.Tensors, Tensor{name, gguf.MXFP4, shape, data})
}

// vector makes an f32 tensor of n numbers, or of n for each of some experts or channels.
func (b *builder) vector(name string, n int, mean, deviation float64, each ...int) *Tensor {
	if s, ok := b.sizes[kind(name)]; ok {
		mean, deviation = s.mean, s.deviation
	}
	b.random(name, gguf.F32, deviation, append([]int{n}, each...)...)
	x := &b.m.Tensors[len(b.m.Tensors)-1]
	for i := 0; i < len(x.Data); i += 4 {
		v := math.Float32frombits(binary.LittleEndian.Uint32(x.Data[i:]))
		x.set(i/4, v+float32(mean))
	}
	return x
}

// set sets a number of an f32 tensor.
func (x *Tensor) set(i int, v float32) {
	binary.LittleEndian.PutUint32(x.Data[4*i:], math.Float32bits(v))
}
