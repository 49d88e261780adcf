package family

import (
	"hash/fnv"
	"math/rand/v2"
	"slices"
)

// Shape is the shape of a tiny model. What a family has no use for is not read.
type Shape struct {
	Layers, Dim, Heads, KV, HeadDim, RopeDim, FFN int
	Experts, Used, Width                          int // experts of a layer, those of a token, and the width of one
	Window                                        int
	Tied                                          bool // the output matrix is the embedding
	Words                                         int  // tokens beside those for single bytes
	States, Groups                                int  // of recurrent layers: heads of values, and of keys
	Layout
}

// Layout is what random models of a family all have alike; 0 stands for that.
type Layout struct {
	Latent, Turned, Shared     int // latent attention: the vector's size and that of the part that RoPE turns; experts that all rows share
	State, Interval            int // recurrent layers: the side of a state, and which layers attend
	FullAt                     int // Gemma 4: which of every three layers has no window
	Reading, Wider, LayerInput int // Gemma 4: layers that read others' keys, how much wider they are, and what each layer gets of the token
}

// pick returns one of the values.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// RandomShape draws a shape that is unlike those of the golden models: numbers of heads and experts that are no powers of two, uneven
// blocks, one layer or many.
func RandomShape(r *rand.Rand) Shape {
	s := Shape{Layers: 1 + r.IntN(5), Dim: 32 * (2 + r.IntN(3)), KV: pick(r, 1, 2, 3), HeadDim: pick(r, 16, 24, 32, 40),
		FFN: 32 * (2 + r.IntN(4)), Experts: pick(r, 3, 5, 7, 9, 12), Width: 32 * (1 + r.IntN(3)), Window: pick(r, 1, 2, 5, 9, 33),
		Tied: r.IntN(2) == 0, Words: r.IntN(40), Groups: pick(r, 1, 2, 3)}
	s.Heads = s.KV * pick(r, 1, 2, 3, 5)
	s.RopeDim = s.HeadDim - 2*r.IntN(s.HeadDim/4)
	s.Used = 1 + r.IntN(min(s.Experts, 4))
	s.States = s.Groups * pick(r, 1, 2, 3)
	return s
}

// Running are the families that tandem runs, as Random names them; but for llama, qwen3 and gemma3 there is a golden model of each.
// A family that is new is a line here. llama3, qwen2, gemma and gemma2 have golden models too, whose passes have no part that these lack.
var Running = []string{
	"llama", "qwen3", "gemma3",
	"granite",
	"granitemoe",
	"smollm3",
	"mistral3",
	"glm4",
	"phi3-longrope",
	"phi3-shortrope",
	"qwen3moe",
	"gpt-oss",
	"gpt-oss-mxfp4",
	"deepseek2",
	"deepseek2-kvb",
	"gemma4",
	"gemma4-moe",
	"qwen35",
	"qwen35moe",
}

// All returns the golden models of the families that run, and random ones of other shapes, whose weights seed decides.
func All(seed uint64) (all []*Model) {
	for _, name := range Running {
		if _, ok := goldens[name]; ok {
			all = append(all, Golden(name))
		}
		all = append(all, Random(name, seed))
	}
	return all
}

// Names lists the families, one for each layout of a file.
func Names() []string {
	var names []string
	for name := range families {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Random makes a model of the named family with a shape and weights that seed decides: a shape of its own for each family.
func Random(name string, seed uint64) *Model {
	h := fnv.New64()
	_, _ = h.Write([]byte(name))
	return Make(name, RandomShape(rand.New(rand.NewPCG(seed, h.Sum64()))), seed)
}

// Make makes a model of the named family and shape with weights that seed decides.
func Make(name string, s Shape, seed uint64) *Model {
	f := families[name]
	b := newBuilder(name, f.arch, s, seed)
	f.build(b)
	b.finish()
	return b.m
}
