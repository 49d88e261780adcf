package convert

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Scheme says which model Random makes.
type Scheme struct {
	Like    string // see Shapes
	Layers  int    // as many of the model's; 0: all
	Type    string // of the weights, see RandomTypes; "": q4_0, or as the model was published
	Seed    uint64
	Vocab   string // GGUF file whose vocabulary it gets; "": a made-up one of the model's size
	Context int    // context length to declare; 0: the model's
}

// mxfp4 is the format of gpt-oss: experts of 4 bits, the other matrices of 8. It is no recipe of Quantize, because it is a format in which
// models are trained.
var mxfp4 = recipe{"mxfp4", 38, gguf.MXFP4}

// RandomTypes returns the names that Random takes as a type.
func RandomTypes() []string { return append(Types(), mxfp4.name) }

// Shapes returns the names of the models whose shapes Random knows.
func Shapes() (names []string) {
	for i := range models {
		names = append(names, models[i].name)
	}
	return names
}

// Random writes a model with the shape of a published one and random weights to out, to measure what passes of such a model cost. Rows are
// made as they are written. The same call gives the same file. Numbers stay moderate: a product of inputs with mean square 1 has
// outputs with mean square 1, so logits are finite, and rows that differ choose different experts. Errors: Invalid (shape, type, layers,
// paths), Exhausted (disk), Canceled; those of the vocabulary's file.
func Random(ctx context.Context, out string, s Scheme, o Options) (*Result, error) {
	i := slices.IndexFunc(models, func(m model) bool { return m.name == s.Like })
	if i < 0 {
		return nil, tandem.Errorf(op, tandem.Invalid, "shape %q: want one of %s", s.Like, strings.Join(Shapes(), ", "))
	}
	b := &random{model: models[i], seed: s.Seed, pools: map[poolKey]*pool{}}
	if s.Layers < 0 || s.Layers > b.layers {
		return nil, tandem.Errorf(op, tandem.Invalid, "%d layers: want 1 to %d, as many as %s has, or 0 for all", s.Layers, b.layers,
			b.name)
	}
	if s.Layers > 0 {
		b.all, b.layers = b.layers, s.Layers
	} else {
		b.all = b.layers
	}
	if s.Context > 0 {
		b.context = s.Context
	}
	if err := checkOut(s.Vocab, out, o.Force); err != nil {
		return nil, err
	}
	w, err := b.vocabulary(s.Vocab)
	if err != nil {
		return nil, err
	}
	if err := b.choose(s.Type); err != nil {
		return nil, err
	}
	b.w = w
	b.list()
	return write(ctx, s.Vocab, out, w, b.tensors, o)
}

// random collects the keys and tensors of one model.
type random struct {
	model
	all     int // layers of the published model
	seed    uint64
	mix     *mix
	w       *gguf.Writer
	tensors []tensor
	pools   map[poolKey]*pool
}

func (b *random) choose(typ string) error {
	if typ == "" {
		typ = b.typ
	}
	switch strings.ToLower(typ) {
	case "":
		typ = "q4_0"
	case mxfp4.name:
		b.mix = &mix{recipe: &mxfp4, layers: b.layers, tied: b.tied}
		return nil
	}
	r, err := findRecipe(typ)
	if err != nil {
		return tandem.Errorf(op, tandem.Invalid, "type %q: want one of %s", typ, strings.Join(RandomTypes(), ", "))
	}
	b.mix = &mix{recipe: r, layers: b.layers, tied: b.tied}
	return nil
}

// typeOf returns the type of a matrix.
func (b *random) typeOf(name string, shape []int) gguf.Type {
	was := gguf.F32 // of what stays as it is in published files
	if strings.HasPrefix(name, "per_layer_model_proj") {
		was = gguf.F16
	}
	if b.mix.recipe != &mxfp4 || len(shape) == 3 && strings.HasSuffix(name, "_exps.weight") {
		return b.mix.typeOf(name, shape, was)
	}
	eight := mix{recipe: &recipes[slices.IndexFunc(recipes, func(r recipe) bool { return r.most == gguf.Q8_0 })]}
	return eight.typeOf(name, shape, was)
}

