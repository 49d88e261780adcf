package gateway

import "github.com/tandem-llm/tandem"

// target is what a session knows of the verifiers that hold it or have held it.
type target struct {
	touched  bool            // one may hold it
	held     bool            // one has held it
	verifier string          // name of the one that holds it, in a fleet
	identity tandem.Identity // of the verifier that began it, which all that follow must have; valid once held
	cached   int             // tokens of the prompt that were found in the verifier's memory; valid once looked
	looked   bool            // a verifier has looked
}

// accept takes the first verifier's identity as the session's, and refuses a later verifier of another identity.
func (t *target) accept(id tandem.SessionID, o tandem.Opened) error {
	if t.held && o.Identity != t.identity {
		return tandem.OtherIdentity(id, t.identity, o.Identity)
	}
	t.identity, t.held, t.verifier = o.Identity, true, o.Verifier
	return nil
}

// found notes how many tokens the verifier held before it began to open the session. If the request began it several times, the least
// counts, because it has computed the others itself.
func (t *target) found(cached int) {
	if cached = max(cached, 0); !t.looked || cached < t.cached {
		t.cached, t.looked = cached, true
	}
}
