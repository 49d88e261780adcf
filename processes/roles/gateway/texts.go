package gateway

import (
	"context"
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/services/public/budget"
	"github.com/tandem-llm/tandem/text/token"
)

// sparing is a vocabulary that waits for memory before it tokenises. gRPC's Generate and Tokenize use it. HTTP's handlers take the memory
// themselves, and stop waiting when their client leaves.
type sparing struct {
	*token.Vocab
	texts *budget.Texts
}

// refuse returns a check that refuses a prompt that cannot fit into a context, before it is tokenised.
func (s sparing) refuse(context int) func(text string) error {
	return func(text string) error {
		if n := s.AtLeast(text); n >= context {
			return &tandem.Error{Op: "request", Kind: tandem.Invalid, Field: "prompt",
				Err: fmt.Errorf("prompt has at least %d tokens: the context holds %d, and at least one must be left to generate", n,
					context)}
		}
		return nil
	}
}

// Encode implements gateway.Vocab. Whoever holds the memory only computes, so the wait ends.
func (s sparing) Encode(text string, special bool) []tandem.Token {
	giveBack, err := s.texts.Take(context.Background(), len(text))
	if err != nil {
		panic(err) // this context does not end
	}
	defer giveBack()
	return s.Vocab.Encode(text, special)
}

// EncodeWithControl implements public.Vocab, as Encode does.
func (s sparing) EncodeWithControl(text string, special bool) []tandem.Token {
	giveBack, err := s.texts.Take(context.Background(), len(text))
	if err != nil {
		panic(err) // this context does not end
	}
	defer giveBack()
	return s.Vocab.EncodeWithControl(text, special)
}

// NewDecoder implements gateway.Vocab.
func (s sparing) NewDecoder(written bool, prev ...tandem.Token) gateway.Decoder {
	return token.NewDecoder(s.Vocab, written, prev...)
}
