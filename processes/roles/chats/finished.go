package chats

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/text/token"
)

// Finished returns the tokens of a conversation whose last message is the assistant's, up to the end of that turn, and how many of them are
// the prompt to which it is the answer. vocab is Open's. Errors: Prompt's, and Invalid for a template that writes no end of the turn.
func Finished(ctx context.Context, c conversation.Chat, vocab *token.Vocab, of conversation.Conversation) ([]tandem.Token, int, error) {
	whole, err := c.Prompt(ctx, of)
	if err != nil {
		return nil, 0, err
	}
	of.Messages = of.Messages[:len(of.Messages)-1]
	asked, err := c.Prompt(ctx, of)
	if err != nil {
		return nil, 0, err
	}
	tokens, prompt, n := whole.Tokens(), asked.Tokens(), 0
	for n < min(len(tokens), len(prompt)) && tokens[n] == prompt[n] {
		n++ // less than the prompt, where the template writes the turn otherwise than it begins one
	}
	for i := n; i < len(tokens); i++ {
		if vocab.IsEnd(tokens[i]) {
			return tokens[:i+1], n, nil
		}
	}
	return nil, 0, tandem.Errorf("chat", tandem.Invalid,
		"the chat template writes no token behind an answer that ends a turn: want such a template, or chats without answers")
}
