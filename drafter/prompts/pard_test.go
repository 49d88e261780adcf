package prompts_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// pardFile writes a side file as import makes it of PARD: so many prompt tokens with the embedding of one mask token.
func pardFile(t *testing.T, levels, mask int) string {
	t.Helper()
	draft, err := gguf.Open(draftertest.ModelFile)
	if err != nil {
		t.Fatal(err)
	}
	defer draft.Close()
	ppd, err := gguf.Open(promptsFile)
	if err != nil {
		t.Fatal(err)
	}
	defer ppd.Close()
	x := draft.Tensor("token_embd.weight")
	data, err := x.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	size := len(data) / x.Shape[1]
	w := gguf.CopyOf(ppd)
	w.Set("ppd.token_count", uint32(levels))
	w.Set("ppd.ensemble_count", uint32(1))
	w.Tensor("ppd.embd.weight", x.Type, []int{x.Shape[0], levels}, bytes.Repeat(data[mask*size:(mask+1)*size], levels))
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "pard.gguf")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestMaskTokensDraftOneChain: with PARD's mask tokens one pass makes a chain of 12 tokens, where a plan says that a second pass costs more
// than it can bring; without them it has one token.
func TestMaskTokensDraftOneChain(t *testing.T) {
	with := draftertest.New(t, drafter.Config{Model: draftertest.OpenDraft(t, draftertest.ModelFile, pardFile(t, 11, 300))})
	without := draftertest.Twin(t, drafter.Config{})
	for r, want := range map[*draftertest.Rig]int{with: 13, without: 2} {
		r.Begin(1, r.Text)
		p := draftertest.Proposal(1, r.Text, len(r.Text))
		p.Bounds, p.Return = tandem.Bounds{Nodes: 13, Depth: 12, Width: 1}, true
		p.Plan = tandem.Plan{Verify: make([]time.Duration, 13), Round: time.Nanosecond, Others: 10_000} // who wait for it
		for i := range p.Plan.Verify {
			p.Plan.Verify[i] = time.Nanosecond
		}
		done, err := r.Propose(context.Background(), p)
		if err != nil {
			t.Fatal(err)
		}
		if _, depth := done.Tree.Depths(); done.Passes != 1 || done.Tree.Len() != want || depth != want-1 {
			t.Errorf("%d nodes, depth %d, in %d passes: want a chain of %d in one", done.Tree.Len(), depth, done.Passes, want)
		}
	}
}
