package engine_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/text/token"
)

var mixtureOut = flag.String("mixture", "", "write the shipped target as a mixture of 64 experts to this file of 0.8 GB")

// TestMixtureOfText makes the shipped target a mixture of experts: every expert is a copy of its feed-forward block, so it says what it
// said before, and a row chooses those whose centres its own input is nearest to. Centres are found in what the model computes of texts
// (k-means). So rows share experts as far as their hidden states are alike, which random weights cannot show: their routers see noise.
// With -mixture it leaves the model for `tandem-lab bench experts` and whole tandems; otherwise 4 experts are tried.
func TestMixtureOfText(t *testing.T) {
	count, used, limit := 64, 8, 4096
	out := *mixtureOut
	if out == "" {
		out, count, used, limit = filepath.Join(t.TempDir(), "mixture.gguf"), 4, 2, 192
	}
	whole := filepath.Join(t.TempDir(), "whole.gguf")
	writeMixture(t, whole, 1, 1, nil, nil)
	m := enginetest.Open(t, whole, engine.Options{KVPages: engine.PagesFor(1, 192, 0)})
	inputs := inputsOfExperts(t, m, limit)
	r := rand.New(rand.NewPCG(1, 2))
	var routers, biases [][]float32
	for _, rows := range inputs {
		centres := means(r, rows, count)
		var bias []float32
		for i := range count {
			c := centres[i*m.Config().Dim:][:m.Config().Dim]
			bias = append(bias, -dot(c, c)/2)
		}
		routers, biases = append(routers, centres), append(biases, bias)
	}
	writeMixture(t, out, count, used, routers, biases)

	mixed, plain := enginetest.Open(t, out, engine.Options{KVPages: engine.PagesFor(1, 64, 0)}), enginetest.Open(t, enginetest.Target,
		engine.Options{KVPages: engine.PagesFor(1, 64, 0)})
	tokens := textTokens(t, 40)
	a := enginetest.Forward(t, mixed, 1, engine.Part{Seq: enginetest.NewSeq(t, mixed, 64, 0), Extend: tokens, Want: engine.WantAll})
	b := enginetest.Forward(t, plain, 1, engine.Part{Seq: enginetest.NewSeq(t, plain, 64, 0), Extend: tokens, Want: engine.WantAll})
	same := 0
	for i := range tokens {
		if a.Top(i).IDs[0] == b.Top(i).IDs[0] {
			same++
		}
	}
	e := a.Experts()
	if same < len(tokens)*9/10 || e.Validate(len(tokens)) != nil || int(e[0]) != used*len(routers) || e.All() <= int(e[0]) {
		t.Errorf("%d of %d tokens as before, experts %v", same, len(tokens), e)
	}
}

// textTokens returns tokens of this repository's texts.
func textTokens(t *testing.T, n int) (all []tandem.Token) {
	t.Helper()
	vocab, err := token.Open(enginetest.Target)
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"*.go", "../docs/*.md", "../training/tandem_training/*.py"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		var tokens []tandem.Token
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			tokens = append(tokens, vocab.Encode(string(b[:min(len(b), 2000)]), false)...)
		}
		all = append(all, tokens[:min(len(tokens), (n+2)/3)]...)
	}
	return all[:min(n, len(all))]
}

// inputsOfExperts returns what the experts of each layer read, row by row: a pass runs again stage by stage, and the residual stream is
// normed as the layer does it.
func inputsOfExperts(t *testing.T, m *engine.Model, n int) [][]float32 {
	t.Helper()
	x := kernels.Buf(kernels.None)
	for _, o := range m.Passes().Plan().Ops {
		if e, ok := o.(kernels.Embed); ok {
			x = e.Out
		}
	}
	f, err := gguf.Open(enginetest.Target)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	inputs, norms, names := make([][]float32, m.Config().Layers), [][]float32{}, []string{}
	for i := range inputs {
		norms = append(norms, tensors.New(f).Vector(fmt.Sprintf("blk.%d.ffn_norm.weight", i), true, m.Config().Dim))
		names = append(names, fmt.Sprintf("layer %d, experts", i))
	}
	const piece = 192
	for tokens := textTokens(t, n); len(tokens) >= piece; tokens = tokens[piece:] {
		s, err := m.NewSequence(piece, 0)
		if err != nil {
			t.Fatal(err)
		}
		enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: tokens[:piece]})
		if err := engine.RunnerOf(m).Start(engine.PassOf(s, tokens[:piece])); err != nil {
			t.Fatal(err)
		}
		for i := range m.Passes().Plan().StageCount() {
			layer := slices.IndexFunc(names, func(n string) bool { return n == m.Passes().Plan().StageName(i) })
			for row := 0; layer >= 0 && row < piece; row++ {
				v := engine.RunnerOf(m).Row(x, row)
				scale := float32(1 / math.Sqrt(float64(dot(v, v))/float64(len(v))+float64(m.Config().NormEps)))
				for k, w := range norms[layer] {
					inputs[layer] = append(inputs[layer], v[k]*scale*w)
				}
			}
			if err := engine.RunnerOf(m).Stage(i); err != nil {
				t.Fatal(err)
			}
		}
		s.Close()
	}
	return inputs
}

