// Package translate lets a draft model draft for a target of another vocabulary.
package translate

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/text/token"
)

// mostTargets is how many vocabularies of targets a Drafter keeps. The one that was told first goes.
const mostTargets = 1 << 2

// mostOwn is how many times as many nodes as the target's a tree in the draft's tokens has at most.
const mostOwn = 1 << 3

// Drafter implements tandem.Drafter over one, the inner, whose tokens may mean other texts than the target's. For sessions whose opening
// asks for that (Opening.Translate) it keeps the committed text in the draft's own tokens and has the inner drafter draft in them. It
// proposes what the target's tokenizer makes of the drafted texts (ownWords). That is accepted by the same rule as any other draft: where
// the two tokenizers divide a text differently fewer tokens are accepted, but none is wrong. The noise of the target's draws belongs to the
// target's tokens, so it says nothing of the draft's (sample.Coupled). All other sessions are handed to the inner drafter as they are.
//
// A session takes few bytes here beside those that it takes in the inner drafter, and is forgotten with it. Safe for concurrent use.
type Drafter struct {
	d     *drafter.Drafter
	draft *grow.Draft // d's
	own   *token.Vocab

	mu       sync.Mutex
	targets  []namedVocab
	sessions map[tandem.SessionID]*translated
}

type namedVocab struct {
	fingerprint string
	vocab       *token.Vocab
}

// translated is a session in both vocabularies.
type translated struct {
	mu    sync.Mutex
	text  grow.Prefix // in the target's tokens
	of    *token.Vocab
	owner uint64
	words *ownWords
	room  int            // tokens of the draft that the inner drafter holds at most
	told  []tandem.Token // of the draft, as the inner drafter was told
	used  time.Time
}

// New returns a Drafter that translates for d, which the caller still shuts down.
func New(d *drafter.Drafter) *Drafter {
	return &Drafter{d: d, draft: d.Draft(), own: d.Draft().Config.Model.Vocab(), sessions: map[tandem.SessionID]*translated{}}
}

// Target tells what the tokens of a target with that fingerprint mean. The vocabulary is shared, and must not change. Errors: Unsupported
// if drafts of this kind cannot be translated (grow.Traits.OwnTarget).
func (t *Drafter) Target(fingerprint string, v *token.Vocab) error {
	if why := t.draft.Traits.OwnTarget; why != "" {
		return tandem.Errorf("target", tandem.Unsupported, "draft %s %s", t.draft.Config.Name, why)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.targets = slices.DeleteFunc(t.targets, func(n namedVocab) bool { return n.fingerprint == fingerprint })
	if len(t.targets) == mostTargets {
		t.targets = slices.Delete(t.targets, 0, 1)
	}
	t.targets = append(t.targets, namedVocab{fingerprint, v})
	return nil
}

// target returns the vocabulary of that fingerprint, nil for none.
func (t *Drafter) target(fingerprint string) *token.Vocab {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.targets {
		if n.fingerprint == fingerprint {
			return n.vocab
		}
	}
	return nil
}

// Open implements tandem.Drafter. Further errors: those of the inner drafter; Unsupported for a session to be translated whose target's
// vocabulary was not told.
func (t *Drafter) Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) {
	if !o.Translate {
		t.forget(o.Session)
		return t.d.Open(ctx, o)
	}
	of := t.target(o.Fingerprint)
	if of == nil {
		return tandem.Opened{}, tandem.Errorf("open", tandem.Unsupported,
			"session %v is in vocabulary %.50s, which drafter %s was not told",
			o.Session, o.Fingerprint, t.draft.Config.Name)
	}
	if o.Vocab != 0 && o.Vocab != of.Size() {
		return tandem.Opened{}, tandem.Errorf("open", tandem.Invalid, "a target of %d tokens, in a vocabulary of %d", o.Vocab, of.Size())
	}
	if err := grow.CheckOpening(o, of.Size()); err != nil {
		return tandem.Opened{}, err
	}
	s := &translated{text: grow.NewPrefix(o, of.Size()), of: of, owner: o.Owner, words: newOwnWords(of, t.own), used: time.Now()}
	s.words.add(o.Tokens...)
	s.told, _ = s.words.tokens()
	most := t.draft.Config.Model.Config().Context
	s.room = min(most, roomFor(len(s.told), len(o.Tokens), int(o.Limit)))
	inner := o
	inner.Tokens, inner.Prompt, inner.Limit = s.told, 0, tandem.Position(s.room)
	inner.MaxNodes, inner.Vocab, inner.Fingerprint, inner.Translate = mostOwn*o.MaxNodes, 0, "", false
	inner.Sampling, inner.Features = tandem.Sampling{}, false
	if len(s.told) > most {
		return tandem.Opened{}, tandem.Errorf("open", tandem.Unsupported,
			"%d tokens of the target are %d of the draft: draft model %s has a "+
				"context of %d", len(o.Tokens), len(s.told), t.draft.Config.Name, most)
	}
	opened, err := t.d.Open(ctx, inner)
	if err != nil {
		t.forget(o.Session)
		return opened, err
	}
	opened.Reused = min(opened.Reused, len(o.Tokens))
	opened.Hindsight = hindsight(opened.Hindsight, t.own, s.told, of, s.text.Tokens)
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, other := range t.sessions {
		if time.Since(other.last()) > t.draft.Config.Idle {
			delete(t.sessions, id)
		}
	}
	t.sessions[o.Session] = s
	t.draft.Config.Counters.Add("translate.sessions", 1)
	return opened, nil
}

