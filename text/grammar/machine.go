package grammar

import (
	"hash/maphash"
	"math"
	"sync"
)

// kind says what a node is.
type kind uint8

const (
	literal  kind = iota // a text; where marked, blanks may stand in it
	chars                // what an automaton accepts
	sequence             // one part after the other
	choice               // one of the parts
	repeat               // an item several times, with a separator between
	members              // the members of an object
)

// unbounded is the most of a count that has no limit.
const unbounded = infinite - 1

// node is a part of a grammar. Nodes refer to each other, also in circles; they are not changed after Compile.
type node struct {
	kind   kind
	id     int32
	height int32 // frames that its shortest text needs above the one it is entered with; infinite: it has no text

	text   string // literal
	marked bool   // the bytes blankMark and breakMark in it stand for white space

	auto  *automaton // chars
	mode  mode
	again bool      // chars: each part is what takes over, and then this node again
	exits [][]int32 // chars: the parts of which one takes over when a state is reached, by state; nil: the node ends when auto accepts

	parts  []*node // sequence, choice; repeat: the item, and the separator if there is one; chars: what exits name
	lo, hi int32   // repeat: how many items; chars: how many characters
	fields []field // members, in the order in which they are written
	extra  *field  // members: what may come after them, any number of times
}

// field is a member of an object: name and value, alone and behind a comma.
type field struct {
	first, next *node
	required    bool
}

const (
	blankMark = 0xFF // one blank, or none
	breakMark = 0xFE // an optional blank, or a new line with up to maxIndent blanks or tabs
	maxIndent = 64
)

// infinite is more than any count or height.
const infinite = math.MaxInt32 / 2

// frame is what follows when a node has ended: a stack that shares its lower part with others. Frames that say the same have the same id,
// and are mostly the same.
type frame struct {
	frameKey
	depth int32
	id    uint64 // a hash of the whole stack
}

type frameKey struct {
	n      *node
	up     *frame
	at     int32 // sequence: the next part; members: the next field; repeat: 1 after an item, 0 after a separator
	lo, hi int32 // repeat: how many items must and may follow
}

// conf is a configuration: a literal or chars node that is being read, and what follows it.
type conf struct {
	n      *node
	up     *frame
	q      int32  // literal: the next byte; chars: the automaton's state
	lo, hi int32  // chars: how many characters must and may follow. literal: blanks read at a mark
	dec    uint32 // chars: of a character that is not complete
}

// set is what may be read next. Several sets share an array: a set's own part begins at base.
type set struct {
	confs []conf
	base  int
	done  bool // the text may end here
}

// maxAlternatives bounds a set, and maxOpen how many of it are chars nodes, which a walk over many tokens goes on with. Of more, which only
// an ambiguous grammar has, the first are kept: every one of them can be finished.
const maxAlternatives, maxOpen = 1 << 9, 1 << 4

func (s *set) add(c conf) {
	open := 0
	for i := s.base; i < len(s.confs); i++ {
		if s.confs[i].equals(&c) {
			return
		}
		if s.confs[i].n.kind == chars {
			open++
		}
	}
	if !s.full() && (c.n.kind != chars || open < maxOpen) {
		s.confs = append(s.confs, c)
	}
}

func (s *set) full() bool { return len(s.confs)-s.base >= maxAlternatives }

func (c *conf) equals(o *conf) bool {
	return c.n == o.n && c.q == o.q && c.lo == o.lo && c.hi == o.hi && c.dec == o.dec && c.up.hash() == o.up.hash()
}

// frames makes equal frames the same pointer. When it is full it forgets; frames in use live on.
type frames struct {
	mu    sync.Mutex
	known map[frameKey]*frame
}

// seed makes frames' hashes differ from process to process, so that nobody can write two that are equal.
var seed = maphash.MakeSeed()

// hash identifies the stack f.
func (f *frame) hash() uint64 {
	if f == nil {
		return 0
	}
	return f.id
}

// maxFrames bounds the frames that a grammar remembers: about 4 MiB.
const maxFrames = 1 << 15

func (f *frames) push(k frameKey) *frame {
	f.mu.Lock()
	defer f.mu.Unlock()
	if it, ok := f.known[k]; ok {
		return it
	}
	if f.known == nil || len(f.known) >= maxFrames {
		f.known = map[frameKey]*frame{}
	}
	it := &frame{frameKey: k, depth: 1}
	if k.up != nil {
		it.depth += k.up.depth
	}
	it.id = maphash.Comparable(seed, [6]uint64{k.up.hash(), uint64(k.n.id), uint64(k.at), uint64(k.lo), uint64(k.hi), uint64(it.depth)})
	f.known[k] = it
	return it
}

