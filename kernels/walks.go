package kernels

import "fmt"

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
