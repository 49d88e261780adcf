package kerneltest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
)

// keys fills the caches of any device, with programs that only store.
type keys struct {
	rig
	k, v  []kernels.Buf // per layer that stores
	cells int
}

const storeRows = 256

// newKeys returns what fills the caches of r.
func newKeys(t testing.TB, r rig, shape kernels.KVShape, pages int) *keys {
	p := kernels.NewProgram(storeRows, 0)
	p.KV = shape
	f := &keys{cells: pages * kernels.PageRows}
	for i, l := range shape.Layers {
		if k, v, stores := storing(p, l, i); stores {
			if f.v = append(f.v, v); k != kernels.None {
				f.k = append(f.k, k)
			}
		}
	}
	for _, m := range r {
		f.rig = append(f.rig, compile(t, m.dev, p, nil, m.cache))
	}
	return f
}

// fill gives the cells in seen random keys and values, and all others NaN.
func (f *keys) fill(r *rand.Rand, seen map[kernels.Cell]bool) {
	nan := float32(math.NaN())
	for first := 0; first < f.cells; first += storeRows {
		n := min(storeRows, f.cells-first)
		pass := &kernels.Pass{Rows: n, Pages: []int32{0}}
		for i := range n {
			cell := kernels.Cell(first + i)
			pass.Pos, pass.Prefix, pass.Table = append(pass.Pos, 0), append(pass.Prefix, 0), append(pass.Table, 0)
			pass.Anc, pass.AncOff, pass.AncLen = append(pass.Anc, cell), append(pass.AncOff, int32(i)), append(pass.AncLen, 1)
			pass.Store = append(pass.Store, cell)
		}
		for _, b := range slices.Concat(f.k, f.v) {
			dim := f.rig[0].p.Buffers[b].Dim
			x := slices.Repeat([]float32{nan}, n*dim)
			for i := range n {
				if seen[kernels.Cell(first+i)] {
					copy(x[i*dim:], RandomFloats(r, dim, false))
				}
			}
			f.set(b, x)
		}
		f.run(pass)
	}
}

// seen returns the cells that a row of the pass sees, in order of position.
func seen(p *kernels.Pass, row int) []kernels.Cell {
	var cells []kernels.Cell
	for pos := 0; pos < int(p.Prefix[row]); pos++ {
		page := p.Pages[int(p.Table[row])+pos/kernels.PageRows]
		cells = append(cells, kernels.Cell(page)*kernels.PageRows+kernels.Cell(pos%kernels.PageRows))
	}
	return append(cells, p.Anc[p.AncOff[row]:p.AncOff[row]+p.AncLen[row]]...)
}

func seenByAny(p *kernels.Pass) map[kernels.Cell]bool {
	all := map[kernels.Cell]bool{}
	for row := range p.Rows {
		for _, c := range seen(p, row) {
			all[c] = true
		}
	}
	return all
}

// randomPass returns rows of several sessions with prefixes up to most positions: rows that extend
// their prefix, and rows of trees whose ancestors lie in scattered cells. Each row has a cell of its own.
func randomPass(r *rand.Rand, rows, pages, most int) *kernels.Pass {
	p := &kernels.Pass{Rows: rows, Tokens: make([]int32, rows)}
	order := r.Perm(pages)
	own, used := kernels.Cell(0), map[kernels.Cell]bool{}
	free := func() kernels.Cell { // cells of the last quarter of the pages serve as tree cells
		for {
			c := kernels.Cell(order[pages-1-r.IntN(pages/4)])*kernels.PageRows + kernels.Cell(r.IntN(kernels.PageRows))
			if !used[c] {
				return c
			}
		}
	}
	for i := 0; i < rows; i++ {
		prefix := 1 + r.IntN(most)
		first := r.IntN(pages*3/4 - most/kernels.PageRows)
		if i > 0 && r.IntN(3) > 0 { // the session of the row before
			p.Table = append(p.Table, p.Table[i-1])
			prefix = 1 + r.IntN((len(p.Pages)-int(p.Table[i]))*kernels.PageRows)
		} else {
			p.Table = append(p.Table, int32(len(p.Pages)))
			for g := 0; g*kernels.PageRows < prefix; g++ {
				p.Pages = append(p.Pages, int32(order[first+g]))
			}
		}
		anc := 0
		page := p.Pages[int(p.Table[i])+(prefix-1)/kernels.PageRows]
		own = kernels.Cell(page)*kernels.PageRows + kernels.Cell((prefix-1)%kernels.PageRows)
		p.AncOff = append(p.AncOff, int32(len(p.Anc)))
		if used[own] || r.IntN(2) == 0 {
			anc = 1 + r.IntN(20)
			for j := 0; j < anc; j++ {
				own = free()
				p.Anc = append(p.Anc, own)
			}
			if r.IntN(4) == 0 {
				prefix = 0 // a tree without a prefix
			}
		}
		used[own] = true
		p.Prefix, p.AncLen = append(p.Prefix, int32(prefix)), append(p.AncLen, int32(anc))
		p.Pos, p.Store = append(p.Pos, int32(prefix+anc-1)), append(p.Store, own)
	}
	return p
}

