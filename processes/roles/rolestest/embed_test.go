package rolestest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/processes/roles/gateway"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// embedded returns the vectors of texts.
func (s *System) embedded(texts ...string) [][]float32 {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	all, err := s.Client.Embed(ctx, texts...)
	if err != nil || len(all) != len(texts) {
		s.t.Errorf("%d vectors: %v", len(all), err)
		return make([][]float32, len(texts))
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
		s := Start(t, path, func(c *gateway.Setup) { c.Pooling = pooling })
		want := s.embedded(texts...)
		for i, x := range texts {
			if got := s.embedded(x)[0]; len(got) == 0 || !slices.Equal(got, want[i]) {
				t.Errorf("%s: the vector of %q differs from that beside others", pooling, x)
			}
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 5 {
					for i, got := range s.embedded(texts...) {
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
	said := Start(t, m.Write(t, t.TempDir()))
	if got := said.embedded(texts...); fmt.Sprint(got) != fmt.Sprint(of[1]) {
		t.Error("a file that says mean makes other vectors than the setting")
	}
	if _, err := Start(t, path).Client.Embed(t.Context(), "a"); !errors.Is(err, client.Unsupported) {
		t.Errorf("a file that does not say how vectors are made: %v", err)
	}
}
