package verifier

import (
	"runtime"
	"slices"
	"sort"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule/owner"
	"github.com/tandem-llm/tandem/spec"
)

// share is one session's part in a pass: a tree to verify, or a piece of its prompt if check is nil.
type share struct {
	s     *session
	check *check
	seg   engine.Part
	end   tandem.End // of the verify stage; nil for a prompt
}

// step runs one pass for the tickets that wait and the prompts that are not in; false if there are none.
func (v *Verifier) step() bool {
	v.stepping = true
	more := v.pass()
	v.stepping = false
	return more
}

func (v *Verifier) pass() bool {
	for _, s := range slices.Clone(v.opening) {
		s.prompt.reused += s.seq.Resume()
		switch {
		case s.prompt.ctx.Err() != nil:
			v.drop(s, s.prompt.ctx.Err())
		case s.seq.Len() == len(s.tokens)-1:
			v.ready(s, nil)
		}
	}
	v.plan()
	if len(v.inPass) == 0 {
		return false
	}
	v.run(v.inPass)
	v.inPass = v.inPass[:0]
	return true
}

// plan fills inPass, or leaves it empty if there is nothing to do, or nothing yet.
//
// Tickets come first, in the order of their arrival, as many as a pass takes; what does not fit stays at the
// head of the queue. A tree is verified whole or not yet. After a tree of more than a quarter of the largest pass a
// session sits out a pass for each further quarter, as long as others' tickets wait (deficit round robin, Shreedhar
// and Varghese 1995). So a session with the largest trees slows one pass of the others in four.
//
// Then prompts, one piece after the other; whose piece was in this pass comes last in the next. While any
// session is in rounds, pieces are so short that the pass takes at most half as long again as its trees
// alone. Up to where a pass stops being bound by memory that costs next to nothing, and beyond it a row in a short piece
// costs about as much as in a long one. A prompt that begins as another that is further waits for what the other computes
// rather than compute it too; so n choices for one prompt cost one prefill.
func (v *Verifier) plan() {
	v.inPass = v.inPass[:0]
	if len(v.opening) == 0 && v.waits(time.Now()) {
		return
	}
	rows, wanted := v.cfg.Model.MaxRows(), v.cfg.Model.MaxWanted()
	taken := 0
	due := slices.ContainsFunc(v.queue, func(c *check) bool { return c.s.turn <= v.passes })
	for _, c := range v.queue {
		n := c.tree.Len()
		if c.s.prompt != nil || taken+n > min(rows, wanted) || due && c.s.turn > v.passes {
			continue
		}
		taken += n
		sh := share{s: c.s, check: c, seg: engine.Part{Seq: c.s.seq, Want: engine.WantTail,
			Extend: c.s.tokens[c.s.seq.Len():], Nodes: c.tree.Tokens[1:], Parents: make([]int32, n-1)}}
		for i, parent := range c.tree.Parents[1:] {
			sh.seg.Parents[i] = parent - 1 // rows do not count the root
		}
		v.inPass = append(v.inPass, sh)
	}
	if taken > 0 {
		v.passes++
		for _, sh := range v.inPass {
			sh.s.turn = v.passes + len(sh.seg.Nodes)/max(rows/4, 1)
		}
	}
	left := v.piece(taken, rows-taken)
	var fed, waiting []*session
	for _, s := range v.opening {
		missing := s.tokens[s.seq.Len() : len(s.tokens)-1]
		n := min(len(missing), left)
		if n == 0 || slices.ContainsFunc(v.opening, func(o *session) bool { return s.seq.Follows(o.seq) }) {
			waiting = append(waiting, s)
			continue
		}
		left, fed = left-n, append(fed, s)
		v.inPass = append(v.inPass, share{s: s, seg: engine.Part{Seq: s.seq, Extend: missing[:n]}})
	}
	v.opening = append(waiting, fed...)
}

const (
	slower     = 1.5 // times as long as its trees alone a pass with pieces of prompts may take
	leastPiece = 8   // prompt rows that a pass takes in any case, so that every prompt gets in
)

// piece returns how many rows of prompts go into a pass with so many rows of trees and room for left more.
func (v *Verifier) piece(taken, left int) int {
	most := min(left, v.cfg.Chunk)
	if taken == 0 && !v.inRounds(time.Now()) {
		return most
	}
	limit := time.Duration(slower * float64(v.costs.Time(max(taken, 1))))
	return max(min(leastPiece, most), sort.Search(most, func(n int) bool { return v.costs.Time(taken+n+1) > limit }))
}

