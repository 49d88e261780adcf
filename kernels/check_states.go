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

// walkMarks says what a pass's walks name. It is kept from pass to pass so that checking allocates nothing.
type walkMarks struct {
	rows, saved, records []bool
	from                 []int32 // per slot: which walk begins with it, counted from 1; 0: none, -1: several
}

func newWalkMarks(rows int, s KVShape) *walkMarks {
	return &walkMarks{rows: make([]bool, rows), saved: make([]bool, s.Slots), records: make([]bool, s.Records),
		from: make([]int32, s.Slots)}
}

// checkWalks checks that every row is in one step, after nothing that has not been computed, and that every index is valid.
func (l *PassLimits) checkWalks(a *Pass) error {
	m := l.walks
	clear(m.rows)
	clear(m.saved)
	clear(m.records)
	clear(m.from)
	for i, w := range a.Walks {
		if w.From < -1 || int(w.From) >= len(m.from) {
			return fmt.Errorf("kernels: walk %d begins with slot %d of %d, or -1 for none", i, w.From, len(m.from))
		}
		if w.From >= 0 {
			if m.from[w.From] == 0 {
				m.from[w.From] = int32(i + 1)
			} else {
				m.from[w.From] = -1
			}
		}
	}
	rows := 0
	for i, w := range a.Walks {
		filled := [MaxHeld]bool{0: true}
		for j, s := range w.Steps {
			if what := m.step(&s, i, a.Rows, &filled); what != "" {
				return fmt.Errorf("kernels: walk %d, step %d: %s", i, j, what)
			}
			if s.Row >= 0 {
				rows++
			}
		}
	}
	if rows != a.Rows {
		return fmt.Errorf("kernels: walks through %d of %d rows", rows, a.Rows)
	}
	return nil
}

// step returns what is wrong with a step of a walk, or marks what it names and returns nothing.
func (m *walkMarks) step(s *Step, walk, rows int, filled *[MaxHeld]bool) string {
	switch {
	case s.Row < -1 || int(s.Row) >= rows:
		return fmt.Sprintf("row %d of %d, or -1 for none", s.Row, rows)
	case s.Row >= 0 && m.rows[s.Row]:
		return fmt.Sprintf("row %d has had a step", s.Row)
	case s.Row < 0 && s.Record < 0 || s.Record < -1 || int(s.Record) >= len(m.records):
		return fmt.Sprintf("record %d of %d, or -1 for a row without", s.Record, len(m.records))
	case s.Record >= 0 && m.records[s.Record]:
		return fmt.Sprintf("record %d has had a step", s.Record)
	case s.In < 0 || s.In >= MaxHeld || s.Out < 0 || s.Out >= MaxHeld:
		return fmt.Sprintf("from state %d to %d, want 0 to %d", s.In, s.Out, MaxHeld-1)
	case !filled[s.In]:
		return fmt.Sprintf("from state %d, which no step has filled", s.In)
	case s.Save < -1 || int(s.Save) >= len(m.saved):
		return fmt.Sprintf("saved in slot %d of %d, or -1 for none", s.Save, len(m.saved))
	case s.Save >= 0 && m.saved[s.Save]:
		return fmt.Sprintf("saved in slot %d, in which another step is", s.Save)
	case s.Save >= 0 && m.from[s.Save] != 0 && m.from[s.Save] != int32(walk+1):
		return fmt.Sprintf("saved in slot %d, with which another walk begins", s.Save)
	}
	if s.Row >= 0 {
		m.rows[s.Row] = true
	}
	if s.Record >= 0 {
		m.records[s.Record] = true
	}
	if s.Save >= 0 {
		m.saved[s.Save] = true
	}
	filled[s.Out] = true
	return ""
}

func (c *checker) gate(gated bool, gate Buf, dim int) {
	if !gated {
		return
	}
	b := c.buf(gate)
	c.sameRows(b.Wanted, false)
	c.want("gate's columns", b.Dim, dim)
}
