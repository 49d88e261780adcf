package public

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/public/access"
)

// ends is an embedder whose vectors are the first and the last token of each text.
type ends struct{ tenant string }

func (e *ends) Embed(_ context.Context, r tandem.EmbedRequest) (out tandem.Embedded, err error) {
	e.tenant = r.Tenant
	if err := r.Validate(tandem.Limits{Context: 20, Vocab: 256}); err != nil {
		return out, err
	}
	for _, x := range r.Inputs {
		out.Vectors = append(out.Vectors, []float32{float32(x[0]), float32(x[len(x)-1]), float32(r.Dimensions)})
		out.Tokens += len(x)
	}
	out.Identity = "i"
	return out, nil
}

// embeddings returns a client of the same server as c.
func embeddings(t *testing.T, c tandemv1.GenerationServiceClient) tandemv1.EmbeddingServiceClient {
	conn, err := rpc.Dial(c.(dialled).addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return tandemv1.NewEmbeddingServiceClient(conn)
}

func inputText(s string) *tandemv1.EmbedInput {
	return &tandemv1.EmbedInput{Input: &tandemv1.EmbedInput_Text{Text: s}}
}

func inputIDs(ids ...uint32) *tandemv1.EmbedInput {
	return &tandemv1.EmbedInput{Input: &tandemv1.EmbedInput_Tokens{Tokens: &tandemv1.TokenList{Ids: ids}}}
}

func TestEmbed(t *testing.T) {
	keys, err := access.New([]string{"one"})
	if err != nil {
		t.Fatal(err)
	}
	e := &ends{}
	c := embeddings(t, serve(t, Service{Defaults: defaults, Vocab: words{}, Embedder: e, Width: 3, Model: "gopher", Keys: keys}))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer one")
	three := int32(3)
	r, err := c.Embed(ctx, &tandemv1.EmbedRequest{Inputs: []*tandemv1.EmbedInput{inputText("ab"), inputIDs(5, 6, 7)}, Dimensions: &three})
	if err != nil || len(r.GetEmbeddings()) != 2 || r.GetModel() != "gopher" || r.GetPromptTokens() != 6 || r.GetIdentity() != "i" ||
		!slices.Equal(r.GetEmbeddings()[0].GetValues(), []float32{1, 'b', 3}) ||
		!slices.Equal(r.GetEmbeddings()[1].GetValues(), []float32{5, 7, 3}) || e.tenant == "" {
		t.Fatalf("%v of tenant %q: %v", r, e.tenant, err)
	}
	zero, one := int32(0), &tandemv1.EmbedRequest{Inputs: []*tandemv1.EmbedInput{inputIDs(1)}}
	for name, x := range map[string]struct {
		r    *tandemv1.EmbedRequest
		says string
	}{
		"none":          {&tandemv1.EmbedRequest{}, "0 texts"},
		"no form":       {&tandemv1.EmbedRequest{Inputs: []*tandemv1.EmbedInput{{}}}, "text 0 of input is empty"},
		"an empty text": {&tandemv1.EmbedRequest{Inputs: []*tandemv1.EmbedInput{inputIDs(1), inputText("")}}, "text 1 of inputs is empty"},
		"no tokens":     {&tandemv1.EmbedRequest{Inputs: []*tandemv1.EmbedInput{inputIDs()}}, "empty"},
		"a wrong id":    {&tandemv1.EmbedRequest{Inputs: []*tandemv1.EmbedInput{inputIDs(1 << 31)}}, "vocabulary has 256"},
		"too long":      {&tandemv1.EmbedRequest{Inputs: []*tandemv1.EmbedInput{inputText(strings.Repeat("a", 20))}}, "21 tokens"},
		"too many":      {&tandemv1.EmbedRequest{Inputs: slices.Repeat([]*tandemv1.EmbedInput{inputIDs(1)}, 2049)}, "2048"},
		"no dimensions": {&tandemv1.EmbedRequest{Inputs: []*tandemv1.EmbedInput{inputIDs(1)}, Dimensions: &zero}, "at least 1"},
	} {
		if _, err := c.Embed(ctx, x.r); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(fmt.Sprint(err), x.says) {
			t.Errorf("%s: %v: want %q", name, err, x.says)
		}
	}
	if _, err := c.Embed(t.Context(), one); tandem.KindOf(err) != tandem.Unauthenticated {
		t.Errorf("without a key: %v", err)
	}
	wide := embeddings(t, serve(t, Service{Defaults: defaults, Vocab: words{}, Embedder: e, Width: 1 << 20}))
	if _, err := wide.Embed(t.Context(), one); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("an answer that fits into no message: %v", err)
	}
	none := embeddings(t, serve(t, Service{Defaults: defaults, Vocab: words{}}))
	if _, err := none.Embed(t.Context(), one); tandem.KindOf(err) != tandem.Unsupported {
		t.Errorf("a gateway without vectors: %v", err)
	}
}
