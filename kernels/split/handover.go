package split

import (
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// handOver gives what one device has computed in a stage to the other: of each buffer in one copy out of the one and one into
// the other.
func (r *exchanger) handOver(from, to int) error {
	mine, side := r.halves[from].own[r.stage], [2]kernels.Side{kernels.Left, kernels.Right}[from]
	for _, x := range mine.outs {
		if to == 1 && !r.live[r.stage+1][x.buf] {
			continue
		}
		part := x.cols.Part(side, r.pass.Left)
		for i := range x.times {
			at := i * x.cols.To
			if err := r.handRows(from, to, x.buf, r.rows(x.buf), kernels.Range{From: at + part.From, To: at + part.To}); err != nil {
				return err
			}
		}
	}
	if mine.parts == kernels.None {
		return nil
	}
	shape, all := r.halves[0].p.Parts[mine.parts], 0
	r.parts = r.parts[:0]
	for row := range r.pass.Rows {
		n := shape.Heads * ((r.pass.Keys(row)-1)/kernels.Block + 1)
		left := shape.Heads*int(r.pass.Cut[row]) + shared(mine.kv)*(shape.Heads/mine.kv) // blocks before the cut, and heads of that at it
		part := kernels.Range{To: min(max(left, 0), n)}
		if side == kernels.Right {
			part = kernels.Range{From: part.To, To: n}
		}
		r.parts = append(r.parts, part)
		all += part.To - part.From
	}
	packed := r.room(all * (shape.Dim + 2))
	if err := of(from, kernels.ReadParts(r.runners[from], mine.parts, shape.Heads, r.parts, packed)); err != nil {
		return err
	}
	return of(to, kernels.WriteParts(r.runners[to], mine.parts, shape.Heads, r.parts, packed))
}

// handRows copies columns of a buffer's rows [0, n) from one device to the other.
func (r *exchanger) handRows(from, to int, b kernels.Buf, n int, cols kernels.Range) error {
	packed := r.room(n * (cols.To - cols.From))
	if len(packed) == 0 {
		return nil
	}
	if err := of(from, kernels.ReadRows(r.runners[from], b, n, cols, packed)); err != nil {
		return err
	}
	return of(to, kernels.WriteRows(r.runners[to], b, n, cols, packed))
}

// room returns memory for so many numbers on their way.
func (r *exchanger) room(n int) []float32 {
	r.packed = slices.Grow(r.packed[:0], n)[:n]
	return r.packed
}

// rows returns how many rows of a buffer the pass has.
func (r *exchanger) rows(b kernels.Buf) int {
	if r.halves[0].p.Buffers[b].Wanted {
		return len(r.pass.Wanted)
	}
	return r.pass.Rows
}

// give hands what the caller may have written to the left device's buffers to the right one, before a stage.
func (r *exchanger) give() error {
	for b, n := range r.lent {
		r.lent[b] = 0
		if !r.live[r.stage][b] {
			continue
		}
		err := r.handRows(0, 1, kernels.Buf(b), min(n, r.rows(kernels.Buf(b))), kernels.Range{To: r.halves[0].p.Buffers[b].Dim})
		if err != nil {
			return err
		}
	}
	return nil
}

// live returns, for each stage and after the last, the buffers whose numbers the right device reads later, before they are filled. What
// TopK found is the left's to tell.
func live(p *kernels.Program) [][]bool {
	now := make([]bool, len(p.Buffers))
	all := make([][]bool, p.StageCount()+1)
	all[p.StageCount()] = slices.Clone(now)
	for i := p.StageCount() - 1; i >= 0; i-- {
		from, to := p.StageOps(i)
		for _, o := range slices.Backward(p.Ops[from:to]) {
			u := p.Uses(o)
			wanted := u.Writes == kernels.None || now[u.Writes]
			if u.Writes != kernels.None && !slices.Contains(u.Reads, u.Writes) {
				now[u.Writes] = false // it fills all of the buffer
			}
			if _, top := o.(kernels.TopK); top || !wanted {
				continue
			}
			for _, b := range u.Reads {
				now[b] = true
			}
		}
		all[i] = slices.Clone(now)
	}
	return all
}
