package kernels_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
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
	for i, v := range randomFloats(r, len(c.arena)/2, false) {
		half(c.arena[2*i:], v)
	}
	return c
}

// at returns where K (v 0) or V (v 1) of a cell begins, in elements.
func (c *cache) at(cell kernels.Cell, layer, v, head int) int {
	s := c.shape
	at := (int(cell/kernels.PageRows)*s.Layers*2 + layer*2 + v) * s.KVHeads
	return ((at+head)*kernels.PageRows + int(cell%kernels.PageRows)) * s.HeadDim
}

// store writes a row's keys and values of layer 0.
func (c *cache) store(cell kernels.Cell, k, v []float32) {
	for i := range k {
		h, d := i/c.shape.HeadDim, i%c.shape.HeadDim
		half(c.arena[2*(c.at(cell, 0, 0, h)+d):], k[i])
		half(c.arena[2*(c.at(cell, 0, 1, h)+d):], v[i])
	}
}

// row returns K (v 0) or V (v 1) of a cell.
func (c *cache) row(cell kernels.Cell, layer, v, head int) []uint16 {
	at := c.at(cell, layer, v, head)
	out := make([]uint16, c.shape.HeadDim)
	for i := range out {
		out[i] = binary.LittleEndian.Uint16(c.arena[2*(at+i):])
	}
	return out
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
	p := &kernels.Pass{Rows: rows}
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

// TestAttention: any head size, grouping, position and place of keys gives the bits of the definition.
func TestAttention(t *testing.T) {
	all := pools(t, 1, 3)
	for _, s := range []struct {
		heads, kvHeads, dim, most int
		hostile                   bool
	}{{4, 2, 32, 300, false}, {6, 1, 64, 700, false}, {2, 2, 80, 200, false}, {3, 3, 128, 100, false}, {8, 4, 20, 600, false}, {2, 1, 64, 400, true}} {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			shape := kernels.KVShape{Layers: 2, KVHeads: s.kvHeads, HeadDim: s.dim}
			testAttention(t, all, shape, s.heads, s.most, s.hostile)
		})
	}
}

func testAttention(t *testing.T, all []*kernels.Pool, shape kernels.KVShape, heads, most int, hostile bool) {
	const rows, pages, layer = 9, 32, 1
	r := rng(uint64(heads*shape.HeadDim + most))
	c := newCache(t, r, shape, pages)
	n, kv := heads*shape.HeadDim, shape.KVHeads*shape.HeadDim
	p := kernels.NewProgram(rows, 0)
	q, k, v, out, act := p.Buf(n), p.Buf(kv), p.Buf(kv), p.Buf(n), p.Act(n)
	p.SetKV(shape, c.arena)
	p.StoreKV(k, v, layer)
	p.Attention(q, layer, heads, 0.3, act)
	p.MatMul(identity(t, n), act, out, kernels.MatMulOpt{})
	seal(t, p)
	for round := 0; round < 4; round++ {
		pass := randomPass(r, rows, pages, most)
		xq, xk, xv := randomFloats(r, rows*n, hostile), randomFloats(r, rows*kv, hostile), randomFloats(r, rows*kv, hostile)
		var want []float32
		for _, pool := range all {
			copy(p.Rows(q), xq)
			copy(p.Rows(k), xk)
			copy(p.Rows(v), xv)
			run(t, p, pool, pass)
			if want == nil { // by now the arena holds the rows' own keys, which every pool writes alike
				checkStored(t, c, pass, layer, xk, xv)
				want = refAttention(c, pass, layer, heads, xq)
			}
			wantSame(t, fmt.Sprintf("%v, %d threads, round %d", pool.ISA(), pool.Threads(), round), p.Rows(out), want)
		}
	}
}

// checkStored checks the keys and values of every row.
func checkStored(t *testing.T, c *cache, p *kernels.Pass, layer int, k, v []float32) {
	t.Helper()
	for i, cell := range p.Store {
		for h := 0; h < c.shape.KVHeads; h++ {
			for d := 0; d < c.shape.HeadDim; d++ {
				at := (i*c.shape.KVHeads+h)*c.shape.HeadDim + d
				for j, x := range []float32{k[at], v[at]} {
					got, want := ref.F16(c.row(cell, layer, j, h)[d]), ref.F16(ref.ToF16(x))
					if !same(got, want) {
						t.Fatalf("stored %v as %v, want %v", x, got, want)
					}
				}
			}
		}
	}
}

// refHeads is what all heads of a row see, by the definition.
func refHeads(c *cache, p *kernels.Pass, row, layer, heads int, scale float32, q []float32) []float32 {
	d := c.shape.HeadDim
	out := make([]float32, heads*d)
	for h := 0; h < heads; h++ {
		var keys, values [][]uint16
		for _, cell := range seen(p, row) {
			keys = append(keys, c.row(cell, layer, 0, h/(heads/c.shape.KVHeads)))
			values = append(values, c.row(cell, layer, 1, h/(heads/c.shape.KVHeads)))
		}
		ref.Attention(q[h*d:(h+1)*d], keys, values, scale, out[h*d:(h+1)*d])
	}
	return out
}

func refAttention(c *cache, p *kernels.Pass, layer, heads int, q []float32) []float32 {
	n := heads * c.shape.HeadDim
	var all []float32
	for row := 0; row < p.Rows; row++ {
		all = append(all, refIdentity(refHeads(c, p, row, layer, heads, 0.3, q[row*n:(row+1)*n]))...)
	}
	return all
}

func TestCopyCell(t *testing.T) {
	c := &cache{kernels.KVShape{Layers: 3, KVHeads: 2, HeadDim: 4}, nil}
	c.arena = make([]byte, 2*c.shape.PageBytes())
	for i := range c.arena {
		c.arena[i] = byte(i * 7)
	}
	before := append([]byte(nil), c.arena...)
	const dst, src = kernels.Cell(5), kernels.Cell(70)
	c.shape.CopyCell(c.arena, dst, src)
	changed := 0
	for i := range c.arena {
		if c.arena[i] != before[i] {
			changed++
		}
	}
	for l := 0; l < 3; l++ {
		for v := 0; v < 2; v++ {
			for h := 0; h < 2; h++ {
				if got, want := fmt.Sprint(c.row(dst, l, v, h)), fmt.Sprint(c.row(src, l, v, h)); got != want {
					t.Errorf("layer %d part %d head %d: %s, want %s", l, v, h, got, want)
				}
			}
		}
	}
	if limit := 3 * 2 * 2 * 4 * 2; changed > limit {
		t.Errorf("%d bytes changed, a cell has %d", changed, limit)
	}
}
