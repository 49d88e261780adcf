package drafter

import (
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule/owner"
	"github.com/tandem-llm/tandem/spec"
)

// share is one session's part in a pass.
type share struct {
	s     *session
	seg   engine.Part
	tree  bool // its wanted rows are for the tree that grows
	ahead bool // they are for a tree to come
}

// step runs one pass for whoever has a job, or else for whoever goes on ahead; false if nobody does.
func (d *Drafter) step() bool {
	if d.answered { // who has waited goes on before this goroutine and its thread are in a pass again
		d.answered = false
		runtime.Gosched()
	}
	d.stepping = true
	more := d.pass() || d.goOn()
	d.stepping = false
	return more
}

func (d *Drafter) pass() bool {
	for i := len(d.active) - 1; i >= 0; i-- {
		s := d.active[i]
		if s.job.ctx.Err() == nil {
			continue
		}
		if s.job.grower == nil {
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
			if (s.job.grower != nil) != trees {
				continue
			}
			if !trees {
				s.job.reused += s.seq.Resume()
			}
			sh := share{s: s, seg: engine.Part{Seq: s.seq}}
			if missing := s.tokens[s.seq.Len():s.target()]; len(missing) > 0 {
				sh.extend(missing[:min(len(missing), prompt, rows)], wanted)
				if sh.tree = trees && len(sh.seg.Extend) == len(missing); sh.tree {
					sh.seg.Want = max(sh.seg.Want, engine.WantTail)
				}
			} else if trees {
				sh.tree = true
				sh.seg.Want = engine.WantTail
				s.job.missing(&sh.seg, rows)
			} else {
				d.opened(s)
				i--
				continue
			}
			n, w := sh.cost()
			if n == 0 || n > rows || w > wanted || !trees && d.waits(s) {
				continue
			}
			rows, wanted, prompt = rows-n, wanted-w, prompt-len(sh.seg.Extend)
			d.inPass = append(d.inPass, sh)
		}
	}
	d.rotate()
}

// extend gives the share the next tokens that its session lacks, up to those that hindsight is for; these it has show what would
// have been guessed after them, if there is room for so many rows with logits: that less is known is no reason to wait.
func (sh *share) extend(tokens []tandem.Token, wanted int) {
	before := len(sh.s.tokens) - 1 - tandem.MaxHindsight - sh.s.seq.Len()
	if before > 0 {
		tokens = tokens[:min(len(tokens), before)]
	} else if len(tokens) <= wanted {
		sh.seg.Want = engine.WantAll
	}
	sh.seg.Extend = tokens
}

// waits reports whether another session is about to compute what s, which is being opened, needs next: n choices for one prompt
// cost one prefill.
func (d *Drafter) waits(s *session) bool {
	return slices.ContainsFunc(d.active, func(o *session) bool { return o.job.grower == nil && s.seq.Follows(o.seq) })
}

// target returns how many tokens the job needs in the cache before it ends or its tree grows.
func (s *session) target() int {
	if s.job.grower == nil {
		return max(len(s.tokens)-1, s.seq.Len())
	}
	return len(s.tokens)
}

// cost returns the rows of a share and how many of them want logits.
func (sh share) cost() (rows, wanted int) {
	rows = len(sh.seg.Extend) + len(sh.seg.Nodes)
	switch sh.seg.Want {
	case engine.WantAll:
		wanted = rows
	case engine.WantTail:
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
	width, rows, all, prompts := 0, 0, 0, false
	for _, sh := range shares {
		d.segments = append(d.segments, sh.seg)
		rows += len(sh.seg.Nodes)
		all += len(sh.seg.Extend) + len(sh.seg.Nodes)
		if sh.tree || sh.ahead {
			width = max(width, sh.s.width())
		} else {
			width, prompts = max(width, 1), true
		}
	}
	out, err := d.cfg.Model.Forward(d.segments, width)
	if err != nil {
		for i := range shares {
			if len(shares) == 1 {
				d.rest(shares[0].s)
				d.end(shares[0].s, err)
			} else {
				d.run(shares[i:i+1], begun)
			}
		}
		return
	}
	spent := time.Since(begun)
	d.cfg.Counters.Add("passes", 1)
	d.cfg.Counters.Add("passes.rows", int64(all))
	d.cfg.Counters.Add("passes.busy_us", spent.Microseconds())
	if !prompts {
		if d.pace == 0 {
			d.pace = spent
		}
		d.pace += (spent - d.pace) / 8
	}
	if shares[0].ahead { // a pass is for jobs, or ahead of them, never both
		d.cfg.Counters.Add("ahead.nodes", int64(rows))
		d.cfg.Counters.Add("ahead.busy_ns", int64(spent))
	}
	for i, sh := range shares {
		if err := owner.Guard(func() error { d.take(sh, out, out.First(i), spent, rows); return nil }); err != nil {
			d.fail(sh.s, err)
		}
	}
}

// take does with a share's results what it was run for; from wanted row first on they are its own. The pass took
// spent, and had so many tree rows.
func (d *Drafter) take(sh share, out *engine.Output, first int, spent time.Duration, rows int) {
	s, j, cost := sh.s, sh.s.job, time.Duration(0)
	begun := time.Now()
	if sh.ahead {
		s.ahead.take(len(sh.seg.Nodes), spent)
		cost = max(spent/time.Duration(rows), 1)
	} else {
		j.busy += spent
		j.passes++
	}
	tail := first
	if n := len(sh.seg.Extend); sh.seg.Want == engine.WantAll {
		tail += n - 1
		for i, next := 0, s.seq.Len()-n+1; i < n && next+i < len(s.tokens); i++ {
			s.recall.Saw(next+i, out.Top(first + i).IDs[0] == int32(s.tokens[next+i]))
		}
	}
	switch width := s.width(); {
	case len(sh.seg.Nodes) > 0:
		for i, token := range sh.seg.Nodes {
			s.explored.Add(sh.seg.Parents[i]+1, token, candidates(out.Top(first+i), width), cost)
		}
	case sh.tree:
		s.explored.Start(candidates(out.Top(tail), width), width)
	}
	if sh.tree {
		d.advance(s, begun)
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
// panic came while the pass was planned, it drops all that it could have been for.
func (d *Drafter) fault(err error) {
	if !d.stepping {
		d.cfg.Counters.Add("faults", 1)
		return
	}
	victims := append(slices.Clone(d.active), d.ahead...)
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

// fail drops a session after a fault of tandem's own, so that it is opened again from what is known: its tokens alone, not what
// was computed of them.
func (d *Drafter) fail(s *session, err error) {
	d.cfg.Counters.Add("faults", 1)
	s.seq.Distrust()
	d.drop(s, err)
}