// chunkPass is a piece of a prefill: rows that extend one prefix, across a block's edge.
func chunkPass(r *rand.Rand, rows, most int) *kernels.Pass {
	p := &kernels.Pass{Rows: rows, Tokens: make([]int32, rows)}
	for i := range (most+rows)/kernels.PageRows + 1 {
		p.Pages = append(p.Pages, int32(i))
	}
	first := max(0, most/256*256-1-r.IntN(rows))
	for i := first; i < first+rows; i++ {
		p.Pos, p.Prefix, p.Store = append(p.Pos, int32(i)), append(p.Prefix, int32(i+1)), append(p.Store, kernels.Cell(i))
		p.Table, p.AncOff, p.AncLen = append(p.Table, 0), append(p.AncOff, 0), append(p.AncLen, 0)
	}
	return p
}

// blockPass is blocks of a block draft: rows of one block list each other, later ones too. The first begins before a block's edge of
// positions, the last is cut short.
func blockPass(r *rand.Rand, rows, pages, most int) *kernels.Pass {
	const size = 6
	p := &kernels.Pass{Rows: rows, Tokens: make([]int32, rows)}
	cells := r.Perm(pages / 4 * kernels.PageRows)
	for first := 0; first < rows; first += size {
		n := min(size, rows-first)
		prefix := max(1, most/256*256-r.IntN(size))
		table, list := int32(len(p.Pages)), int32(len(p.Anc))
		for g := range (prefix + kernels.PageRows - 1) / kernels.PageRows {
			p.Pages = append(p.Pages, int32(pages/4+g))
		}
		for i := range n {
			p.Anc = append(p.Anc, kernels.Cell(cells[first+i]))
			p.Pos, p.Store = append(p.Pos, int32(prefix+i)), append(p.Store, kernels.Cell(cells[first+i]))
			p.Table, p.Prefix = append(p.Table, table), append(p.Prefix, int32(prefix))
			p.AncOff, p.AncLen = append(p.AncOff, list), append(p.AncLen, int32(n))
		}
	}
	return p
}

// alone is the pass with row i only.
func alone(p *kernels.Pass, i int) *kernels.Pass {
	one := &kernels.Pass{Rows: 1, Tokens: p.Tokens[i : i+1], Pos: p.Pos[i : i+1], Store: p.Store[i : i+1], Pages: p.Pages,
		Table: p.Table[i : i+1], Prefix: p.Prefix[i : i+1], Anc: p.Anc, AncOff: p.AncOff[i : i+1], AncLen: p.AncLen[i : i+1], TopK: p.TopK}
	if p.Cut != nil {
		one.Cut = p.Cut[i : i+1]
	}
	if p.Wanted != nil {
		one.Wanted = []int32{0}
	}
	return one
}

type attentionCase struct {
	heads, kvHeads, dim, most int
	hostile                   bool
	window                    int
	softCap                   float32
	kv                        kernels.KVType
	sinks                     bool
	gated                     bool // by the queries
	blocks                    bool // rows are those of block drafts
	later                     bool // and see all of their block
}

