package kerneltest

import (
	"fmt"
	"math"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
)

// blockConv: rows of blocks, which read those before them in their block, and rows of a text, which read none.
func blockConv(t *testing.T, devices []kernels.Device) {
	const rows, most = 17, 300
	for _, s := range []struct{ dim, taps, group int }{{32, 2, 16}, {300, 4, 3}, {7, 1, 7}, {65, 32, 1}} {
		r := rng(uint64(s.dim))
		groups := s.dim / s.group
		base := RandomFloats(r, s.taps*s.dim, false)
		p := kernels.NewProgram(rows, 0)
		p.KV = kernels.UniformKV(1, 1, 32, kernels.KVF16)
		in, w, before, behind := p.Buf(s.dim), p.Buf(2*s.taps*groups+1), p.Buf(s.dim), p.Buf(s.dim)
		p.Scale(in, 0.7)
		p.Add(kernels.BlockConv{In: in, Base: base, Weights: w, From: 1, Group: s.group, Out: before})
		p.Add(kernels.BlockConv{In: in, Base: base, Weights: w, From: 1 + s.taps*groups, Group: s.group, Out: behind})
		p.Scale(in, 3) // of rows that others have read
		m := newRig(t, devices, p, nil, attentionPages)
		x, k := RandomFloats(r, rows*s.dim, true), RandomFloats(r, rows*(2*s.taps*groups+1), false)
		for _, pass := range []*kernels.Pass{blockPass(r, rows, attentionPages, most), chunkPass(r, rows, most)} {
			what := fmt.Sprintf("%+v, from position %d", s, pass.Pos[0])
			m.set(in, x)
			m.set(w, k)
			m.run(pass)
			m.same(what+", before", before, rows)
			m.same(what+", behind", behind, rows)
			for side, got := range [][]float32{m[0].get(before, rows), m[0].get(behind, rows)} { // by other means
				for i, v := range got {
					row, c, want, size := i/s.dim, i%s.dim, 0.0, 0.0
					for tap := 0; tap < s.taps && (tap == 0 || int(pass.Pos[row]-pass.Prefix[row]) >= tap); tap++ {
						dynamic := k[row*(2*s.taps*groups+1)+1+(side*s.taps+tap)*groups+c/s.group]
						one := float64(base[tap*s.dim+c]+dynamic) * 0.7 * float64(x[(row-tap)*s.dim+c])
						want, size = want+one, size+math.Abs(one)
					}
					if math.Abs(float64(v)-want) > 1e-5*size+1e-40 && size < 1e30 {
						t.Fatalf("%s, side %d: row %d, column %d is %v, want %v", what, side, row, c, v, want)
					}
				}
			}
		}
	}
}
