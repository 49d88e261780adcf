package public

import (
	"context"
	"math"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/public/answer"
	"github.com/tandem-llm/tandem/services/public/conversation"
)

// telling is a stream of events by number, each of which the client takes within the time that pace gives it.
type telling struct {
	*pace
	model  string
	next   uint64
	resume *tandemv1.Resume // where the client goes on; nil: from the beginning
	had    answer.Had
}

func newTelling(model string, r *tandemv1.Resume) *telling {
	return &telling{model: model, resume: r, had: answer.Had{Text: int(min(r.GetText(), math.MaxInt)), Tokens: int(r.GetTokens())}}
}

// generate runs a generation, whose output is read as output says, and tells its events to sink.
func (t *telling) generate(ctx context.Context, cfg Service, r tandem.Request, output conversation.Output,
	sink func(*answer.Event) error) error {
	return withPath(paced(cfg.Stall, func(p *pace) error {
		t.pace = p
		m := answer.New(output, "", sink)
		result, err := cfg.Generator.Generate(ctx, r, m)
		if err != nil {
			return err
		}
		return m.End(result)
	}))
}

// number returns the number of the next event.
func (t *telling) number() uint64 {
	t.next++
	return t.next - 1
}

// started returns an answer's first event, with the stream's place if it is taken up. Errors: Invalid for one of another identity.
func (t *telling) started(e *answer.Event) (*tandemv1.Started, error) {
	out := fromStarted(*e.Started, t.model)
	if out.Resumed = t.resume != nil; out.Resumed && t.resume.GetIdentity() != string(e.Identity) {
		return nil, tandem.Errorf(op, tandem.Invalid, "resume.identity is %.100q: this gateway's verifier is %s; ask without "+
			"resume, for a new text", t.resume.GetIdentity(), e.Identity)
	}
	return out, nil
}
