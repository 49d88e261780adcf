package conversation

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/budget"
)

// Room is where conversations with a model become prompts. Safe for concurrent use.
type Room struct {
	Chat    Chat                    // nil: the model has no chat template, and conversations are refused
	Model   string                  // its name
	Instead string                  // what to use where there is no template
	Texts   *budget.Texts           // memory for it
	Wait    time.Duration           // for the memory, at most
	Refuse  func(text string) error // refuses a rendered conversation that cannot fit into the context, before it is tokenised; may be nil
}

// Tokens returns the tokens of a conversation, and how its answer is read. Errors: those of Render and Refuse; Exhausted (no memory).
func (r Room) Tokens(ctx context.Context, of Conversation) ([]tandem.Token, Output, error) {
	giveBack, err := r.Texts.Within(ctx, of.Size(), r.Wait)
	if err != nil {
		return nil, Output{}, err
	}
	defer giveBack()
	p, err := r.Render(ctx, of)
	if err == nil && r.Refuse != nil {
		err = r.Refuse(p.Text)
	}
	if err != nil {
		return nil, Output{}, err
	}
	return p.Tokens(), p.Output, nil
}

// Render returns a conversation as a prompt. Errors: Unsupported and Invalid, of the field messages; Canceled and Deadline, of ctx.
func (r Room) Render(ctx context.Context, of Conversation) (Prompt, error) {
	if r.Chat == nil {
		return Prompt{}, &tandem.Error{Kind: tandem.Unsupported, Field: "messages", Err: tandem.Errorf("chat", tandem.Unsupported,
			"model %s has no tokenizer.chat_template: give one with --chat-template, or use %s", r.Model, r.Instead)}
	}
	if of.Messages = paired(of.Messages); of.Answer != nil && !of.Must {
		of.Messages = Told(of.Messages, inForm(of.Answer))
	}
	p, err := r.Chat.Prompt(ctx, of)
	p.Output.Custom = of.Custom
	switch kind := tandem.KindOf(err); {
	case err == nil || ctx.Err() != nil:
		return p, err
	case kind == tandem.Unsupported:
		err = &tandem.Error{Kind: tandem.Unsupported, Field: "messages", Err: err}
	case kind == tandem.Invalid || kind == tandem.Deadline: // a template that takes too long counts as one that refuses
		err = &tandem.Error{Kind: tandem.Invalid, Field: "messages", Err: err}
	}
	return p, err
}
