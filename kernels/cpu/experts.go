package cpu

// #include "tk.h"
import "C"

import (
	"slices"
	"unsafe"

	"github.com/tandem-llm/tandem/kernels"
)

// routeOffsets are where the lists of a tk_route lie.
type routeOffsets struct{ ids, weights, slots, first, list int }

func (o *offsets) placeRoutes(p *kernels.Program) {
	o.routes = o.add(len(p.Routes) * C.sizeof_tk_route)
	for _, r := range p.Routes {
		n := 4 * p.MaxRows * r.Used
		o.route = append(o.route, routeOffsets{ids: o.add(n), weights: o.add(n), slots: o.add(n), first: o.add(4 * (r.Experts + 1)),
			list: o.add(4 * r.Experts)})
	}
}

func (r *runner) fillRoutes() {
	if len(r.program.Routes) == 0 {
		return
	}
	all := view[C.tk_route](r.mem, r.at.routes, len(r.program.Routes))
	for i, s := range r.program.Routes {
		c, at := &all[i], r.at.route[i]
		c.experts, c.used = C.int(s.Experts), C.int(s.Used)
		c.ids, c.weights = (*C.int32_t)(r.mem.at(at.ids)), (*C.float)(r.mem.at(at.weights))
		if s.Fixed {
			c.fixed = 1
			for j, ids := 0, view[int32](r.mem, at.ids, r.program.MaxRows*s.Used); j < len(ids); j++ {
				ids[j] = int32(j % s.Experts)
			}
		}
		c.slots, c.first, c.list = (*C.int32_t)(r.mem.at(at.slots)), (*C.int32_t)(r.mem.at(at.first)), (*C.int32_t)(r.mem.at(at.list))
	}
	r.prog.routes, r.prog.nroutes = &all[0], C.int(len(all))
}

var _ kernels.RouteReader = (*runner)(nil)

// Chosen returns the experts of a row.
func (r *runner) Chosen(of kernels.Route, row int) []int32 {
	if r.mem == nil || of < 0 || int(of) >= len(r.program.Routes) || row < 0 || row >= int(r.prog.pass.rows) {
		return nil
	}
	used := r.program.Routes[of].Used
	return view[int32](r.mem, r.at.route[of].ids+4*row*used, used)
}

// chosenFor returns the experts that a stage needs, ascending; nil for all.
func (r *runner) chosenFor(stage int) []int32 {
	of, ok := r.half.whole.StageRoute(stage)
	if !ok || r.resident() {
		return nil
	}
	c := view[C.tk_route](r.mem, r.at.routes, len(r.program.Routes))[of]
	return slices.Clone(unsafe.Slice((*int32)(unsafe.Pointer(c.list)), int(c.nlist)))
}
