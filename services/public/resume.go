package public

import (
	"math"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/public/answer"
)

func had(r *tandemv1.Resume) answer.Had {
	return answer.Had{Text: int(min(r.GetText(), math.MaxInt)), Tokens: int(r.GetTokens())}
}

// started returns an answer's first event, with the stream's place if it is taken up. Errors: Invalid for one of another identity.
func started(e tandem.Started, model string, r *tandemv1.Resume) (*tandemv1.Started, error) {
	out := fromStarted(e, model)
	if out.Resumed = r != nil; out.Resumed && r.GetIdentity() != string(e.Identity) {
		return nil, tandem.Errorf("request", tandem.Invalid, "resume.identity is %.100q: this gateway's verifier is %s; ask without "+
			"resume, for a new text", r.GetIdentity(), e.Identity)
	}
	return out, nil
}