// enter adds to s what n begins with, if there is room for n's shortest text.
func (g *Grammar) enter(s *set, n *node, up *frame) {
	depth := n.height
	if up != nil {
		depth += up.depth
	}
	if depth > g.nesting {
		return
	}
	switch n.kind {
	case literal:
		if n.optionalFrom(0) {
			g.leave(s, up)
		}
		if len(n.text) > 0 {
			s.add(conf{n: n, up: up})
		}
	case chars:
		c := conf{n: n, up: up, lo: n.lo, hi: n.hi}
		if n.mode == quoted {
			c.dec = opening
			s.add(c)
			return
		}
		if n.hi >= n.auto.onward[0] {
			s.add(c)
		}
		g.end(s, &c)
	case sequence:
		g.leaveSequence(s, n, 0, up)
	case choice:
		for _, part := range n.parts {
			g.enter(s, part, up)
		}
	case repeat:
		g.leaveRepeat(s, frameKey{n: n, up: up, lo: n.lo, hi: n.hi})
	case members:
		g.leaveMember(s, n, 0, up, true)
	}
}

// leave adds to s what may follow when the node above f has ended.
func (g *Grammar) leave(s *set, f *frame) {
	switch {
	case f == nil:
		s.done = true
	case f.n.kind == sequence:
		g.leaveSequence(s, f.n, f.at, f.up)
	case f.n.kind == repeat:
		g.leaveRepeat(s, f.frameKey)
	default:
		g.leaveMember(s, f.n, f.at, f.up, false)
	}
}

func (g *Grammar) leaveSequence(s *set, n *node, at int32, up *frame) {
	switch len(n.parts) - int(at) {
	case 0:
		g.leave(s, up)
	case 1:
		g.enter(s, n.parts[at], up)
	default:
		g.enter(s, n.parts[at], g.push(frameKey{n: n, up: up, at: at + 1}))
	}
}

// leaveRepeat goes on at the beginning of a repeat (k.at = 0), behind an item (1), or behind a separator (2).
func (g *Grammar) leaveRepeat(s *set, k frameKey) {
	if k.lo == 0 && k.at != 2 {
		g.leave(s, k.up)
	}
	if k.hi == 0 {
		return
	}
	if k.at == 1 && len(k.n.parts) > 1 {
		k.at = 2
		g.enter(s, k.n.parts[1], g.push(k))
		return
	}
	k.at, k.lo = 1, max(0, k.lo-1)
	if k.hi != unbounded {
		k.hi--
	}
	g.enter(s, k.n.parts[0], g.push(k))
}

func (g *Grammar) leaveMember(s *set, n *node, at int32, up *frame, first bool) {
	form := func(f *field) *node {
		if first {
			return f.first
		}
		return f.next
	}
	for ; int(at) < len(n.fields); at++ {
		if s.full() {
			return
		}
		f := &n.fields[at]
		g.enter(s, form(f), g.push(frameKey{n: n, up: up, at: at + 1}))
		if f.required {
			return
		}
	}
	g.leave(s, up)
	if n.extra != nil {
		g.enter(s, form(n.extra), g.push(frameKey{n: n, up: up, at: at}))
	}
}

// end adds to s what follows c, a chars node that may end.
func (g *Grammar) end(s *set, c *conf) {
	if c.n.exits != nil {
		for _, part := range c.n.exits[c.q] {
			g.enter(s, c.n.parts[part], c.up)
		}
	}
	if c.n.auto.accept[c.q] && c.lo == 0 {
		g.leave(s, c.up)
	}
}

// optionalFrom reports whether n's text from byte q on is nothing but optional white space.
func (n *node) optionalFrom(q int32) bool {
	for ; int(q) < len(n.text); q++ {
		if !n.marked || n.text[q] < breakMark {
			return false
		}
	}
	return true
}

// read moves c over b. live: something may follow in c's node; end: the node may end after b.
func (c *conf) read(b byte) (live, end bool) {
	n := c.n
	if n.kind == chars {
		return c.readChar(b)
	}
	for ; int(c.q) < len(n.text); c.q++ {
		at := n.text[c.q]
		if at == breakMark && n.marked && c.indent(b) {
			return true, n.optionalFrom(c.q + 1)
		}
		if at == b && (!n.marked || at < breakMark) || at == blankMark && n.marked && b == ' ' {
			c.q, c.lo, c.hi = c.q+1, 0, 0
			return int(c.q) < len(n.text), n.optionalFrom(c.q)
		}
		if !n.marked || at < breakMark {
			break
		}
	}
	return false, false
}

// indent takes a byte of the white space at a breakMark: lo counts it; hi is 1 after a single blank.
func (c *conf) indent(b byte) bool {
	switch {
	case c.lo == 0 && b == ' ':
		c.hi = 1
	case c.lo == 0 && b == '\n':
		c.hi = 0
	case c.lo == 0 || c.hi == 1 || c.lo > maxIndent || b != ' ' && b != '\t':
		return false
	}
	c.lo++
	return true
}

// step adds to out what follows the configurations from over b.
func (g *Grammar) step(from []conf, b byte, out *set) {
	for i := range from {
		c := from[i]
		live, end := c.read(b)
		if live {
			out.add(c)
		}
		switch {
		case end && c.n.kind == chars:
			g.end(out, &c)
		case end:
			g.leave(out, c.up)
		}
	}
}
