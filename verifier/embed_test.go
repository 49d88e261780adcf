package verifier_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/test/testkit/family"
	"github.com/tandem-llm/tandem/verifier"
)

// floats is the shipped target in float64, by the formulas of its architecture: llama with rope between neighbours.
type floats struct {
	t *testing.T
	f *gguf.File
	w map[string][]float64
}

const (
	floatDim, floatLayers, floatHeads, floatKV, floatHead = 512, 6, 8, 4, 64
)

func (n *floats) weights(name string) []float64 {
	if w := n.w[name]; w != nil {
		return w
	}
	x := n.f.Tensor(name)
	raw, err := x.Bytes()
	if err != nil {
		n.t.Fatal(err)
	}
	wide := make([]float64, 0, x.Elements())
	for ; len(wide) < cap(wide) && len(x.Shape) == 1; raw = raw[4:] { // f32
		wide = append(wide, float64(math.Float32frombits(binary.LittleEndian.Uint32(raw))))
	}
	for ; len(wide) < cap(wide); raw = raw[34:] { // Q8_0: blocks of a scale in f16 and 32 numbers
		for _, q := range raw[2:34] {
			wide = append(wide, float64(half.Float(binary.LittleEndian.Uint16(raw)))*float64(int8(q)))
		}
	}
	n.w[name] = wide
	return wide
}

func (n *floats) mul(name string, x []float64) []float64 {
	w := n.weights(name)
	out := make([]float64, len(w)/len(x))
	for i := range out {
		for j, v := range x {
			out[i] += w[i*len(x)+j] * v
		}
	}
	return out
}

func (n *floats) norm(name string, x []float64) []float64 {
	mean := 0.0
	for _, v := range x {
		mean += v * v / float64(len(x))
	}
	out := make([]float64, len(x))
	for i, w := range n.weights(name) {
		out[i] = x[i] / math.Sqrt(mean+1e-5) * w
	}
	return out
}

func turn(x []float64, pos int) {
	for h := 0; h < len(x); h += floatHead {
		for i := range floatHead / 2 {
			sin, cos := math.Sincos(float64(pos) * math.Pow(10000, -2*float64(i)/floatHead))
			a, b := x[h+2*i], x[h+2*i+1]
			x[h+2*i], x[h+2*i+1] = a*cos-b*sin, a*sin+b*cos
		}
	}
}

// states returns the states after the final norm of each token.
func (n *floats) states(tokens []tandem.Token) (all [][]float64) {
	var keys, values [floatLayers][][]float64
	for pos, token := range tokens {
		x := slices.Clone(n.weights("token_embd.weight")[int(token)*floatDim:][:floatDim])
		for l := range floatLayers {
			at := fmt.Sprintf("blk.%d.", l)
			y := n.norm(at+"attn_norm.weight", x)
			q, k := n.mul(at+"attn_q.weight", y), n.mul(at+"attn_k.weight", y)
			turn(q, pos)
			turn(k, pos)
			keys[l], values[l] = append(keys[l], k), append(values[l], n.mul(at+"attn_v.weight", y))
			for i, v := range n.mul(at+"attn_output.weight", attend(q, keys[l], values[l])) {
				x[i] += v
			}
			y = n.norm(at+"ffn_norm.weight", x)
			gate, up := n.mul(at+"ffn_gate.weight", y), n.mul(at+"ffn_up.weight", y)
			for i, g := range gate {
				up[i] *= g / (1 + math.Exp(-g))
			}
			for i, v := range n.mul(at+"ffn_down.weight", up) {
				x[i] += v
			}
		}
		all = append(all, n.norm("output_norm.weight", x))
	}
	return all
}

func attend(q []float64, keys, values [][]float64) []float64 {
	out := make([]float64, len(q))
	for h := range floatHeads {
		at, of := h*floatHead, h*floatKV/floatHeads*floatHead
		scores, sum := make([]float64, len(keys)), 0.0
		for p, k := range keys {
			for i := range floatHead {
				scores[p] += q[at+i] * k[of+i] / math.Sqrt(floatHead)
			}
			scores[p] = math.Exp(scores[p])
			sum += scores[p]
		}
		for p, v := range values {
			for i := range floatHead {
				out[at+i] += scores[p] / sum * v[of+i]
			}
		}
	}
	return out
}

func cosine[A, B float32 | float64](a []A, b []B) float64 {
	ab, aa, bb := 0.0, 0.0, 0.0
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return ab / math.Sqrt(aa*bb)
}