// inRounds reports whether a ticket of any session is expected.
func (v *Verifier) inRounds(now time.Time) bool {
	for _, s := range v.sessions {
		if _, expected := s.due(now); expected {
			return true
		}
	}
	return false
}

// waits reports whether it is better not to begin a pass yet, and sees to it that the owner wakes when it is.
//
// Without waits sessions fall into groups that take turns: half of them draft while the others' pass runs, and
// each group pays for reading the weights once. One pass for two groups saves T(a) + T(b) - T(a+b), the
// part of its time that does not depend on rows. So a pass waits as long as the next ticket is due within what
// sharing a pass with it saves, counted from when it could have begun: a wait in vain has then cost no
// more than it might have gained, as in ski rental. A tenth of the pass is waited in any case, because costs
// measured on a busy machine may not show what is saved. Sessions whose tickets come slowly are not waited for.
//
// Measured on the 0.97-billion shape, Q8_0, 2 threads, tokens/s by the costs of a quiet machine
// (go test ./verifier -run WaitsMeasured -big FILE): 8 sessions with trees of 2 nodes 132 at once, 164 waiting;
// of 4 nodes 126 and 138; of 12 nodes 73 and 72; 2 sessions with trees of 8 nodes 98 and 111. Waits of half as
// long, and fixed ones of a tenth and of a quarter of the pass, were within 4 % of these or below.
func (v *Verifier) waits(now time.Time) bool {
	if len(v.queue) == 0 {
		return false
	}
	var next *session
	var due time.Time
	for _, s := range v.sessions {
		if at, expected := s.due(now); expected && (next == nil || at.Before(due)) {
			next, due = s, at
		}
	}
	if next == nil {
		return false
	}
	taken := 0
	for _, c := range v.queue {
		taken += c.tree.Len()
	}
	if taken+next.rows > v.cfg.Model.MaxRows() {
		return false
	}
	saved := v.costs.Time(taken) + v.costs.Time(next.rows) - v.costs.Time(taken+next.rows)
	saved = max(saved, v.costs.Time(taken)/10)
	until := later(v.queue[0].came, v.free).Add(time.Duration(patience * float64(saved)))
	if due.After(until) || !now.Before(until) {
		return false
	}
	if overdue := next.overdue(); overdue.Before(until) {
		until = overdue // then another may be worth waiting for
	}
	v.hold.Reset(max(until.Sub(now), time.Microsecond))
	return true
}

// patience is a factor on the longest wait, 1 but for measurements.
var patience = 1.0

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// run does one pass. If it is refused, each share is tried alone, so that only the one at fault fails.
func (v *Verifier) run(shares []share) {
	v.segments = v.segments[:0]
	tickets, rows := 0, 0
	for i := range shares {
		sh := &shares[i]
		v.segments = append(v.segments, sh.seg)
		rows += len(sh.seg.Extend) + len(sh.seg.Nodes)
		if sh.check != nil {
			tickets++
			_, sh.end = v.cfg.Events.Begin(sh.check.ctx, tandem.StageVerify, tandem.Attr{Key: "width", Int: int64(sh.check.tree.Len())},
				tandem.Attr{Key: "depth", Int: int64(sh.check.deep)})
		}
	}
	begun := time.Now()
	out, err := v.cfg.Model.Forward(v.segments, 1)
	v.free = time.Now()
	spent := v.free.Sub(begun)
	if err != nil {
		for i, sh := range shares {
			if sh.end != nil {
				sh.end(err)
			}
			if len(shares) == 1 {
				v.fail(sh.s, err)
			} else {
				v.run(shares[i : i+1])
			}
		}
		return
	}
	v.costs.Observe(rows, spent)
	v.cfg.Counters.Add("passes", 1)
	v.cfg.Counters.Add("passes.rows", int64(rows))
	v.cfg.Counters.Add("passes.busy_us", spent.Microseconds())
	var judged []share
	for i, sh := range shares {
		if sh.check == nil {
			continue
		}
		var verdict tandem.Verdict
		err := owner.Guard(func() error {
			verdict = v.judge(sh, out, out.First(i))
			return nil
		})
		sh.end(err, tandem.Attr{Key: "device_ns", Int: int64(spent)}, tandem.Attr{Key: "rows", Int: int64(rows)}, tandem.Attr{Key: "batch", Int: int64(tickets)})
		if err != nil {
			v.fail(sh.s, err)
			continue
		}
		judged = append(judged, sh)
		verdict.Batch, verdict.Rows = tickets, rows
		verdict.Busy += spent
		now := time.Now()
		sh.s.verdict, sh.s.used, sh.s.answered, sh.s.rows = verdict, now, now, sh.check.tree.Len()
		v.cfg.Counters.Add("verdicts", 1)
		v.answer(sh.check, verdict)
	}
	// The cache follows while the verdicts are on their way: what is told is decided, and nothing comes for a
	// session before this goroutine looks again. With one processor for Go code they leave only if this goroutine steps
	// aside for those that write them: the stream's, and gRPC's behind it.
	for range 3 {
		runtime.Gosched()
	}
	for _, sh := range judged {
		if err := owner.Guard(func() error { return sh.s.commit() }); err != nil {
			v.fail(sh.s, err)
		}
	}
}

