package kernels

import "fmt"

// PageRows is the number of positions in one page of the KV cache.
const PageRows = 64

// Cell is one position's place in the KV cache: page*PageRows + slot.
type Cell int32

// KVShape gives the sizes of a KV cache. Keys and values are f16. A page holds PageRows positions: for
// each layer K, then V, each (KVHeads, PageRows, HeadDim).
type KVShape struct{ Layers, KVHeads, HeadDim int }

// PageBytes returns the size of one page.
func (s KVShape) PageBytes() int { return s.Layers * 2 * s.KVHeads * PageRows * s.HeadDim * 2 }

func (s KVShape) check() error {
	if s.Layers < 1 || s.KVHeads < 1 || s.HeadDim < 1 || s.Layers > 1<<12 || s.KVHeads > 1<<12 || s.HeadDim > 1<<12 {
		return fmt.Errorf("kernels: KV cache of %d layers, %d heads of %d, want 1 to 4096 of each", s.Layers, s.KVHeads, s.HeadDim)
	}
	return nil
}

// CopyCell copies the keys and values of all layers from cell src to cell dst of arena, which holds
// whole pages. Both cells are inside.
func (s KVShape) CopyCell(arena []byte, dst, src Cell) {
	row := s.HeadDim * 2
	from := int(src/PageRows)*s.PageBytes() + int(src%PageRows)*row
	to := int(dst/PageRows)*s.PageBytes() + int(dst%PageRows)*row
	for i := 0; i < s.Layers*2*s.KVHeads; i++ {
		at := i * PageRows * row
		copy(arena[to+at:to+at+row], arena[from+at:from+at+row])
	}
}
