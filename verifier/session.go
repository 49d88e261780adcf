package verifier

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/schedule"
)

// session is one request's state in the target model; see Verifier for its invariants.
type session struct {
	schedule.Entry
	v          *Verifier
	limit      tandem.Position // of tokens: the smaller of the gateway's limit and the context
	maxNodes   int
	tenant     string
	kept       int // tokens that were handed to the keeper
	sampling   tandem.Sampling
	history    *sample.History // of tokens, as far as sampling needs it
	seq        *engine.Sequence
	tokens     []tandem.Token
	hash       tandem.PrefixHash
	ticket     *check         // the one that waits
	verdict    tandem.Verdict // the last; Base 0 if there is none
	accepted   []int32        // tree rows of its path, not yet in place
	selfDrafts []string       // whose guesses Opened is to carry
	guesses    []tandem.Guess // for Opened
	begun      time.Time      // when it was opened
	took       took           // of the latest pass, until Settle
}

// session returns the session of that id, or nil. Call it, and everything below, on the schedule's goroutine.
func (v *Verifier) session(id tandem.SessionID) *session {
	s, _ := v.sched.Session(id).(*session)
	return s
}

// check refuses an opening that no session can be made of. It returns how many tokens the session may have.
func (v *Verifier) check(o tandem.Opening) (limit int, err error) {
	const op = "open"
	m := v.cfg.Model
	cfg := m.Config()
	limit = min(int(o.Limit), cfg.Context)
	switch widest := min(m.MaxRows(), m.MaxWanted()); {
	case o.Session == 0:
		return 0, tandem.Errorf(op, tandem.Invalid, "session is 0: want any other number")
	case o.MaxNodes < 1 || o.MaxNodes > widest:
		return 0, tandem.Errorf(op, tandem.Invalid, "trees of %d nodes: want 1 to %d", o.MaxNodes, widest)
	case limit < 1:
		return 0, tandem.Errorf(op, tandem.Invalid, "limit of %d tokens: want at least 1", o.Limit)
	}
	if err := v.belongs(o); err != nil {
		return 0, err
	}
	limits := tandem.Limits{Context: limit, Vocab: cfg.Vocab}
	if err := tandem.ValidatePromptTokens(o.Tokens, limits); err != nil {
		return 0, err
	}
	if err := o.Sampling.Validate(limits); err != nil {
		return 0, err
	}
	return limit, nil
}

// open makes the session of o.
func (v *Verifier) open(o tandem.Opening) (*session, error) {
	const op = "open"
	m := v.cfg.Model
	limit, err := v.check(o)
	if err != nil {
		return nil, err
	}
	if err := v.sched.Replace(o); err != nil {
		return nil, err
	}
	if need := engine.PagesFor(1, limit, o.MaxNodes-1); need > m.Pages() {
		return nil, tandem.Errorf(op, tandem.Invalid, "limit of %d tokens with trees of %d nodes: they need %d pages of %d tokens, "+
			"all of the memory for keys and values holds %d", limit, o.MaxNodes, need, engine.PageTokens, m.Pages())
	}
	seq, err := m.NewShared(o.Tenant, o.Tokens[:len(o.Tokens)-1], limit, o.MaxNodes-1)
	if err != nil {
		return nil, err
	}
	v.out.found(o.Session)
	delete(v.crowded, o.Session)
	v.features.open(o, seq.Len())
	return &session{Entry: schedule.NewEntry(o, schedule.Shared(seq)), v: v, limit: tandem.Position(limit), maxNodes: o.MaxNodes,
		tenant: o.Tenant, sampling: o.Sampling, history: sample.NewHistory(o.Sampling, o.Tokens, o.Prompt), seq: seq,
		tokens: slices.Clone(o.Tokens), hash: tandem.EmptyPrefix.Add(o.Tokens...), selfDrafts: o.SelfDrafts, begun: time.Now()}, nil
}

// belongs refuses a session that began with another identity or whose tokens are of another vocabulary: its text would
// change.
func (v *Verifier) belongs(o tandem.Opening) error {
	n := v.cfg.Model.Names()
	switch {
	case o.Fingerprint != "" && o.Fingerprint != n.Vocabulary:
		v.cfg.Counters.Add("refused.vocabulary", 1)
		return tandem.Errorf(tandem.OpVocabulary, tandem.Unavailable,
			"the gateway's vocabulary is %s, that of the verifier's model %s is %s: want one model file for both", o.Fingerprint,
			v.cfg.Model.Config().Name, n.Vocabulary)
	case o.Identity != "" && o.Identity != n.Identity:
		v.cfg.Counters.Add("refused.identity", 1)
		return tandem.OtherIdentity(o.Session, o.Identity, n.Identity)
	}
	return nil
}
