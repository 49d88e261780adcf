package kernels

import "slices"

// Products with weights, and the choice of experts.
type (
	// MatMul fills the columns Outputs of Out with the products of those rows of W and In. A range begins at a multiple of
	// GroupRows and ends at one, or at the end.
	MatMul struct {
		W          W
		In         Act
		Out        Buf
		Outputs    Range
		Side       Side // Left or Right: the part of Outputs before or behind the pass's cut, Range.Cut
		Add        bool // Out += result: the residual connection
		Concurrent bool // the next operation does not depend on this one and may run beside it
	}
	// ChooseExperts fills Out with the experts of each row, best first, and their weights.
	ChooseExperts struct {
		RouteOpt
		Logits Buf
		Out    Route
	}
	// ExpertMatMul multiplies each row of In by the experts of W that it chose, and fills Out with the products side by side, in order of
	// rank. In has one input for all of them (Cols), or side by side one for each (Used·Cols). A pass reads the outputs of an expert once,
	// however many rows chose it.
	ExpertMatMul struct {
		W          W
		In         Act
		Route      Route
		Bias       []float32 // (Experts, Rows), added to the products; nil: none
		Out        Buf
		Side       Side // Left or Right: the part of each expert's outputs before or behind the pass's cut, Range.Cut
		Concurrent bool // the next operation does not depend on this one and may run beside it
	}
	// JoinExperts fills Out with the weighted sum of what lies side by side in In: Used parts, in order of rank.
	JoinExperts struct {
		In    Buf
		Route Route
		Out   Buf
		Add   bool // Out += result: the residual connection
	}
)

// RouteOpt says how experts are chosen and weighted. The zero value takes the largest logits, weighted by the softmax over all experts.
type RouteOpt struct {
	Sigmoid bool      // scores are σ(logit) of each expert by itself, not the softmax
	Normed  bool      // weights are divided by their sum; with a softmax that is the softmax over those that are chosen
	Bias    []float32 // per expert, added to scores for choosing alone; nil: none
	Scale   float32   // weights are multiplied by it; 0 stands for 1
	Each    []float32 // per expert, its weight is multiplied by it at last; nil: none
}

func (o MatMul) uses(p *Program) Uses {
	u := touches(o.Out)
	u.Takes, u.W = o.In, o.W
	rows := p.Weights[o.W].Rows
	if o.Add || o.Side != Whole || o.Outputs.Of(rows) != (Range{0, rows}) {
		u.Reads = []Buf{o.Out}
	}
	return u
}

func (o ChooseExperts) uses(*Program) Uses { return touches(None, o.Logits) }

func (o ExpertMatMul) uses(*Program) Uses {
	u := touches(o.Out)
	u.Takes, u.W = o.In, o.W
	if o.Side != Whole {
		u.Reads = []Buf{o.Out}
	}
	return u
}

func (o JoinExperts) uses(*Program) Uses {
	if o.Add {
		return touches(o.Out, o.In, o.Out)
	}
	return touches(o.Out, o.In)
}

func (o ChooseExperts) numbers() []float32 { return slices.Concat(o.Bias, o.Each) }
func (o ExpertMatMul) numbers() []float32  { return o.Bias }

func (o MatMul) check(c *checker) {
	c.name = "matmul"
	w, in, out := c.weight(o.W), c.act(o.In), c.buf(o.Out)
	c.want("input's columns", in.Dim, w.Cols)
	c.want("output's columns", out.Dim, w.Rows)
	c.want("experts", w.Experts, 0)
	c.sameRows(in.Wanted, out.Wanted)
	r := o.Outputs.Of(w.Rows)
	if r.From < 0 || r.From >= r.To || r.To > w.Rows {
		c.fail("outputs %d to %d of %d", r.From, r.To, w.Rows)
	}
	c.side(o.Side)
	if r.From%GroupRows != 0 || r.To%GroupRows != 0 && r.To != w.Rows {
		c.fail("outputs %d to %d of %d, want multiples of %d, or the end", r.From, r.To, w.Rows, GroupRows)
	}
}

func (o ChooseExperts) check(c *checker) {
	c.name = "choose experts"
	r, b := of(c, "route", c.Routes, o.Out), c.buf(o.Logits)
	c.want("logits' columns", b.Dim, r.Experts)
	c.sameRows(b.Wanted, false)
	c.chosenByRows(o.Out, r)
	if o.Bias != nil {
		c.want("bias's length", len(o.Bias), r.Experts)
	}
	if o.Each != nil {
		c.want("number of factors", len(o.Each), r.Experts)
	}
	c.chosen[o.Out] = true
}

func (o ExpertMatMul) check(c *checker) {
	c.name = "expert matmul"
	w, r, in, out := c.weight(o.W), c.route(o.Route), c.act(o.In), c.buf(o.Out)
	c.want("matrix's experts", w.Experts, r.Experts)
	if in.Dim != w.Cols {
		c.want("input's columns", in.Dim, r.Used*w.Cols)
	}
	c.want("output's columns", out.Dim, r.Used*w.Rows)
	c.sameRows(in.Wanted || out.Wanted, false)
	if o.Bias != nil {
		c.want("bias's length", len(o.Bias), w.Experts*w.Rows)
	}
	c.side(o.Side)
}

func (o JoinExperts) check(c *checker) {
	c.name = "join experts"
	r, in, out := c.route(o.Route), c.buf(o.In), c.buf(o.Out)
	c.chosenByRows(o.Route, r)
	c.want("input's columns", in.Dim, r.Used*out.Dim)
	c.sameRows(in.Wanted || out.Wanted, false)
	if o.In == o.Out {
		c.fail("buffer %d is input and output", int(o.In))
	}
}

// route returns the shape of a route that an earlier operation has filled.
func (c *checker) route(r Route) RouteShape {
	s := of(c, "route", c.Routes, r)
	if c.err == nil && !s.Fixed && !c.chosen[r] {
		c.fail("route %d is not chosen before it is used", int(r))
	}
	return s
}

// chosenByRows checks that a route has choices and weights: that it is not fixed.
func (c *checker) chosenByRows(r Route, s RouteShape) {
	if s.Fixed {
		c.fail("route %d is fixed: it has no choices and no weights", int(r))
	}
}

// MatMulOpt modifies a MatMul: see its fields.
type MatMulOpt struct {
	Add        bool
	Concurrent bool
	Outputs    Range
}

// MatMul adds a MatMul: in is (rows, w's columns), out (rows, w's rows).
func (p *Program) MatMul(w W, in Act, out Buf, opt MatMulOpt) {
	p.Add(MatMul{W: w, In: in, Out: out, Outputs: opt.Outputs, Add: opt.Add, Concurrent: opt.Concurrent})
}