func dot(a, b []float32) (sum float32) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

// means returns n centres of rows, one after the other.
func means(r *rand.Rand, rows []float32, n int) []float32 {
	dim := 512
	all := len(rows) / dim
	row := func(i int) []float32 { return rows[i*dim:][:dim] }
	var centres []float32
	for _, i := range r.Perm(all)[:n] {
		centres = append(centres, row(i)...)
	}
	for range 6 {
		sums, counts := make([]float32, n*dim), make([]int, n)
		for i := range all {
			best, least := 0, float32(math.Inf(1))
			for c := range n {
				centre := centres[c*dim:][:dim]
				if d := dot(centre, centre)/2 - dot(centre, row(i)); d < least {
					best, least = c, d
				}
			}
			counts[best]++
			for k, v := range row(i) {
				sums[best*dim+k] += v
			}
		}
		for c, count := range counts {
			for k := range dim * min(count, 1) {
				centres[c*dim+k] = sums[c*dim+k] / float32(count)
			}
		}
	}
	return centres
}

// writeMixture writes the shipped target as a model of experts that are all its feed-forward block; nil: routers of zeros.
func writeMixture(t *testing.T, path string, count, used int, routers, biases [][]float32) {
	t.Helper()
	f, err := gguf.Open(enginetest.Target)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const arch = "granitemoe"
	w := gguf.KeysOf(f)
	for _, k := range f.Keys() {
		of, ok := strings.CutPrefix(k.Name, "llama.")
		if !ok {
			continue
		}
		w.DropKey(k.Name)
		if v, err := f.Uint(k.Name); err == nil {
			w.Set(arch+"."+of, uint32(v))
		} else if v, err := f.Float(k.Name); err == nil {
			w.Set(arch+"."+of, float32(v))
		} else {
			t.Fatalf("key %s: neither a count nor a number", k.Name)
		}
	}
	w.Set("general.architecture", arch)
	w.Set(arch+".expert_count", uint32(count))
	w.Set(arch+".expert_used_count", uint32(used))
	layer := 0
	for i := range f.Tensors() {
		x := &f.Tensors()[i]
		b, err := x.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		at, name, _ := strings.Cut(x.Name, ".ffn_")
		if kind, ok := strings.CutSuffix(name, ".weight"); !ok || kind == "norm" {
			w.Tensor(x.Name, x.Type, x.Shape, b)
			continue
		} else {
			w.TensorFunc(at+".ffn_"+kind+"_exps.weight", x.Type, append(slices.Clone(x.Shape), count), func(to io.Writer) error {
				for range count {
					if _, err := to.Write(b); err != nil {
						return err
					}
				}
				return nil
			})
			if kind != "gate" {
				continue
			}
		}
		router, bias := make([]float32, count*x.Shape[0]), make([]float32, count)
		if routers != nil {
			router, bias = routers[layer], biases[layer]
		}
		w.Tensor(at+".ffn_gate_inp.weight", gguf.Type(kernels.F32), []int{x.Shape[0], count}, float32Bytes(router))
		w.Tensor(at+".ffn_gate_inp.bias", gguf.Type(kernels.F32), []int{count}, float32Bytes(bias))
		layer++
	}
	to, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if _, err := w.WriteTo(to); err != nil {
		t.Fatal(err)
	}
}

func float32Bytes(v []float32) (b []byte) {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}
