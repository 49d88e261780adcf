package kernels

// #include "tk.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Pass gives the rows of one pass. A row sees the positions 0 to Prefix-1 through its page table and
// then its ancestors, the last of which is the row itself; Pos = Prefix+AncLen-1. A row that extends the
// prefix has Prefix = Pos+1 and no ancestors: its own cell is in its table. Positions are needed by
// programs with RoPE or a KV cache, the rest of the rows' lists by programs with a KV cache. Neighbouring
// rows that name the same table share the work of fetching its keys.
type Pass struct {
	Rows           int
	Tokens, Pos    []int32
	Store          []Cell  // where the row's K and V go
	Pages          []int32 // page tables, one after the other
	Table          []int32 // per row: where its table begins in Pages
	Prefix         []int32 // per row: positions visible through the table
	Anc            []Cell  // ancestors' cells, in order of position
	AncOff, AncLen []int32 // per row: where its ancestors are in Anc
	Wanted         []int32 // rows with logits
	TopK           int     // values that TopK returns for each of them, at most 64
}

// Run runs the program once for the rows of pass. Every index is checked before anything is written.
func (p *Program) Run(pool *Pool, pass *Pass) error {
	s := p.sealed
	if s == nil {
		return errNotSealed
	}
	if err := p.check(pass); err != nil {
		return err
	}
	if s.lastPool != pool && s.lastPool != nil {
		s.lastPool.quiet()
	}
	if err := s.setPass(pass); err != nil {
		return err
	}
	s.lastPool, s.wantedRows, s.topk = pool, len(pass.Wanted), min(pass.TopK, s.vocab)
	return pool.run(s.prog)
}

func (p *Program) check(a *Pass) error {
	if a.Rows < 1 || a.Rows > p.maxRows {
		return fmt.Errorf("kernels: pass of %d rows, want 1 to %d", a.Rows, p.maxRows)
	}
	if len(a.Wanted) > p.maxWanted {
		return fmt.Errorf("kernels: pass with %d wanted rows, want at most %d", len(a.Wanted), p.maxWanted)
	}
	if a.TopK < 0 || a.TopK > maxTop {
		return fmt.Errorf("kernels: top %d of the logits, want 0 to %d", a.TopK, maxTop)
	}
	for i, w := range a.Wanted {
		if w < 0 || int(w) >= a.Rows {
			return fmt.Errorf("kernels: wanted row %d is %d of %d", i, w, a.Rows)
		}
	}
	if n := p.sealed.embedRows; n > 0 {
		if len(a.Tokens) != a.Rows {
			return fmt.Errorf("kernels: %d tokens for %d rows", len(a.Tokens), a.Rows)
		}
		for i, t := range a.Tokens {
			if t < 0 || int(t) >= n {
				return fmt.Errorf("kernels: token %d of row %d, want 0 to %d", t, i, n-1)
			}
		}
	}
	if len(p.angles) > 0 || len(p.arena) > 0 {
		if len(a.Pos) != a.Rows {
			return fmt.Errorf("kernels: %d positions for %d rows", len(a.Pos), a.Rows)
		}
		for i, pos := range a.Pos {
			if pos < 0 || pos >= 1<<24 {
				return fmt.Errorf("kernels: position %d of row %d, want 0 to %d", pos, i, 1<<24-1)
			}
		}
	}
	if len(p.arena) > 0 {
		return p.checkKV(a)
	}
	return nil
}

