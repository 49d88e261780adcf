package source

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/roster"
	"github.com/tandem-llm/tandem/gateway/round"
	"github.com/tandem-llm/tandem/gateway/strategy"
)

// most is how many sources are asked for one round at most: as many as a vote can count.
const most = 16

// Set holds the sources of one session, in the order in which they are asked. It belongs to the session's goroutine.
type Set struct {
	*Shared
	session   *Session
	list      []Source
	own       []*selfDraft               // of list
	recycling *recycling                 // of list; nil: not there
	version   uint64                     // the roster's, for which list is right
	wants     map[*roster.Entry]bool     // entries for which the strategy has decided whether they are opened
	closing   map[string]<-chan struct{} // by name: a Close at the entry before
	early     []early
}

// early is a guess whose tokens are not all known yet. It waits until they are: to learn from the levels that its round has decided would
// count the deeper levels only where text is easy to guess.
type early struct {
	of    *selfDraft
	guess tandem.Guess
	at    int // committed tokens before its first level
}

// NewSet returns an empty set for a session. Adopt must be called before anything else.
func (c *Shared) NewSet(s *Session) *Set {
	return &Set{Shared: c, session: s, closing: map[string]<-chan struct{}{}}
}

// Adopt makes a strategy decide which sources are opened, and gives it their hindsight.
func (s *Set) Adopt(x strategy.Strategy) {
	s.session.strategy, s.wants = x, map[*roster.Entry]bool{}
}

// Allow replaces the names of the drafters that may draft.
func (s *Set) Allow(names []string) {
	s.session.Names = names
	s.enlist()
}

// Update brings the sources up to date at the start of a round: drafters that came or went, Opens that have ended, retries that are due,
// and drafters that are wanted from now on. It returns how many drafters have opened the session again.
func (s *Set) Update(ctx context.Context, b tandem.Bounds) (reopened int) {
	if s.version != s.Roster.Version() {
		s.enlist()
	}
	if b.Plain() {
		return 0 // nothing will be drafted
	}
	for _, x := range s.list {
		if x.tick(ctx) {
			reopened++
		}
	}
	for _, x := range s.list {
		if c := x.base(); c.state == unasked && !c.aside() && !s.later(c.entry) && s.opens(c.entry) {
			x.start(ctx)
		}
		if !s.session.strategy.Several() && (x.pending() || x.Ready()) {
			break // the others are opened if this one fails
		}
	}
	return reopened
}

// readAtOnce is how many tokens of a prompt a drafter may read before the first token of the answer: as many as cost less than a call that
// comes late would, a quarter of a second on the processor that a draft of 0.5 billion weights was measured on.
const readAtOnce = 128

// later reports whether a drafter waits for the answer's first token before it begins to read the text, because that would delay the token.
// It sees no more than a window, which it then reads while rounds go on without it.
func (s *Set) later(e *roster.Entry) bool {
	return e.Window > 0 && s.session.Text.Prompt > readAtOnce && s.session.Text.Len() == s.session.Text.Prompt
}

// opens reports whether the session is to be opened at a drafter, or to ask a self-draft. The strategy decides it, once it is sure, unless
// it is the only one that may draft, or the session's strategy has changed since.
func (s *Set) opens(e *roster.Entry) bool {
	if len(s.list) == 1 {
		return true
	}
	if wanted, settled := s.wants[e]; settled {
		return wanted
	}
	names := make([]string, len(s.list))
	for i, x := range s.list {
		names[i] = x.Name()
	}
	wanted, settled := s.session.strategy.Opens(e.Name, names)
	if settled {
		s.wants[e] = wanted
		if !wanted {
			s.Counters.Add("drafter.not_worth_opening", 1)
		}
	}
	return wanted
}

// enlist brings the list up to date with the roster.
func (s *Set) enlist() {
	entries, version := s.Roster.List(s.session.Names)
	before := s.list
	s.list, s.own, s.recycling, s.version = make([]Source, 0, len(entries)), nil, nil, version
	opened := map[string]bool{}
	for _, x := range before {
		if slices.Contains(entries, x.base().entry) {
			continue
		}
		p, isProcess := x.(*process)
		opened[x.Name()] = isProcess && p.opened
		if done := x.retire(); done != nil {
			s.closing[x.Name()] = done
		}
	}
	for _, e := range entries {
		i := slices.IndexFunc(before, func(x Source) bool { return x.base().entry == e })
		switch c := (common{Shared: s.Shared, session: s.session, entry: e}); {
		case i >= 0:
			s.list = append(s.list, before[i])
		case e.Self != nil:
			s.list = append(s.list, newSelfDraft(c))
		case e.Recycling:
			s.list = append(s.list, newRecycling(c))
		default:
			s.list = append(s.list, newProcess(c, s.closing[e.Name], opened[e.Name]))
		}
		switch d := s.list[len(s.list)-1].(type) {
		case *selfDraft:
			s.own = append(s.own, d)
		case *recycling:
			s.recycling = d
		}
	}
}

// Settle waits for the Opens that the session begins with, but no longer than patience.
func (s *Set) Settle(ctx context.Context, patience time.Duration) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, x := range s.list {
		if x.base().entry.Features && s.session.strategy.Several() {
			continue // it reads what the target has computed, so it is later; others draft meanwhile
		}
		x.settle(ctx, limited.Done())
	}
}

// Restart opens the session at the drafters in its new epoch.
func (s *Set) Restart(ctx context.Context) {
	for _, x := range s.list {
		x.restart(ctx)
	}
}

