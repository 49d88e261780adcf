package kernels

import (
	"fmt"
	"math"
)

// Pass gives the rows of one pass. A row sees the positions 0 to Prefix-1 through its page table and then its ancestors, the last of which
// is the row itself; Pos = Prefix+AncLen-1. A row that extends the prefix has Prefix = Pos+1 and no ancestors: its own cell is in its
// table. Positions count what the row's table and its list hold. Where the table leaves out a part of the text, Turn has the row's position
// in the whole text. Behind the row itself its list of ancestors may go on with later rows of its block, which only attention that is Later
// sees. Positions are needed by programs with RoPE or a KV cache, prefixes by programs that convolve blocks, and the rest of the rows'
// lists too by programs with a KV cache. Neighbouring rows that name the same table share the work of fetching its keys.
type Pass struct {
	Rows           int
	Tokens         []int32   // what Embed looks up; -1-i for row i of Given
	Given          []float32 // embeddings for rows without a token, one after the other, each as long as a row of the matrix
	Pos            []int32
	Turn           []int32 // per row: its position in the text, which RoPE and PositionScale use; empty: Pos
	Store          []Cell  // where the row's K and V go
	Pages          []int32 // page tables, one after the other
	Table          []int32 // per row: where its table begins in Pages
	Prefix         []int32 // per row: positions visible through the table
	Anc            []Cell  // ancestors' cells, in order of position
	AncOff, AncLen []int32 // per row: where its ancestors are in Anc
	Cut            []int32 // per row: the block at which AttendBlocks is divided; needed by programs that divide
	Left           int32   // how many Shares of the outputs of divided products belong to the Left
	Walks          []Walk  // needed by programs with states: every row is in exactly one
	Wanted         []int32 // rows with logits
	TopK           int     // values that TopK returns for each of them, at most MaxTop
}

// Turns returns each row's position in its text: Turn, or Pos if that is empty. The slice is a's.
func (a *Pass) Turns() []int32 {
	if len(a.Turn) > 0 {
		return a.Turn
	}
	return a.Pos
}

// Keys returns how many positions row i sees at most: more than its own and those before it if later rows of its block are listed.
func (a *Pass) Keys(i int) int { return int(a.Prefix[i] + a.AncLen[i]) }

// Walk takes one sequence's recurrent states through rows, in an order in which each row comes after the row before it in its text: a tree
// depth-first. Between steps a device holds a few states of a layer side by side, numbered from 0; number 0 holds at first what the slot
// From holds. Several walks may begin with the same slot if none saves in it; else no two steps of a pass name the same slot or record.
type Walk struct {
	From  int32 // slot; -1: zeros, before the first row of a text
	Steps []Step
}

// Step applies a row, or a record of an earlier pass, to state In, and leaves the result in state Out (which may be In).
type Step struct {
	Row     int32 // of this pass; -1: the step applies a record instead
	Record  int32 // of a row: where its record goes, -1: nowhere. Else the record to apply
	In, Out int32
	Save    int32 // slot that gets the result too; -1: none. It may be the walk's From
}

// MaxHeld is how many states of a layer a walk may hold side by side: that of the path it follows, and that of each row behind it with
// branches left to follow. If the largest branch of every row comes last, and replaces the row's state, a walk of n steps holds at most
// log2(n+1)+1 states; a chain holds one.
const MaxHeld = 16

// MaxTop is the most values that TopK returns for a row.
const MaxTop = 64

// MaxPages bounds a KV cache: cells are numbered in 31 bits.
const MaxPages = math.MaxInt32 / PageRows

// PassLimits are the limits on a program's passes, computed once so that checking a pass is quick. One goroutine at a time may use them.
type PassLimits struct {
	rows, wanted     int
	embedRows, embed int // rows of the smallest matrix that tokens index, and columns of given embeddings; 0 without
	positions, cut   bool
	blocks           bool       // rows of a block read those before them
	pages            int        // 0: no KV cache
	walks            *walkMarks // nil: no recurrent states
}

// Tokens returns how many tokens Embed can look up; 0 without.
func (l *PassLimits) Tokens() int { return l.embedRows }

// PassLimits returns the limits of passes of p, a program that Check has accepted, with a KV cache of so many pages.
func (p *Program) PassLimits(pages int) PassLimits {
	l := PassLimits{rows: p.MaxRows, wanted: p.MaxWanted, pages: pages, positions: pages > 0}
	if len(p.KV.States) > 0 {
		l.walks = newWalkMarks(p.MaxRows, p.KV)
	}
	for _, o := range p.Ops {
		switch o := o.(type) {
		case Embed:
			w := p.Weights[o.W]
			if l.embedRows == 0 || w.Rows < l.embedRows {
				l.embedRows = w.Rows
			}
			if !o.Blank {
				l.embed = w.Cols
			}
		case RoPE:
			l.positions = true
		case BlockConv:
			l.positions, l.blocks = true, true
		case AttendBlocks:
			l.cut = l.cut || o.Side != Whole
		}
	}
	return l
}