func (p *Program) checkKV(a *Pass) error {
	for _, l := range []struct {
		name string
		n    int
	}{{"cells to store", len(a.Store)}, {"page tables", len(a.Table)}, {"prefixes", len(a.Prefix)}, {"ancestor lists", len(a.AncOff)}, {"ancestor counts", len(a.AncLen)}} {
		if l.n != a.Rows {
			return fmt.Errorf("kernels: %d %s for %d rows", l.n, l.name, a.Rows)
		}
	}
	pages := len(p.arena) / p.kv.PageBytes()
	for i, g := range a.Pages {
		if g < 0 || int(g) >= pages {
			return fmt.Errorf("kernels: entry %d of the page tables is page %d of %d", i, g, pages)
		}
	}
	for i, c := range a.Anc {
		if c < 0 || int(c) >= pages*PageRows {
			return fmt.Errorf("kernels: ancestor %d is cell %d of %d", i, c, pages*PageRows)
		}
	}
	for r := 0; r < a.Rows; r++ {
		prefix, anc := int(a.Prefix[r]), int(a.AncLen[r])
		switch {
		case a.Store[r] < 0 || int(a.Store[r]) >= pages*PageRows:
			return fmt.Errorf("kernels: row %d is stored in cell %d of %d", r, a.Store[r], pages*PageRows)
		case prefix < 0 || anc < 0 || int(a.Pos[r]) != prefix+anc-1:
			return fmt.Errorf("kernels: row %d at position %d sees %d positions and %d ancestors", r, a.Pos[r], prefix, anc)
		case a.Table[r] < 0 || int(a.Table[r])+(prefix+PageRows-1)/PageRows > len(a.Pages):
			return fmt.Errorf("kernels: row %d's table begins at %d of %d for %d positions", r, a.Table[r], len(a.Pages), prefix)
		case a.AncOff[r] < 0 || int(a.AncOff[r])+anc > len(a.Anc):
			return fmt.Errorf("kernels: row %d's ancestors begin at %d of %d and are %d", r, a.AncOff[r], len(a.Anc), anc)
		}
	}
	return nil
}

// setPass copies the pass into memory that C may read for the length of the call.
func (s *sealed) setPass(a *Pass) error {
	lists := []struct {
		src []int32
		dst **C.int32_t
	}{
		{a.Tokens, &s.prog.pass.tokens}, {a.Pos, &s.prog.pass.pos}, {cells(a.Store), &s.prog.pass.store},
		{a.Pages, &s.prog.pass.pages}, {a.Table, &s.prog.pass.table}, {a.Prefix, &s.prog.pass.prefix},
		{cells(a.Anc), &s.prog.pass.anc}, {a.AncOff, &s.prog.pass.anc_off}, {a.AncLen, &s.prog.pass.anc_len},
		{a.Wanted, &s.prog.pass.wanted},
	}
	need := 64
	for _, l := range lists {
		need += 4 * len(l.src)
	}
	if need > len(s.pass.b) {
		mem, err := Alloc(max(4096, 2*need))
		if err != nil {
			return err
		}
		s.pass.Free()
		s.pass = mem
	}
	all, off := view[int32](s.pass, 0, need/4), 0
	for _, l := range lists {
		copy(all[off:], l.src)
		*l.dst = (*C.int32_t)(&all[off])
		off += len(l.src)
	}
	s.prog.pass.rows, s.prog.pass.nwanted, s.prog.pass.topk = C.int(a.Rows), C.int(len(a.Wanted)), C.int(a.TopK)
	return nil
}

func cells(c []Cell) []int32 {
	if len(c) == 0 {
		return nil
	}
	return unsafe.Slice((*int32)(unsafe.Pointer(&c[0])), len(c))
}

// Rows returns buffer b, row-major, (maxRows or maxWanted, dim). Only the rows of the last pass hold
// results. Valid until the next Run; nil before Seal and after Free.
func (p *Program) Rows(b Buf) []float32 {
	if p.sealed == nil || b < 0 || int(b) >= len(p.bufs) {
		return nil
	}
	rows := p.maxRows
	if p.bufs[b].wanted {
		rows = p.maxWanted
	}
	return view[float32](p.sealed.mem, p.bufs[b].off, rows*p.bufs[b].dim)
}

// Top returns what TopK found in wanted row i of the last pass: the best ids by (logit descending, id
// ascending) with their logits, the largest logit, and Σ exp(logit - max). NaN counts as -Inf. The
// slices are valid until the next Run; for a row that the last pass did not have everything is zero.
func (p *Program) Top(i int) (ids []int32, logits []float32, max, sum float32) {
	s := p.sealed
	if s == nil || i < 0 || i >= s.wantedRows || s.vocab == 0 {
		return nil, nil, 0, 0
	}
	at := i * maxTop
	return s.topIDs[at : at+s.topk], s.topLogits[at : at+s.topk], s.topMax[i], s.topSum[i]
}
