package discovery

import (
	"cmp"
	"slices"

	"github.com/tandem-llm/tandem/services/peers/wire"
)

// list returns the processes by address.
func (m *membership) list() []Process {
	var out []Process
	for _, all := range m.known() {
		e := slices.MinFunc(all, func(a, b *entry) int { return a.preferred(b) })
		for _, x := range all {
			x.shown = x == e
		}
		p, last := e.Process, slices.MaxFunc(all, func(a, b *entry) int { return a.told.Compare(b.told) })
		p.Drafters, p.Verifier, p.Gateway, p.Draining = last.Drafters, last.Verifier, last.Gateway, last.Draining
		heard := slices.MaxFunc(all, func(a, b *entry) int { return a.Lease.Compare(b.Lease) })
		p.Segment, p.Lease, p.Lapsed = cmp.Or(e.Segment, heard.Segment), heard.Lease, heard.Lapsed
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.Addr, b.Addr), cmp.Compare(a.Instance, b.Instance))
	})
	return out
}

// known returns the entries by process: those of one instance belong together.
func (m *membership) known() (out [][]*entry) {
	of := map[uint64]int{}
	for _, e := range m.entries {
		i, found := of[e.Instance]
		if !found || e.Instance == 0 {
			i, out = len(out), append(out, nil)
			of[e.Instance] = i
		}
		out[i] = append(out[i], e)
	}
	return out
}

// preferred is negative if of two addresses of one process the table shows that of e.
func (e *entry) preferred(o *entry) int {
	first := func(a, b bool) int {
		switch {
		case a == b:
			return 0
		case a:
			return -1
		}
		return 1
	}
	return cmp.Or(first(e.Up, o.Up), first(e.shown, o.shown), first(e.static, o.static), cmp.Compare(e.Addr, o.Addr))
}

// same reports whether a process is as it was, but for its load and its lease.
func same(a, b Process) bool {
	return a.Addr == b.Addr && a.Instance == b.Instance && a.Segment == b.Segment && a.Conn == b.Conn && a.Up == b.Up &&
		a.Draining == b.Draining && a.Lapsed == b.Lapsed && slices.EqualFunc(a.Drafters, b.Drafters, wire.AnnouncedDrafter.Equal) &&
		equal(a.Verifier, b.Verifier, wire.AnnouncedVerifier.Equal) && equal(a.Gateway, b.Gateway, wire.AnnouncedGateway.Equal)
}

// equal reports whether both are nil, or neither is and they are the same.
func equal[T any](a, b *T, same func(a, b T) bool) bool {
	return a == b || a != nil && b != nil && same(*a, *b)
}
