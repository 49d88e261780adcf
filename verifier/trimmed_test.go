package verifier_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/trim"
	"github.com/tandem-llm/tandem/verifier"
)

// TestTrimmedModel: a verifier refuses a model that cannot say every token.
func TestTrimmedModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trimmed.gguf")
	if _, err := trim.Run(t.Context(), trim.Config{In: draftFile, Out: path}); err != nil {
		t.Fatal(err)
	}
	m := openModel(t, path, 1)
	defer m.Close()
	v, err := verifier.New(verifier.Config{Model: m, Counters: &tandem.Counters{}})
	if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "trimmed to 2048 of 4096") {
		t.Errorf("%v, %v: want kind invalid", v, err)
	}
}
