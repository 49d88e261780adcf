package verifier

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
)

// checkOpening refuses an opening that no session of m can be made of. It returns how many tokens the session may have. Errors: Invalid,
// those of belongs.
func checkOpening(m *engine.Model, counters *tandem.Counters, o tandem.Opening) (limit int, err error) {
	const op = "open"
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
	if err := belongs(m, counters, o); err != nil {
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

// belongs refuses a session that began with another identity or whose tokens are of another vocabulary: its text would
// change. Errors: Unavailable.
func belongs(m *engine.Model, counters *tandem.Counters, o tandem.Opening) error {
	n := m.Names()
	switch {
	case o.Fingerprint != "" && o.Fingerprint != n.Vocabulary:
		counters.Add("refused.vocabulary", 1)
		return tandem.Errorf(tandem.OpVocabulary, tandem.Unavailable,
			"the gateway's vocabulary is %s, that of the verifier's model %s is %s: want one model file for both", o.Fingerprint,
			m.Config().Name, n.Vocabulary)
	case o.Identity != "" && o.Identity != n.Identity:
		counters.Add("refused.identity", 1)
		return tandem.OtherIdentity(o.Session, o.Identity, n.Identity)
	}
	return nil
}