// TestVectorsAreThoseOfTheFormulas: vectors of the shipped target equal those of a plain float implementation, up to the rounding of
// activations, for both poolings; one of another pooling, or of one token fewer, does not.
func TestVectorsAreThoseOfTheFormulas(t *testing.T) {
	f, err := gguf.Open(targetFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := &floats{t: t, f: f, w: map[string][]float64{}}
	r := newRig(t, rigOptions{alone: true})
	model := openModel(t, targetFile, 1)
	for _, text := range []string{prompts[0], prompts[2]} {
		tokens := model.Vocab().Encode(text, true)
		states := n.states(tokens)
		mean := make([]float64, floatDim)
		for _, x := range states {
			for i, v := range x {
				mean[i] += v / float64(len(states))
			}
		}
		for pooling, want := range map[tandem.Pooling][]float64{tandem.PoolingLast: states[len(states)-1], tandem.PoolingMean: mean} {
			got := vectors(t, r.v, pooling, tokens)[0]
			length := 0.0
			for i, v := range got {
				length += float64(v)*float64(v) - want[i]*want[i]
			}
			if c := cosine(got, want); c < 0.9995 || math.Abs(length) > 0.05*float64(floatDim) {
				t.Errorf("%q, %s: cosine with the formulas %.6f, squares differ by %.3f", text, pooling, c, length)
			}
			if c := cosine(got, states[len(states)-2]); c > 0.999 {
				t.Errorf("%q, %s: cosine with the state before the last %.6f", text, pooling, c)
			}
		}
	}
}

func vectors(t testing.TB, v tandem.VectorSource, pooling tandem.Pooling, inputs ...[]tandem.Token) [][]float32 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := v.Vectors(ctx, tandem.VectorQuery{Inputs: inputs, Pooling: pooling})
	if err == nil {
		err = out.Validate(len(inputs))
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Rows
}

// texts returns n random texts of 1 to most tokens.
func texts(r *rand.Rand, n, most, vocab int) (all [][]tandem.Token) {
	for range n {
		tokens := make([]tandem.Token, 1+r.IntN(most))
		for i := range tokens {
			tokens[i] = tandem.Token(3 + r.IntN(vocab-3))
		}
		all = append(all, tokens)
	}
	return all
}

// TestVectorsDependOnTheirTextAlone: vectors are the same bit for bit, alone or beside others, in large or small pieces, with much or
// little memory, on one or two threads, and while other sessions generate. Nothing of the texts is kept.
func TestVectorsDependOnTheirTextAlone(t *testing.T) {
	inputs := texts(rand.New(rand.NewPCG(7, 7)), 12, 90, 4096)
	inputs = append(inputs, inputs[0], texts(rand.New(rand.NewPCG(8, 8)), 1, 1, 4096)[0])
	want := map[tandem.Pooling][][]float32{}
	t.Run("alone", func(t *testing.T) {
		alone := newRig(t, rigOptions{alone: true})
		for _, p := range []tandem.Pooling{tandem.PoolingLast, tandem.PoolingMean} {
			for _, tokens := range inputs {
				want[p] = append(want[p], vectors(t, alone.v, p, tokens)[0])
			}
		}
	})
	for name, c := range map[string]verifier.Config{
		"together":         {Model: openThreads(t, targetFile, 8, 2)},
		"in small pieces":  {Model: openModel(t, targetFile, 8), Chunk: 7},
		"in large pieces":  {Model: openModel(t, targetFile, 8), Chunk: 192},
		"in little memory": {Model: openPool(t, targetFile, 3)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigOptions{alone: true, verifier: c})
			for p, want := range want {
				before := r.counters.Snapshot()
				got := vectors(t, r.v, p, inputs...)
				for i := range got {
					if !slices.Equal(got[i], want[i]) {
						t.Errorf("%s: vector %d of a text of %d tokens differs from that alone", p, i, len(inputs[i]))
					}
				}
				after := r.counters.Snapshot()
				tokens := 0
				for _, x := range inputs {
					tokens += len(x)
				}
				if rows := after["passes.rows"] - before["passes.rows"]; rows != int64(tokens) {
					t.Errorf("%s: %d rows for %d tokens", p, rows, tokens)
				}
				passes := after["passes"] - before["passes"]
				if most := int64(tokens/128 + 2); name == "together" && passes > most {
					t.Errorf("%s: %d passes for %d tokens: want at most %d", p, passes, tokens, most)
				}
			}
			if err := r.v.Close(t.Context(), 1); err != nil { // what has ended is dropped before
				t.Fatal(err)
			}
			if kept, free := c.Model.Prefixes().Kept(), c.Model.FreePages(); kept != 0 || free != c.Model.Pages() {
				t.Errorf("%d pages kept, %d of %d free afterwards", kept, free, c.Model.Pages())
			}
		})
	}
}

// threeTexts returns what three sessions at once say, one after another.
func threeTexts(t *testing.T, r *rig, prompt func(string) []tandem.Token) []tandem.Token {
	var wg sync.WaitGroup
	all := make([][]tandem.Token, 3)
	for i := range all {
		wg.Go(func() {
			s, err := r.generate(asked{prompt: prompt(prompts[i]), tokens: 24, sampling: greedy,
				bounds: tandem.Bounds{Nodes: 6, Depth: 3, Width: 2}})
			if err != nil {
				t.Error(err)
			}
			all[i] = s.text
		})
	}
	wg.Wait()
	return slices.Concat(all...)
}

