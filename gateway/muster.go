package gateway

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/strategy"
)

// adopt takes the request's strategy as it is now. What a strategy before it has learned is handed on.
func (s *session) adopt() {
	if s.strategy != nil {
		s.strategy.HandOn()
	}
	s.strategy, s.weights = strategy.New(s.req, s.g.shared)
}

// hook lets a test change how the session drafts.
func (s *session) hook() {
	before := s.req
	r := s.req
	s.g.cfg.PolicyHook(s.stats.Rounds+1, &r)
	s.req.Bounds, s.req.Strategy, s.req.Vote, s.req.Drafters, s.req.Without = r.Bounds, r.Strategy, r.Vote, r.Drafters, r.Without
	if before.Strategy != r.Strategy || before.Vote != r.Vote || before.Without != r.Without {
		s.adopt()
	}
	if !slices.Equal(before.Drafters, r.Drafters) {
		s.enlist()
	}
}

// muster takes the session's drafters forward at the start of a round: those that came or went, Opens
// that have ended, retries that are due, and those that are wanted from now on.
func (s *session) muster(ctx context.Context) {
	if s.listed != s.g.roster.Version() {
		s.enlist()
	}
	if s.policy().Plain() {
		return // nothing will be drafted
	}
	for _, d := range s.drafts {
		if d.tick(ctx, s.opening, s.trial) {
			s.stats.Reopened++
		}
	}
	for _, d := range s.drafts {
		if d.state == draftNew && !d.of.Seat.Conduct.Aside() {
			d.start(ctx, s.opening())
		}
		if !s.strategy.Several() && (d.state == draftOpening && !d.late || d.ready()) {
			return // the others are opened if this one fails
		}
	}
}

// trial is the smallest thing that a drafter can be asked.
func (s *session) trial(d *drafting) wish {
	w := s.wish(s.question(), ask{d, tandem.Proposal{Bounds: tandem.Bounds{Nodes: 2, Depth: 1, Width: 1}}}, true)
	w.trial = true
	return w
}

// follow has drafters that the round does without hear what was committed, and say what they would have guessed. Nobody waits
// for them: it is heard at the start of a later round.
func (s *session) follow(ctx context.Context, a *answer) {
	for _, name := range a.plan.Follow {
		i := slices.IndexFunc(s.drafts, func(d *drafting) bool { return d.of.Name == name })
		if i < 0 || !s.drafts[i].ready() {
			continue
		}
		d := s.drafts[i]
		d.begin(s.g.cfg.Events.Mute(ctx), s.trial(d), s.g.cfg.Timeouts.ProposeMax, make(chan *call, 1))
		d.follow = true
	}
}

// hear passes on what a drafter says of the session's first base tokens, for which it had spent that long if for nothing else.
func (s *session) hear(d *drafting, base tandem.Position, h tandem.Hindsight, spent time.Duration) {
	if base <= tandem.Position(len(s.tokens)) {
		s.strategy.Hear(d.of.Name, base, h, spent)
	}
}

// enlist brings drafts up to date with the roster.
func (s *session) enlist() {
	lives, version := s.g.roster.List(s.req.Drafters)
	before := s.drafts
	s.drafts, s.listed = make([]*drafting, 0, len(lives)), version
	opened := map[string]bool{}
	for _, d := range before {
		if slices.Contains(lives, d.of) {
			continue
		}
		opened[d.of.Name] = d.opened
		if done := d.retire(s.id); done != nil {
			s.closing[d.of.Name] = done
		}
	}
	for _, l := range lives {
		if i := slices.IndexFunc(before, func(d *drafting) bool { return d.of == l }); i >= 0 {
			s.drafts = append(s.drafts, before[i])
			continue
		}
		s.drafts = append(s.drafts, &drafting{g: s.g, spans: &s.spans, of: l, after: s.closing[l.Name], opened: opened[l.Name], hear: s.hear})
	}
}

// settle waits for the Opens that the session begins with, but no longer than patience.
func (s *session) settle(ctx context.Context, patience time.Duration) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, d := range s.drafts {
		d.settle(ctx, limited.Done())
	}
}

// drafters names the drafters that hold the session.
func (s *session) drafters() string {
	var names []string
	for _, d := range s.drafts {
		if d.state == draftReady {
			names = append(names, d.of.Name)
		}
	}
	return strings.Join(names, ",")
}