// Check returns an error for a pass with an invalid size or index. A Runner then computes nothing of the pass.
func (l *PassLimits) Check(a *Pass) error {
	if a.Rows < 1 || a.Rows > l.rows {
		return fmt.Errorf("kernels: pass of %d rows, want 1 to %d", a.Rows, l.rows)
	}
	if len(a.Wanted) > l.wanted {
		return fmt.Errorf("kernels: pass with %d wanted rows, want at most %d", len(a.Wanted), l.wanted)
	}
	if a.TopK < 0 || a.TopK > MaxTop {
		return fmt.Errorf("kernels: top %d of the logits, want 0 to %d", a.TopK, MaxTop)
	}
	for i, w := range a.Wanted {
		if w < 0 || int(w) >= a.Rows {
			return fmt.Errorf("kernels: wanted row %d is %d of %d", i, w, a.Rows)
		}
	}
	if err := l.checkTokens(a); err != nil {
		return err
	}
	if l.positions {
		if len(a.Pos) != a.Rows {
			return fmt.Errorf("kernels: %d positions for %d rows", len(a.Pos), a.Rows)
		}
		if n := len(a.Turn); n > 0 && n != a.Rows {
			return fmt.Errorf("kernels: %d positions in the text for %d rows, want one for each or none", n, a.Rows)
		}
		for _, list := range [][]int32{a.Pos, a.Turn} {
			for i, pos := range list {
				if pos < 0 || pos >= 1<<24 {
					return fmt.Errorf("kernels: position %d of row %d, want 0 to %d", pos, i, 1<<24-1)
				}
			}
		}
	}
	if a.Left < 0 || a.Left > Shares {
		return fmt.Errorf("kernels: the left side has %d of %d shares, want 0 to %d", a.Left, Shares, Shares)
	}
	if l.cut && len(a.Cut) != a.Rows {
		return fmt.Errorf("kernels: %d cuts of attention for %d rows", len(a.Cut), a.Rows)
	}
	if l.blocks {
		if err := checkBlocks(a); err != nil {
			return err
		}
	}
	if l.walks != nil {
		if err := l.checkWalks(a); err != nil {
			return err
		}
	}
	if l.pages > 0 {
		return l.checkKV(a)
	}
	return nil
}

func (l *PassLimits) checkTokens(a *Pass) error {
	if l.embedRows == 0 {
		return nil
	}
	if len(a.Tokens) != a.Rows {
		return fmt.Errorf("kernels: %d tokens for %d rows", len(a.Tokens), a.Rows)
	}
	given := len(a.Given) / max(1, l.embed)
	if l.embed == 0 && given > 0 || len(a.Given)%max(1, l.embed) != 0 {
		return fmt.Errorf("kernels: %d numbers of given embeddings, want a multiple of %d", len(a.Given), l.embed)
	}
	for i, t := range a.Tokens {
		if int(t) < -given || int(t) >= l.embedRows {
			return fmt.Errorf("kernels: token %d of row %d, want 0 to %d, or -1 to -%d for one of %d given embeddings",
				t, i, l.embedRows-1, given, given)
		}
	}
	return nil
}

// checkBlocks refuses blocks whose rows do not stand side by side, in order.
func checkBlocks(a *Pass) error {
	if len(a.Prefix) != a.Rows {
		return fmt.Errorf("kernels: %d prefixes for %d rows", len(a.Prefix), a.Rows)
	}
	for r, begin := range a.Prefix {
		if pos := a.Pos[r]; pos > begin && (r == 0 || a.Pos[r-1] != pos-1 || a.Prefix[r-1] != begin) {
			return fmt.Errorf("kernels: row %d is at position %d of a block that begins at %d: want the row of position %d right before it",
				r, pos, begin, pos-1)
		}
	}
	return nil
}

func (l *PassLimits) checkKV(a *Pass) error {
	for _, c := range []struct {
		name string
		n    int
	}{{"cells to store", len(a.Store)}, {"page tables", len(a.Table)}, {"prefixes", len(a.Prefix)},
		{"ancestor lists", len(a.AncOff)}, {"ancestor counts", len(a.AncLen)}} {
		if c.n != a.Rows {
			return fmt.Errorf("kernels: %d %s for %d rows", c.n, c.name, a.Rows)
		}
	}
	cells := l.pages * PageRows
	for i, g := range a.Pages {
		if g < 0 || int(g) >= l.pages {
			return fmt.Errorf("kernels: entry %d of the page tables is page %d of %d", i, g, l.pages)
		}
	}
	for i, c := range a.Anc {
		if c < 0 || int(c) >= cells {
			return fmt.Errorf("kernels: ancestor %d is cell %d of %d", i, c, cells)
		}
	}
	for r := 0; r < a.Rows; r++ {
		prefix, anc := int(a.Prefix[r]), int(a.AncLen[r])
		switch {
		case a.Store[r] < 0 || int(a.Store[r]) >= cells:
			return fmt.Errorf("kernels: row %d is stored in cell %d of %d", r, a.Store[r], cells)
		case prefix < 0 || anc < 0 || int(a.Pos[r]) > prefix+anc-1 || int(a.Pos[r]) < min(prefix, prefix+anc-1):
			return fmt.Errorf("kernels: row %d at position %d sees %d positions and %d ancestors", r, a.Pos[r], prefix, anc)
		case a.Table[r] < 0 || int(a.Table[r])+(prefix+PageRows-1)/PageRows > len(a.Pages):
			return fmt.Errorf("kernels: row %d's table begins at %d of %d for %d positions", r, a.Table[r], len(a.Pages), prefix)
		case a.AncOff[r] < 0 || int(a.AncOff[r])+anc > len(a.Anc):
			return fmt.Errorf("kernels: row %d's ancestors begin at %d of %d for %d ancestors", r, a.AncOff[r], len(a.Anc), anc)
		}
	}
	return nil
}