// TestVectorsBesideRounds: texts are embedded while sessions generate, and neither changes the other.
func TestVectorsBesideRounds(t *testing.T) {
	inputs := texts(rand.New(rand.NewPCG(9, 9)), 6, 150, 4096)
	var want [][]float32
	t.Run("quiet", func(t *testing.T) {
		want = vectors(t, newRig(t, rigOptions{alone: true}).v, tandem.PoolingMean, inputs...)
	})
	model := openModel(t, targetFile, 24)
	r := newRig(t, rigOptions{sessions: 4, verifier: verifier.Config{Model: model}})
	alone := threeTexts(t, r, plain{model}.prompt)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 4 {
			for i, got := range vectors(t, r.v, tandem.PoolingMean, inputs...) {
				if !slices.Equal(got, want[i]) {
					t.Errorf("vector %d differs beside sessions that generate", i)
				}
			}
		}
	})
	for range 2 {
		if got := threeTexts(t, r, plain{model}.prompt); !slices.Equal(got, alone) {
			t.Errorf("beside texts that are embedded %v: want %v", got, alone)
		}
	}
	wg.Wait()
}

// TestVectorsOfEveryFamily: texts are embedded in every architecture, alone and together, recurrent ones included.
func TestVectorsOfEveryFamily(t *testing.T) {
	dir := t.TempDir()
	for _, f := range family.All(2) {
		t.Run(f.Name, func(t *testing.T) {
			m, err := engine.Open(f.Write(t, dir), engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 48, KVPages: 24, Sequences: 2})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(m.Close)
			r := newRig(t, rigOptions{alone: true, verifier: verifier.Config{Model: m}})
			c := m.Config()
			inputs := texts(rand.New(rand.NewPCG(3, 3)), 5, 70, c.Vocab)
			for _, p := range []tandem.Pooling{tandem.PoolingLast, tandem.PoolingMean} {
				for i, got := range vectors(t, r.v, p, inputs...) {
					if err := tandem.Unit(slices.Clone(got)); err != nil || len(got) != c.Dim {
						t.Errorf("%s: %d numbers, %v", p, len(got), err)
					}
					if alone := vectors(t, r.v, p, inputs[i])[0]; !slices.Equal(got, alone) {
						t.Errorf("%s: vector %d differs from that alone", p, i)
					}
				}
			}
		})
	}
}

// TestVectorsRefused: what cannot be embedded is refused by what is wrong with it, and a caller that leaves leaves nothing behind.
func TestVectorsRefused(t *testing.T) {
	m := openPool(t, targetFile, 3)
	r := newRig(t, rigOptions{alone: true, verifier: verifier.Config{Model: m}})
	text := func(n int) []tandem.Token { return slices.Repeat([]tandem.Token{5}, n) }
	many := slices.Repeat([][]tandem.Token{text(1)}, 2049)
	for name, c := range map[string]struct {
		q    tandem.VectorQuery
		kind tandem.Kind
		says string
	}{
		"no pooling":       {tandem.VectorQuery{Inputs: [][]tandem.Token{text(1)}}, tandem.Unsupported, "want last or mean"},
		"cls":              {tandem.VectorQuery{Inputs: [][]tandem.Token{text(1)}, Pooling: "cls"}, tandem.Unsupported, `"cls"`},
		"no input":         {tandem.VectorQuery{Pooling: "last"}, tandem.Invalid, "0 texts"},
		"an empty one":     {tandem.VectorQuery{Pooling: "last", Inputs: [][]tandem.Token{text(1), {}}}, tandem.Invalid, "text 1"},
		"a negative token": {tandem.VectorQuery{Pooling: "last", Inputs: [][]tandem.Token{{-1}}}, tandem.Invalid, "-1"},
		"a large token":    {tandem.VectorQuery{Pooling: "last", Inputs: [][]tandem.Token{{4096}}}, tandem.Invalid, "vocabulary has 4096"},
		"beyond context":   {tandem.VectorQuery{Pooling: "last", Inputs: [][]tandem.Token{text(1025)}}, tandem.Invalid, "1025 tokens"},
		"beyond memory":    {tandem.VectorQuery{Pooling: "last", Inputs: [][]tandem.Token{text(193)}}, tandem.Invalid, "holds 3"},
		"too many":         {tandem.VectorQuery{Pooling: "last", Inputs: many}, tandem.Invalid, "2049"},
		"another vocabulary": {tandem.VectorQuery{Pooling: "last", Inputs: [][]tandem.Token{text(1)}, Fingerprint: "x"}, tandem.Unavailable,
			"vocabulary"},
	} {
		_, err := r.v.Vectors(t.Context(), c.q)
		if tandem.KindOf(err) != c.kind || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v: want %s with %q", name, err, c.kind, c.says)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.v.Vectors(ctx, tandem.VectorQuery{Pooling: "last", Inputs: [][]tandem.Token{text(190), text(190)}})
	if tandem.KindOf(err) != tandem.Canceled {
		t.Errorf("a caller that has left: %v", err)
	}
	vectors(t, r.v, "last", text(192)) // all of the memory
}
