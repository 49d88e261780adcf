package kernels

import (
	"fmt"
	"unsafe"
)

// PageRows is the number of positions in one page of the KV cache.
const PageRows = 64

// Cell is one position's place in the KV cache: page*PageRows + slot.
type Cell int32

// KVType is the format of keys and values in the cache.
type KVType int

const (
	KVF16  KVType = iota // IEEE halves
	KVQ8_0               // per 32 dimensions of a head a half scale and int8 codes
)

var kvTypes = [...]string{"f16", "q8_0"}

// ParseKVType reads "f16" or "q8_0"; "" is f16.
func ParseKVType(s string) (KVType, error) {
	for i, n := range kvTypes {
		if s == n {
			return KVType(i), nil
		}
	}
	if s == "" {
		return KVF16, nil
	}
	return KVF16, fmt.Errorf("kernels: unknown KV cache type %q, want f16 or q8_0", s)
}

func (t KVType) String() string {
	if t < 0 || int(t) >= len(kvTypes) {
		return fmt.Sprintf("kv type %d", int(t))
	}
	return kvTypes[t]
}

// KVShape gives the sizes of a KV cache. A page holds PageRows positions: for each layer and KV head the
// keys of all positions, then their values.
//
// Keys lie transposed, so that one vector is a dimension of some keys, and a page's are read from the first
// byte to the last. F16: (HeadDim, PageRows) halves. Q8_0: per 32 dimensions PageRows half scales, then
// (32, PageRows) codes.
// Values lie row by row. F16: HeadDim halves, padded to a multiple of 16. Q8_0: the HeadDim codes of each
// position, and after those of the whole page the scales: (HeadDim/32, PageRows) halves.
type KVShape struct {
	Layers, KVHeads, HeadDim int
	Type                     KVType
}

// kvLayout is where things lie in the piece of a page that belongs to one layer and KV head, in bytes.
type kvLayout struct {
	head        int // the whole piece
	values      int // from the piece's begin, where the keys are
	valueRow    int // one position's values
	valueScales int // from values; Q8_0 only
}

func (s KVShape) layout() kvLayout {
	l := kvLayout{values: PageRows * 2 * s.HeadDim, valueRow: 2 * ((s.HeadDim + 15) &^ 15)}
	scales := 0
	if s.Type == KVQ8_0 {
		l.values, l.valueRow, scales = PageRows/16*17*s.HeadDim, s.HeadDim, PageRows*s.HeadDim/16
	}
	l.valueScales = PageRows * l.valueRow
	l.head = l.values + l.valueScales + scales
	return l
}

// PageBytes returns the size of one page.
func (s KVShape) PageBytes() int { return s.Layers * s.KVHeads * s.layout().head }

// Check reports what is wrong with s.
func (s KVShape) Check() error {
	if s.Layers < 1 || s.KVHeads < 1 || s.HeadDim < 1 || s.Layers > 1<<12 || s.KVHeads > 1<<12 || s.HeadDim > 1<<12 {
		return fmt.Errorf("kernels: KV cache of %d layers, %d heads of %d, want 1 to 4096 of each", s.Layers, s.KVHeads, s.HeadDim)
	}
	if s.Type != KVF16 && s.Type != KVQ8_0 {
		return fmt.Errorf("kernels: KV cache of %v, want f16 or q8_0", s.Type)
	}
	if s.Type == KVQ8_0 && s.HeadDim%32 != 0 {
		return fmt.Errorf("kernels: q8_0 KV cache with heads of %d, want a multiple of 32, or f16", s.HeadDim)
	}
	return nil
}

// CopyCells copies the keys and values of all layers from cell src[i] to cell dst[i] of arena, which holds
// whole pages, one after the other: a cell that was copied to may be copied from. All cells are inside.
//
// A key has a cache line of its own for every dimension, and neighbours in a page share them: so all cells
// are copied dimension by dimension, and each line is fetched once.
func (s KVShape) CopyCells(arena []byte, dst, src []Cell) {
	l := s.layout()
	page := func(c Cell) int { return int(c/PageRows) * s.PageBytes() }
	for n := 0; len(dst) > 0; dst, src = dst[n:], src[n:] {
		for n = 1; n < len(dst) && page(dst[n]) == page(dst[0]) && page(src[n]) == page(src[0]); n++ {
		}
		to, from := page(dst[0]), page(src[0])
		for i := 0; i < s.Layers*s.KVHeads; i++ {
			s.copyHead(l, arena[to:to+l.head], arena[from:from+l.head], dst[:n], src[:n])
			to, from = to+l.head, from+l.head
		}
	}
}

// copyHead copies cells of one page to cells of one page, in the piece of one layer and KV head.
func (s KVShape) copyHead(l kvLayout, to, from []byte, dst, src []Cell) {
	tk, fk := to[:l.values], from[:l.values]
	tv, fv := to[l.values:], from[l.values:]
	if s.Type == KVQ8_0 {
		for ; len(tk) > 0; tk, fk = tk[34*PageRows:], fk[34*PageRows:] { // scales and (32, PageRows) codes
			copyColumns(halves(tk[:2*PageRows]), halves(fk[:2*PageRows]), dst, src)
			copyColumns(tk[2*PageRows:34*PageRows], fk[2*PageRows:34*PageRows], dst, src)
		}
		copyColumns(halves(tv[l.valueScales:]), halves(fv[l.valueScales:]), dst, src)
	} else {
		copyColumns(halves(tk), halves(fk), dst, src)
	}
	for i := range dst {
		d, f := int(dst[i]%PageRows), int(src[i]%PageRows)
		copy(tv[d*l.valueRow:(d+1)*l.valueRow], fv[f*l.valueRow:])
	}
}

// copyColumns copies columns of a (n, PageRows) matrix.
func copyColumns[T uint8 | uint16](to, from []T, dst, src []Cell) {
	for ; len(to) >= PageRows; to, from = to[PageRows:], from[PageRows:] {
		t, f := to[:PageRows], from[:PageRows]
		for i, d := range dst {
			t[d%PageRows] = f[src[i]%PageRows]
		}
	}
}

// halves views b, which begins at an even address, as 16-bit words.
func halves(b []byte) []uint16 { return unsafe.Slice((*uint16)(unsafe.Pointer(&b[0])), len(b)/2) }
