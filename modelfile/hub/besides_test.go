package hub

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/modelfile/hub/hubtest"
)

// TestDrafts: drafts are known by their names; that which is called like the target comes first, then that with about as many bits.
func TestDrafts(t *testing.T) {
	files := []string{"Qwen3.5-4B-Q4_K_M.gguf", "mmproj-Qwen3.5-4B-F16.gguf", "mtp-Qwen3.5-4B-BF16.gguf", "mtp-Qwen3.5-4B-Q8_0.gguf",
		"eagle3-Qwen3.5-9B-Q4_K_M.gguf", "mtp-Qwen3.5-4B-Q5_K_M.gguf", "dspark-other.gguf", "mtp-notes.txt", "llama-assistant-Q4_0.gguf",
		"sub/DFLASH-Qwen3.5-4B.gguf"}
	want := []string{"mtp-Qwen3.5-4B-Q5_K_M.gguf", "mtp-Qwen3.5-4B-Q8_0.gguf", "mtp-Qwen3.5-4B-BF16.gguf", "sub/DFLASH-Qwen3.5-4B.gguf",
		"eagle3-Qwen3.5-9B-Q4_K_M.gguf", "dspark-other.gguf"}
	if got := Drafts(files, files[0]); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	gemma := []string{"gemma-4-E2B-it-assistant-Q8_0.gguf", "gemma-4-E2B-it-Q4_K_M.gguf"}
	if got := Drafts(gemma, gemma[1]); !slices.Equal(got, gemma[:1]) {
		t.Errorf("%q", got)
	}
	c, err := Choose([]Entry{{Path: gemma[0], Size: 1}, {Path: gemma[1], Size: 1}}, "")
	if err != nil || c.Files[0].Path != gemma[1] || !slices.Equal(c.Left, gemma[:1]) {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestBeside: what a repository has beside a fetched model is known without asking its server again, until one of it is here; it goes with
// the model. Of a model that another program has fetched nothing is known.
func TestBeside(t *testing.T) {
	s := hubtest.New(t)
	c, m := storesFor(t, s), aModel(t, 1000)
	fetched := func(text string) Found {
		t.Helper()
		f, err := pull(t.Context(), c, text)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	for _, path := range []string{"m-Q4_K_M.gguf", "m-Q8_0.gguf", "mtp-m-Q8_0.gguf", "eagle3-m-Q4_K_M.gguf", "mmproj-F16.gguf",
		"sub/mtp-m.gguf"} {
		s.Add("org/repo", path, append(slices.Clone(m), path...))
	}
	f := fetched("hf:org/repo")
	s.Asked()
	at := "hf:org/repo@" + hubtest.Commit + ":"
	if got, want := c.Beside(f.Path), []string{at + "eagle3-m-Q4_K_M.gguf", at + "mtp-m-Q8_0.gguf"}; !slices.Equal(got, want) {
		t.Errorf("%q: want %q", got, want)
	}
	if asked := s.Asked(); len(asked) > 0 {
		t.Errorf("the server was asked: %v", asked)
	}
	draft := fetched(at + "mtp-m-Q8_0.gguf")
	if filepath.Dir(draft.Path) != filepath.Dir(f.Path) {
		t.Errorf("%s is not beside %s", draft.Path, f.Path)
	}
	if got := c.Beside(f.Path); len(got) > 0 {
		t.Errorf("with one of them here: %q", got)
	}
	other := fetched("hf:org/repo:Q8_0")
	remove := func(name string) {
		t.Helper()
		n, err := Parse(name, c.Endpoint)
		if err == nil {
			_, err = c.Remove(n, false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	remove("hf:org/repo:Q4_K_M")
	if _, err := os.Stat(draft.Path); err != nil {
		t.Errorf("it went with one of two models: %v", err)
	}
	remove("hf:org/repo") // there is one left, the draft is none
	if left, _ := filepath.Glob(filepath.Join(c.HubCache, "models--*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	for _, path := range []string{other.Path, "", "/", filepath.Join(c.HubCache, "models--a--b"), "m.gguf",
		filepath.Join(c.HubCache, "models--x", "snapshots", hubtest.Commit, "m.gguf")} {
		if got := c.Beside(path); len(got) > 0 {
			t.Errorf("beside %q: %q", path, got)
		}
	}
}