// vocabulary returns a writer with the keys of a vocabulary: that of a file, whose size the model then has, or a made-up one.
func (b *random) vocabulary(path string) (*gguf.Writer, error) {
	if path == "" {
		w := gguf.NewWriter()
		w.Set("general.architecture", b.arch)
		setVocabulary(w, b.vocab)
		return w, nil
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // KeysOf copies
	pieces, err := f.Strings("tokenizer.ggml.tokens")
	if err != nil {
		return nil, err
	}
	w := gguf.KeysOf(f)
	for _, k := range f.Keys() {
		if !strings.HasPrefix(k.Name, "tokenizer.") {
			w.DropKey(k.Name)
		}
	}
	w.Set("general.architecture", b.arch)
	b.vocab = len(pieces)
	return w, nil
}

// setVocabulary writes a SentencePiece vocabulary: three control tokens, the bytes, then pieces of one letter, two, three and more, so that
// most of a text is found in it.
func setVocabulary(w *gguf.Writer, n int) {
	const letters = "\u2581etaoinshrdlucmfwypvbgkjqxz"
	alphabet := strings.Split(letters, "")
	pieces, kinds := []string{"<unk>", "<s>", "</s>"}, []int32{2, 3, 3} // as token.Vocab numbers kinds
	for i := range 256 {
		pieces, kinds = append(pieces, fmt.Sprintf("<0x%02X>", i)), append(kinds, 6)
	}
	level := []string{""}
	for len(pieces) < n {
		var next []string
		for _, p := range level {
			for _, c := range alphabet {
				next = append(next, p+c)
			}
		}
		for _, p := range next[:min(len(next), n-len(pieces))] {
			pieces, kinds = append(pieces, p), append(kinds, 1)
		}
		level = next
	}
	scores := make([]float32, len(pieces))
	for i := range scores {
		scores[i] = -float32(i)
	}
	w.Set("tokenizer.ggml.model", "llama")
	w.Set("tokenizer.ggml.tokens", pieces)
	w.Set("tokenizer.ggml.scores", scores)
	w.Set("tokenizer.ggml.token_type", kinds)
	w.Set("tokenizer.ggml.bos_token_id", uint32(1))
	w.Set("tokenizer.ggml.eos_token_id", uint32(2))
	w.Set("tokenizer.ggml.unknown_token_id", uint32(0))
}

// set gives a key of the architecture its value.
func (b *random) set(key string, value any) {
	if n, ok := value.(int); ok {
		value = uint32(n)
	}
	if v, ok := value.(float64); ok {
		value = float32(v)
	}
	b.w.Set(b.arch+"."+key, value)
}

// list adds all keys and tensors.
func (b *random) list() {
	name := fmt.Sprintf("random %s, seed %d", b.name, b.seed)
	if b.layers != b.all {
		name = fmt.Sprintf("random %s, %d of %d layers, seed %d", b.name, b.layers, b.all, b.seed)
	}
	b.w.Set("general.name", name)
	b.set("block_count", b.layers)
	b.set("context_length", b.context)
	b.set("embedding_length", b.dim)
	b.set("feed_forward_length", b.ffn)
	b.set("vocab_size", b.vocab)
	b.set("attention.head_count", b.heads)
	b.set("attention.head_count_kv", b.kv)
	b.set("attention.layer_norm_rms_epsilon", b.eps)
	b.set("rope.freq_base", b.base)
	b.mix.keys(b.w)
	embed := []int{b.dim, b.vocab}
	if b.tied {
		b.mat("token_embd.weight", b.vocab, b.dim)
	} else {
		b.typed("token_embd.weight", b.typeOf("token_embd.weight", embed), embed, 0.25)
	}
	b.vec("output_norm.weight", b.dim, nearOne)
	if !b.tied {
		b.mat("output.weight", b.vocab, b.dim)
	}
	b.build(b)
}

// at prefixes the name of a layer's tensor; layer -1 is none.
func at(layer int, name string) string {
	if layer < 0 {
		return name
	}
	return fmt.Sprintf("blk.%d.%s", layer, name)
}

// Values of vectors.
func nearOne(x float32) float32 { return 1 + 0.1*x } // norms
func small(x float32) float32   { return 0.02 * x }  // biases: the same for all rows, so large ones would make all rows choose alike
func plain(x float32) float32   { return x }
func one(float32) float32       { return 1 }

// vec adds an f32 tensor of one dimension, or more, whose values are those of `value` for numbers from -1 to 1.
func (b *random) vec(name string, n int, value func(float32) float32, more ...int) {
	seed := b.seedOf(name)
	b.tensors = append(b.tensors, tensor{name: name, typ: gguf.F32, shape: append([]int{n}, more...),
		fill: func(dst []float32, _ *[]byte, row int) error {
			for i := range dst {
				dst[i] = value(float32(int32(mixBits(seed+uint64(row*n+i))>>40)-1<<23) / (1 << 23))
			}
			return nil
		}})
}

// mat adds a matrix of rows outputs and cols inputs, or with more a stack of so many.
func (b *random) mat(name string, rows, cols int, more ...int) {
	shape := append([]int{cols, rows}, more...)
	b.typed(name, b.typeOf(name, shape), shape, float64(cols))
}

// typed adds a matrix of a type, whose weights have the variance 1/inputs. An embedding's is 4: with small ones, what all rows get from
// attention to the same context would decide about all their experts.
func (b *random) typed(name string, t gguf.Type, shape []int, inputs float64) {
	cols, seed := shape[0], b.seedOf(name)
	p := b.pool(t, cols, inputs)
	b.tensors = append(b.tensors, tensor{name: name, typ: t, shape: shape, raw: func(dst []byte, row int) error {
		return p.rows(dst, seed, row)
	}})
}

func (b *random) seedOf(name string) uint64 {
	h := fnv.New64a()
	io.WriteString(h, name)
	return mixBits(h.Sum64() ^ mixBits(b.seed))
}

type poolKey struct {
	typ    gguf.Type
	cols   int
	inputs float64
}

// pool holds encoded runs of random weights for rows of one length. A row is made of runs of the pool, drawn anew for each place. That
// costs a copy, where encoding costs seconds for each billion weights, and it works for all row lengths and types.
type pool struct {
	run, row int // bytes
	data     []byte
	err      error
}

// poolRuns is the number of runs in a pool, a power of two.
const poolRuns = 1 << 12

func (b *random) pool(t gguf.Type, cols int, inputs float64) *pool {
	k := poolKey{t, cols, inputs}
	if p := b.pools[k]; p != nil {
		return p
	}
	elems, size := t.Block()
	p := &pool{row: cols / elems * size}
	b.pools[k] = p
	values := elems
	if elems < 32 && cols%32 == 0 {
		values = 32
	}
	p.run = values / elems * size
	x := make([]float32, poolRuns*values)
	fillRandom(x, mixBits(b.seed^uint64(t)<<32^uint64(cols)), inputs)
	p.data = make([]byte, poolRuns*p.run)
	p.err = encode(t, p.data, x)
	return p
}

// rows fills dst with whole rows, from row on.
func (p *pool) rows(dst []byte, seed uint64, row int) error {
	for ; len(dst) > 0; row++ {
		at := mixBits(seed + uint64(row)<<24)
		var bits uint64
		for i := 0; i*p.run < p.row; i++ {
			if i%5 == 0 {
				at++
				bits = mixBits(at)
			}
			n := int(bits & (poolRuns - 1))
			bits >>= 12
			copy(dst[i*p.run:(i+1)*p.run], p.data[n*p.run:])
		}
		dst = dst[p.row:]
	}
	return p.err
}
