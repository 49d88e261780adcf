package cpu_test

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

func newCache(t testing.TB, shape kernels.KVShape, pages int) *cpu.Cache {
	t.Helper()
	c, err := testdevice.CPU(t, 1).NewCache(shape, pages)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c.(*cpu.Cache)
}

// arena is a cache with a shape of equal layers.
type arena struct {
	layers, heads, dim int
	typ                kernels.KVType
	b                  []byte
}

// at returns where dimension d of K (v 0) or V (v 1) of a cell lies in the arena, and its scale, by the layout
// in the comment of cpu.Cache.
func (c *arena) at(cell kernels.Cell, layer, v, head, d int) (elem, scale int) {
	dim, slot := c.dim, int(cell%kernels.PageRows)
	padded := (dim + 15) / 16 * 16
	keys, values := 64*dim*2, 64*padded*2
	if c.typ == kernels.KVQ8_0 {
		keys, values = 64*(dim+dim/16), 64*(dim+dim/16)
	}
	base := ((int(cell/kernels.PageRows)*c.layers+layer)*c.heads + head) * (keys + values)
	switch {
	case c.typ == kernels.KVF16 && v == 0:
		return base + (d*64+slot)*2, -1
	case c.typ == kernels.KVF16:
		return base + keys + (slot*padded+d)*2, -1
	case v == 0:
		block := base + d/32*(2+32)*64
		return block + (2+d%32)*64 + slot, block + slot*2
	}
	return base + keys + slot*dim + d, base + keys + 64*dim + (d/32*64+slot)*2
}

// TestCopyCells: copying moves what the layout says, and nothing else.
func TestCopyCells(t *testing.T) {
	for _, a := range []*arena{{layers: 3, heads: 2, dim: 20}, {layers: 2, heads: 3, dim: 64, typ: kernels.KVQ8_0}} {
		c := newCache(t, kernels.UniformKV(a.layers, a.heads, a.dim, a.typ), 3)
		a.b = c.Memory()
		r := rand.New(rand.NewPCG(3, 7))
		for i := range a.b {
			a.b[i] = byte(r.Uint32())
		}
		want := append([]byte(nil), a.b...)
		dst := []kernels.Cell{62, 63, 64, 65, 128, 129, 130} // over the end of a page, and within one
		src := []kernels.Cell{130, 128, 62, 140, 128, 131, 129}
		c.Copy(dst, src)
		word := func(to, from, n int) { copy(want[to:to+n], want[from:from+n]) }
		for k := range dst {
			for i := 0; i < a.layers*2*a.heads*a.dim; i++ {
				d, j := i%a.dim, i/a.dim
				to, toScale := a.at(dst[k], j/2/a.heads, j/a.heads%2, j%a.heads, d)
				from, fromScale := a.at(src[k], j/2/a.heads, j/a.heads%2, j%a.heads, d)
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
			if a.b[i] != want[i] && !a.padding(i) {
				t.Fatalf("%d heads of %d: byte %d of the arena is %d, want %d", a.heads, a.dim, i, a.b[i], want[i])
			}
		}
	}
}

func BenchmarkCopyCells(b *testing.B) {
	c := newCache(b, kernels.UniformKV(16, 16, 64, kernels.KVF16), 40)
	if err := c.Populate(0, c.Bytes()); err != nil {
		b.Fatal(err)
	}
	page := kernels.Cell(kernels.PageRows)
	for i := 0; b.Loop(); i++ { // other pages each time: they are not in the cache
		at := kernels.Cell(i%19) * 2 * page
		c.Copy([]kernels.Cell{at, at + 1, at + 2, at + 3}, []kernels.Cell{at + page, at + page + 2, at + page + 5, at + page + 6})
	}
}

// padding reports whether byte i of the arena holds no element.
func (c *arena) padding(i int) bool {
	dim := c.dim
	padded := (dim + 15) / 16 * 16
	if c.typ != kernels.KVF16 || padded == dim {
		return false
	}
	i %= 64 * 2 * (dim + padded)
	return i >= 64*2*dim && (i-64*2*dim)/2%padded >= dim
}
