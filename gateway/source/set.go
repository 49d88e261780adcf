package source

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/roster"
	"github.com/tandem-llm/tandem/gateway/round"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec/worth"
)

// most is how many sources are asked for one round at most: as many as a vote can count.
const most = 16

// Set holds the sources of one session, in the order in which they are asked. It belongs to the session's goroutine.
type Set struct {
	*Shared
	session *Session
	list    []Source
	version uint64                     // the roster's, for which list is right
	wants   map[*roster.Entry]bool     // entries for which the strategy has decided whether they are opened
	closing map[string]<-chan struct{} // by name: a Close at the entry before
}

// kinds makes the source of an entry: the first that does not return nil. A kind's first call of its process waits for after, the Close of
// the entry before.
var kinds = []func(c common, after <-chan struct{}) Source{newSelfDraft, newRecycling, newForced, newProcess}

// NewSet returns an empty set for a session. Adopt must be called before anything else.
func (c *Shared) NewSet(s *Session) *Set {
	return &Set{Shared: c, session: s, closing: map[string]<-chan struct{}{}}
}

// Adopt makes x the strategy that decides which sources are opened, and that gets their hindsight.
func (s *Set) Adopt(x strategy.Strategy) {
	s.session.strategy, s.wants = x, map[*roster.Entry]bool{}
}

// Allow replaces the names of the drafters that may draft; nil: all.
func (s *Set) Allow(names []string) {
	s.session.Names = names
	s.enlist()
}

