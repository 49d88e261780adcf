package rolestest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/roles/gateway"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/testkit/family"
)

// embeddings returns a client of the gateway.
func (s *System) embeddings() tandemv1.EmbeddingServiceClient {
	conn, err := rpc.Dial(s.addr("gateway"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return tandemv1.NewEmbeddingServiceClient(conn)
}

// embedded returns the vectors of texts.
func embedded(t *testing.T, c tandemv1.EmbeddingServiceClient, texts ...string) (all [][]float32) {
	t.Helper()
	r := &tandemv1.EmbedRequest{}
	for _, x := range texts {
		r.Inputs = append(r.Inputs, &tandemv1.EmbedInput{Input: &tandemv1.EmbedInput_Text{Text: x}})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := c.Embed(ctx, r)
	if err != nil || len(out.GetEmbeddings()) != len(texts) {
		t.Errorf("%d vectors: %v", len(out.GetEmbeddings()), err)
		return make([][]float32, len(texts))
	}
	for _, e := range out.GetEmbeddings() {
		all = append(all, e.GetValues())
	}
	return all
}

// TestEmbedInAllRoles: vectors of a gateway are the same alone, together, by several callers at once, and while their verifier is replaced;
// those of the two poolings differ, and a model whose file does not say how they are made makes none.
func TestEmbedInAllRoles(t *testing.T) {
	m := family.Random("qwen3", 6)
	path := m.Write(t, t.TempDir())
	texts := []string{"a", "func main() {", "some words that are longer than the others, so that they take more rows"}
	var of [][][]float32
	for _, pooling := range []string{"last", "mean"} {
		s := Start(t, path, func(c *gateway.Config) { c.Pooling = pooling })
		c := s.embeddings()
		want := embedded(t, c, texts...)
		for i, x := range texts {
			if got := embedded(t, c, x)[0]; len(got) == 0 || !slices.Equal(got, want[i]) {
				t.Errorf("%s: the vector of %q differs from that beside others", pooling, x)
			}
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 5 {
					for i, got := range embedded(t, c, texts...) {
						if !slices.Equal(got, want[i]) {
							t.Errorf("%s: the vector of %q differs while the verifier is replaced", pooling, texts[i])
						}
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		s.RestartVerifier()
		all.Wait()
		of = append(of, want)
	}
	if fmt.Sprint(of[0][2]) == fmt.Sprint(of[1][2]) {
		t.Error("both poolings make the same vector")
	}
	m.Set("pooling_type", uint32(1))
	said := Start(t, m.Write(t, t.TempDir())).embeddings()
	if got := embedded(t, said, texts...); fmt.Sprint(got) != fmt.Sprint(of[1]) {
		t.Error("a file that says mean makes other vectors than the setting")
	}
	_, err := Start(t, path).embeddings().Embed(t.Context(), &tandemv1.EmbedRequest{Inputs: []*tandemv1.EmbedInput{
		{Input: &tandemv1.EmbedInput_Text{Text: "a"}}}})
	if tandem.KindOf(err) != tandem.Unsupported {
		t.Errorf("a file that does not say how vectors are made: %v", err)
	}
}
