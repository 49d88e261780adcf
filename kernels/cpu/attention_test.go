package kernels_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	kernels "github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/ref"
)

// cache is a KV arena and a way to read a position's vectors out of it.
type cache struct {
	shape kernels.KVShape
	arena []byte
}

// newCache returns a cache full of random keys and values.
func newCache(t testing.TB, r *rand.Rand, shape kernels.KVShape, pages int) *cache {
	c := &cache{shape, alloc(t, pages*shape.PageBytes())}
	if shape.Type == kernels.KVF16 {
		for i, v := range randomFloats(r, len(c.arena)/2, false) {
			half(c.arena[2*i:], v)
		}
		return c
	}
	for i := range c.arena {
		c.arena[i] = byte(r.Uint32())
	}
	for cell := kernels.Cell(0); int(cell) < pages*kernels.PageRows; cell++ {
		for i := 0; i < shape.Layers*2*shape.KVHeads*shape.HeadDim; i += 32 {
			_, scale := c.at(cell, i/shape.HeadDim/2/shape.KVHeads, i/shape.HeadDim/shape.KVHeads%2, i/shape.HeadDim%shape.KVHeads, i%shape.HeadDim)
			half(c.arena[scale:], float32(r.NormFloat64())*0.02)
		}
	}
	return c
}

// at returns where dimension d of K (v 0) or V (v 1) of a cell lies in the arena, and its scale: the layout
// as the comment of KVShape has it.
func (c *cache) at(cell kernels.Cell, layer, v, head, d int) (elem, scale int) {
	dim, slot := c.shape.HeadDim, int(cell%kernels.PageRows)
	padded := (dim + 15) / 16 * 16
	keys, values := 64*dim*2, 64*padded*2
	if c.shape.Type == kernels.KVQ8_0 {
		keys, values = 64*(dim+dim/16), 64*(dim+dim/16)
	}
	base := ((int(cell/kernels.PageRows)*c.shape.Layers+layer)*c.shape.KVHeads + head) * (keys + values)
	switch {
	case c.shape.Type == kernels.KVF16 && v == 0:
		return base + (d*64+slot)*2, -1
	case c.shape.Type == kernels.KVF16:
		return base + keys + (slot*padded+d)*2, -1
	case v == 0:
		block := base + d/32*(2+32)*64
		return block + (2+d%32)*64 + slot, block + slot*2
	}
	return base + keys + slot*dim + d, base + keys + 64*dim + (d/32*64+slot)*2
}

// row returns K (v 0) or V (v 1) of a cell, widened.
func (c *cache) row(cell kernels.Cell, layer, v, head int) []float32 {
	out := make([]float32, c.shape.HeadDim)
	word := func(at int) float32 { return ref.F16(binary.LittleEndian.Uint16(c.arena[at:])) }
	for d := range out {
		if elem, scale := c.at(cell, layer, v, head, d); scale < 0 {
			out[d] = word(elem)
		} else {
			out[d] = word(scale) * float32(int8(c.arena[elem]))
		}
	}
	return out
}

// refRow returns K (v 0) or V (v 1) of a cell as the definition takes it.
func (c *cache) refRow(cell kernels.Cell, layer, v, head int) ref.Row {
	if c.shape.Type == kernels.KVF16 {
		return ref.Row{X: c.row(cell, layer, v, head)}
	}
	var r ref.Row
	for d := range c.shape.HeadDim {
		elem, scale := c.at(cell, layer, v, head, d)
		r.X = append(r.X, float32(int8(c.arena[elem])))
		if d%32 == 0 {
			r.Scales = append(r.Scales, ref.F16(binary.LittleEndian.Uint16(c.arena[scale:])))
		}
	}
	return r
}

// setRow writes x to K (v 0) or V (v 1) of a cell, in the format of the cache.
func (c *cache) setRow(cell kernels.Cell, layer, v, head int, x []float32) {
	if c.shape.Type == kernels.KVF16 {
		for d := range x {
			elem, _ := c.at(cell, layer, v, head, d)
			half(c.arena[elem:], x[d])
		}
		return
	}
	q := ref.Quantize(x, 32)
	for d := range x {
		elem, scale := c.at(cell, layer, v, head, d)
		c.arena[elem] = byte(q.Q[d])
		half(c.arena[scale:], q.Scale[d/32])
	}
}

// store writes a row's keys and values.
func (c *cache) store(cell kernels.Cell, layer int, k, v []float32) {
	for h, n := 0, c.shape.HeadDim; h < c.shape.KVHeads; h++ {
		c.setRow(cell, layer, 0, h, k[h*n:(h+1)*n])
		c.setRow(cell, layer, 1, h, v[h*n:(h+1)*n])
	}
}

