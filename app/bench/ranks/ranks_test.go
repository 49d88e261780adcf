package ranks

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// network returns a transformer of two layers of that many KV heads, its buffer of logits, and its weights: small f32 numbers.
func network(kvHeads int) (p *kernels.Program, logits kernels.Buf, weights func(kernels.W) []byte) {
	const dim, heads, headDim, ffn, vocab = 128, 4, 32, 512, 96
	r := rand.New(rand.NewPCG(1, 2))
	floats := func(n int, scale float64) (x []float32) {
		for range n {
			x = append(x, float32(scale*r.NormFloat64()))
		}
		return x
	}
	var data [][]byte
	p = kernels.NewProgram(8, 8)
	matrix := func(rows, cols int) kernels.W {
		var b []byte
		for _, x := range floats(rows*cols, 1/math.Sqrt(float64(cols))) {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
		data = append(data, b)
		return p.Weight(kernels.Weight{Name: "w", Type: kernels.F32, Rows: rows, Cols: cols, Layout: kernels.Groups16})
	}
	p.KV = kernels.UniformKV(2, kvHeads, headDim, kernels.KVF16)
	x, q, k, v := p.Buf(dim), p.Buf(dim), p.Buf(kvHeads*headDim), p.Buf(kvHeads*headDim)
	gate, up, last := p.Buf(ffn), p.Buf(ffn), p.WantedBuf(dim)
	logits = p.WantedBuf(vocab)
	normed, attended, active, head := p.Act(dim), p.Act(dim), p.Act(ffn), p.WantedAct(dim)
	embed := matrix(vocab, dim)
	p.Embed(embed, x)
	for i := range 2 {
		p.RMSNorm(x, floats(dim, 1), 1e-5, normed)
		p.MatMul(matrix(dim, dim), normed, q, kernels.MatMulOpt{Concurrent: true})
		p.MatMul(matrix(kvHeads*headDim, dim), normed, k, kernels.MatMulOpt{Concurrent: true})
		p.MatMul(matrix(kvHeads*headDim, dim), normed, v, kernels.MatMulOpt{})
		p.AddBias(q, floats(dim, 1))
		p.RoPE(q, heads, headDim, kernels.Rotation{InvFreq: []float64{1, 0.1}})
		p.RoPE(k, kvHeads, headDim, kernels.Rotation{InvFreq: []float64{1, 0.1}})
		p.StoreKV(k, v, i)
		p.Attention(q, i, heads, kernels.AttentionOpt{Scale: 0.2}, attended)
		p.MatMul(matrix(dim, dim), attended, x, kernels.MatMulOpt{Add: true})
		p.RMSNorm(x, floats(dim, 1), 1e-5, normed)
		p.MatMul(matrix(ffn, dim), normed, gate, kernels.MatMulOpt{Concurrent: true})
		p.MatMul(matrix(ffn, dim), normed, up, kernels.MatMulOpt{})
		p.SiLUMul(gate, up, active)
		p.MatMul(matrix(dim, ffn), active, x, kernels.MatMulOpt{Add: true})
	}
	p.Gather(x, last)
	p.RMSNorm(last, floats(dim, 1), 1e-5, head)
	p.MatMul(embed, head, logits, kernels.MatMulOpt{})
	p.TopK(logits)
	return p, logits, func(w kernels.W) []byte { return data[w] }
}

// TestPair: two ranks compute the function of the whole program, but for the order of sums, with two all-reduces a layer.
func TestPair(t *testing.T) {
	p, logits, weights := network(2)
	devices := [2]kernels.Device{testdevice.CPU(t, 1), testdevice.CPU(t, 1)}
	s, err := SharesOf(p, 0.7)
	if err != nil || s != (Shares{KVHeads: [2]int{1, 1}, FFN: [2]int{256, 256}, Vocab: [2]int{64, 32}}) {
		t.Fatal(s, err)
	}
	pair, err := New(p, devices, s, 1, weights)
	if err != nil {
		t.Fatal(err)
	}
	defer pair.Close()
	if pair.Sums() != 4 || pair.Moved(3) != 4*2*4*3*128 {
		t.Errorf("%d sums that move %d bytes, want 2 of two layers, of which each rank moves half both ways", pair.Sums(), pair.Moved(3))
	}
	store, err := devices[0].NewWeights(p)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for w := range p.Weights {
		if err := store.Pack(kernels.W(w), 0, weights(kernels.W(w))); err != nil {
			t.Fatal(err)
		}
	}
	cache, err := devices[0].NewCache(p.KV, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	whole, err := devices[0].Compile(p, store, cache)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	pass := &kernels.Pass{Rows: 3, Tokens: []int32{5, 90, 17}, Pos: []int32{0, 1, 2}, Store: []kernels.Cell{0, 1, 2}, Pages: []int32{0},
		Table: []int32{0, 0, 0}, Prefix: []int32{1, 2, 3}, AncOff: []int32{0, 0, 0}, AncLen: []int32{0, 0, 0},
		Wanted: []int32{0, 1, 2}, TopK: 1}
	if err := whole.Run(pass); err != nil {
		t.Fatal(err)
	}
	for range 3 { // again: nothing of a pass is left
		if err := pair.Run(pass); err != nil {
			t.Fatal(err)
		}
	}
	for i := range pass.Rows {
		got := append(append([]float32(nil), pair.sides[0].runner.Row(logits, i)...), pair.sides[1].runner.Row(logits, i)...)
		for j, want := range whole.Row(logits, i) {
			if math.Abs(float64(got[j]-want)) > 1e-4 {
				t.Fatalf("logit %d of row %d is %v, want about %v", j, i, got[j], want)
			}
		}
	}
	pass.Tokens[1] = 96
	if err := pair.Run(pass); err == nil || !strings.Contains(err.Error(), "token 96") {
		t.Errorf("a token beyond the vocabulary: %v", err)
	}
}

// TestCannotBeDivided: one KV head is too few for two ranks, and recurrent layers have no columns.
func TestCannotBeDivided(t *testing.T) {
	p, _, _ := network(1)
	if _, err := SharesOf(p, 0.5); err == nil || !strings.Contains(err.Error(), "1 KV heads cannot be divided between two") {
		t.Errorf("one KV head: %v", err)
	}
	p, _, weights := network(2)
	s, err := SharesOf(p, 0)
	if err != nil {
		t.Fatal(err)
	}
	p.Ops = append(p.Ops, kernels.DeltaNet{})
	_, err = New(p, [2]kernels.Device{testdevice.CPU(t, 1), testdevice.CPU(t, 1)}, s, 1, weights)
	if err == nil || !strings.Contains(err.Error(), "kernels.DeltaNet cannot be divided") {
		t.Errorf("a recurrent layer: %v", err)
	}
}
