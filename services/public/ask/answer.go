package ask

import (
	"encoding/hex"
	"encoding/json"
	"errors"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/text/grammar"
)

// checkAnswer refuses an answer's form that cannot be obeyed, before anything is done for the request. Errors: Invalid and Unsupported,
// with the place.
func (r *Request) checkAnswer() error {
	if r.Answer == nil {
		return nil
	}
	name := r.name("constraint")
	if r.Kind == Chat {
		if n := len(r.Messages); n > 0 && conversation.CanContinue(r.Messages, "", false) == nil {
			return wrong(name, "%s is there and the last message is the assistant's, which the answer would continue: want one of them",
				name)
		}
	}
	_, err := r.compile(r.Answer)
	return err
}

// compile returns the constraint of a form. The latest is kept: most outputs are what was checked.
func (r *Request) compile(of *grammar.Spec) (*tandem.Constraint, error) {
	spec, err := json.Marshal(of)
	if err == nil && r.form != nil && r.form.Spec == string(spec) {
		return r.form, nil
	}
	g, err := grammar.Compile(*of, grammar.Limits{})
	if err != nil {
		name := r.name("constraint")
		out := wrong(name, "%s cannot be obeyed: %w", name, err).(*tandem.Error)
		if errors.Is(err, grammar.ErrUnsupported) {
			out.Kind = tandem.Unsupported
		}
		return nil, out
	}
	digest := g.Digest()
	r.form = &tandem.Constraint{Spec: string(spec), Digest: hex.EncodeToString(digest[:])}
	return r.form, nil
}

// Constrain lets the output be only what is allowed: of a chat what its form says, see conversation.Output, else what was asked for. It is
// called once the prompt is known. Errors: as Check's.
func (r *Request) Constrain(out conversation.Output) (err error) {
	of := out.Allowed
	if r.Kind != Chat {
		of = r.Answer
	}
	if r.Sampling.Constraint = nil; of == nil {
		return nil
	}
	r.Sampling.Constraint, err = r.compile(of)
	return err
}