// poison overwrites all that no row of the pass sees with NaN, padding included.
func (c *cache) poison(p *kernels.Pass) {
	old := append([]byte(nil), c.arena...)
	for i := range c.arena {
		c.arena[i] = 0xff
	}
	for row := 0; row < p.Rows; row++ {
		for _, cell := range seen(p, row) {
			for i := 0; i < c.shape.Layers*2*c.shape.KVHeads*c.shape.HeadDim; i++ {
				d, j := i%c.shape.HeadDim, i/c.shape.HeadDim
				elem, scale := c.at(cell, j/2/c.shape.KVHeads, j/c.shape.KVHeads%2, j%c.shape.KVHeads, d)
				c.arena[elem] = old[elem]
				if scale >= 0 {
					copy(c.arena[scale:scale+2], old[scale:])
				} else {
					c.arena[elem+1] = old[elem+1]
				}
			}
		}
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
		own = kernels.Cell(p.Pages[int(p.Table[i])+(prefix-1)/kernels.PageRows])*kernels.PageRows + kernels.Cell((prefix-1)%kernels.PageRows)
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

// TestAttention: any head size, grouping, position, window, cap, format and place of keys gives the bits of
// the definition.
func TestAttention(t *testing.T) {
	all := pools(t, 1, 3)
	for _, s := range []attentionCase{
		{heads: 4, kvHeads: 2, dim: 32, most: 300},
		{heads: 6, kvHeads: 1, dim: 64, most: 700},
		{heads: 2, kvHeads: 2, dim: 80, most: 200},
		{heads: 3, kvHeads: 3, dim: 128, most: 100},
		{heads: 8, kvHeads: 4, dim: 20, most: 600},
		{heads: 14, kvHeads: 2, dim: 48, most: 500, window: 70},
		{heads: 2, kvHeads: 1, dim: 64, most: 400, hostile: true},
		{heads: 5, kvHeads: 1, dim: 256, most: 300, softCap: 0.7},
		{heads: 4, kvHeads: 1, dim: 16, most: 700, window: 300, softCap: 5, hostile: true},
		{heads: 2, kvHeads: 2, dim: 32, most: 600, window: 1},
		{heads: 8, kvHeads: 2, dim: 64, most: 600, kv: kernels.KVQ8_0},
		{heads: 3, kvHeads: 1, dim: 96, most: 400, kv: kernels.KVQ8_0, window: 257, softCap: 2},
		{heads: 70, kvHeads: 1, dim: 16, most: 80},
		{heads: 1, kvHeads: 1, dim: 160, most: 300, kv: kernels.KVQ8_0, hostile: true},
	} {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) { testAttention(t, all, s) })
	}
}

type attentionCase struct {
	heads, kvHeads, dim, most int
	hostile                   bool
	window                    int
	softCap                   float32
	kv                        kernels.KVType
}

