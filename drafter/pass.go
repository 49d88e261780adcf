package drafter

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/owner"
	"github.com/tandem-llm/tandem/spec"
)

// share is one session's part in a pass.
type share struct {
	s    *session
	seg  engine.Segment
	tree bool // its wanted rows are for the tree's builder
}

// step runs one pass for whoever has a job; false if nobody has.
func (d *Drafter) step() bool {
	d.stepping = true
	more := d.pass()
	d.stepping = false
	return more
}

func (d *Drafter) pass() bool {
	for i := len(d.active) - 1; i >= 0; i-- {
		s := d.active[i]
		if s.job.ctx.Err() == nil {
			continue
		}
		if s.job.builder == nil {
			d.drop(s, s.job.ctx.Err())
		} else {
			d.end(s, s.job.ctx.Err())
		}
	}
	begun := time.Now()
	d.plan()
	if len(d.inPass) == 0 {
		return len(d.active) > 0
	}
	d.run(d.inPass, begun)
	d.inPass = d.inPass[:0]
	return true
}

// plan fills inPass: trees first, then prompts, as many rows as a pass takes. Sessions of the pass move
// behind those that found no room.
func (d *Drafter) plan() {
	d.inPass = d.inPass[:0]
	rows, wanted, prompt := d.cfg.Model.MaxRows(), d.cfg.Model.MaxWanted(), d.cfg.Chunk
	for _, trees := range []bool{true, false} {
		for i := 0; i < len(d.active); i++ {
			s := d.active[i]
			if (s.job.builder != nil) != trees {
				continue
			}
			sh := share{s: s, seg: engine.Segment{Seq: s.seq}}
			if missing := s.tokens[s.seq.Len():s.target()]; len(missing) > 0 {
				sh.seg.Extend = missing[:min(len(missing), prompt, rows)]
				if sh.tree = trees && len(sh.seg.Extend) == len(missing); sh.tree {
					sh.seg.Want = engine.WantTail
				}
			} else if trees {
				sh.tree = true
				sh.seg.Want = engine.WantTail
				for _, r := range s.job.rows {
					sh.seg.Nodes = append(sh.seg.Nodes, r.Token)
					sh.seg.Parents = append(sh.seg.Parents, r.Parent)
				}
			} else {
				d.end(s, nil)
				i--
				continue
			}
			n, w := sh.cost()
			if n == 0 || n > rows || w > wanted {
				continue
			}
			rows, wanted, prompt = rows-n, wanted-w, prompt-len(sh.seg.Extend)
			d.inPass = append(d.inPass, sh)
		}
	}
	d.rotate()
}

// target returns how many tokens the job needs in the cache before it ends or its tree grows.
func (s *session) target() int {
	if s.job.builder == nil {
		return max(len(s.tokens)-1, s.seq.Len())
	}
	return len(s.tokens)
}

// cost returns the rows of a share and how many of them want logits.
func (sh share) cost() (rows, wanted int) {
	rows = len(sh.seg.Extend) + len(sh.seg.Nodes)
	if sh.seg.Want != engine.WantNone {
		wanted = len(sh.seg.Nodes) + min(len(sh.seg.Extend), 1)
	}
	return rows, wanted
}

// rotate moves the sessions in the pass behind the others, so that everybody gets a turn.
func (d *Drafter) rotate() {
	if len(d.inPass) == len(d.active) {
		return
	}
	in := make(map[*session]bool, len(d.inPass))
	for _, sh := range d.inPass {
		in[sh.s] = true
	}
	var waiting []*session
	for _, s := range d.active {
		if !in[s] {
			waiting = append(waiting, s)
		}
	}
	for _, sh := range d.inPass {
		waiting = append(waiting, sh.s)
	}
	d.active = waiting
}

// run does one pass, whose planning began at begun. If it is refused, each share is tried alone, so that
// only the one at fault fails.
func (d *Drafter) run(shares []share, begun time.Time) {
	d.segments = d.segments[:0]
	width := 0
	for _, sh := range shares {
		d.segments = append(d.segments, sh.seg)
		if sh.tree {
			width = max(width, sh.s.job.width)
		}
	}
	out, err := d.cfg.Model.Forward(d.segments, width)
	if err != nil {
		for i := range shares {
			if len(shares) == 1 {
				d.end(shares[0].s, err)
			} else {
				d.run(shares[i:i+1], begun)
			}
		}
		return
	}
	for i, sh := range shares {
		if !sh.tree {
			continue
		}
		if err := owner.Guard(func() error { d.grow(sh, out, out.First(i)); return nil }); err != nil {
			d.fail(sh.s, err)
		}
	}
	spent := time.Since(begun)
	for _, sh := range shares {
		j := sh.s.job
		if j == nil {
			continue
		}
		j.busy += spent
		if sh.tree && len(j.rows) == 0 {
			d.end(sh.s, nil)
		}
	}
}

// grow gives the tree's builder the candidates of the rows that were run, from wanted row first on, and
// asks it for the next; if there are none the tree is finished.
func (d *Drafter) grow(sh share, out *engine.Output, first int) {
	j := sh.s.job
	lists := make([][]spec.Candidate, max(len(j.rows), 1)) // the first pass ran the root
	for i := range lists {
		lists[i] = candidates(out.Top(first+i), j.width)
	}
	j.builder.Absorb(lists)
	if j.rows = j.builder.Pending(d.room(sh.s)); len(j.rows) == 0 {
		sh.s.finish()
	}
}

// candidates turns the best tokens of a row into guesses.
func candidates(top engine.Top, width int) []spec.Candidate {
	norm := top.Max + float32(math.Log(float64(top.Sum)))
	list := make([]spec.Candidate, 0, width)
	for i, id := range top.IDs[:min(width, len(top.IDs))] {
		list = append(list, spec.Candidate{Token: tandem.Token(id), LogProb: top.Logits[i] - norm})
	}
	return list
}

// fault drops the sessions of a pass that panicked: what the model has written for them is unknown. If the
// panic came while the pass was planned, it drops all that have a job.
func (d *Drafter) fault(err error) {
	if !d.stepping {
		d.cfg.Counters.Add("faults", 1)
		return
	}
	victims := slices.Clone(d.active)
	if len(d.inPass) > 0 {
		victims = victims[:0]
		for _, sh := range d.inPass {
			victims = append(victims, sh.s)
		}
	}
	d.stepping, d.inPass = false, nil
	for _, s := range victims {
		if d.sessions[s.id] == s {
			d.fail(s, err)
		}
	}
}

// fail drops a session after a fault of tandem's own, so that it is opened again from what is known.
func (d *Drafter) fail(s *session, err error) {
	d.cfg.Counters.Add("faults", 1)
	d.drop(s, err)
}
