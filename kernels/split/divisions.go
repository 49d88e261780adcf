package split

import (
	"math"

	"github.com/tandem-llm/tandem/kernels"
)

// divisions say how much of each pass is the left device's: see kernels.Divider.
type divisions []kernels.Division

// at returns how a pass is divided.
func (d divisions) at(rows, context int) kernels.Division {
	if len(d) == 0 {
		return kernels.Division{Rows: rows, Context: context, Columns: 0.5, Blocks: 0.5}
	}
	width := d[len(d)-1].Rows
	for _, x := range d {
		if x.Rows >= rows {
			width = x.Rows
			break
		}
	}
	var at kernels.Division
	for _, x := range d {
		if x.Rows == width {
			if at = x; x.Context >= context {
				break
			}
		}
	}
	return at
}

// cut returns the pass with its cuts, in the memory of the last ones.
func (d divisions) cut(a *kernels.Pass, last []int32) kernels.Pass {
	out, context := *a, int32(0)
	for _, pos := range a.Pos {
		context = max(context, pos)
	}
	at := d.at(a.Rows, int(context))
	out.Left = int32(math.Round(at.Columns * kernels.Shares))
	out.Cut = last[:0]
	for row, pos := range a.Pos {
		keys := int(pos) + 1
		if row < min(len(a.Prefix), len(a.AncLen)) { // else the pass is refused, or has no cache
			keys = a.Keys(row)
		}
		out.Cut = append(out.Cut, blockCut((keys-1)/kernels.Block+1, at.Blocks))
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
