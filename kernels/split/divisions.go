package split

import (
	"fmt"
	"math"

	"github.com/tandem-llm/tandem/kernels"
)

// Plan says how much of each pass is the left device's, as kernels.Divided.Divide takes it. The zero Plan is half of everything.
type Plan struct {
	Points []Point
}

// Point is how some passes are divided.
type Point = kernels.Division

// Check reports what is wrong with p.
func (p *Plan) Check() error {
	if err := kernels.CheckDivisions(p.Points); err != nil {
		return fmt.Errorf("split: %w", err)
	}
	return nil
}

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