func testAttention(t *testing.T, all []*kernels.Pool, s attentionCase) {
	const rows, pages, layer = 13, 32, 1
	shape := kernels.KVShape{Layers: 2, KVHeads: s.kvHeads, HeadDim: s.dim, Type: s.kv}
	opt := kernels.AttentionOpt{Scale: 0.3, Window: s.window, SoftCap: s.softCap}
	r := rng(uint64(s.heads*s.dim + s.most))
	c := newCache(t, r, shape, pages)
	n, kv := s.heads*s.dim, s.kvHeads*s.dim
	p := kernels.NewProgram(rows, 0)
	q, k, v, out, act := p.Buf(n), p.Buf(kv), p.Buf(kv), p.Buf(n), p.Act(n)
	p.SetKV(shape, c.arena)
	p.StoreKV(k, v, layer)
	p.Attention(q, layer, s.heads, opt, act)
	p.MatMul(identity(t, n), act, out, kernels.MatMulOpt{})
	seal(t, p)
	for round := 0; round < 5; round++ {
		pass := randomPass(r, rows, pages, s.most)
		if round == 4 {
			pass = chunkPass(r, rows, s.most)
		}
		c.poison(pass)
		xq, xk, xv := randomFloats(r, rows*n, s.hostile), randomFloats(r, rows*kv, s.hostile), randomFloats(r, rows*kv, s.hostile)
		var want []float32
		for _, pool := range all {
			copy(p.Rows(q), xq)
			copy(p.Rows(k), xk)
			copy(p.Rows(v), xv)
			run(t, p, pool, pass)
			if want == nil { // by now the arena holds the rows' own keys, which every pool writes alike
				checkStored(t, c, pass, layer, xk, xv)
				for row := 0; row < rows; row++ {
					want = append(want, refIdentity(refHeads(c, pass, row, layer, s.heads, opt, xq[row*n:(row+1)*n]))...)
				}
			}
			wantSame(t, fmt.Sprintf("%v, %d threads, round %d", pool.ISA(), pool.Threads(), round), p.Rows(out), want)
		}
		pool := all[len(all)-1]
		for row := 0; row < rows; row++ { // alone
			copy(p.Rows(q), xq[row*n:(row+1)*n])
			copy(p.Rows(k), xk[row*kv:(row+1)*kv])
			copy(p.Rows(v), xv[row*kv:(row+1)*kv])
			one := alone(pass, row)
			one.Wanted = nil
			run(t, p, pool, one)
			wantSame(t, fmt.Sprintf("%v, row %d alone, round %d", pool.ISA(), row, round), p.Rows(out)[:n], want[row*n:(row+1)*n])
		}
	}
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

// checkStored checks the keys and values of every row.
func checkStored(t *testing.T, c *cache, p *kernels.Pass, layer int, k, v []float32) {
	t.Helper()
	copied := &cache{c.shape, append([]byte(nil), c.arena...)}
	n := c.shape.KVHeads * c.shape.HeadDim
	for i, cell := range p.Store {
		copied.store(cell, layer, k[i*n:(i+1)*n], v[i*n:(i+1)*n])
		for h := 0; h < c.shape.KVHeads; h++ {
			for j := range 2 {
				wantSame(t, fmt.Sprintf("row %d, part %d", i, j), c.row(cell, layer, j, h), copied.row(cell, layer, j, h))
			}
		}
	}
}

// refHeads is what all heads of a row see, by the definition.
func refHeads(c *cache, p *kernels.Pass, row, layer, heads int, opt kernels.AttentionOpt, q []float32) []float32 {
	d := c.shape.HeadDim
	out := make([]float32, heads*d)
	group := heads / c.shape.KVHeads
	for g := 0; g < c.shape.KVHeads; g++ {
		var keys, values []ref.Row
		for _, cell := range seen(p, row) {
			keys = append(keys, c.refRow(cell, layer, 0, g))
			values = append(values, c.refRow(cell, layer, 1, g))
		}
		for h := g * group; h < (g+1)*group; h++ {
			ref.Attention(q[h*d:(h+1)*d], keys, values, ref.AttentionOpt(opt), out[h*d:(h+1)*d])
		}
	}
	return out
}

func TestCopyCells(t *testing.T) {
	for _, shape := range []kernels.KVShape{{Layers: 3, KVHeads: 2, HeadDim: 20}, {Layers: 2, KVHeads: 3, HeadDim: 64, Type: kernels.KVQ8_0}} {
		c := newCache(t, rng(3), shape, 3)
		want := append([]byte(nil), c.arena...)
		dst := []kernels.Cell{62, 63, 64, 65, 128, 129, 130} // over the end of a page, and within one
		src := []kernels.Cell{130, 128, 62, 140, 128, 131, 129}
		shape.CopyCells(c.arena, dst, src)
		word := func(to, from, n int) { copy(want[to:to+n], want[from:from+n]) }
		for k := range dst {
			for i := 0; i < shape.Layers*2*shape.KVHeads*shape.HeadDim; i++ {
				d, j := i%shape.HeadDim, i/shape.HeadDim
				to, toScale := c.at(dst[k], j/2/shape.KVHeads, j/shape.KVHeads%2, j%shape.KVHeads, d)
				from, fromScale := c.at(src[k], j/2/shape.KVHeads, j/shape.KVHeads%2, j%shape.KVHeads, d)
				if toScale < 0 {
					word(to, from, 2)
					continue
				}
				word(to, from, 1)
				if d%32 == 0 { // a block's scale moves once
					word(toScale, fromScale, 2)
				}
			}
		}
		for i := range want { // a cell's padding may be copied or not: it is never read
			if c.arena[i] != want[i] && !c.padding(i) {
				t.Fatalf("%+v: byte %d of the arena is %d, want %d", shape, i, c.arena[i], want[i])
			}
		}
	}
}

func BenchmarkCopyCells(b *testing.B) {
	shape := kernels.KVShape{Layers: 16, KVHeads: 16, HeadDim: 64}
	mem, err := kernels.Alloc(40 * shape.PageBytes())
	if err != nil {
		b.Fatal(err)
	}
	defer mem.Free()
	arena := mem.Bytes()
	if err := kernels.Populate(arena); err != nil {
		b.Fatal(err)
	}
	page := kernels.Cell(kernels.PageRows)
	for i := 0; b.Loop(); i++ { // other pages each time: they are not in the cache
		at := kernels.Cell(i%19) * 2 * page
		shape.CopyCells(arena, []kernels.Cell{at, at + 1, at + 2, at + 3}, []kernels.Cell{at + page, at + page + 2, at + page + 5, at + page + 6})
	}
}

// padding reports whether byte i of the arena holds no element.
func (c *cache) padding(i int) bool {
	dim := c.shape.HeadDim
	padded := (dim + 15) / 16 * 16
	if c.shape.Type != kernels.KVF16 || padded == dim {
		return false
	}
	i %= 64 * 2 * (dim + padded)
	return i >= 64*2*dim && (i-64*2*dim)/2%padded >= dim
}

func TestParseKVType(t *testing.T) {
	for name, want := range map[string]kernels.KVType{"": kernels.KVF16, "f16": kernels.KVF16, "q8_0": kernels.KVQ8_0} {
		if got, err := kernels.ParseKVType(name); err != nil || got != want {
			t.Errorf("%q is %v, %v", name, got, err)
		}
	}
	_, err := kernels.ParseKVType("q3")
	wantError(t, "q3", err, `"q3"`)
}
