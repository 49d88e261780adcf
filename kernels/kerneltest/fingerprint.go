package kerneltest

import (
	"testing"

	"github.com/tandem-llm/tandem/kernels"
)

// Fingerprint runs a network, norms of heads, a TopK of many values, a mixture of experts and delta nets on a device, and returns all that
// they computed: what a mistake in a kernel would change. It returns nil if the device fails.
func Fingerprint(t testing.TB, d kernels.Device) (all []float32) {
	t.Helper()
	r := rng(31)
	n := newNetwork(r, netRows, 8, 1, 64, 768, [3]kernels.Type{kernels.Q4_K, kernels.Q4_K, kernels.Q8_0})
	m := compile(t, d, n.Program, n.Data, newCache(t, d, n.KV, netPages))
	pass := treePass(r, 300, 3, 40, 6, n.vocab)
	for _, c := range []*kernels.Pass{chunkPass(r, netRows, 300), pass} { // the second reads what the first has stored
		c.Pages = append([]int32{7, 3, 9, 0, 11, 5, 1, 8}, c.Pages...)[:8]
		if m.runner.Run(c) != nil {
			return nil
		}
	}
	all = append(m.get(n.hidden, pass.Rows), m.get(n.logits, len(pass.Wanted))...)
	all = append(all, tops(m, len(pass.Wanted))...)

	const rows, dim, many = 3, 96, 9000
	p := kernels.NewProgram(rows, rows)
	b, logits := p.Buf(2*dim), p.WantedBuf(many)
	p.HeadNorm(b, 2, RandomFloats(r, dim, false), 1e-5)
	p.TopK(logits)
	own := compile(t, d, p, nil, nil)
	own.set(b, RandomFloats(r, rows*2*dim, false))
	own.set(logits, RandomFloats(r, rows*many, false))
	if own.runner.Run(&kernels.Pass{Rows: rows, Wanted: []int32{0, 1, 2}, TopK: 20}) != nil {
		return nil
	}
	all = append(append(all, own.get(b, rows)...), tops(own, rows)...)
	all = append(all, mixed(t, d, 40, 3, 64, 32, [2]kernels.Type{kernels.Q8_0, kernels.Q4_0})...)
	all = append(all, mixed(t, d, 4, 2, 256, 256, [2]kernels.Type{kernels.Q4_K, kernels.Q6_K})...) // several rows choose an expert
	return append(all, walked(t, d)...)
}

// mixed returns what a mixture of n experts gives, which are chosen by scores of their own.
func mixed(t testing.TB, d kernels.Device, n, used, dim, inner int, types [2]kernels.Type) []float32 {
	const rows = 5
	r := rng(32)
	m := newMixture(r, rows, n, used, dim, inner, types, kernels.SiLU, true)
	m.p.Ops[0] = kernels.ChooseExperts{RouteOpt: kernels.RouteOpt{Sigmoid: true, Normed: true}, Logits: m.logits}
	own := compile(t, d, m.p, m.Data, nil)
	own.set(m.x, RandomFloats(r, rows*m.dim, false))
	own.set(m.logits, RandomFloats(r, rows*m.n, false))
	own.set(m.hidden, make([]float32, rows*m.dim))
	if own.runner.Run(&kernels.Pass{Rows: rows}) != nil {
		return nil
	}
	return own.get(m.hidden, rows)
}

// walked returns what delta nets give for a tree.
func walked(t testing.TB, d kernels.Device) []float32 {
	parents := []int32{-1, 0, 1, 0, 3, 3}
	r := rng(33)
	n := planDeltas(r, kernels.DeltaShape{KeyHeads: 1, ValueHeads: 2, Dim: 48, Kernel: 4}, len(parents), 1, len(parents))
	own := compile(t, d, n.p, nil, newCache(t, d, n.p.KV, 1))
	n.rig = rig{own}
	n.inputs(r, false)
	if own.runner.Run(n.pass([]kernels.Walk{depthFirst(parents)})) != nil {
		return nil
	}
	return own.get(n.out[1], len(parents))
}

// tops returns what TopK found in each wanted row.
func tops(m *machine, wanted int) (all []float32) {
	for i := range wanted {
		t := m.runner.Top(i)
		for _, id := range t.IDs {
			all = append(all, float32(id))
		}
		all = append(append(all, t.Logits...), t.Max, t.Sum)
	}
	return all
}
