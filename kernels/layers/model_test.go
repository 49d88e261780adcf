package layers_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
)

const (
	dim, heads, kvHeads, headDim, ffn, vocab = 64, 4, 2, 16, 96, 40
	maxRows, maxWanted, pages                = 12, 6, 4
)

// model is a small transformer, laid out as the engine lays out models: the norm before a layer ends the stage before it.
type model struct {
	*kernels.Program
	data        [][]byte
	x, logits   kernels.Buf
	taps        map[int]kernels.Buf // by number of layers
	embed, down kernels.W           // down: of the last layer
	head        kernels.W
}

func newModel(n int, tapped ...int) *model {
	r := rand.New(rand.NewPCG(uint64(n), 5))
	m := &model{Program: kernels.NewProgram(maxRows, maxWanted), taps: map[int]kernels.Buf{}}
	matrix := func(rows, cols int) kernels.W {
		m.data = append(m.data, kerneltest.RandomRows(r, kernels.Q8_0, rows, cols))
		return m.Weight(kernels.Weight{Name: fmt.Sprint("w", len(m.data)), Type: kernels.Q8_0, Rows: rows, Cols: cols})
	}
	norm := func() []float32 { return kerneltest.RandomFloats(r, dim, false) }
	add := kernels.MatMulOpt{Add: true}
	m.KV = kernels.UniformKV(n, kvHeads, headDim, kernels.KVF16)
	m.x = m.Buf(dim)
	q, k, v, gate, up := m.Buf(dim), m.Buf(kvHeads*headDim), m.Buf(kvHeads*headDim), m.Buf(ffn), m.Buf(ffn)
	normed, attended, activated := m.Act(dim), m.Act(dim), m.Act(ffn)
	m.Stage("the embedding")
	m.embed = matrix(vocab, dim)
	m.Embed(m.embed, m.x)
	m.Scale(m.x, 1.5)
	for i := range n {
		m.RMSNorm(m.x, norm(), 1e-5, normed)
		m.Stage(fmt.Sprint("layer ", i))
		m.MatMul(matrix(dim, dim), normed, q, kernels.MatMulOpt{Concurrent: true})
		m.MatMul(matrix(kvHeads*headDim, dim), normed, k, kernels.MatMulOpt{Concurrent: true})
		m.MatMul(matrix(kvHeads*headDim, dim), normed, v, kernels.MatMulOpt{})
		m.RoPE(k, kvHeads, headDim, kernels.Rotation{InvFreq: []float64{1, 0.1, 0.01}})
		m.StoreKV(k, v, i)
		m.Attention(q, i, heads, kernels.AttentionOpt{Scale: 0.25}, attended)
		m.MatMul(matrix(dim, dim), attended, m.x, add)
		m.RMSNorm(m.x, norm(), 1e-5, normed)
		m.MatMul(matrix(ffn, dim), normed, gate, kernels.MatMulOpt{Concurrent: true})
		m.MatMul(matrix(ffn, dim), normed, up, kernels.MatMulOpt{})
		m.SiLUMul(gate, up, activated)
		m.down = matrix(dim, ffn)
		m.MatMul(m.down, activated, m.x, add)
		for _, t := range tapped {
			if t == i+1 {
				m.taps[t] = m.Buf(dim)
				m.Copy(m.x, m.taps[t])
				m.Taps = append(m.Taps, kernels.Tap{Layer: t, Buf: m.taps[t]})
			}
		}
	}
	last, out := m.WantedBuf(dim), m.WantedAct(dim)
	m.Gather(m.x, last)
	m.RMSNorm(last, norm(), 1e-5, out)
	m.Stage("the output")
	m.logits, m.head = m.WantedBuf(vocab), matrix(vocab, dim)
	m.MatMul(m.head, out, m.logits, kernels.MatMulOpt{})
	m.TopK(m.logits)
	return m
}

// loaded is a model on a device.
type loaded struct {
	*model
	store  kernels.Store
	cache  kernels.Cache
	runner kernels.Runner
}

// on loads m on a device until the test ends.
func (m *model) on(t *testing.T, d kernels.Device) *loaded {
	t.Helper()
	own := *m.Program
	own.Weights = append([]kernels.Weight(nil), m.Weights...)
	for i := range own.Weights {
		own.Weights[i].Layout = d.Layout(own.Weights[i].Type)
	}
	c := *m
	c.Program = &own
	l := &loaded{model: &c}
	var err error
	if l.cache, err = d.NewCache(own.KV, pages); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.cache.Close)
	if l.store, err = d.NewWeights(&own); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.store.Close)
	for i, b := range m.data {
		if err := l.store.Pack(kernels.W(i), 0, b); err != nil {
			t.Fatal(err)
		}
	}
	if l.runner, err = d.Compile(&own, l.store, l.cache); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.runner.Close)
	return l
}

// pass has rows that extend one sequence from a position on; the second of the rows is given as an embedding.
func pass(from, rows int) *kernels.Pass {
	a := &kernels.Pass{Rows: rows, Pages: []int32{2, 0, 3}, TopK: 3, Given: make([]float32, dim)}
	for i := range a.Given {
		a.Given[i] = float32(i%7) / 8
	}
	for i := range rows {
		pos := from + i
		a.Tokens, a.Pos = append(a.Tokens, int32(7*pos%vocab)), append(a.Pos, int32(pos))
		a.Store = append(a.Store, kernels.Cell(a.Pages[pos/kernels.PageRows])*kernels.PageRows+kernels.Cell(pos%kernels.PageRows))
		a.Table, a.Prefix = append(a.Table, 0), append(a.Prefix, int32(pos+1))
		a.AncOff, a.AncLen = append(a.AncOff, 0), append(a.AncLen, 0)
	}
	if rows > 1 {
		a.Tokens[1] = -1
	}
	a.Wanted = []int32{int32(rows - 1), 0}
	return a
}

// results returns what callers read after a pass of a model.
func (l *loaded) results(a *kernels.Pass) (all []float32) {
	for i := range a.Rows {
		all = append(all, l.runner.Row(l.x, i)...)
		for t := range 8 {
			if b, ok := l.taps[t]; ok {
				all = append(all, l.runner.Row(b, i)...)
			}
		}
	}
	for i := range a.Wanted {
		all = append(append(all, l.runner.Row(l.logits, i)...), l.runner.Top(i).Logits...)
	}
	return all
}

// run runs some passes, with cells copied in between, and returns all results.
func (l *loaded) run(t *testing.T) (all []float32) {
	t.Helper()
	for i, p := range []struct{ from, rows int }{{0, 12}, {12, 1}, {13, 5}, {60, 8}} {
		a := pass(p.from, p.rows)
		if err := l.runner.Run(a); err != nil {
			t.Fatal(err)
		}
		all = append(all, l.results(a)...)
		if i == 2 {
			l.cache.Copy([]kernels.Cell{130, 131, 132}, []kernels.Cell{128, 130, 129})
			for c := kernels.Cell(18); c < 60; c++ { // what lies between
				l.cache.Copy([]kernels.Cell{128 + c}, []kernels.Cell{128 + c%17})
			}
		}
	}
	return all
}
