package engine

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels/ref"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// golden2026 are golden models, with what their architecture has beside the keys that fromFile reads.
var golden2026 = map[string]func(n *naive){
	"llama3": func(n *naive) {
		n.angle = func(_, i int) float64 { return frequency(500000, i, n.ropeDim) / n.weights["rope_freqs.weight"][i] }
	},
	"qwen2": func(n *naive) {
		n.halves, n.angle = true, func(_, i int) float64 { return frequency(1e6, i, n.ropeDim) }
	},
	"gemma": gemma,
	"gemma2": func(n *naive) {
		gemma(n)
		n.postNorms, n.attnCap, n.finalCap, n.window = true, 8, 12, func(layer int) int { return []int{16, 0}[layer%2] }
	},
	"granite":        func(n *naive) { n.embedScale, n.residualScale, n.attnScale, n.logitDivisor = 12, 0.22, 0.05, 8 },
	"glm4":           func(n *naive) { n.postNorms = true },
	"phi3-longrope":  longRope("rope_factors_long.weight"),
	"phi3-shortrope": longRope("rope_factors_short.weight"),
	"smollm3": func(n *naive) {
		n.unturned = func(l int) bool { return l%4 == 3 }
		n.angle = func(_, i int) float64 { return frequency(5e6, i, n.ropeDim) }
	},
	"deepseek2":     deepseek2(naiveLatent{rank: 512, key: 96, value: 32, query: 48}),
	"deepseek2-kvb": deepseek2(naiveLatent{rank: 64, key: 48, value: 32, query: 48, together: true}),
	"qwen35":        qwen35,
	"qwen35moe": func(n *naive) {
		qwen35(n)
		n.mix = naiveMixture{count: 8, used: 2, shared: 48, sharedGate: true}
	},
	"mistral3": func(n *naive) {
		n.angle = func(_, i int) float64 { return yarn(1e6, i, n.ropeDim, 16, 32) }
		n.temperature = func(pos int) float64 { return 1 + 0.1*math.Log(1+math.Floor(float64(pos)/32)) }
	},
}

func gemma(n *naive) { n.halves, n.gelu, n.embedScale = true, true, math.Sqrt(float64(n.dim)) }

func qwen35(n *naive) {
	n.halves, n.headNorms, n.ffnNorm = true, true, "post_attention_norm"
	n.angle = func(_, i int) float64 { return frequency(1e7, i, n.ropeDim) }
}

func deepseek2(m naiveLatent) func(n *naive) {
	return func(n *naive) {
		n.latent, n.mix = m, naiveMixture{count: 8, used: 2, dense: 1, shared: 32, sigmoid: true, scale: 2.5}
		n.angle = func(_, i int) float64 { return yarn(10000, i, n.ropeDim, 4, 64) }
		n.attnScale = math.Pow(1+0.1*math.Log(4), 2) / math.Sqrt(float64(m.key))
	}
}

// longRope turns halves of a head with the factors of a table.
func longRope(table string) func(n *naive) {
	return func(n *naive) {
		n.halves, n.magnitude = true, 1.19
		n.angle = func(_, i int) float64 { return frequency(10000, i, n.ropeDim) / n.weights[table][i] }
	}
}

// TestGolden2026 compares tiny models with another engine's figures, with float arithmetic (float_top) and with the
// formulas. In one pass and token by token the bits are the same.
//
// tandem keeps keys and values as halves. The other engine keeps keys as floats here, so that it may be nearer to float arithmetic. What
// counts is how far tandem is from float arithmetic that rounds keys and values as the cache does: nearer than the other engine is to
// float_top. Without that rounding the formulas are float_top.
func TestGolden2026(t *testing.T) {
	for name, change := range golden2026 {
		t.Run(name, func(t *testing.T) {
			c, path := readFigures(t, name)
			m := openTest(t, path, Options{KVPages: PagesFor(2, 192, 0)})
			square, count := checkPrompt(t, m, c)
			checkGreedy(t, m, c)
			ones := slices.Repeat([]int{1}, len(c.Tokens))
			whole := inPieces(t, m, c.Tokens, []int{len(c.Tokens)})
			if err := sameBits(whole, inPieces(t, m, c.Tokens, ones)); err != nil {
				t.Errorf("in one pass and token by token: %v", err)
			}

			n := fromFile(t, path)
			change(n)
			halves := c.distance(func(i, id int) float64 { return float64(whole[i*m.Config().Vocab+id]) }, n.forward(c.Tokens))
			n.floats = true
			exact := n.forward(c.Tokens)
			formulas, other := c.distance(nil, exact), c.distance(c.other, exact)
			t.Logf("r.m.s. distance from float_top %.5f, the other engine's %.5f, formulas' %.5f; from formulas with halves %.5f",
				math.Sqrt(square/count), other, formulas, halves)
			if !(formulas < 0.0001) {
				t.Errorf("the formulas are %.5f from float arithmetic: they are not the reference's", formulas)
			}
			if !(halves < other) {
				t.Errorf("r.m.s. distance from float arithmetic with such a cache %.5f: the other engine: %.5f", halves, other)
			}
		})
	}
}

