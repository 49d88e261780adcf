package kernels

import "fmt"

func (c *checker) deltaNet(o DeltaNet) {
	s := of(c, "state", c.KV.States, o.State)
	for _, b := range []Buf{o.Out, o.In, o.Alpha, o.Beta} {
		c.sameRows(c.buf(b).Wanted, false)
	}
	const most = 1 << 12
	d := o.DeltaShape
	if d.KeyHeads < 1 || d.ValueHeads < 1 || d.ValueHeads > most || d.ValueHeads%d.KeyHeads != 0 {
		c.fail("%d value heads for %d key heads, want a multiple, at most %d", d.ValueHeads, d.KeyHeads, most)
	}
	if d.Dim < 1 || d.Dim > most || d.Kernel < 1 || d.Kernel > most {
		c.fail("heads of %d and a convolution of %d taps, want 1 to %d of each", d.Dim, d.Kernel, most)
	}
	if c.err != nil {
		return
	}
	c.want("inputs' columns", c.buf(o.In).Dim, d.Channels())
	c.want("output's columns", c.buf(o.Out).Dim, d.ValueHeads*d.Dim)
	c.want("alpha's columns", c.buf(o.Alpha).Dim, d.ValueHeads)
	c.want("beta's columns", c.buf(o.Beta).Dim, d.ValueHeads)
	c.want("convolution's weights", len(o.Conv), d.Channels()*d.Kernel)
	c.want("decay factors", len(o.A), d.ValueHeads)
	c.want("decay biases", len(o.Bias), d.ValueHeads)
	c.want("state's numbers", s.Floats, d.Floats())
	c.want("record's numbers", s.Record, d.Record())
}

// checkWalks checks that every row is in one step, after nothing that has not been computed, and that every index is valid.
func (l *PassLimits) checkWalks(a *Pass) error {
	steps := make([]bool, a.Rows)
	from, slots, records := map[int32]bool{}, map[int32]bool{}, map[int32]bool{}
	rows := 0
	for i, w := range a.Walks {
		if w.From < -1 || int(w.From) >= l.slots {
			return fmt.Errorf("kernels: walk %d begins with slot %d of %d, or -1 for none", i, w.From, l.slots)
		}
		if w.From >= 0 && from[w.From] {
			return fmt.Errorf("kernels: walk %d begins with slot %d, with which another has begun", i, w.From)
		}
		from[w.From] = true
		filled := [MaxHeld]bool{0: true}
		for j, s := range w.Steps {
			at := fmt.Sprintf("kernels: walk %d, step %d", i, j)
			switch {
			case s.Row < -1 || int(s.Row) >= a.Rows:
				return fmt.Errorf("%s: row %d of %d, or -1 for none", at, s.Row, a.Rows)
			case s.Row >= 0 && steps[s.Row]:
				return fmt.Errorf("%s: row %d has had a step", at, s.Row)
			case s.Row < 0 && s.Record < 0 || s.Record < -1 || int(s.Record) >= l.records:
				return fmt.Errorf("%s: record %d of %d, or -1 for a row without", at, s.Record, l.records)
			case s.Record >= 0 && records[s.Record]:
				return fmt.Errorf("%s: record %d has had a step", at, s.Record)
			case s.In < 0 || s.In >= MaxHeld || s.Out < 0 || s.Out >= MaxHeld:
				return fmt.Errorf("%s: from state %d to %d, want 0 to %d", at, s.In, s.Out, MaxHeld-1)
			case !filled[s.In]:
				return fmt.Errorf("%s: from state %d, which no step has filled", at, s.In)
			case s.Save < -1 || int(s.Save) >= l.slots:
				return fmt.Errorf("%s: saved in slot %d of %d, or -1 for none", at, s.Save, l.slots)
			case s.Save >= 0 && slots[s.Save]:
				return fmt.Errorf("%s: saved in slot %d, in which another step is", at, s.Save)
			}
			if s.Row >= 0 {
				steps[s.Row] = true
				rows++
			}
			if s.Record >= 0 {
				records[s.Record] = true
			}
			if s.Save >= 0 {
				slots[s.Save] = true
			}
			filled[s.Out] = true
		}
	}
	for i, w := range a.Walks {
		for _, s := range w.Steps {
			if s.Save >= 0 && s.Save != w.From && from[s.Save] {
				return fmt.Errorf("kernels: walk %d saves in slot %d, with which another begins", i, s.Save)
			}
		}
	}
	if rows != a.Rows {
		return fmt.Errorf("kernels: walks through %d of %d rows", rows, a.Rows)
	}
	return nil
}

func (c *checker) gate(gated bool, gate Buf, dim int) {
	if !gated {
		return
	}
	b := c.buf(gate)
	c.sameRows(b.Wanted, false)
	c.want("gate's columns", b.Dim, dim)
}
