package verifier

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/owner"
	"github.com/tandem-llm/tandem/spec"
)

// share is one session's part in a pass: a tree to verify, or a piece of its prompt if check is nil.
type share struct {
	s     *session
	check *check
	seg   engine.Segment
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

// plan fills inPass: tickets first, then prompts, as many rows as a pass takes.
func (v *Verifier) plan() {
	v.inPass = v.inPass[:0]
	rows, wanted := v.cfg.Model.MaxRows(), v.cfg.Model.MaxWanted()
	for _, c := range v.queue {
		n := c.tree.Len()
		if c.s.prompt != nil || n > rows || n > wanted {
			continue
		}
		rows, wanted = rows-n, wanted-n
		sh := share{s: c.s, check: c, seg: engine.Segment{Seq: c.s.seq, Want: engine.WantTail,
			Extend: c.s.tokens[c.s.seq.Len():], Nodes: c.tree.Tokens[1:], Parents: make([]int32, n-1)}}
		for i, parent := range c.tree.Parents[1:] {
			sh.seg.Parents[i] = parent - 1 // rows do not count the root
		}
		v.inPass = append(v.inPass, sh)
	}
	prompt := min(rows, v.cfg.Chunk)
	for _, s := range v.opening {
		missing := s.tokens[s.seq.Len() : len(s.tokens)-1]
		n := min(len(missing), prompt)
		if n == 0 {
			break
		}
		prompt -= n
		v.inPass = append(v.inPass, share{s: s, seg: engine.Segment{Seq: s.seq, Extend: missing[:n]}})
	}
}

// run does one pass. If it is refused, each share is tried alone, so that only the one at fault fails.
func (v *Verifier) run(shares []share) {
	v.segments = v.segments[:0]
	tickets := 0
	for i := range shares {
		sh := &shares[i]
		v.segments = append(v.segments, sh.seg)
		if sh.check != nil {
			tickets++
			_, sh.end = v.cfg.Events.Begin(sh.check.ctx, tandem.StageVerify, tandem.Attr{Key: "width", Int: int64(sh.check.tree.Len())},
				tandem.Attr{Key: "depth", Int: int64(sh.check.deep)})
		}
	}
	begun := time.Now()
	out, err := v.cfg.Model.Forward(v.segments, 1)
	spent := time.Since(begun)
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
	for i, sh := range shares {
		if sh.check == nil {
			continue
		}
		var verdict tandem.Verdict
		err := owner.Guard(func() (err error) {
			verdict, err = v.judge(sh, out, out.First(i))
			return err
		})
		sh.end(err)
		if err != nil {
			v.fail(sh.s, err)
			continue
		}
		verdict.Batch = tickets
		verdict.Busy += spent
		sh.s.verdict, sh.s.used = verdict, time.Now()
		v.cfg.Counters.Add("verdicts", 1)
		v.answer(sh.check, verdict)
	}
}

// judge accepts what the target agrees with and moves the session on. The root's logits are in wanted
// row first, those of node i in row first+i.
func (v *Verifier) judge(sh share, out *engine.Output, first int) (tandem.Verdict, error) {
	begun := time.Now()
	s, c := sh.s, sh.check
	path, tokens := spec.Accept(c.tree, func(node int32) tandem.Token {
		row := first + int(node)
		if s.sampling.Temperature == 0 {
			return tandem.Token(out.Top(row).IDs[0])
		}
		return v.sampler.Draw(out.Logits(row), s.sampling, c.ticket.Base+tandem.Position(c.depths[node]))
	})
	verdict := tandem.Verdict{Session: s.id, Epoch: s.epoch, Base: c.ticket.Base, Hash: c.ticket.Hash,
		Tokens: tokens, Nodes: c.tree.Len(), Path: make([]int32, len(path))}
	rows := make([]int32, len(path))
	for i, node := range path {
		verdict.Path[i], rows[i] = c.nodes[node], node-1
	}
	if err := s.seq.Commit(rows); err != nil {
		return verdict, err
	}
	s.tokens = append(s.tokens, tokens...)
	s.hash = s.hash.Add(tokens...)
	verdict.Busy = time.Since(begun)
	return verdict, nil
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

// fail drops a session after a fault of tandem's own, so that it is opened again from what is known.
func (v *Verifier) fail(s *session, err error) {
	v.cfg.Counters.Add("faults", 1)
	v.drop(s, tandem.Errorf("verifier", tandem.Internal, "session %v: %w", s.id, err))
}