var attentionCases = []attentionCase{
	{heads: 4, kvHeads: 2, dim: 32, most: 300},
	{heads: 6, kvHeads: 1, dim: 64, most: 700},
	{heads: 2, kvHeads: 2, dim: 80, most: 200, gated: true},
	{heads: 3, kvHeads: 3, dim: 128, most: 100},
	{heads: 8, kvHeads: 4, dim: 20, most: 600, gated: true},
	{heads: 14, kvHeads: 2, dim: 48, most: 500, window: 70},
	{heads: 2, kvHeads: 1, dim: 64, most: 400, hostile: true},
	{heads: 3, kvHeads: 1, dim: 256, most: 300, softCap: 0.7},
	{heads: 4, kvHeads: 1, dim: 16, most: 700, window: 300, softCap: 5, hostile: true},
	{heads: 2, kvHeads: 2, dim: 32, most: 600, window: 1},
	{heads: 8, kvHeads: 2, dim: 64, most: 600, kv: kernels.KVQ8_0},
	{heads: 5, kvHeads: 1, dim: 96, most: 400, kv: kernels.KVQ8_0, window: 257, softCap: 2},
	{heads: 70, kvHeads: 1, dim: 16, most: 80},
	{heads: 8, kvHeads: 2, dim: 40, most: 600, sinks: true},
	{heads: 4, kvHeads: 1, dim: 32, most: 500, window: 8, sinks: true, kv: kernels.KVQ8_0},
	{heads: 1, kvHeads: 1, dim: 160, most: 300, kv: kernels.KVQ8_0, hostile: true},
	{heads: 4, kvHeads: 2, dim: 32, most: 520, blocks: true, later: true},
	{heads: 6, kvHeads: 1, dim: 64, most: 300, blocks: true, later: true, window: 9, softCap: 3},
	{heads: 4, kvHeads: 4, dim: 32, most: 600, blocks: true, later: true, window: 258, kv: kernels.KVQ8_0, sinks: true},
	{heads: 2, kvHeads: 1, dim: 48, most: 300, blocks: true, window: 7},
}

// attention: any head size, grouping, position, window, cap, format and place of keys gives the bits of
// the definition.
func attention(t *testing.T, devices []kernels.Device) {
	for _, s := range attentionCases {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) { oneAttention(t, devices, s) })
	}
}

const attentionRows, attentionPages, attentionLayer, chunkRound = 13, 16, 1, 4

// attentionRig is a program that stores a layer's keys and values and attends, plain and divided.
type attentionRig struct {
	rig
	*keys
	q, k, v, out, divided kernels.Buf
}

func newAttention(t *testing.T, devices []kernels.Device, s attentionCase, shared int) *attentionRig {
	n, kv := s.heads*s.dim, s.kvHeads*s.dim
	opt := kernels.AttentionOpt{Scale: 0.3, Window: s.window, SoftCap: s.softCap, Later: s.later}
	p := kernels.NewProgram(attentionRows, 0)
	p.KV = kernels.UniformKV(2, s.kvHeads, s.dim, s.kv)
	a := &attentionRig{q: p.Buf(n), k: p.Buf(kv), v: p.Buf(kv), out: p.Buf(n), divided: p.Buf(n)}
	act, w := p.Act(n), weight(p, kernels.F32, n, n)
	var sinks []float32
	if s.sinks { // above and below the scores, and far away
		sinks = RandomFloats(rng(uint64(n)), s.heads, false)
		sinks[0], sinks[1], sinks[2] = 30, -200, float32(math.Inf(-1))
	}
	p.StoreKV(a.k, a.v, attentionLayer)
	if shared < 0 {
		p.Add(kernels.Attention{AttentionOpt: opt, Q: a.q, Layer: attentionLayer, Heads: s.heads, Out: act, Sinks: sinks,
			Gate: a.q, Gated: s.gated})
		p.MatMul(w, act, a.out, kernels.MatMulOpt{})
	} else {
		p.Parts = []kernels.PartShape{{Heads: s.heads, Dim: s.dim}}
		p.Stage("left")
		p.Add(kernels.AttendBlocks{AttentionOpt: opt, Q: a.q, Layer: attentionLayer, Heads: s.heads, Side: kernels.Left, Shared: shared})
		p.Stage("right")
		p.Add(kernels.AttendBlocks{AttentionOpt: opt, Q: a.q, Layer: attentionLayer, Heads: s.heads, Side: kernels.Right, Shared: shared})
		p.Stage("join")
		p.Add(kernels.JoinBlocks{AttentionOpt: opt, Layer: attentionLayer, Out: act, Sinks: sinks, Gate: a.q, Gated: s.gated})
		p.MatMul(w, act, a.out, kernels.MatMulOpt{})
	}
	a.rig = newRig(t, able(t, devices, p), p, [][]byte{identity(n)}, attentionPages)
	a.keys = newKeys(t, a.rig, p.KV, attentionPages)
	return a
}

func (s attentionCase) pass(r *rand.Rand, round int) *kernels.Pass {
	if s.blocks {
		return blockPass(r, attentionRows, attentionPages, s.most)
	}
	if round == chunkRound {
		return chunkPass(r, attentionRows, s.most)
	}
	return randomPass(r, attentionRows, attentionPages, s.most)
}