// Update brings the sources up to date at the start of a round with bounds b: drafters that came or went, Opens that have ended, retries
// that are due, and drafters that are wanted from now on. It returns how many drafters have opened the session again.
func (s *Set) Update(ctx context.Context, b tandem.Bounds) (reopened int) {
	if s.version != s.Roster.Version() {
		s.enlist()
	}
	if b.Plain() {
		return 0 // nothing will be drafted
	}
	for _, x := range s.list {
		if o := x.base().opens; o != nil && o.tick(ctx) {
			reopened++
		}
	}
	for _, x := range s.list {
		c := x.base()
		if c.state == unasked && !c.aside() && !s.later(c.entry) && s.opens(c.entry) {
			if c.opens != nil {
				c.opens.start(ctx)
			} else {
				c.state = ready
			}
		}
		if !s.session.strategy.Several() && (c.opens != nil && c.opens.pending() || x.Ready()) {
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
	s.list, s.version = make([]Source, 0, len(entries)), version
	opened := map[string]bool{}
	for _, x := range before {
		if !slices.Contains(entries, x.base().entry) {
			opened[x.Name()] = x.base().opened
			s.retire(x)
		}
	}
	for _, e := range entries {
		if e.Grammar && s.session.Sampling.Constraint == nil {
			continue
		}
		if i := slices.IndexFunc(before, func(x Source) bool { return x.base().entry == e }); i >= 0 {
			s.list = append(s.list, before[i])
			continue
		}
		c := common{Shared: s.Shared, session: s.session, entry: e, opened: opened[e.Name]}
		for _, make := range kinds {
			if x := make(c, s.closing[e.Name]); x != nil {
				s.list = append(s.list, x)
				break
			}
		}
	}
}

// retire ends the session at a source. The next of its name waits for that.
func (s *Set) retire(x Source) {
	if o := x.base().opens; o != nil {
		if done := o.retire(); done != nil {
			s.closing[x.Name()] = done
		}
	}
}

// Settle waits for the Opens with which the session begins, but no longer than patience. Those not done by then go on in the background.
func (s *Set) Settle(ctx context.Context, patience time.Duration) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, x := range s.list {
		c := x.base()
		if c.opens == nil || c.entry.Features && s.session.strategy.Several() {
			continue // the latter reads what the target has computed, so it is later; others draft meanwhile
		}
		c.opens.settle(ctx, limited.Done())
	}
}

// Restart opens the session again at the drafters, after its epoch has changed, and forgets guesses on its text.
func (s *Set) Restart(ctx context.Context) {
	for _, x := range s.list {
		if o := x.base().opens; o != nil {
			o.restart(ctx)
		}
	}
	for _, h := range s.hearers() {
		h.forget()
	}
}

// hearers returns the sources that hear what verdicts say.
func (s *Set) hearers() iter.Seq2[Source, hearer] {
	return func(yield func(Source, hearer) bool) {
		for _, x := range s.list {
			if h := x.base().hears; h != nil && !yield(x, h) {
				return
			}
		}
	}
}

// Leave closes the session at the drafters. Update opens it there again, except at those that were given up.
func (s *Set) Leave() {
	var kept []Source
	for _, x := range s.list {
		if x.base().state == off {
			kept = append(kept, x)
		} else {
			s.retire(x)
		}
	}
	s.list, s.version = kept, 0
}

// Close closes the session at the drafters for good. It does not wait for that.
func (s *Set) Close() {
	for _, x := range s.list {
		s.retire(x)
	}
}

// Ready returns the sources that can be asked now, at most 16. The first is the one to ask if only one is.
func (s *Set) Ready() (out []Source) {
	for _, x := range s.list {
		if len(out) < most && x.Ready() {
			out = append(out, x)
		}
	}
	return out
}

// Follow sends what was committed to the drafters called names, for their hindsight. The round does not ask them. It does not wait for
// their answers, which Update reads before a later round.
func (s *Set) Follow(ctx context.Context, names []string) {
	for _, name := range names {
		if i := slices.IndexFunc(s.list, func(x Source) bool { return x.Name() == name && x.base().opens != nil }); i >= 0 {
			s.list[i].base().opens.follow(ctx)
		}
	}
}

// Holding returns the names of the drafters that hold the session, separated by commas.
func (s *Set) Holding() string {
	var names []string
	for _, x := range s.list {
		if x.base().state == ready {
			names = append(names, x.Name())
		}
	}
	return strings.Join(names, ",")
}

// Opening reports whether a drafter was still reading the session's tokens when Update was last called.
func (s *Set) Opening() bool {
	return slices.ContainsFunc(s.list, func(x Source) bool { return x.base().state == opening })
}

// Models returns what draft models had to do with a round of a request with bounds b that asked those sources; drafted says whether any of
// them guessed a token.
func (s *Set) Models(b tandem.Bounds, asked []Source, drafted bool) worth.Role {
	model := func(x Source) bool { e := x.base().entry; return e.Drafter != nil && !e.Last }
	reads := func(x Source) bool { return model(x) && x.base().state == opening }
	switch {
	case slices.ContainsFunc(asked, model) || slices.ContainsFunc(s.list, reads):
		return worth.Asked
	case !b.Plain() && !drafted && slices.ContainsFunc(s.list, func(x Source) bool { return model(x) && x.base().offered() }):
		return worth.Idle
	}
	return worth.Apart
}

// ReadStates reports whether the verifier is to keep the target's hidden states, for a drafter that reads them and is opened.
func (s *Set) ReadStates() bool {
	return slices.ContainsFunc(s.list, func(x Source) bool {
		c := x.base()
		return c.entry.Features && (c.state != unasked && c.state != off || !s.session.strategy.Several())
	})
}

// Absent returns a list, for people, of the sources and what keeps each from drafting. It continues a sentence.
func (s *Set) Absent() string {
	if len(s.list) == 0 {
		return ", none is alive"
	}
	var out strings.Builder
	for i, x := range s.list {
		fmt.Fprintf(&out, "%s%s %s", map[bool]string{true: ": ", false: ", "}[i == 0], x.Name(), x.base().absent())
	}
	return out.String()
}

// Guesses returns the self-drafts that the next ticket, or the Open to come, is to ask for guesses. There are none unless b leaves a round
// after it that may use them. A strategy that asks one source gets those of the first that could be asked.
func (s *Set) Guesses(b tandem.Bounds) []string {
	if b.Plain() || b.Depth < 2 {
		return nil
	}
	var offered []string
	for _, x := range s.list {
		h := x.base().hears
		switch offers := h != nil && h.offers(); {
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

// TakeGuesses replaces all guesses for what follows the committed tokens by those of a verdict. asked are the self-drafts that its ticket
// asked; guesses of others are counted and ignored. took is how long computing all of them took.
func (s *Set) TakeGuesses(all []tandem.Guess, asked []string, took time.Duration) {
	of := map[string]hearer{}
	for x, h := range s.hearers() {
		h.forget()
		if slices.Contains(asked, x.Name()) {
			of[x.Name()] = h
		}
	}
	b := &bill{took: took}
	for _, g := range all {
		if h := of[g.SelfDraft]; h != nil {
			h.take(g, b)
		} else {
			s.Counters.Add("guesses.unasked", 1)
		}
	}
	s.Counters.Add("guesses.taken", int64(b.of))
}

// Successors returns how many of the target's likeliest tokens the next verdict is to carry for each node, for sources that draft from
// them. b are the bounds of the round; 0: no source needs any.
func (s *Set) Successors(b tandem.Bounds) (n int) {
	for _, h := range s.hearers() {
		n = max(n, h.ask(b.Plain()))
	}
	return n
}

// TakeSuccessors gives the sources the likely tokens of a round's verdict. t is the tree that was verified as a whole, empty if that is
// not known; committed is how many tokens the round has committed.
func (s *Set) TakeSuccessors(t tandem.Tree, committed int, v *tandem.Verdict) {
	for _, h := range s.hearers() {
		h.verdict(t, committed, v)
	}
}

// Committed tells the sources that a round has committed n tokens, which are in the session's text already.
func (s *Set) Committed(n int) {
	for _, h := range s.hearers() {
		h.committed(n)
	}
	s.session.settleDues()
}

// Idle returns what the sources that are not in drafts would have drafted for a round with that root and those bounds: those that had
// something to draft and can say so at no cost.
func (s *Set) Idle(root tandem.Token, b tandem.Bounds, drafts []round.Draft) (out []strategy.Draft) {
	for x, h := range s.hearers() {
		if slices.ContainsFunc(drafts, func(d round.Draft) bool { return d.Drafter == x.Name() }) {
			continue
		}
		if got, ok := h.idle(root, b); ok {
			out = append(out, strategy.Draft{Drafter: x.Name(), Got: got})
		}
	}
	return out
}

// prompter returns the part of a source that needs prompt nodes, if the source is asked.
func (s *Set) prompter(asked []string) prompter {
	for _, x := range s.list {
		if p := x.base().prompts; p != nil && slices.Contains(asked, x.Name()) {
			return p
		}
	}
	return nil
}

// Reserve returns how many nodes of a round's tree are kept for prompt nodes, so that the verdict can carry the guesses of the self-drafts
// in asked. 0: none of them needs prompt nodes, or there is no room for a first level.
func (s *Set) Reserve(asked []string) int {
	if p := s.prompter(asked); p != nil {
		return p.reserve()
	}
	return 0
}

// Prompt returns t with at most reserve prompt nodes added, for the self-draft in asked that needs them.
func (s *Set) Prompt(t tandem.Tree, asked []string, reserve int) tandem.Tree {
	if p := s.prompter(asked); p != nil {
		return p.prompt(t, reserve)
	}
	return t
}

// PromptsRefused says that the verifier has refused the prompt nodes. The self-draft in asked that needs them is given up.
func (s *Set) PromptsRefused(asked []string) {
	if p := s.prompter(asked); p != nil {
		p.refused()
	}
}
