package pull

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/hub"
	"github.com/tandem-llm/tandem/modelfile/hub/hubtest"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// begun returns a puller with empty stores and a server, and what it says.
func begun(t *testing.T) (Puller, *hubtest.Server, *strings.Builder) {
	s, dir, said := hubtest.New(t), t.TempDir(), new(strings.Builder)
	p := Puller{Hub: hub.Config{HubCache: filepath.Join(dir, "hub"), Stores: []string{filepath.Join(dir, "ollama")},
		Own: filepath.Join(dir, "own"), Endpoint: s.URL, Registry: s.URL}, Stderr: said, KVType: "f16"}
	p.Say = func(format string, args ...any) { said.WriteString(format + "\n") }
	return p, s, said
}

// changed returns the bytes of a small model with another architecture.
func changed(t *testing.T, arch string) []byte {
	t.Helper()
	f, err := gguf.Open(family.Random("qwen3", 6).Write(t, t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := gguf.CopyOf(f)
	if arch != "" {
		w.Set("general.architecture", arch)
	}
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestGet: a model is fetched once, and is there without a server from then on. Ollama's parameters come with it, and its file has a name.
func TestGet(t *testing.T) {
	p, s, said := begun(t)
	m := changed(t, "")
	s.Tag("library/tiny:1b", hubtest.Layer{Kind: "model", B: m}, hubtest.Layer{Kind: "template", B: []byte("{{ .Prompt }}")},
		hubtest.Layer{Kind: "params", B: []byte(`{"temperature":0.25,"top_k":7,"stop":["x"]}`)})
	for range 2 {
		got, err := p.Get(t.Context(), "tiny:1b")
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(got.File)
		if err != nil || !bytes.Equal(b, m) || filepath.Base(got.File) != "tiny-1b.gguf" {
			t.Errorf("%s: %d bytes, %v", got.File, len(b), err)
		}
		if got.Preset.Temperature == nil || *got.Preset.Temperature != 0.25 || got.Preset.TopK == nil || got.Preset.TopP != nil {
			t.Errorf("drawn by %+v", got.Preset)
		}
		if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, "Go's templates") || !strings.Contains(notes, `["stop"]`) {
			t.Errorf("notes %q", got.Notes)
		}
		p.Hub.Offline = true
	}
	if !strings.Contains(said.String(), "fetching") {
		t.Errorf("said %q", said)
	}
}

// TestCannotRun: a model of an architecture that tandem does not know is refused by its header.
func TestCannotRun(t *testing.T) {
	p, s, _ := begun(t)
	s.Add("org/repo", "m-Q8_0.gguf", append(changed(t, "mamba9"), make([]byte, 4<<20)...))
	_, err := p.Get(t.Context(), "hf:org/repo")
	if tandem.KindOf(err) != tandem.Unsupported || !strings.Contains(err.Error(), "mamba9") ||
		strings.Contains(err.Error(), "tandem-header") {
		t.Errorf("%v", err)
	}
	if s.Sent() > 1<<20 {
		t.Errorf("%d bytes were sent", s.Sent())
	}
	if _, err := p.Get(context.Background(), "hf:org/none"); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("no repository: %v", err)
	}
}

// TestIsJinja tells templates apart.
func TestIsJinja(t *testing.T) {
	for text, want := range map[string]bool{"{% for m in messages %}{{ m.content }}{% endfor %}": true, "{{ .Prompt }}": false,
		"{{- if .System }}{{ .System }}{{ end }}": false, "plain": false} {
		if isJinja(text) != want {
			t.Errorf("%q", text)
		}
	}
}
