package schedule

import (
	"slices"
	"sort"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule/owner"
)

// Space is how many more rows a pass can take.
type Space struct {
	Rows   int
	Wanted int // rows with logits
}

// Part is one session's share of a pass.
type Part struct {
	engine.Part
	TopK int // best tokens that each of its wanted rows needs
	At   int // its number in the pass, by which engine.Output knows its rows; set before Session.Take

	of    Session
	piece bool // a piece of the missing tokens, not of a round
	round bool // of a queued session, piece or not
}

// Size returns the rows of a part and how many of them want logits.
func (p *Part) Size() Space {
	size := Space{Rows: len(p.Extend) + len(p.Nodes)}
	tokens := len(p.Nodes) // prompt rows have no logits
	for _, t := range p.Nodes {
		if t < 0 {
			tokens--
		}
	}
	switch p.Want {
	case engine.WantAll:
		size.Wanted = len(p.Extend) + tokens
	case engine.WantTail:
		size.Wanted = tokens + min(len(p.Extend), 1)
	}
	return size
}

// fill chooses the parts of the next pass, or none if there is nothing to do, or nothing yet.
//
// Queued sessions come first, the longest waiting before others; sessions in a pass go to the end of the line. A session
// takes as much of its part as fits, or nothing, and a pass takes no more of them than a batch has (batchSize). After a part of
// more than a quarter of the largest pass a session sits out a pass for each further quarter, as long as others are queued (deficit
// round robin, Shreedhar and Varghese 1995). So a session with the largest trees slows only one in four of the others' passes.
//
// Then come prompts, one piece after the other, and the text that queued sessions have missed, if it is more than a few tokens.
// While any session is in rounds, pieces are so short that the pass takes at most half as long again as its rounds alone. As long
// as a pass is bound by memory, they cost next to nothing; beyond that a row in a short piece costs about as much as in a long
// one. If another prompt with the same beginning is further, a prompt waits for the pages that the other computes. So n choices
// for one prompt cost one prefill. Rounds may fill a pass to its last row; then the next one keeps a few rows for pieces, or leaves out a
// tree that does not fit beside them. So prompts get in, at least with every second pass, however large the trees are.
func (s *Schedule) fill(now time.Time) {
	s.parts = s.parts[:0]
	space := Space{Rows: s.cfg.Model.MaxRows(), Wanted: s.cfg.Model.MaxWanted()}
	if len(s.line) == 0 {
		s.fillSpare(space)
		return
	}
	batch := s.batchSize(now)
	if s.waits(now, batch) {
		return
	}
	quarter := max(space.Rows/4, 1)
	due := slices.ContainsFunc(s.line, func(x Session) bool { return x.entry().opening == nil && x.entry().turn <= s.passes })
	all, kept := space.Rows, 0
	if s.crowded {
		kept = min(leastPiece, s.cfg.Chunk, all-1)
	}
	space.Rows -= kept
	for _, x := range s.copied(s.line) {
		if !s.Holds(x) {
			continue // dropped to make room for one before it
		}
		t := x.entry()
		if t.sits = t.opening == nil && due && t.turn > s.passes; !t.sits && !s.lags(x) && len(s.parts) < batch {
			s.add(x, &space, false)
		}
	}
	space.Rows += kept
	taken, rounds := all-space.Rows, len(s.parts)
	space.Rows = s.piece(now, taken, space.Rows)
	left := false
	for _, x := range s.copied(s.line) {
		if t := x.entry(); s.Holds(x) && !t.sits && t.lags && !s.follows(x) {
			if left = true; space.Rows > 0 {
				s.add(x, &space, true)
			}
		}
	}
	crowded := s.crowded
	if s.crowded = left && len(s.parts) == rounds; crowded && len(s.parts) == 0 {
		s.crowded = false // who waited for room is gone, and a tree too large for the rest sat out
		s.fill(now)
		return
	}
	s.parts = slices.DeleteFunc(s.parts, func(p Part) bool { return !s.Holds(p.of) }) // dropped since
	s.charge(quarter)
	s.line = s.rotated(s.line)
}

// charge makes queued sessions pay for their parts of a pass; a quarter of the pass is free.
func (s *Schedule) charge(quarter int) {
	if slices.ContainsFunc(s.parts, func(p Part) bool { return p.round }) {
		s.passes++
	}
	for i := range s.parts {
		if p := &s.parts[i]; p.round {
			t := p.of.entry()
			t.rows, t.ran = p.Size().Rows, true
			t.turn = s.passes + (t.rows-1)/quarter
		}
	}
}

