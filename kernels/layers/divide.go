package layers

import (
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// half is the program of one side, whose stages are pieces of the whole program's. Buffers keep their handles; those that only the other
// side uses have one column.
type half struct {
	p       *kernels.Program
	weights []kernels.W // per weight: which of the whole program's it is
}

func (h *half) empty() bool { return len(h.p.Ops) == 0 }

// own returns the half's handle of a weight of the whole program, or None.
func (h *half) own(w kernels.W) kernels.W { return kernels.W(slices.Index(h.weights, w)) }

// piece is operations [from, to) of the whole program, in one of its stages and on one side, where they are a stage too.
type piece struct {
	side, from, to int
	at, as         int // stage of the whole program, and of the half
}

// divide returns the programs of both sides. Errors: those of Program.Check; what a device lacks; layers that cannot be divided.
func (d *Device) divide(p *kernels.Program) (halves [2]half, err error) {
	if err := p.Check(); err != nil {
		return halves, err
	}
	pieces, err := d.pieces(p)
	if err != nil {
		return halves, err
	}
	for side, shape := range d.shapes(p.KV) {
		halves[side] = d.half(p, side, pieces, shape)
	}
	slim(p, halves)
	return halves, nil
}

// pieces says which operations run where, in order.
func (d *Device) pieces(p *kernels.Program) (all []piece, err error) {
	sides, err := d.place(p)
	if err != nil {
		return nil, err
	}
	stages := [2]int{}
	for at := range p.StageCount() {
		from, to := p.StageOps(at)
		for i := from; i < to; i++ {
			if i > from && sides[i] == sides[i-1] {
				all[len(all)-1].to++
				continue
			}
			all = append(all, piece{side: sides[i], from: i, to: i + 1, at: at, as: stages[sides[i]]})
			stages[sides[i]]++
		}
	}
	return all, nil
}

// unknown is the side of operations that belong to no layer.
const unknown = -1

// place returns the side of each operation. A run of operations that only activations join is on one side: whole stages, or less if a stage
// has layers of both. What is between layers belongs to the one before; what comes before the first and after the last is near.
func (d *Device) place(p *kernels.Program) ([]int, error) {
	free := cuts(p)
	borders := []int{0}
	for i := 1; i < p.StageCount(); i++ {
		first, _ := p.StageOps(i)
		before, _ := p.StageOps(i - 1)
		for first > before && prepares(p.Ops[first-1]) {
			first--
		}
		if free[first] && first > borders[len(borders)-1] {
			borders = append(borders, first)
		}
	}
	borders = append(borders, len(p.Ops))
	sides, last := make([]int, len(p.Ops)), 0
	set := func(from, to int) bool {
		side, ok := d.layersOf(p, from, to)
		for i := from; i < to; i++ {
			sides[i] = side
		}
		if side != unknown {
			last = to
		}
		return ok
	}
	for i, from := range borders[:len(borders)-1] {
		to := borders[i+1]
		if set(from, to) {
			continue
		}
		for ; from < to; from++ {
			end := from + 1
			for end < to && !free[end] {
				end++
			}
			if !set(from, end) {
				return nil, fmt.Errorf("layers: operations %d to %d belong to layers on both devices: want another number of layers than "+
					"%d", from, end-1, d.layers)
			}
			from = end - 1
		}
	}
	side := near
	for i := range sides {
		if sides[i] == unknown && (i < last || !free[i]) {
			sides[i] = side
		} else if sides[i] == unknown {
			sides[i] = near
		}
		side = sides[i]
	}
	return sides, nil
}

// layersOf returns the side of the layers to which operations [from, to) belong; not ok if there are two.
func (d *Device) layersOf(p *kernels.Program, from, to int) (side int, ok bool) {
	side = unknown
	for _, o := range p.Ops[from:to] {
		its := unknown
		if net, ok := o.(kernels.DeltaNet); ok {
			its = d.sideOfState(p.KV.States[net.State])
		} else if layer := p.Uses(o).Layer; layer != kernels.None {
			its = d.sideOf(p.KV, layer)
		}
		if its == unknown {
			continue
		}
		if side != unknown && its != side {
			return unknown, false
		}
		side = its
	}
	return side, true
}

// prepares reports whether an operation at the end of a stage only prepares what comes behind it, so that it belongs there.
func prepares(o kernels.Op) bool {
	switch o.(type) {
	case kernels.RMSNorm, kernels.Feed, kernels.Gather, kernels.Copy:
		return true
	}
	return false
}

// cuts reports before which operations a program can be divided: where no activation, no blocks of attention and no choice of experts are
// still to be read.
func cuts(p *kernels.Program) []bool {
	free := make([]bool, len(p.Ops)+1)
	live, open, chosen := map[kernels.Act]bool{}, map[kernels.Parts]bool{}, map[kernels.Route]bool{}
	for i, o := range slices.Backward(p.Ops) {
		u := p.Uses(o)
		delete(live, u.Fills)
		if u.Takes != kernels.None {
			live[u.Takes] = true
		}
		switch o := o.(type) {
		case kernels.JoinExperts: // the last that reads a choice
			chosen[o.Route] = true
		case kernels.ChooseExperts:
			delete(chosen, o.Out)
		}
		free[i] = len(live) == 0 && len(chosen) == 0
	}
	for i, o := range p.Ops {
		free[i] = free[i] && len(open) == 0
		switch o := o.(type) {
		case kernels.AttendBlocks:
			open[o.Out] = true
		case kernels.JoinBlocks:
			delete(open, o.In)
		}
	}
	return free
}

// half returns the program of a side.
func (d *Device) half(p *kernels.Program, side int, pieces []piece, shape kernels.KVShape) half {
	q := *p
	q.Ops, q.Stages, q.Weights, q.Taps, q.KV = nil, nil, nil, nil, shape
	h := half{p: &q}
	writes := map[kernels.Buf]bool{}
	for _, x := range pieces {
		if x.side != side {
			continue
		}
		q.Stages = append(q.Stages, kernels.Stage{Name: p.StageName(x.at), First: len(q.Ops)})
		for i := x.from; i < x.to; i++ {
			o := h.take(p, p.Ops[i], d.sides()[side])
			if m, ok := o.(kernels.MatMul); ok {
				m.Concurrent = m.Concurrent && i+1 < x.to
				o = m
			}
			writes[q.Uses(o).Writes] = true
			q.Ops = append(q.Ops, o)
		}
	}
	for _, t := range p.Taps {
		if writes[t.Buf] {
			q.Taps = append(q.Taps, t)
		}
	}
	return h
}

// slim leaves one column of buffers and activations that are the other side's alone. The near side keeps taps, which are read there.
func slim(p *kernels.Program, halves [2]half) {
	var bufs [2]map[kernels.Buf]bool
	var acts [2]map[kernels.Act]bool
	for side, h := range halves {
		bufs[side], acts[side] = map[kernels.Buf]bool{}, map[kernels.Act]bool{}
		for _, o := range h.p.Ops {
			u := h.p.Uses(o)
			for _, b := range append(u.Reads, u.Writes) {
				bufs[side][b] = true
			}
			acts[side][u.Fills] = true
		}
	}
	for _, t := range p.Taps {
		bufs[near][t.Buf] = true
	}
	for side, h := range halves {
		h.p.Buffers, h.p.Activations = slices.Clone(p.Buffers), slices.Clone(p.Activations)
		for b := range h.p.Buffers {
			if !bufs[side][kernels.Buf(b)] && bufs[1-side][kernels.Buf(b)] {
				h.p.Buffers[b].Dim = 1
			}
		}
		for a := range h.p.Activations {
			if !acts[side][kernels.Act(a)] && acts[1-side][kernels.Act(a)] {
				h.p.Activations[a].Dim = 1
			}
		}
	}
}

// take returns an operation with the half's handle of its weight, which the half then has.
func (h *half) take(p *kernels.Program, o kernels.Op, d kernels.Device) kernels.Op {
	w := p.Uses(o).W
	if w == kernels.None {
		return o
	}
	own := h.own(w)
	if own == kernels.None {
		own = kernels.W(len(h.weights))
		x := p.Weights[w]
		x.Layout = d.Layout(x.Type)
		h.weights, h.p.Weights = append(h.weights, w), append(h.p.Weights, x)
	}
	switch x := o.(type) {
	case kernels.Embed:
		x.W = own
		return x
	case kernels.MatMul:
		x.W = own
		return x
	case kernels.ExpertMatMul:
		x.W = own
		return x
	}
	return o
}

// needs returns the buffers whose values operations need from before them, ascending.
func needs(p *kernels.Program, ops []kernels.Op) (all []kernels.Buf) {
	filled := map[kernels.Buf]bool{}
	for _, o := range ops {
		for _, b := range p.Uses(o).Reads {
			if !filled[b] && !slices.Contains(all, b) {
				all = append(all, b)
			}
		}
		filled[p.Uses(o).Writes] = true
	}
	slices.Sort(all)
	return all
}

// fills returns the buffers that operations change.
func fills(p *kernels.Program, ops []kernels.Op) (all []kernels.Buf) {
	for _, o := range ops {
		if b := p.Uses(o).Writes; b != kernels.None && !slices.Contains(all, b) {
			all = append(all, b)
		}
	}
	return all
}
