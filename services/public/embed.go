package public

import (
	"context"
	"errors"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

// embedder serves tandem.v1.EmbeddingService.
type embedder struct {
	tandemv1.UnimplementedEmbeddingServiceServer
	s *server
}

// answerRoom is what an answer has beside its numbers, for each vector and for all.
const answerRoom = 16

// Embed implements tandemv1.EmbeddingServiceServer.
func (e embedder) Embed(ctx context.Context, r *tandemv1.EmbedRequest) (*tandemv1.EmbedResponse, error) {
	c := &e.s.cfg
	tenant, err := e.s.tenant(ctx)
	if err != nil {
		return nil, err
	}
	if c.Embedder == nil || c.Vocab == nil {
		return nil, tandem.Errorf(op, tandem.Unsupported, "this gateway makes no vectors")
	}
	if r.Dimensions != nil && r.GetDimensions() < 1 {
		return nil, wrong("dimensions", "dimensions is %d: want at least 1", r.GetDimensions())
	}
	most := (rpc.MaxMessage - 1024) / (4*max(c.Width, 1) + answerRoom)
	if n := len(r.GetInputs()); n > most {
		return nil, wrong("inputs", "inputs has %d texts: at most %d vectors of %d numbers travel in a message", n, most, c.Width)
	}
	req := tandem.EmbedRequest{Tenant: tenant, Dimensions: int(r.GetDimensions())}
	for i, x := range r.GetInputs() {
		var tokens []tandem.Token
		switch form := x.GetInput().(type) {
		case *tandemv1.EmbedInput_Text:
			if form.Text == "" {
				return nil, wrong("inputs", "text %d of inputs is empty: want at least one character", i)
			}
			if c.Prompt != nil {
				if err := c.Prompt(form.Text); err != nil {
					return nil, wrong("inputs", "text %d of inputs: %w", i, err)
				}
			}
			tokens = c.Vocab.EncodeWithControl(form.Text, true)
		case *tandemv1.EmbedInput_Tokens:
			tokens = wire.ToTokens(form.Tokens.GetIds())
		}
		req.Inputs = append(req.Inputs, tokens)
	}
	made, err := c.Embedder.Embed(ctx, req)
	if e := (*tandem.Error)(nil); tandem.FieldOf(err) == "input" && errors.As(err, &e) {
		return nil, wrong("inputs", "%w", e.Err)
	}
	if err != nil {
		return nil, err
	}
	out := &tandemv1.EmbedResponse{Model: c.Model, PromptTokens: int32(made.Tokens), Identity: string(made.Identity)}
	for _, x := range made.Vectors {
		out.Embeddings = append(out.Embeddings, &tandemv1.Embedding{Values: x})
	}
	return out, nil
}
