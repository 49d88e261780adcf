package public

import (
	"context"
	"fmt"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

// Vocab is the target's vocabulary. Safe for concurrent use.
type Vocab interface {
	Size() int // tokens: ids are below it
	// Encode splits text into tokens; special adds the begin-of-text token where the model wants one.
	Encode(text string, special bool) []tandem.Token
	// EncodeWithControl also takes control tokens that are written in text as those tokens.
	EncodeWithControl(text string, special bool) []tandem.Token
	AppendBytes(dst []byte, t tandem.Token) []byte // what t prints; nothing for a control token
	Decode(tokens []tandem.Token) string           // what they print; bytes that are not UTF-8 stay
}

// maxText is the length limit of a text to tokenise in bytes: its answer fits into a message even if every byte is a token.
const maxText = rpc.MaxMessage / 16

// Tokenize implements tandemv1.GenerationServiceServer.
func (s *server) Tokenize(ctx context.Context, r *tandemv1.TokenizeRequest) (*tandemv1.TokenizeResponse, error) {
	if err := s.words(ctx); err != nil {
		return nil, err
	}
	if n := len(r.GetText()); n > maxText {
		return nil, wrong("text", "text has %d bytes: at most %d allowed", n, maxText)
	}
	tokens := s.cfg.Vocab.Encode(r.GetText(), !r.GetNoSpecial())
	out := &tandemv1.TokenizeResponse{Tokens: &tandemv1.TokenList{Ids: wire.FromTokens(tokens)}, Pieces: make([][]byte, len(tokens))}
	for i, t := range tokens {
		out.Pieces[i] = s.cfg.Vocab.AppendBytes(nil, t)
	}
	return out, nil
}

// Detokenize implements tandemv1.GenerationServiceServer.
func (s *server) Detokenize(ctx context.Context, r *tandemv1.DetokenizeRequest) (*tandemv1.DetokenizeResponse, error) {
	if err := s.words(ctx); err != nil {
		return nil, err
	}
	tokens := wire.ToTokens(r.GetTokens().GetIds())
	for i, t := range tokens {
		if t < 0 || int(t) >= s.cfg.Vocab.Size() {
			return nil, wrong("tokens.ids", "token %d is %d: vocabulary has %d", i, t, s.cfg.Vocab.Size())
		}
	}
	text := tandem.Lossy(s.cfg.Vocab.Decode(tokens))
	if len(text) >= rpc.MaxMessage {
		return nil, wrong("tokens.ids", "%d tokens make %d bytes of text: at most %d travel in a message", len(tokens), len(text),
			rpc.MaxMessage)
	}
	return &tandemv1.DetokenizeResponse{Text: text}, nil
}

// words checks that the caller may ask about the vocabulary, and that there is one.
func (s *server) words(ctx context.Context) error {
	if _, err := s.tenant(ctx); err != nil {
		return err
	}
	if s.cfg.Vocab == nil {
		return tandem.Errorf(op, tandem.Unsupported, "this gateway has no vocabulary to ask")
	}
	return nil
}

// wrong returns an error that blames a field of a request.
func wrong(field, format string, args ...any) error {
	return &tandem.Error{Op: op, Kind: tandem.Invalid, Field: field, Err: fmt.Errorf(format, args...)}
}
