package kernels

// sinks checks that there is one for each head, or none.
func (c *checker) sinks(sinks []float32, heads int) {
	if sinks != nil {
		c.want("number of sinks", len(sinks), heads)
	}
}

func (c *checker) choose(o ChooseExperts) {
	r, b := of(c, "route", c.Routes, o.Out), c.buf(o.Logits)
	c.want("logits' columns", b.Dim, r.Experts)
	c.sameRows(b.Wanted, false)
	c.free(o.Out, r)
	if o.Bias != nil {
		c.want("bias's length", len(o.Bias), r.Experts)
	}
	if o.Each != nil {
		c.want("number of factors", len(o.Each), r.Experts)
	}
	c.chosen[o.Out] = true
}

// route returns the shape of a route that an earlier operation has filled.
func (c *checker) route(r Route) RouteShape {
	s := of(c, "route", c.Routes, r)
	if c.err == nil && !s.Fixed && !c.chosen[r] {
		c.fail("route %d is not chosen before it is used", int(r))
	}
	return s
}

// free checks that a route has choices and weights.
func (c *checker) free(r Route, s RouteShape) {
	if s.Fixed {
		c.fail("route %d is fixed: it has no choices and no weights", int(r))
	}
}

func (c *checker) experts(o ExpertMatMul) {
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

func (c *checker) joinExperts(o JoinExperts) {
	r, in, out := c.route(o.Route), c.buf(o.In), c.buf(o.Out)
	c.free(o.Route, r)
	c.want("input's columns", in.Dim, r.Used*out.Dim)
	c.sameRows(in.Wanted || out.Wanted, false)
	if o.In == o.Out {
		c.fail("buffer %d is input and output", int(o.In))
	}
}

func (c *checker) side(s Side) {
	if s < Whole || s > Right {
		c.fail("side %d, want whole, left or right", s)
	}
}