// commit makes the rows of the latest verdict's path positions of the cache.
func (s *session) commit() error {
	rows := s.accepted
	s.accepted = nil
	return s.seq.Commit(rows)
}

// judge accepts what the target agrees with and moves the session on, but for its cache: see commit. The root's logits are in wanted
// row first, those of node i in row first+i.
func (v *Verifier) judge(sh share, out *engine.Output, first int) tandem.Verdict {
	begun := time.Now()
	s, c := sh.s, sh.check
	var logprobs []tandem.Logprob
	path, tokens := spec.Accept(c.tree, func(node int32) tandem.Token {
		if node > 0 {
			s.history.Push(c.tree.Tokens[node]) // the text before a draw is that of the path down to its node
		}
		t := v.draw(s, out, first+int(node), c.ticket.Base+tandem.Position(c.depths[node]))
		if p := s.sampling; p.Logprobs {
			logprobs = append(logprobs, v.sampler.Logprob(out.Logits(first+int(node)), t, p.TopLogprobs))
		}
		return t
	})
	s.history.Push(tokens[len(tokens)-1])
	verdict := tandem.Verdict{Session: s.id, Epoch: s.epoch, Base: c.ticket.Base, Hash: c.ticket.Hash,
		Tokens: tokens, Logprobs: logprobs, Nodes: c.tree.Len(), Path: make([]int32, len(path))}
	s.accepted = make([]int32, len(path))
	for i, node := range path {
		verdict.Path[i], s.accepted[i] = c.nodes[node], node-1
	}
	s.tokens = append(s.tokens, tokens...)
	s.hash = s.hash.Add(tokens...)
	verdict.Busy = time.Since(begun)
	return verdict
}

// draw returns the token that follows at a position, by the logits of a wanted row and the text that s.history has
// counted.
func (v *Verifier) draw(s *session, out *engine.Output, row int, at tandem.Position) tandem.Token {
	if s.sampling.Temperature == 0 && !s.sampling.Shapes() {
		return tandem.Token(out.Top(row).IDs[0])
	}
	return v.sampler.Draw(v.sampler.Shape(out.Logits(row), s.sampling, s.history), s.sampling, at)
}

// fault drops the sessions of a pass that panicked: what the model has written for them is unknown. If the
// panic came while the pass was planned, it drops all that something waits for.
func (v *Verifier) fault(err error) {
	if !v.stepping {
		v.cfg.Counters.Add("faults", 1)
		return
	}
	victims := slices.Clone(v.opening)
	for _, c := range v.queue {
		victims = append(victims, c.s)
	}
	if len(v.inPass) > 0 {
		victims = victims[:0]
		for _, sh := range v.inPass {
			victims = append(victims, sh.s)
			if sh.end != nil && sh.s.ticket == sh.check {
				sh.end(err)
			}
		}
	}
	v.stepping, v.inPass = false, nil
	for _, s := range victims {
		if v.sessions[s.id] == s {
			v.fail(s, err)
		}
	}
}

// fail drops a session after a fault of tandem's own, so that it is opened again from what is known: its tokens alone, not what
// was computed of them.
func (v *Verifier) fail(s *session, err error) {
	v.cfg.Counters.Add("faults", 1)
	s.seq.Distrust()
	v.drop(s, tandem.Errorf("verifier", tandem.Internal, "session %v: %w", s.id, err))
}
