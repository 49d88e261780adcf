package cuda

import "github.com/tandem-llm/tandem/kernels"

// mostExperts bounds a choice: a warp looks at all of them.
const mostExperts = 8192

// checkRoutes refuses choices that the kernels cannot make.
func checkRoutes(p *kernels.Program) error {
	for _, r := range p.Routes {
		if r.Experts > mostExperts || r.Used*p.MaxRows > mostChoices {
			return unsupported("experts (%d of %d for each of %d rows; at most %d, and %d choices)", r.Used, r.Experts, p.MaxRows,
				mostExperts, mostChoices)
		}
	}
	return nil
}

// mostChoices bounds those of a pass: a launch has at most 65535 rows of blocks.
const mostChoices = 1<<16 - 1

// fixedRoute returns the choices of so many rows that all use every expert.
func fixedRoute(s kernels.RouteShape, rows int) (ids []int32) {
	for i := range rows * s.Used {
		ids = append(ids, int32(i%s.Experts))
	}
	return ids
}

// experts lowers what chooses experts and computes with them.
func (l *lowering) experts(o kernels.Op, i int) (x item) {
	routed := func(x *item, r kernels.Route) {
		x.c.route, x.c.shares, x.c.used = l.at(l.routes[r]), l.at(l.shares[r]), int32(l.Routes[r].Used)
	}
	switch o := o.(type) {
	case kernels.ChooseExperts:
		x = l.elementwise("chain", i, o.Logits)
		x.reads, x.writes = x.writes, nil
		x.form, x.c.kind, x.c.in, x.c.out = byRow, rowsChoose, x.c.out, 0
		x.c.sigmoid, x.c.normed, x.c.biased, x.c.scale = flag(o.Sigmoid), flag(o.Normed), flag(o.Bias != nil), o.Scale
		x.c.each = flag(o.Each != nil)
		routed(&x, o.Out)
	case kernels.ExpertMatMul:
		w := &l.Weights[o.W]
		x = l.elementwise("experts_"+w.Type.String()+"_", i, o.Out)
		x.lanes = lanes(w.Type)
		x.form, x.weight, x.c.src, x.c.cols, x.c.outputs = expertProduct, o.W, l.actOf(o.In), int32(w.Cols), int32(w.Rows)
		x.c.to, x.c.side, x.c.biased = int32(w.Rows), int32(o.Side), flag(o.Bias != nil)
		if o.Side != kernels.Whole {
			x.reads = []kernels.Buf{o.Out} // what it leaves
		}
		routed(&x, o.Route)
	case kernels.JoinExperts:
		x = l.element(rowsExperts, i, o.Out, o.In)
		x.c.add = flag(o.Add)
		if o.Add {
			x.reads = append(x.reads, o.Out)
		}
		routed(&x, o.Route)
	}
	return x
}

var _, _ kernels.RouteReader = (*runner)(nil), bulk{}

// Chosen returns the experts of a row. What all rows have chosen is copied once for each pass that is asked about.
func (r *runner) Chosen(of kernels.Route, row int) []int32 {
	if r.closed || of < 0 || int(of) >= len(r.program.Routes) || row < 0 || row >= r.pass.rows {
		return nil
	}
	first, last := r.program.routes[0], len(r.program.Routes)-1
	if r.chosen == nil {
		all := make([]int32, (r.program.routes[last]-first)/4+r.program.Routes[last].Used*r.program.MaxRows)
		if r.dev.do(func(g Driver) error { return g.Read(view(all), r.mem.At+Pointer(first)) }) != nil {
			return nil // the device is lost, which the next pass tells
		}
		r.chosen = all
	}
	used := r.program.Routes[of].Used
	return r.chosen[(r.program.routes[of]-first)/4+row*used:][:used:used]
}
