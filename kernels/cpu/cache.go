package cpu

import (
	"fmt"
	"unsafe"

	"github.com/tandem-llm/tandem/kernels"
)

// Cache is a KV cache in host memory: pages, one after the other. A page holds PageRows positions: for each layer that
// keeps any and each KV head the keys of all positions, then their values.
//
// Keys are transposed: a vector holds one dimension of several keys, and a page's keys are read from the first
// byte to the last. F16: (Dim, PageRows) halves. Q8_0: per 32 dimensions PageRows half scales, then
// (32, PageRows) codes.
// Values lie row by row. F16: Dim halves, padded to a multiple of 16. Q8_0: the Dim codes of each
// position, and after those of the whole page the scales: (Dim/32, PageRows) halves.
type Cache struct {
	shape kernels.KVShape
	kvLayout
	pages int
	mem   *Memory
}

// kvLayout is how a page is laid out, in bytes.
type kvLayout struct {
	heads, dim  int   // of every layer that keeps any
	layers      []int // offset in the page of the keys that each layer reads, its own or its source's
	page        int
	head        int // the piece of one layer and KV head
	values      int // offset in the piece, which begins with the keys
	valueRow    int // one position's values
	valueScales int // from values; Q8_0 only
}

func layoutOf(s kernels.KVShape) (l kvLayout, err error) {
	if err := s.Check(); err != nil {
		return l, err
	}
	l.layers = make([]int, len(s.Layers))
	for i, k := range s.Layers {
		switch {
		case k.Latent > 0:
			return l, unsupported("compressed keys and values (layer %d)", i)
		case k.Heads == 0:
			continue
		case l.heads > 0 && (k.Heads != l.heads || k.Dim != l.dim):
			return l, unsupported("KV cache whose layers differ: %d heads of %d in layer %d after %d of %d", k.Heads, k.Dim, i, l.heads,
				l.dim)
		}
		l.heads, l.dim = k.Heads, k.Dim
	}
	l.values, l.valueRow = kernels.PageRows*2*l.dim, 2*((l.dim+15)&^15)
	scales := 0
	if s.Type == kernels.KVQ8_0 {
		l.values, l.valueRow, scales = kernels.PageRows/16*17*l.dim, l.dim, kernels.PageRows*l.dim/16
	}
	l.valueScales = kernels.PageRows * l.valueRow
	l.head = l.values + l.valueScales + scales
	for i, k := range s.Layers {
		if l.layers[i] = l.page; k.Heads > 0 {
			l.page += l.heads * l.head
		}
		if k.Shared {
			l.layers[i] = l.layers[k.Source]
		}
	}
	return l, nil
}

// NewCache reserves a cache; the system provides its memory as pages are first written.
func (d *Device) NewCache(shape kernels.KVShape, pages int) (kernels.Cache, error) {
	l, err := layoutOf(shape)
	if err != nil {
		return nil, err
	}
	if pages < 1 || pages > kernels.MaxPages {
		return nil, fmt.Errorf("kernels: KV cache of %d pages, want 1 to %d", pages, kernels.MaxPages)
	}
	mem, err := Alloc(pages * l.page)
	if err != nil {
		return nil, err
	}
	return &Cache{shape, l, pages, mem}, nil
}

// Shape returns what the cache keeps.
func (c *Cache) Shape() kernels.KVShape { return c.shape }

// Pages returns how many pages there are.
func (c *Cache) Pages() int { return c.pages }

// Bytes returns the size of all pages.
func (c *Cache) Bytes() int64 { return int64(len(c.mem.b)) }

// Memory returns the pages.
func (c *Cache) Memory() []byte { return c.mem.b }

// Populate makes the system provide a part of the memory now.
func (c *Cache) Populate(from, to int64) error {
	if from < 0 || from > to || to > c.Bytes() || from%kernels.PopulateBytes != 0 {
		return fmt.Errorf("kernels: bytes %d to %d of a KV cache of %d, want a begin at a multiple of %d",
			from, to, c.Bytes(), kernels.PopulateBytes)
	}
	return populate(c.mem.b[from:to])
}

// Lock keeps the memory from being paged out.
func (c *Cache) Lock() error { return c.mem.Lock() }

// Close gives the memory back; nothing may use it any more.
func (c *Cache) Close() { c.mem.Free() }

// Copy copies cells.
//
// Each dimension of a key is in another cache line, which its neighbours in the page share. So all cells
// are copied dimension by dimension, and each line is fetched once.
func (c *Cache) Copy(dst, src []kernels.Cell) {
	arena, page := c.mem.b, func(at kernels.Cell) int { return int(at/kernels.PageRows) * c.page }
	for n := 0; len(dst) > 0; dst, src = dst[n:], src[n:] {
		for n = 1; n < len(dst) && page(dst[n]) == page(dst[0]) && page(src[n]) == page(src[0]); n++ {
		}
		to, from := page(dst[0]), page(src[0])
		for end := to + c.page; to < end; to, from = to+c.head, from+c.head {
			c.copyHead(arena[to:to+c.head], arena[from:from+c.head], dst[:n], src[:n])
		}
	}
}

// copyHead copies cells of one page to cells of one page, in the piece of one layer and KV head.
func (c *Cache) copyHead(to, from []byte, dst, src []kernels.Cell) {
	const rows = kernels.PageRows
	tk, fk := to[:c.values], from[:c.values]
	tv, fv := to[c.values:], from[c.values:]
	if c.shape.Type == kernels.KVQ8_0 {
		for ; len(tk) > 0; tk, fk = tk[34*rows:], fk[34*rows:] { // scales and (32, PageRows) codes
			copyColumns(halves(tk[:2*rows]), halves(fk[:2*rows]), dst, src)
			copyColumns(tk[2*rows:34*rows], fk[2*rows:34*rows], dst, src)
		}
		copyColumns(halves(tv[c.valueScales:]), halves(fv[c.valueScales:]), dst, src)
	} else {
		copyColumns(halves(tk), halves(fk), dst, src)
	}
	for i := range dst {
		d, f := int(dst[i]%rows), int(src[i]%rows)
		copy(tv[d*c.valueRow:(d+1)*c.valueRow], fv[f*c.valueRow:])
	}
}

// copyColumns copies columns of a (n, PageRows) matrix.
func copyColumns[T uint8 | uint16](to, from []T, dst, src []kernels.Cell) {
	const rows = kernels.PageRows
	for ; len(to) >= rows; to, from = to[rows:], from[rows:] {
		t, f := to[:rows], from[:rows]
		for i, d := range dst {
			t[d%rows] = f[src[i]%rows]
		}
	}
}

// halves views b, which begins at an even address, as 16-bit words.
func halves(b []byte) []uint16 { return unsafe.Slice((*uint16)(unsafe.Pointer(&b[0])), len(b)/2) }
