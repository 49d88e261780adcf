package client

import (
	"context"
	"fmt"
	"unicode/utf8"

	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// Embed returns a vector of each text; each has the length 1, and depends on its text alone. The gateway's model must be an embedding
// model.
func (c *Client) Embed(ctx context.Context, texts ...string) (vectors [][]float32, err error) {
	r := &tandemv1.EmbedRequest{}
	for i, text := range texts {
		if !utf8.ValidString(text) {
			return nil, &Error{Kind: Invalid, Field: "inputs", Message: fmt.Sprintf("request: text %d is not valid UTF-8", i)}
		}
		r.Inputs = append(r.Inputs, &tandemv1.EmbedInput{Input: &tandemv1.EmbedInput_Text{Text: text}})
	}
	out, err := tandemv1.NewEmbeddingServiceClient(c.conn).Embed(ctx, r)
	for _, e := range out.GetEmbeddings() {
		vectors = append(vectors, e.GetValues())
	}
	return vectors, c.told(err)
}
