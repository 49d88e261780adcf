package split

import (
	"fmt"
	"math"

	"github.com/tandem-llm/tandem/kernels"
)

// Plan says how much of each pass is the left device's. The zero Plan is half of everything.
type Plan struct {
	// Points are by rows, then by context, ascending. A pass is divided as the first point says that has at least as many rows, and
	// among those with that many the first of at least its context; wider and longer ones as the last that there is.
	Points []Point
}

// Point is how passes of up to so many rows, behind a context of up to so many positions, are divided.
type Point struct {
	Rows    int     `json:"rows"`
	Context int     `json:"context"`
	Columns float64 `json:"columns"` // the left's share of the outputs of every matrix
	Blocks  float64 `json:"blocks"`  // the left's share of the blocks of 256 positions that a row attends to
}

// Check reports what is wrong with p.
func (p *Plan) Check() error {
	for i, x := range p.Points {
		switch {
		case x.Rows < 1 || x.Context < 0:
			return fmt.Errorf("split: point %d of the plan is for %d rows behind %d positions, want at least 1 and 0", i, x.Rows,
				x.Context)
		case !(x.Columns >= 0 && x.Columns <= 1) || !(x.Blocks >= 0 && x.Blocks <= 1):
			return fmt.Errorf("split: point %d of the plan gives the left device %v of the columns and %v of the blocks, want 0 to 1", i,
				x.Columns, x.Blocks)
		case i > 0 && !before(p.Points[i-1], x):
			return fmt.Errorf("split: point %d of the plan, %d rows behind %d positions, comes after %d behind %d: want ascending rows, "+
				"then contexts", i, x.Rows, x.Context, p.Points[i-1].Rows, p.Points[i-1].Context)
		}
	}
	return nil
}

func before(a, b Point) bool { return a.Rows < b.Rows || a.Rows == b.Rows && a.Context < b.Context }

// At returns how a pass is divided.
func (p *Plan) At(rows, context int) Point {
	if len(p.Points) == 0 {
		return Point{Rows: rows, Context: context, Columns: 0.5, Blocks: 0.5}
	}
	width := p.Points[len(p.Points)-1].Rows
	for _, x := range p.Points {
		if x.Rows >= rows {
			width = x.Rows
			break
		}
	}
	var at Point
	for _, x := range p.Points {
		if x.Rows == width {
			if at = x; x.Context >= context {
				break
			}
		}
	}
	return at
}

// divide returns the pass with its cuts, in the memory of cut.
func (p *Plan) divide(a *kernels.Pass, cut []int32) kernels.Pass {
	out, context := *a, int32(0)
	for _, pos := range a.Pos {
		context = max(context, pos)
	}
	at := p.At(a.Rows, int(context))
	out.Left = int32(math.Round(at.Columns * kernels.Shares))
	out.Cut = cut[:0]
	for _, pos := range a.Pos {
		out.Cut = append(out.Cut, blockCut(int(pos)/kernels.Block+1, at.Blocks))
	}
	return out
}

// blockCut returns at which of n blocks attention is divided. Half of the KV heads of that block are the left's, so that it has about
// share·n blocks.
func blockCut(n int, share float64) int32 {
	switch share {
	case 0:
		return -1 // no block
	case 1:
		return int32(n) // behind all
	}
	return int32(min(max(math.Round(share*float64(n)-0.5), 0), float64(n-1)))
}
