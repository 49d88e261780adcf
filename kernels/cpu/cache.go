package cpu

import (
	"fmt"
	"unsafe"

	"github.com/tandem-llm/tandem/kernels"
	_ "github.com/tandem-llm/tandem/kernels/cpu/compiler"
)

// Cache is a KV cache in host memory: pages, one after the other. A page holds PageRows positions: for each layer that
// keeps any and each KV head the keys of all positions, then their values.
//
// Keys are transposed: a vector holds one dimension of several keys, and a page's keys are read from the first
// byte to the last. F16: (Dim, PageRows) halves. Q8_0: per 32 dimensions PageRows half scales, then
// (32, PageRows) codes.
// Values lie row by row. F16: Dim halves, padded to a multiple of 16. Q8_0: the Dim codes of each
// position, and after those of the whole page the scales: (Dim/32, PageRows) halves.
//
// A compressed layer is one KV head whose key is the rotated key and the latent vector, and whose value is the latent vector: a page has
// the latent vectors twice, in both orders, since scores are computed with one and sums with the other.
//
// Behind the pages lie slots and records of recurrent layers. In a slot a layer has the inputs of its convolution, oldest first, and then
// per value head and 16 columns of the matrix (key, 16).
type Cache struct {
	shape kernels.KVShape
	kvLayout
	pages    int
	statesAt int // behind the pages
	mem      *Memory
}

// kvLayout is how a page is laid out: for each layer what it reads of it, its own keys and values or its source's.
type kvLayout struct {
	layers []keptLayout
	page   int // in bytes
	states kernels.StateLayout
}

// keptLayout is where a layer's keys and values lie in a page, in bytes. It is zero for a layer that keeps none.
type keptLayout struct {
	heads       int
	dim, value  int // elements of a key and of a value
	latent      bool
	at          int // from the beginning of the page
	head        int // the piece of one KV head
	values      int // offset in the piece, which begins with the keys
	valueRow    int // one position's values
	valueScales int // from values; Q8_0 only
}

const mostDim = 4096 // of a key: MAXDIM in kv.c

func keptOf(k kernels.KVLayer, t kernels.KVType) (l keptLayout) {
	l.heads, l.dim, l.value = k.Seen()
	l.latent = k.Latent > 0
	l.values, l.valueRow = kernels.PageRows*2*l.dim, 2*((l.value+15)&^15)
	scales := 0
	if t == kernels.KVQ8_0 {
		l.values, l.valueRow, scales = kernels.PageRows/16*17*l.dim, l.value, kernels.PageRows*l.value/16
	}
	l.valueScales = kernels.PageRows * l.valueRow
	l.head = l.values + l.valueScales + scales
	return l
}

func layoutOf(s kernels.KVShape) (l kvLayout, err error) {
	if err := s.Check(); err != nil {
		return l, err
	}
	l.layers, l.states = make([]keptLayout, len(s.Layers)), s.PlaceStates(64)
	for i, k := range s.Layers {
		switch {
		case k.Latent+k.Rotated > mostDim:
			return l, unsupported("compressed keys of %d elements (layer %d; at most %d)", k.Latent+k.Rotated, i, mostDim)
		case k.Shared:
			l.layers[i] = l.layers[k.Source]
		case k.Heads > 0 || k.Latent > 0:
			l.layers[i] = keptOf(k, s.Type)
			l.layers[i].at = l.page
			l.page += l.layers[i].heads * l.layers[i].head
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
	at := (pages*l.page + 63) &^ 63
	mem, err := Alloc(at + l.states.Size)
	if err != nil {
		return nil, err
	}
	return &Cache{shape, l, pages, at, mem}, nil
}

// Shape returns what the cache keeps.
func (c *Cache) Shape() kernels.KVShape { return c.shape }

// Pages returns how many pages there are.
func (c *Cache) Pages() int { return c.pages }

// Bytes returns the size of all pages, slots and records.
func (c *Cache) Bytes() int64 { return int64(len(c.mem.b)) }

// Memory returns the pages, and what lies behind them.
func (c *Cache) Memory() []byte { return c.mem.b }

// form is the order of bytes that Cache's comment describes, which all instruction sets share. A change there is a new name.
const form = "cpu 1"

// Form, Page and Slot implement kernels.HostCache.
func (c *Cache) Form() string        { return form }
func (c *Cache) Page(i int32) []byte { return c.mem.b[int(i)*c.page:][:c.page:c.page] }
func (c *Cache) Slot(i int32) []byte {
	return c.mem.b[c.statesAt+int(i)*c.states.Slot:][:c.states.Slot:c.states.Slot]
}

var _ kernels.HostCache = (*Cache)(nil)

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
		for i, l := range c.layers {
			if s := c.shape.Layers[i]; s.Heads == 0 && s.Latent == 0 { // nothing, or another layer's
				continue
			}
			to, from := page(dst[0])+l.at, page(src[0])+l.at
			for range l.heads {
				c.copyHead(l, arena[to:to+l.head], arena[from:from+l.head], dst[:n], src[:n])
				to, from = to+l.head, from+l.head
			}
		}
	}
}

// copyHead copies cells of one page to cells of one page, in the piece of one layer and KV head.
func (c *Cache) copyHead(l keptLayout, to, from []byte, dst, src []kernels.Cell) {
	const rows = kernels.PageRows
	tk, fk := to[:l.values], from[:l.values]
	tv, fv := to[l.values:], from[l.values:]
	if c.shape.Type == kernels.KVQ8_0 {
		for ; len(tk) > 0; tk, fk = tk[34*rows:], fk[34*rows:] { // scales and (32, PageRows) codes
			copyColumns(halves(tk[:2*rows]), halves(fk[:2*rows]), dst, src)
			copyColumns(tk[2*rows:34*rows], fk[2*rows:34*rows], dst, src)
		}
		copyColumns(halves(tv[l.valueScales:]), halves(fv[l.valueScales:]), dst, src)
	} else {
		copyColumns(halves(tk), halves(fk), dst, src)
	}
	for i := range dst {
		d, f := int(dst[i]%rows), int(src[i]%rows)
		copy(tv[d*l.valueRow:(d+1)*l.valueRow], fv[f*l.valueRow:])
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
