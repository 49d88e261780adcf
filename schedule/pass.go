package schedule

import (
	"math/bits"
	"runtime"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
)

// Pass describes a pass that has run.
type Pass struct {
	Rows    int            // all of them
	Parts   int            // of queued sessions
	Spent   time.Duration  // from the start of fill to its end
	Experts tandem.Experts // that it used
}

// Step runs one pass for the sessions that wait, or else for those with spare work; false if there is nothing to run. It is
// called by the owner's goroutine, or by anyone before Start.
func (s *Schedule) Step() bool {
	s.stepping = true
	s.yield()
	begun := time.Now()
	s.arrive()
	waited := len(s.line)
	s.fill(begun)
	more := len(s.parts) > 0 || len(s.line) < waited // sessions were dropped: the pass may have waited for one of them
	if len(s.parts) > 0 {
		s.run(s.parts, begun)
	}
	s.running, s.stepping = nil, false
	return more || s.resting()
}

// yield lets callers whose wait has ended run before this goroutine and its thread are in a pass again. With a single processor for
// Go code, answers leave only if this goroutine steps aside for the goroutines that write them.
func (s *Schedule) yield() {
	if !s.answered {
		return
	}
	s.answered = false
	for range s.cfg.Hops {
		runtime.Gosched()
	}
}

// arrive ends the waits for prompts that are in, and the work whose callers have given up.
func (s *Schedule) arrive() {
	for _, x := range s.copied(s.line) {
		t := x.entry()
		switch {
		case t.opening != nil && t.opening.GivenUp() != nil:
			s.Drop(x, t.opening.GivenUp())
		case t.call != nil && t.call.GivenUp() != nil:
			s.End(x, t.call.GivenUp())
		case t.opening != nil:
			s.guard(x, func() {
				t.reused += t.Seq.Resume()
				t.opening.held.Store(int64(t.Seq.Len()))
				if x.Missing() == 0 {
					x.Opened()
					s.opened(x)
				}
			})
		}
	}
}

// run runs one pass, whose planning began at begun. If the model refuses it, each part runs alone, so that only the faulty one fails.
func (s *Schedule) run(parts []Part, begun time.Time) {
	s.running, s.batch = parts, s.batch[:0]
	var pass Pass
	topK, pieces, steps := 0, false, 1
	for i := range parts {
		p := &parts[i]
		p.At = i
		s.batch = append(s.batch, p.Part)
		pass.Rows += p.Size().Rows
		topK, pieces, steps = max(topK, p.TopK), pieces || p.piece, max(steps, 1+p.Chain)
		if p.round {
			pass.Parts++
		}
	}
	out, err := s.forward(pass.Rows, steps, topK)
	pass.Spent = s.free.Sub(begun)
	switch {
	case err != nil && len(parts) == 1:
		s.Fail(parts[0].of, err)
		return
	case err != nil:
		for i := range parts {
			s.run(parts[i:i+1], time.Now())
		}
		return
	}
	pass.Experts = out.Experts()
	each := pass // of a chain's steps, on average
	each.Rows, each.Spent = (pass.Rows+steps-1)/steps, pass.Spent/time.Duration(steps)
	s.costs.Observe(each.Rows, each.Experts, each.Spent)
	s.cfg.Counters.Add("passes", 1)
	s.cfg.Counters.Add("passes.rows", int64(pass.Rows))
	s.cfg.Counters.Add("passes.busy_us", pass.Spent.Microseconds())
	if n := pass.Experts.All(); n > 0 {
		s.cfg.Counters.Add("passes.experts", int64(n))
	}
	if !pieces && pass.Parts > 0 {
		s.paced(each)
	}
	first := 0
	for i := range parts {
		p := &parts[i]
		p.At = i
		if !s.guard(p.of, func() { p.of.Take(*p, out, first, pass) }) {
			p.of = nil
		}
		first += p.Size().Wanted
	}
	if s.cfg.Answer != nil {
		s.yield()
		s.cfg.Answer()
	}
	s.settle(parts)
}

// paced learns from a pass without prompts that somebody has waited for. Of three passes of about as many rows the median counts, so that
// a pass during which something else took the cores changes nothing.
func (s *Schedule) paced(pass Pass) {
	s.beside += (float64(pass.Rows)*(1-1/float64(pass.Parts)) - s.beside) / 8
	spent, usual := pass.Spent, known(s.pace, pass.Rows)
	if usual > 0 {
		off := float64(spent) / float64(usual)
		last := &s.latest[min(bits.Len(uint(pass.Rows)), len(s.latest)-1)]
		if last[0] > 0 && last[1] > 0 {
			spent = time.Duration(float64(usual) * max(min(off, last[0]), min(max(off, last[0]), last[1])))
		}
		last[0], last[1] = last[1], off
	}
	s.pace.Observe(pass.Rows, pass.Experts, spent)
}

// forward runs the pass that is in s.batch, and shows that it runs and that it has ended.
func (s *Schedule) forward(rows, steps, topK int) (*engine.Output, error) {
	expected := known(s.costs, (rows+steps-1)/steps) * time.Duration(steps)
	s.owner.Expect(rows, expected)
	if s.passing.Store(int64(expected)); expected <= 0 {
		s.passing.Store(-1)
	}
	defer func() {
		s.passing.Store(0)
		s.steps.Add(1)
	}()
	out, err := s.cfg.Model.Forward(s.batch, topK)
	s.free = time.Now()
	s.owner.Finished()
	return out, err
}

// settle lets sessions bring their state up to date with their answers while these are on their way. Nothing new
// arrives for a session before this goroutine looks again.
func (s *Schedule) settle(parts []Part) {
	s.yield()
	for i := range parts {
		if x := parts[i].of; x != nil && s.Holds(x) {
			s.guard(x, func() {
				if err := x.Settle(); err != nil {
					s.Fail(x, err)
				}
			})
		}
	}
}

// fault drops the sessions of a pass that panicked, since it is unknown what the model has written for them. If the schedule itself
// panicked while it planned a pass, it drops all sessions that are opened or queued.
func (s *Schedule) fault(err error) {
	var victims []Session
	if s.rest.runs {
		s.rest = rest{} // who panicked is not called again
	}
	for i := range s.running {
		victims = append(victims, s.running[i].of)
	}
	if s.stepping && len(s.running) == 0 {
		victims = append(victims, s.line...)
	}
	s.stepping, s.running = false, nil
	if len(victims) == 0 {
		s.cfg.Counters.Add("faults", 1)
	}
	for _, x := range victims {
		if x != nil && s.Holds(x) {
			s.Fail(x, err)
		}
	}
	if len(s.line) > 0 && len(victims) > 0 {
		s.owner.Post(func() {}) // the others go on
	}
}
