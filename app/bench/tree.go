package bench

import (
	"github.com/tandem-llm/tandem/kernels"
)

// treePass returns a pass over a binary tree of that many rows behind a context, all with logits, and the pages of its cache.
func treePass(rows, context int) (a *kernels.Pass, pages int) {
	a = &kernels.Pass{Rows: rows, TopK: 1}
	for len(a.Pages)*kernels.PageRows < context {
		a.Pages = append(a.Pages, int32(len(a.Pages)))
	}
	first := kernels.Cell(len(a.Pages) * kernels.PageRows)
	paths := make([][]kernels.Cell, rows)
	for i := range rows {
		if parent := (i+1)/2 - 1; parent >= 0 {
			paths[i] = append(paths[i], paths[parent]...)
		}
		paths[i] = append(paths[i], first+kernels.Cell(i))
		a.Tokens, a.Wanted = append(a.Tokens, int32(i)), append(a.Wanted, int32(i))
		a.Pos, a.Prefix = append(a.Pos, int32(context+len(paths[i])-1)), append(a.Prefix, int32(context))
		a.Store, a.Table = append(a.Store, first+kernels.Cell(i)), append(a.Table, 0)
		a.AncOff, a.AncLen = append(a.AncOff, int32(len(a.Anc))), append(a.AncLen, int32(len(paths[i])))
		a.Anc = append(a.Anc, paths[i]...)
	}
	return a, len(a.Pages) + (rows+kernels.PageRows-1)/kernels.PageRows
}
