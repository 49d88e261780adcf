package pull

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
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
		hubtest.Layer{Kind: "params", B: []byte(`{"temperature":0.25,"top_k":7,"stop":["x"],"num_ctx":512,"num_thread":4}`)},
		hubtest.Layer{Kind: "system", B: []byte("Be brief.\n")})
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
		if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, "Go's templates") || !slices.Equal(got.Stop, []string{"x"}) ||
			!strings.Contains(notes, `["num_thread"]`) || got.Context != 512 || got.Extras.System != "Be brief." {
			t.Errorf("%+v", got.Extras)
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

// TestHostileLayers: a layer that is damaged is named and not used, and the model runs without it.
func TestHostileLayers(t *testing.T) {
	dir := t.TempDir()
	f := hub.Found{Path: family.Random("qwen3", 6).Write(t, dir), Params: filepath.Join(dir, "p"), System: filepath.Join(dir, "s")}
	many := `{"stop":["` + strings.Repeat(`a","`, tandem.MostStops) + `b"]}`
	for _, c := range []struct{ params, system, says string }{
		{`{"num_ctx":-4096}`, "", "parameters: not used: num_ctx is -4096"}, {`{"num_ctx":1}`, "", "num_ctx is 1"},
		{`{"num_ctx":"4096"}`, "", "num_ctx is a string"}, {`{"num_ctx":1e99}`, "", "num_ctx is a number 1e99"},
		{`{"num_ctx":99999999999999999999}`, "", "num_ctx is a number"}, {`{"stop":"x"}`, "", "stop is a string"},
		{`{"stop":[1]}`, "", "stop is a number"}, {`{"stop":[""]}`, "", "stop sequence 0"}, {many, "", "stop has 65 sequences"},
		{`{"stop":["` + strings.Repeat("a", 300) + `"]}`, "", "stop sequence 0 has 300 bytes"},
		{`{"temperature":-1,"stop":["x"]}`, "", "temperature is -1"}, {`{"top_k":[]}`, "", "top_k is a array"},
		{`[]`, "", "parameters: not used"}, {`{"num_ctx":8`, "", "parameters: not used"}, {"", "", "parameters: not used"},
		{strings.Repeat(" ", maxExtra) + "{}", "", "parameters: not used: it has more than"},
		{"{}", strings.Repeat("a", maxSystem+1), "system message: not used: it has more than"},
		{"{}", "a\xff", "system message: not used: it is not UTF-8"},
	} {
		for path, text := range map[string]string{f.Params: c.params, f.System: c.system} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		e, err := ExtrasOf(f)
		if notes := strings.Join(e.Notes, "\n"); err != nil || !strings.Contains(notes, c.says) || len(e.Notes) != 1 {
			t.Errorf("%.50q and %.20q: %v, notes %.300q: want one with %q", c.params, c.system, err, notes, c.says)
		}
		if e.Stop != nil || e.Context != 0 || e.System != "" || e.Preset != (tandem.Preset{}) {
			t.Errorf("%.50q: %+v is taken over", c.params, e)
		}
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