func oneAttention(t *testing.T, devices []kernels.Device, s attentionCase) {
	const rows = attentionRows
	r := rng(uint64(s.heads*s.dim + s.most))
	n, kv := s.heads*s.dim, s.kvHeads*s.dim
	a := newAttention(t, devices, s, -1)
	rounds := []int{3, chunkRound}
	switch { // reading an activation back costs n·n multiply-adds
	case n > 1000:
		rounds = rounds[:1]
	case *long && n <= 700:
		rounds = []int{0, 1, 2, 3, chunkRound}
	}
	for _, round := range rounds {
		pass := s.pass(r, round)
		a.fill(r, seenByAny(pass))
		q, k, v := RandomFloats(r, rows*n, s.hostile), RandomFloats(r, rows*kv, s.hostile), RandomFloats(r, rows*kv, s.hostile)
		a.rig.set(a.q, q)
		a.rig.set(a.k, k)
		a.rig.set(a.v, v)
		a.rig.run(pass)
		a.rig.same(fmt.Sprint("round ", round), a.out, rows)
		want := a.rig[0].get(a.out, rows)
		on := a.rig[len(a.rig)-1]
		for row := range rows {
			on.set(a.q, q[row*n:(row+1)*n])
			on.set(a.k, k[row*kv:(row+1)*kv])
			on.set(a.v, v[row*kv:(row+1)*kv])
			on.run(alone(pass, row))
			wantSame(t, fmt.Sprintf("%s, row %d alone, round %d", on.name, row, round), on.get(a.out, 1), want[row*n:(row+1)*n])
		}
	}
}

// dividedAttention: attention in two parts, cut at any block of each row, with the block at the cut divided by KV heads, joined from the
// blocks' (m, l, o): on one device, and with the right part handed over by another.
func dividedAttention(t *testing.T, devices []kernels.Device) {
	const rows = attentionRows
	for i, s := range attentionCases {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			r := rng(uint64(i))
			n, kv := s.heads*s.dim, s.kvHeads*s.dim
			shared := i % (s.kvHeads + 1)
			whole, a := newAttention(t, devices[len(devices)-1:], s, -1), newAttention(t, devices, s, shared)
			if len(whole.rig) > 1 {
				whole.rig, whole.keys.rig = whole.rig[1:], whole.keys.rig[1:] // attention compares it with the definitions
			}
			for _, round := range []int{3, chunkRound}[i%2:][:1] { // the two kinds of pass alternate between cases
				pass := s.pass(r, round)
				seed := r.Uint64()
				whole.fill(rng(seed), seenByAny(pass))
				a.fill(rng(seed), seenByAny(pass))
				for row := range rows {
					pass.Cut = append(pass.Cut, int32(r.IntN((pass.Keys(row)-1)/kernels.Block+2)))
				}
				for _, b := range []struct {
					buf kernels.Buf
					n   int
				}{{a.q, n}, {a.k, kv}, {a.v, kv}} {
					x := RandomFloats(r, rows*b.n, s.hostile)
					whole.rig.set(b.buf, x)
					a.rig.set(b.buf, x)
				}
				whole.rig.run(pass)
				a.rig.run(pass)
				want := whole.rig[0].get(a.out, rows)
				for _, m := range a.rig {
					wantSame(t, m.name, m.get(a.out, rows), want)
				}
				for _, m := range a.rig[1:] {
					handOver(t, a.rig[0], m, pass, s.heads/s.kvHeads, shared)
					wantSame(t, m.name+" with blocks of "+a.rig[0].name, m.get(a.out, rows), want)
				}
			}
		})
	}
}

// handOver runs the left part of a divided attention on one device, takes the right one from another, and joins.
func handOver(t *testing.T, from, to *machine, pass *kernels.Pass, group, shared int) {
	t.Helper()
	for _, m := range []*machine{from, to} {
		if err := m.runner.Start(pass); err != nil {
			t.Fatal(err)
		}
	}
	stage := func(m *machine, i int) {
		t.Helper()
		if err := m.runner.Stage(i); err != nil {
			t.Fatalf("%s: %v", m.name, err)
		}
	}
	stage(from, 0)
	stage(to, 0)
	stage(to, 1)
	stage(from, 2)
	for row := range pass.Rows {
		for b := int(pass.Cut[row]); b <= (pass.Keys(row)-1)/kernels.Block; b++ {
			for head := range from.p.Parts[0].Heads {
				if b > int(pass.Cut[row]) || head/group >= shared {
					copyPart(to.runner.Part(0, row, b, head), from.runner.Part(0, row, b, head))
				}
			}
		}
	}
	stage(to, 3)
}

