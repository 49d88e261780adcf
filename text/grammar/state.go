package grammar

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// grammars counts the grammars of this process.
var grammars atomic.Uint64

// State says what may follow the bytes read so far. It is a value: copying it forks it. The zero State allows everything.
type State struct {
	g    *Grammar
	one  conf   // the configuration if there is exactly one; its node is nil otherwise
	more []conf // if there are several; never changed
	done bool
}

// confs returns the configurations of s. one is where to put the only one.
func (s *State) confs() []conf {
	if s.one.n != nil {
		return []conf{s.one}
	}
	return s.more
}

// state makes a State of a set.
func (g *Grammar) state(from *set) State {
	s := State{g: g, done: from.done}
	switch confs := from.confs[from.base:]; len(confs) {
	case 0:
	case 1:
		s.one = confs[0]
	default:
		s.more = append([]conf(nil), confs...)
	}
	return s
}

// scratch are two sets to step between.
type scratch struct{ sets [2]set }

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Next returns the state after b. It returns false if s does not allow b.
func (s State) Next(b []byte) (State, bool) {
	if s.g == nil {
		return s, true
	}
	for i := range b {
		c := s.one
		if c.n == nil {
			return s.nextOfMany(b[i:])
		}
		live, end := c.read(b[i])
		switch {
		case end:
			return s.nextOfMany(b[i:])
		case !live:
			return State{}, false
		}
		s.one, s.done = c, false
	}
	return s, true
}

func (s State) nextOfMany(b []byte) (State, bool) {
	w := scratches.Get().(*scratch)
	defer scratches.Put(w)
	from, to := &w.sets[0], &w.sets[1]
	from.confs = append(from.confs[:0], s.more...)
	if s.one.n != nil {
		from.confs = append(from.confs, s.one)
	}
	for _, c := range b {
		to.confs, to.done = to.confs[:0], false
		s.g.step(from.confs, c, to)
		if len(to.confs) == 0 && !to.done {
			return State{}, false
		}
		from, to = to, from
	}
	return s.g.state(from), true
}

// Done reports whether the text may end here.
func (s State) Done() bool { return s.done || s.g == nil }

// Ended reports whether the text must end here.
func (s State) Ended() bool { return s.done && s.one.n == nil && len(s.more) == 0 }

// maxForced bounds what Forced returns, in bytes.
const maxForced = 1 << 10

// Forced returns the bytes that must come next. The caller does not change them.
func (s State) Forced() []byte {
	var out []byte
	for s.g != nil && len(out) < maxForced && !s.done {
		b, ok := s.only()
		if !ok {
			break
		}
		if s, ok = s.Next([]byte{b}); !ok {
			break
		}
		out = append(out, b)
	}
	return out
}

// only returns the byte that must come next, if there is exactly one.
func (s *State) only() (byte, bool) {
	found, only := false, 0
	for _, c := range s.confs() {
		first, last := 0, 255
		if c.n.kind == literal && (!c.n.marked || c.n.text[c.q] < breakMark) {
			first, last = int(c.n.text[c.q]), int(c.n.text[c.q])
		}
		for b := first; b <= last; b++ {
			it := c
			if live, end := it.read(byte(b)); !live && !end {
				continue
			}
			if found && only != b {
				return 0, false
			}
			found, only = true, b
		}
	}
	return byte(only), found
}

// key appends what the mask of s depends on. Counts that no token of at most reach bytes can exhaust are the same.
func (s *State) key(dst []byte, reach int32) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, s.g.id<<1)
	if s.done {
		dst[0] |= 1
	}
	for _, c := range s.confs() {
		if c.n.kind == chars {
			c.lo, c.hi = min(c.lo, reach+1), min(c.hi, reach+1+c.n.auto.furthest)
		}
		dst = binary.LittleEndian.AppendUint64(dst, c.up.hash())
		for _, part := range [...]uint32{uint32(c.n.id), uint32(c.q), uint32(c.lo), uint32(c.hi), c.dec} {
			dst = binary.LittleEndian.AppendUint32(dst, part)
		}
	}
	return dst
}