// fillSpare fills a pass that nobody waits for, so small that sessions queued meanwhile do not wait long.
func (s *Schedule) fillSpare(space Space) {
	space.Rows = min(space.Rows, space.Wanted, s.cfg.Spare)
	for _, x := range s.copied(s.spare) {
		if space.Rows == 0 {
			break
		}
		var p Part
		if !s.guard(x, func() { p = x.Spare(space) }) {
			continue
		}
		if p.Size().Rows == 0 || s.cfg.Model.Reserve(&p.Part) != nil { // nobody is dropped for what nobody waits for
			s.Rest(x)
			continue
		}
		s.take(x, p, &space)
	}
	s.spare = s.rotated(s.spare)
}

// copied returns a copy of a list, for a loop in which sessions may be dropped. It is valid until the next call.
func (s *Schedule) copied(list []Session) []Session {
	s.scratch = append(s.scratch[:0], list...)
	return s.scratch
}

// lags reports whether x has to catch up before it can begin. A few missing tokens do not count: they join its first part.
func (s *Schedule) lags(x Session) bool {
	t, missing := x.entry(), 0
	s.guard(x, func() { missing = x.Missing() })
	t.lags = t.opening != nil || missing > min(leastPiece, s.cfg.Chunk)
	return t.lags
}

// follows reports whether x, which is being opened, should wait for what another session is about to compute.
func (s *Schedule) follows(x Session) (wait bool) {
	t := x.entry()
	if t.opening == nil {
		return false
	}
	s.guard(x, func() {
		wait = slices.ContainsFunc(s.line, func(o Session) bool { return o.entry().opening != nil && t.Seq.Follows(o.entry().Seq) })
	})
	return wait
}

// add asks x for its part. A session that wants nothing of an empty pass would wait for ever, so it fails.
func (s *Schedule) add(x Session, space *Space, piece bool) {
	var p Part
	switch {
	case !s.Holds(x) || !s.guard(x, func() { p = x.Want(*space) }):
	case p.Size().Rows > 0:
		p.piece, p.round = piece, x.entry().opening == nil
		s.take(x, p, space)
	case len(s.parts) == 0 && !(s.crowded && !piece): // a whole tree may not fit beside rows kept for pieces
		s.Fail(x, tandem.Errorf(s.cfg.Name, tandem.Internal, "it is queued but wants no rows of a pass"))
	}
}

// take puts a part into the pass.
func (s *Schedule) take(x Session, p Part, space *Space) {
	size := p.Size()
	if size.Rows > space.Rows || size.Wanted > space.Wanted {
		s.guard(x, func() { panic("a part that does not fit") })
		return
	}
	if !s.makeRoom(x, &p.Part) {
		return
	}
	p.of = x
	space.Rows, space.Wanted = space.Rows-size.Rows, space.Wanted-size.Wanted
	s.parts = append(s.parts, p)
}

// rotated moves the sessions of the pass to the end of list, so that all get a turn.
func (s *Schedule) rotated(list []Session) []Session {
	if len(s.parts) == 0 || len(s.parts) == len(list) {
		return list
	}
	for i := range s.parts {
		s.parts[i].of.entry().inPass = true
	}
	list = slices.DeleteFunc(list, func(x Session) bool { return x.entry().inPass })
	for i := range s.parts {
		x := s.parts[i].of
		x.entry().inPass = false
		list = append(list, x)
	}
	return list
}

// guard runs a function of x; a panic in it drops x.
func (s *Schedule) guard(x Session, fn func()) bool {
	err := owner.Guard(func() error { fn(); return nil })
	if err != nil {
		s.Fail(x, err)
	}
	return err == nil
}

const (
	slower     = 1.5 // most time of a pass with pieces, in times of its rounds alone
	leastPiece = 8   // rows of pieces that a pass takes in any case, so that every prompt gets in
)

// piece returns how many rows of pieces go into a pass with so many rows of rounds and room for left more.
func (s *Schedule) piece(now time.Time, taken, left int) int {
	most := min(left, s.cfg.Chunk)
	if taken == 0 && !s.inRounds(now) {
		return most
	}
	limit := time.Duration(slower * float64(known(s.costs, max(taken, 1))))
	return max(min(leastPiece, most), sort.Search(most, func(n int) bool { return s.costs.Time(taken+n+1) > limit }))
}