// Leave closes the session at the drafters; Update opens it there again. Those that were given up stay so.
func (s *Set) Leave() {
	var kept []Source
	for _, x := range s.list {
		if x.base().state == off {
			kept = append(kept, x)
		} else if done := x.retire(); done != nil {
			s.closing[x.Name()] = done
		}
	}
	s.list, s.version = kept, 0
	s.own = slices.DeleteFunc(s.own, func(d *selfDraft) bool { return d.state != off })
	if s.recycling != nil && s.recycling.state != off {
		s.recycling = nil
	}
}

// Close closes the session at the drafters for good.
func (s *Set) Close() {
	for _, x := range s.list {
		x.retire()
	}
}

// Ready returns the sources that can be asked now, the first being the one to ask if only one is.
func (s *Set) Ready() (out []Source) {
	for _, x := range s.list {
		if len(out) < most && x.Ready() {
			out = append(out, x)
		}
	}
	return out
}

// Follow sends what was committed to drafters that the round does not ask, for their hindsight. The round does not wait for them; the
// answers are read at the start of a later round.
func (s *Set) Follow(ctx context.Context, names []string) {
	for _, name := range names {
		if i := slices.IndexFunc(s.list, func(x Source) bool { return x.Name() == name }); i >= 0 {
			s.list[i].follow(ctx)
		}
	}
}

// Holding names the drafters that hold the session.
func (s *Set) Holding() string {
	var names []string
	for _, x := range s.list {
		if x.base().state == ready {
			names = append(names, x.Name())
		}
	}
	return strings.Join(names, ",")
}

// ReadStates reports whether the verifier is to keep the target's states, for a drafter at which the session is opened.
func (s *Set) ReadStates() bool {
	return slices.ContainsFunc(s.list, func(x Source) bool {
		c := x.base()
		return c.entry.Features && (c.state != unasked && c.state != off || !s.session.strategy.Several())
	})
}

// Absent lists the sources and what keeps each from drafting.
func (s *Set) Absent() string {
	if len(s.list) == 0 {
		return ", none is alive"
	}
	var out strings.Builder
	for i, x := range s.list {
		fmt.Fprintf(&out, "%s%s %s", map[bool]string{true: ": ", false: ", "}[i == 0], x.Name(), x.absent())
	}
	return out.String()
}

// Guesses lists the self-drafts that the next ticket, or the Open to come, is to ask for guesses: a round after it may use them, if b
// leaves one. A strategy that asks one source gets those of the first that could be asked.
func (s *Set) Guesses(b tandem.Bounds) []string {
	if b.Plain() || b.Depth < 2 {
		return nil
	}
	var offered []string
	for _, x := range s.list {
		switch offers := x.offers(); {
		case offers && s.opens(x.base().entry):
			offered = append(offered, x.Name())
		case offers || !x.Ready():
			continue
		}
		if !s.session.strategy.Several() {
			break
		}
	}
	if len(offered) == 0 {
		return nil
	}
	return s.session.strategy.Guesses(offered)
}

// TakeGuesses replaces the guesses for what follows the committed tokens by a verdict's. all may hold guesses of the self-drafts in asked;
// any other guess is counted and ignored. took is how long computing them took.
func (s *Set) TakeGuesses(all []tandem.Guess, asked []string, took time.Duration) {
	for _, d := range s.own {
		d.guess = tandem.Guess{}
	}
	var good []*selfDraft
	for _, g := range all {
		i := slices.IndexFunc(s.own, func(d *selfDraft) bool { return d.Name() == g.SelfDraft })
		switch {
		case i < 0 || !slices.Contains(asked, g.SelfDraft):
			s.Counters.Add("guesses.unasked", 1)
			continue
		case s.own[i].guessed() || len(g.Levels) > s.own[i].of.Levels || g.Validate(s.Vocab) != nil:
			s.Counters.Add("guesses.garbage", 1)
			continue
		case len(g.Levels) == 0 || len(g.Levels[0]) == 0:
			continue
		}
		d := s.own[i]
		d.guess, good = g, append(good, d)
		if d.of.Members > 0 {
			d.learnLengths()
		}
	}
	for _, d := range good {
		d.cost = max(took, 0) / time.Duration(len(good))
	}
	s.Counters.Add("guesses.taken", int64(len(good)))
}

// Committed compares the guesses with the n tokens that a round has committed, and older guesses with the tokens that are known by now.
func (s *Set) Committed(n int) {
	tokens := s.session.Text.Tokens
	if s.recycling != nil {
		s.recycling.look(n)
	}
	for _, d := range s.own {
		d.look(tokens[len(tokens)-n:])
		if d.guessed() {
			s.early = append(s.early, early{d, d.guess, len(tokens) - n})
		}
	}
	rest := s.early[:0]
	for _, e := range s.early {
		if end := e.at + len(e.guess.Levels); end <= len(tokens) {
			s.accuracies.learn(e.of.of, s.session.Sampling.Temperature > 0, e.guess, tokens[e.at:end])
		} else {
			rest = append(rest, e)
		}
	}
	s.early = rest
}

// Idle returns what the self-drafts that had guessed but are not in drafts would have drafted for a round, by its root and bounds.
func (s *Set) Idle(root tandem.Token, b tandem.Bounds, drafts []round.Draft) (out []strategy.Draft) {
	for _, d := range s.own {
		if d.guessed() && !slices.ContainsFunc(drafts, func(x round.Draft) bool { return x.Drafter == d.Name() }) {
			out = append(out, strategy.Draft{Drafter: d.Name(), Got: d.draw(root, tandem.Proposal{Bounds: b})})
		}
	}
	return out
}