// TestNarrowHeads: heads that are no multiple of a group of outputs, whose queries and gates alternate in one tensor.
func TestNarrowHeads(t *testing.T) {
	for _, dim := range []int{8, 24, 40} {
		shape := family.Shape{Layers: 4, Dim: 64, Heads: 6, KV: 2, HeadDim: dim, FFN: 96, Words: 20, States: 4, Groups: 2}
		m := family.Make("qwen35", shape, uint64(dim))
		m.Set("rope.freq_base", float32(1e7))
		path := m.Write(t, t.TempDir())
		n := fromFile(t, path)
		qwen35(n)
		tokens := []tandem.Token{5, 3, 90, 17, 4, 200, 33, 90, 17}
		got := inPieces(t, openTest(t, path, Options{KVPages: PagesFor(2, 64, 0)}), tokens, []int{4, 5})
		vocab := n.shapes["output.weight"][0]
		for i, want := range n.forward(tokens) {
			for id, x := range want {
				if d := float64(got[i*vocab+id]) - x; !(math.Abs(d) < 0.01) {
					t.Fatalf("heads of %d: logit %d of token %d is %v, by the formulas %v", dim, id, i, got[i*vocab+id], x)
				}
			}
		}
	}
}

// goldenPath writes a golden model and returns its path. Its bytes are the same every time.
func goldenPath(t testing.TB, name string) string {
	t.Helper()
	return family.Golden(name).Write(t, t.TempDir())
}