func copyPart(dst, src kernels.Part) {
	*dst.Max, *dst.Sum = *src.Max, *src.Sum
	copy(dst.O, src.O)
}

// copyCells: attention finds in a cell what was copied to it.
func copyCells(t *testing.T, devices []kernels.Device) {
	for _, s := range []attentionCase{{heads: 2, kvHeads: 2, dim: 20}, {heads: 6, kvHeads: 3, dim: 64, kv: kernels.KVQ8_0}} {
		r := rng(3)
		n, kv := s.heads*s.dim, s.kvHeads*s.dim
		a := newAttention(t, devices, s, -1)
		pass := &kernels.Pass{Rows: 1, Pages: []int32{3, 5, 7}, Table: []int32{0}, Prefix: []int32{180}, Pos: []int32{179},
			Store:  []kernels.Cell{0},
			AncOff: []int32{0}, AncLen: []int32{0}}
		at := func(pos int) kernels.Cell { return kernels.Cell(pass.Pages[pos/64])*64 + kernels.Cell(pos%64) }
		everywhere := map[kernels.Cell]bool{}
		for pos := range 192 {
			everywhere[at(pos)] = true
		}
		a.fill(r, everywhere)
		var dst, src []kernels.Cell
		// over the end of a page, and within one
		for _, c := range [][2]int{{62, 130}, {63, 128}, {64, 62}, {65, 140}, {128, 128}, {129, 131}, {130, 129}} {
			dst, src = append(dst, at(c[0])), append(src, at(c[1]))
		}
		for _, m := range a.rig {
			m.cache.Copy(dst, src)
		}
		a.rig.set(a.q, RandomFloats(r, n, false))
		a.rig.set(a.k, RandomFloats(r, kv, false))
		a.rig.set(a.v, RandomFloats(r, kv, false))
		a.rig.run(pass)
		a.rig.same("copied", a.out, 1)
	}
}

// sharedLayers: layers that keep nothing take no memory, and a layer that shares another's keys and values reads them.
func sharedLayers(t *testing.T, devices []kernels.Device) {
	const heads, kvHeads, dim = 4, 2, 32
	own := kernels.KVLayer{Heads: kvHeads, Dim: dim}
	p := kernels.NewProgram(attentionRows, 0)
	p.KV = kernels.KVShape{Layers: []kernels.KVLayer{{}, own, {}, {Heads: kvHeads, Dim: dim, Window: 90}, {Shared: true, Source: 1}}}
	q, k, v := p.Buf(heads*dim), p.Buf(kvHeads*dim), p.Buf(kvHeads*dim)
	w, act := weight(p, kernels.F32, heads*dim, heads*dim), p.Act(heads*dim)
	p.StoreKV(k, v, 1)
	p.StoreKV(v, k, 3)
	var outs []kernels.Buf
	for layer, window := range map[int]int{1: 0, 3: 90, 4: 0} {
		out := p.Buf(heads * dim)
		p.Attention(q, layer, heads, kernels.AttentionOpt{Scale: 0.2, Window: window}, act)
		p.MatMul(w, act, out, kernels.MatMulOpt{})
		outs = append(outs, out)
	}
	m := newRig(t, devices, p, [][]byte{identity(heads * dim)}, attentionPages)
	r := rng(1)
	pass := randomPass(r, attentionRows, attentionPages, 300)
	newKeys(t, m, p.KV, attentionPages).fill(r, seenByAny(pass))
	for _, b := range []kernels.Buf{q, k, v} {
		m.set(b, RandomFloats(r, attentionRows*p.Buffers[b].Dim, false))
	}
	m.run(pass)
	for i, out := range outs {
		m.same(fmt.Sprint("output ", i), out, attentionRows)
	}
	uniform := kernels.UniformKV(2, kvHeads, dim, kernels.KVF16)
	for _, d := range devices {
		if two, five := newCache(t, d, uniform, 4).Bytes(), newCache(t, d, p.KV, 4).Bytes(); two != five {
			t.Errorf("%v: two layers take %d bytes, two of five that keep something %d", d.About(), two, five)
		}
	}
}