// roomFor returns how many tokens of the draft are foreseen for a text of limit tokens of the target. Its first theirs tokens of the target
// are own tokens of the draft; the rest gets a quarter more than that ratio, for texts that divide less well. One that needs yet more is
// opened again.
func roomFor(own, theirs, limit int) int {
	ratio := float64(own) / float64(theirs)
	return own + int(math.Ceil(float64(limit-theirs)*max(ratio+ratio/(1<<2), 1))) + leastRoom
}

// leastRoom is for what the first tokens of a text do not tell of the others, and for the tree's root.
const leastRoom = 1 << 4

// last returns when the session was used last.
func (s *translated) last() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

func (t *Drafter) session(id tandem.SessionID) *translated {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sessions[id]
}

func (t *Drafter) forget(id tandem.SessionID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sessions, id)
}

// Propose implements tandem.Drafter, with the errors of the inner drafter; UnknownSession also if the text needs more tokens
// of the draft than were foreseen.
func (t *Drafter) Propose(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	s := t.session(p.Session)
	if s == nil {
		return t.d.Propose(ctx, p)
	}
	begun := time.Now()
	inner, words, theirs, err := s.translate(p)
	if err != nil {
		return tandem.Proposed{}, err
	}
	prepared := time.Since(begun)
	mine, err := t.d.Propose(ctx, inner)
	if err != nil {
		return tandem.Proposed{}, err
	}
	begun = time.Now()
	out := mine
	out.Tree = words.theirs(mine.Tree, theirs[len(theirs)-1], p.Bounds)
	spent := prepared + time.Since(begun)
	out.Busy += spent
	if len(p.Plan.Verify) > 0 {
		out.Tree, _ = spec.Cut(out.Tree, p.Plan, out.Busy)
	}
	told, _ := words.tokens()
	out.Hindsight = hindsight(mine.Hindsight, t.own, told, s.of, theirs)
	out.Nodes, out.Reused = out.Tree.Len(), min(mine.Reused, out.Tree.Len()-1)
	_, out.Depth = out.Tree.Depths()
	c := t.draft.Config.Counters
	c.Add("translate.ns", int64(spent))
	c.Add("translate.own_nodes", int64(mine.Nodes-1))
	c.Add("translate.nodes", int64(out.Nodes-1))
	if p.Return {
		return out, nil
	}
	return out, grow.Send(ctx, t.draft.Config.Pool, t.draft.Config.Events, c, p.Ticket(t.draft.Config.Name, grow.Clone(out.Tree)))
}

// translate makes the proposal's tokens the session's, and returns the proposal in the draft's tokens. words, which is read only, and
// theirs are the text in the two vocabularies.
func (s *translated) translate(p tandem.Proposal) (inner tandem.Proposal, words *ownWords, theirs []tandem.Token, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = time.Now()
	if err := s.text.Check(p); err != nil {
		return inner, nil, nil, err
	}
	held := len(s.text.Tokens)
	if keep := s.text.Follow(p); keep < held { // committed tokens are not taken back but by a lost message
		s.words = newOwnWords(s.of, s.words.own)
		s.words.add(s.text.Tokens...)
	} else {
		s.words.add(s.text.Tokens[held:]...)
	}
	all, _ := s.words.tokens()
	if len(all) > s.room {
		return inner, nil, nil, tandem.Errorf("propose", tandem.UnknownSession,
			"session %v has %d tokens of the draft, %d were foreseen: want it "+
				"opened again", s.text.Session, len(all), s.room)
	}
	from := 0
	for from < min(len(all), len(s.told)) && all[from] == s.told[from] {
		from++
	}
	inner = p
	inner.Base, inner.From, inner.Suffix = tandem.Position(len(all)), tandem.Position(from), all[from:]
	inner.Hash, inner.Return, inner.SelfDrafts = tandem.EmptyPrefix.Add(all...), true, nil
	inner.Bounds, inner.Plan = s.scale(p, float64(len(all))/float64(len(s.text.Tokens)))
	s.told = all
	copied := *s.words
	copied.tail = slices.Clone(s.words.tail)
	n := len(s.text.Tokens)
	return inner, &copied, s.text.Tokens[:n:n], nil
}

// scale turns a proposal's bounds and plan, which count tokens of the target, into ones that count tokens of the draft. A token of the
// target is ratio tokens of the draft; so are a row of the target's pass and a token that it brings.
func (s *translated) scale(p tandem.Proposal, ratio float64) (tandem.Bounds, tandem.Plan) {
	b, plan := p.Bounds, p.Plan
	b.Depth = max(0, min(b.Depth, int(s.text.Limit-p.Base)))
	if b.Plain() {
		return b, plan
	}
	ratio = min(max(ratio, 1./2), mostOwn)
	more := func(n int) int { return int(math.Ceil(float64(n) * max(ratio, 1))) }
	b.Nodes, b.Depth = more(b.Nodes)+1, more(b.Depth)+1 // the end of a path is cut
	if len(plan.Verify) > 0 {
		rows := make([]time.Duration, min(more(len(plan.Verify)), grow.MaxVerify))
		for i := range rows {
			rows[i] = plan.Verify[min(int(math.Round(float64(i)/ratio)), len(plan.Verify)-1)]
		}
		plan.Verify, plan.Others = rows, min(max(0, ratio*(plan.Others+1)-1), math.MaxInt32)
	}
	return b, plan
}

// Close implements tandem.Drafter.
func (t *Drafter) Close(ctx context.Context, id tandem.SessionID) error {
	t.forget(id)
	return t.d.Close(ctx, id)
}

// CloseOwned forgets the sessions of an owner, such as a gateway that is gone. See tandem.Opening.
func (t *Drafter) CloseOwned(ctx context.Context, owner uint64) error {
	t.mu.Lock()
	for id, s := range t.sessions {
		if s.owner == owner {
			delete(t.sessions, id)
		}
	}
	t.mu.Unlock()
	return t.d.CloseOwned(ctx, owner)
}
