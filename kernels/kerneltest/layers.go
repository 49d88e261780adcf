package kerneltest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
)

// differentLayers: layers of one cache differ in heads and head sizes, keep nothing, or read what another layer keeps. Attention on each,
// whole and divided, gives the bits of the definition, and so it does after cells were copied.
func differentLayers(t *testing.T, devices []kernels.Device) {
	layersOf(t, devices, 4, []int{0: 70, 5: 90, 7: 0}, []kernels.KVLayer{{Heads: 2, Dim: 32, Window: 90}, {}, {Heads: 1, Dim: 96},
		{Heads: 4, Dim: 32}, {Shared: true, Source: 2}, {Shared: true, Source: 0}, {Heads: 1, Dim: 32}, {Heads: 2, Dim: 64}})
}

// compressedLayers: the same of layers that keep a latent vector and a turned key, a latent vector alone, or what such a layer keeps,
// beside one with heads; and alone, with query heads enough, an odd number, for a device to divide those of a block.
func compressedLayers(t *testing.T, devices []kernels.Device) {
	layersOf(t, devices, 4, []int{1: 100, 3: 0}, []kernels.KVLayer{{Latent: 96, Rotated: 32}, {Latent: 32}, {Shared: true, Source: 0},
		{Heads: 2, Dim: 32}})
	layersOf(t, devices, 17, []int{0}, []kernels.KVLayer{{Latent: 32, Rotated: 32}})
}

func layersOf(t *testing.T, devices []kernels.Device, heads int, windows []int, layers []kernels.KVLayer) {
	for _, typ := range []kernels.KVType{kernels.KVF16, kernels.KVQ8_0} {
		t.Run(fmt.Sprintf("%v/%d", typ, heads), func(t *testing.T) {
			oneCache(t, devices, kernels.KVShape{Layers: layers, Type: typ}, heads, windows)
		})
	}
}

// storing adds the storing of what a layer keeps, if it keeps any, in buffers of its own; k is None if there is only a latent vector.
func storing(p *kernels.Program, l kernels.KVLayer, i int) (k, v kernels.Buf, ok bool) {
	k, v = kernels.None, kernels.None
	switch {
	case l.Latent > 0:
		if v = p.Buf(l.Latent); l.Rotated > 0 {
			k = p.Buf(l.Rotated)
		}
	case l.Heads > 0:
		k, v = p.Buf(l.Heads*l.Dim), p.Buf(l.Heads*l.Dim)
	default:
		return k, v, false
	}
	p.StoreKV(k, v, i)
	return k, v, true
}

func oneCache(t *testing.T, devices []kernels.Device, shape kernels.KVShape, heads int, windows []int) {
	p := kernels.NewProgram(attentionRows, 0)
	p.KV = shape
	var ins, outs []kernels.Buf
	data, matrices := [][]byte(nil), map[int]kernels.W{}
	matrix := func(n int) kernels.W {
		w, is := matrices[n]
		if !is {
			w = weight(p, kernels.F32, n, n)
			matrices[n], data = w, append(data, identity(n))
		}
		return w
	}
	for i, l := range shape.Layers { // neighbours, so that a device may run them together
		if k, v, stores := storing(p, l, i); stores {
			ins = append(ins, k, v)
		}
	}
	for i := range shape.Layers {
		kept := shape.Layers[shape.Kept(i)]
		kvHeads, key, value := kept.Seen()
		if kvHeads == 0 {
			continue
		}
		n := heads * value
		q, whole, divided, act := p.Buf(heads*key), p.Buf(n), p.Buf(n), p.Act(n)
		opt := kernels.AttentionOpt{Scale: 0.2, Window: windows[i]}
		p.Attention(q, i, heads, opt, act)
		p.MatMul(matrix(n), act, whole, kernels.MatMulOpt{})
		p.Parts = append(p.Parts, kernels.PartShape{Heads: heads, Dim: value})
		parts := kernels.Parts(len(p.Parts) - 1)
		for _, side := range []kernels.Side{kernels.Left, kernels.Right} {
			p.Add(kernels.AttendBlocks{AttentionOpt: opt, Q: q, Layer: i, Heads: heads, Side: side, Shared: kvHeads / 2, Out: parts})
		}
		p.Add(kernels.JoinBlocks{AttentionOpt: opt, In: parts, Layer: i, Out: act})
		p.MatMul(matrix(n), act, divided, kernels.MatMulOpt{})
		ins, outs = append(ins, q), append(outs, whole, divided)
	}
	m := newRig(t, devices, p, data, attentionPages)
	r := rng(7)
	filled := newKeys(t, m, shape, attentionPages)
	for round, pass := range []*kernels.Pass{randomPass(r, attentionRows, attentionPages, 300), chunkPass(r, attentionRows, 600)} {
		for row := range pass.Rows {
			pass.Cut = append(pass.Cut, int32(r.IntN(int(pass.Pos[row])/kernels.Block+2)))
		}
		cells := seenByAny(pass)
		filled.fill(r, cells)
		var to, from []kernels.Cell // the keys of every other cell are those of the one before
		var last kernels.Cell
		for row := range pass.Rows {
			for i, c := range seen(pass, row) {
				if i%2 == 1 && row == 0 {
					to, from = append(to, c), append(from, last)
				}
				last = c
			}
		}
		for _, x := range m {
			x.cache.Copy(to, from)
		}
		ins = slices.DeleteFunc(ins, func(b kernels.Buf) bool { return b == kernels.None })
		for _, b := range ins {
			m.set(b, RandomFloats(r, pass.Rows*p.Buffers[b].Dim, false))
		}
		m.run(pass)
		for i, out := range outs {
			m.same(fmt.Sprintf("output %d of round %d", i, round), out, pass.Rows)
			if i%2 == 1 {
				wantSame(t, "divided", m[0].get(out, pass.Rows), m[0].get(outs[i-1], pass.Rows))
			}
		}
		on := m[len(m)-1]
		want := make([][]float32, len(outs))
		for i, out := range outs {
			want[i] = on.get(out, pass.Rows)
		}
		one := alone(pass, pass.Rows-1)
		for _, b := range ins {
			n := p.Buffers[b].Dim
			on.set(b, m[0].get(b, pass.Rows)[(pass.Rows-1)*n:])
		}
		on.run(one)
		for i, out := range outs {
			n := p.Buffers[out].Dim
			wantSame(t, fmt.Sprintf("%s, last row alone, output %d", on.name, i), on.get(out, 1), want[i][(pass.Rows-1)*n:])
		}
	}
}