// readFigures returns the figures of a golden model (testdata/golden/README.md), and the path of its file.
func readFigures(t *testing.T, name string) (c goldenCase, path string) {
	t.Helper()
	figures, err := os.ReadFile(filepath.Join("testdata/golden", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(figures, &c); err != nil {
		t.Fatal(err)
	}
	if n := len(c.Tokens); c.Tol <= 0 || n == 0 || len(c.PromptTop) != n || len(c.FloatTop) != n || len(c.Greedy) == 0 ||
		len(c.Top2) != len(c.Greedy) {
		t.Fatalf("tolerance %v; of %d positions %d have figures and %d those of float arithmetic; of %d tokens continued %d", c.Tol, n,
			len(c.PromptTop), len(c.FloatTop), len(c.Greedy), len(c.Top2))
	}
	c.ID, path = name, goldenPath(t, name)
	sameModel(t, path, c.Digest)
	return c, path
}

// sameModel ends the test if figures are of another model than the one at path.
func sameModel(t *testing.T, path, digest string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if is := fmt.Sprintf("%x", sha256.Sum256(b)); is != digest {
		t.Fatalf("%s has digest %s, the figures are of %s: want a model of that digest, or new figures (testdata/golden/README.md)",
			path, is, digest)
	}
}

// other returns the other engine's logit of a token at a position; NaN if it is not known.
func (c *goldenCase) other(i, id int) float64 {
	for _, e := range c.PromptTop[i] {
		if int(e[0]) == id {
			return e[1]
		}
	}
	return math.NaN()
}

// distance returns the r.m.s. distance of some logits, or of float_top for nil, from logits by the formulas, over the tokens of float_top.
func (c *goldenCase) distance(logits func(i, id int) float64, formulas [][]float64) float64 {
	var square, count float64
	for i, top := range c.FloatTop {
		for _, e := range top {
			x := e[1]
			if logits != nil {
				x = logits(i, int(e[0]))
			}
			if d := x - formulas[i][int(e[0])]; d == d {
				square, count = square+d*d, count+1
			}
		}
	}
	return math.Sqrt(square / count)
}

// fromFile reads shape and weights of a file. Tensors of several matrices are taken apart.
func fromFile(t *testing.T, path string) *naive {
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := &naive{weights: map[string][]float64{}, shapes: map[string][2]int{}}
	if n.arch, err = f.String("general.architecture"); err != nil {
		t.Fatal(err)
	}
	count := func(key string, def int) int {
		v, err := f.IntOr(n.arch+"."+key, 1, 1<<20, def)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if n.eps, err = f.Float(n.arch + ".attention.layer_norm_rms_epsilon"); err != nil {
		t.Fatal(err)
	}
	layers, heads := count("block_count", 0), count("attention.head_count", 0)
	n.dim, n.heads = count("embedding_length", 0), slices.Repeat([]int{heads}, layers)
	n.kv = slices.Repeat([]int{count("attention.head_count_kv", 0)}, layers)
	n.ffn = slices.Repeat([]int{count("feed_forward_length", 0)}, layers)
	n.headDim = count("attention.key_length", n.dim/heads)
	n.ropeDim = count("rope.dimension_count", n.headDim)
	n.tied = f.Tensor("output.weight") == nil
	n.delta = naiveDelta{every: count("full_attention_interval", 0), keyHeads: count("ssm.group_count", 0),
		heads: count("ssm.time_step_rank", 0), dim: count("ssm.state_size", 0), taps: count("ssm.conv_kernel", 0)}
	for _, x := range f.Tensors() {
		n.take(t, &x)
	}
	return n
}

func (n *naive) take(t *testing.T, x *gguf.Tensor) {
	data, err := x.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	narrow, wide := make([]float32, x.Elements()), make([]float64, x.Elements())
	ref.Dequantize(uint32(x.Type), data, narrow)
	for i, v := range narrow {
		wide[i] = float64(v)
	}
	cols := x.Shape[0]
	add := func(name string, rows int) {
		n.weights[name], n.shapes[name] = wide[:rows*cols], [2]int{rows, cols}
		wide = wide[rows*cols:]
	}
	var layer int
	fmt.Sscanf(x.Name, "blk.%d.", &layer)
	at := fmt.Sprintf("blk.%d.", layer)
	switch name := strings.TrimPrefix(x.Name, at); {
	case name == "attn_qkv.weight" && !n.delta.at(layer):
		add(at+"attn_q.weight", n.heads[layer]*n.headDim)
		add(at+"attn_k.weight", n.kv[layer]*n.headDim)
		add(at+"attn_v.weight", n.kv[layer]*n.headDim)
	case name == "ffn_up.weight" && x.Shape[1] == 2*n.ffn[layer]:
		add(at+"ffn_gate.weight", n.ffn[layer])
		add(at+"ffn_up.weight", n.ffn[layer])
	default:
		add(x.Name, len(wide)/cols)
	}
}

// TestGoldenMixtures compares tiny mixtures of experts, and Gemma 4, with another engine's figures, and says who is nearer to float
// arithmetic. In one pass and token by token the bits are the same.
func TestGoldenMixtures(t *testing.T) {
	for _, name := range mixtures {
		t.Run(name, func(t *testing.T) {
			c, path := readFigures(t, name)
			m := openTest(t, path, Options{KVPages: PagesFor(2, 192, 0)})
			square, count := checkPrompt(t, m, c)
			ours, theirs := math.Sqrt(square/count), c.otherDistance()
			t.Logf("r.m.s. distance from float arithmetic %.5f, the other engine's %.5f", ours, theirs)
			if ours > theirs {
				t.Errorf("r.m.s. distance from float arithmetic %.5f: want at most the other engine's %.5f", ours, theirs)
			}
			checkGreedy(t, m, c)
			ones := slices.Repeat([]int{1}, len(c.Tokens))
			if err := sameBits(inPieces(t, m, c.Tokens, []int{len(c.Tokens)}), inPieces(t, m, c.Tokens, ones)); err != nil {
				t.Errorf("in one pass and token by token: %v", err)
			}
		})
	}
}

var mixtures = []string{"granitemoe", "qwen3moe", "gpt-oss", "gpt-oss-mxfp4", "gemma4", "gemma4-moe"}

// otherDistance returns the other engine's r.m.s. distance from float arithmetic, over the logits of which both figures are known.
func (c *goldenCase) otherDistance() float64 {
	var square, count float64
	for i, top := range c.FloatTop {
		for _, e := range top {
			if o := c.other(i, int(e[0])); !math.IsNaN(o) {
				square, count = square+(o-e[1])*(o-e[1]), count+1
			}
		}
	}
	return math.Sqrt(square / count)
}
