package device

import (
	"slices"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
)

// route is what rows have chosen: per row its experts and their weights, best first.
type route struct {
	ids     [][]int32
	weights [][]float32
}

var _ kernels.RouteReader = (*runner)(nil)

// Chosen returns the experts of a row.
func (r *runner) Chosen(of kernels.Route, row int) []int32 {
	if r.closed || of < 0 || int(of) >= len(r.routes) || row < 0 || row >= len(r.routes[of].ids) {
		return nil
	}
	return r.routes[of].ids[row]
}

// chosenFor returns the experts that a stage needs, ascending; nil for all.
func (r *runner) chosenFor(stage int) (all []int32) {
	of, ok := r.StageRoute(stage)
	if !ok || r.weights.Resident() {
		return nil
	}
	for _, ids := range r.routes[of].ids {
		all = append(all, ids...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// matrices takes the matrices of w, by expert, from the pieces that a stage has acquired for the chosen ones, and returns the other pieces.
func (r *runner) matrices(w *kernels.Weight, all [][]byte, chosen []int32) (mine, rest [][]byte) {
	switch {
	case w.Experts == 0:
		return all[:1], all[1:]
	case chosen == nil:
		return slices.Collect(slices.Chunk(all[0], len(all[0])/w.Experts)), all[1:]
	}
	mine = make([][]byte, w.Experts)
	for i, e := range chosen {
		mine[e] = all[i]
	}
	return mine, all[len(chosen):]
}

// ascending returns 0 to n-1.
func ascending(n int) (all []int32) {
	for i := range n {
		all = append(all, int32(i))
	}
	return all
}

func (r *runner) experts(o kernels.Op, data [][][]byte) {
	switch o := o.(type) {
	case kernels.ChooseExperts:
		c := &r.routes[o.Out]
		c.ids, c.weights = make([][]int32, r.pass.Rows), make([][]float32, r.pass.Rows)
		r.each(o.Logits, func(i int, x []float32) {
			c.ids[i], c.weights[i] = ref.Choose(x, r.Routes[o.Out].Used, ref.RouteOpt(o.RouteOpt))
		})
	case kernels.ExpertMatMul:
		r.expertMatMul(o, data[o.W])
	case kernels.JoinExperts:
		r.each(o.Out, func(i int, out []float32) { ref.JoinExperts(r.row(o.In, i), r.routes[o.Route].weights[i], out, o.Add) })
	}
}

func (r *runner) expertMatMul(o kernels.ExpertMatMul, data [][]byte) {
	w, used := &r.Weights[o.W], r.Routes[o.Route].Used
	outs := kernels.Range{To: w.Rows}.Part(o.Side, r.pass.Left)
	parallel(r.pass.Rows*used, func(u int) {
		row, rank := u/used, u%used
		e, x := int(r.routes[o.Route].ids[row][rank]), r.act(o.In, row)
		if len(x) > w.Cols {
			x = x[rank*w.Cols:][:w.Cols]
		}
		out, size := r.row(o.Out, row)[rank*w.Rows:][outs.From:outs.To], len(data[e])/w.Rows
		ref.MatVec(uint32(w.Type), data[e][outs.From*size:outs.To*size], size, x, out, false)
		if o.Bias != nil {
			for i := range out {
				out[i] += o.Bias[e*w.Rows+outs.From+i]
			}
		}
	})
}
