package gateway

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/roster"
	"github.com/tandem-llm/tandem/gateway/strategy"
)

// adopt takes the request's strategy as it is now. What a strategy before it has learned is handed on.
func (s *session) adopt() {
	if s.strategy != nil {
		s.strategy.HandOn()
	}
	s.strategy, s.weights = strategy.New(s.req, s.g.shared)
	s.wants = map[*roster.Life]bool{}
}

// hook lets a test change how the session drafts.
func (s *session) hook() {
	before := s.req
	r := s.req
	s.g.cfg.RoundHook(s.stats.Rounds+1, &r)
	s.req.Bounds, s.req.Strategy, s.req.Vote, s.req.Drafters, s.req.Without = r.Bounds, r.Strategy, r.Vote, r.Drafters, r.Without
	if before.Strategy != r.Strategy || before.Vote != r.Vote || before.Without != r.Without {
		s.adopt()
	}
	if !slices.Equal(before.Drafters, r.Drafters) {
		s.enlist()
	}
}

// muster brings the session's drafters up to date at the start of a round: drafters that came or went, Opens
// that have ended, retries that are due, and drafters that are wanted from now on.
func (s *session) muster(ctx context.Context) {
	if s.listed != s.g.roster.Version() {
		s.enlist()
	}
	if s.bounds().Plain() {
		return // nothing will be drafted
	}
	for _, l := range s.liaisons {
		if l.tick(ctx, s.opening, s.trial) {
			s.stats.Reopened++
		}
	}
	for _, l := range s.liaisons {
		switch {
		case l.state != liaisonNew || l.of.Seat.Conduct.Aside():
		case !s.opens(l):
		case l.of.Way != nil:
			l.state = liaisonReady
		default:
			l.start(ctx, s.opening())
		}
		if !s.strategy.Several() && (l.state == liaisonOpening && !l.late || l.ready()) {
			return // the others are opened if this one fails
		}
	}
}

// opens reports whether the session is to be opened at a drafter, or to ask one of the target's own ways. The strategy decides it once for
// each, unless the drafter is the only one that may draft, or the session's strategy has changed since.
func (s *session) opens(l *liaison) bool {
	if len(s.liaisons) == 1 {
		return true
	}
	wanted, decided := s.wants[l.of]
	if !decided {
		wanted = s.strategy.Opens(l.of.Name)
		s.wants[l.of] = wanted
		if !wanted {
			s.g.cfg.Counters.Add("drafter.not_worth_opening", 1)
		}
	}
	return wanted
}

// trial is the smallest proposal for a drafter.
func (s *session) trial(l *liaison) wish {
	w := s.wish(s.question(), ask{l, tandem.Proposal{Bounds: tandem.Bounds{Nodes: 2, Depth: 1, Width: 1}}}, &answer{}, true)
	w.trial = true
	return w
}

// follow tells drafters that the round does not ask what was committed, so that they say what they would have guessed. The round
// does not wait for them; the answers are read at the start of a later round.
func (s *session) follow(ctx context.Context, a *answer) {
	for _, name := range a.decision.Follow {
		i := slices.IndexFunc(s.liaisons, func(l *liaison) bool { return l.of.Name == name })
		if i < 0 || !s.liaisons[i].ready() || s.liaisons[i].of.Way != nil {
			continue
		}
		l := s.liaisons[i]
		l.begin(s.g.cfg.Events.Mute(ctx), s.trial(l), s.g.cfg.Timeouts.ProposeMax, make(chan *call, 1))
		l.follow = true
	}
}

// hear passes a drafter's hindsight on the session's first base tokens to the strategy; spent is the time it took if it was
// asked for nothing else, else 0.
func (s *session) hear(l *liaison, base tandem.Position, h tandem.Hindsight, spent time.Duration) {
	if base <= tandem.Position(len(s.tokens)) {
		s.strategy.Hear(l.of.Name, base, h, spent)
	}
}

// enlist brings the liaisons up to date with the roster.
func (s *session) enlist() {
	lives, version := s.g.roster.List(s.req.Drafters)
	before := s.liaisons
	s.liaisons, s.listed = make([]*liaison, 0, len(lives)), version
	opened := map[string]bool{}
	for _, l := range before {
		if slices.Contains(lives, l.of) {
			continue
		}
		opened[l.of.Name] = l.opened
		if done := l.retire(s.id); done != nil {
			s.closing[l.of.Name] = done
		}
	}
	for _, life := range lives {
		if i := slices.IndexFunc(before, func(l *liaison) bool { return l.of == life }); i >= 0 {
			s.liaisons = append(s.liaisons, before[i])
			continue
		}
		s.liaisons = append(s.liaisons, &liaison{g: s.g, spans: &s.spans, of: life, after: s.closing[life.Name], opened: opened[life.Name],
			hear: s.hear, nodes: s.nodes, sampled: s.req.Sampling.Temperature > 0})
	}
}

// settle waits for the Opens that the session begins with, but no longer than patience.
func (s *session) settle(ctx context.Context, patience time.Duration) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, l := range s.liaisons {
		if l.of.Features && s.strategy.Several() {
			continue // it reads what the target has computed, so it is later; others draft meanwhile
		}
		l.settle(ctx, limited.Done())
	}
}

// drafters names the drafters that hold the session.
func (s *session) drafters() string {
	var names []string
	for _, l := range s.liaisons {
		if l.state == liaisonReady {
			names = append(names, l.of.Name)
		}
	}
	return strings.Join(names, ",")
}
