package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/hub/hubtest"
)

// aModel returns a GGUF file of about so many bytes, with random ones.
func aModel(t testing.TB, size int, set ...any) []byte {
	t.Helper()
	r := rand.New(rand.NewPCG(1, uint64(size)))
	data := make([]byte, size/4*4)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	w := gguf.NewWriter()
	w.Set("general.architecture", "llama")
	for i := 0; i+1 < len(set); i += 2 {
		w.Set(set[i].(string), set[i+1])
	}
	w.Tensor(fmt.Sprintf("t%d", size), gguf.F32, []int{len(data) / 4}, data)
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// storesFor returns empty stores, and the server as hub and registry.
func storesFor(t testing.TB, s *hubtest.Server) Config {
	dir := t.TempDir()
	c := Config{HubCache: filepath.Join(dir, "hub"), Stores: []string{filepath.Join(dir, "ollama")}, Own: filepath.Join(dir, "own"),
		Token: "secret"}
	if s != nil {
		c.Endpoint, c.Registry = s.URL, s.URL
	}
	c.tune = func(s *session) { s.stall, s.pause, s.patient = 500*time.Millisecond, time.Millisecond, 3*time.Second }
	return c
}

// pull does what tandem pull does.
func pull(ctx context.Context, c Config, text string) (Found, error) {
	n, err := Parse(text, c.Endpoint)
	if err != nil {
		return Found{}, err
	}
	p, err := c.Plan(ctx, n)
	if err != nil {
		return Found{}, err
	}
	defer p.Close()
	_, remove, err := p.Headers(ctx)
	if err != nil {
		return Found{}, err
	}
	remove()
	return c.Fetch(ctx, p, func(int64, int64, bool) {})
}

// find is Config.Find of a name's text.
func find(t testing.TB, c Config, text string) (Found, bool) {
	t.Helper()
	n, err := Parse(text, c.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	f, ok, err := c.Find(n)
	if err != nil {
		t.Fatal(err)
	}
	return f, ok
}

// filesBelow returns the paths below dir; of a link, where it leads to.
func filesBelow(t testing.TB, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && d.IsDir() {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if to, wrong := os.Readlink(path); wrong == nil {
			rel += " -> " + to
		}
		all = append(all, rel)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func same(t testing.TB, path string, want []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(b, want) {
		t.Fatalf("%s: %d bytes, %v: want %d others", path, len(b), err, len(want))
	}
}

// TestHubsLayout: what is fetched has the shape that the hub's Python client gives it, and what that client has fetched is found.
func TestHubsLayout(t *testing.T) {
	s := hubtest.New(t)
	m, big := aModel(t, 3<<20), aModel(t, 2<<20)
	s.Add("org/repo", "m-Q4_K_M.gguf", m)
	s.Add("org/repo", "sub/m-Q8_0.gguf", big)
	s.Add("org/repo", "plain-F16.gguf", aModel(t, 4000)) // small: not in LFS, so its digest is git's
	s.Add("org/repo", "mmproj-f16.gguf", big)
	s.Set(hubtest.Faults{Pages: 1})
	c := storesFor(t, s)
	f, err := pull(t.Context(), c, "hf:org/repo")
	if err != nil {
		t.Fatal(err)
	}
	same(t, f.Path, m)
	if !f.Ours || f.Quant != "Q4_K_M" || f.Size != int64(len(m)) {
		t.Errorf("%+v", f)
	}
	for _, more := range []string{"hf:org/repo:Q8_0", "hf:org/repo:F16"} {
		if _, err := pull(t.Context(), c, more); err != nil {
			t.Fatal(err)
		}
	}
	got := strings.Join(filesBelow(t, c.HubCache), "\n")
	for _, want := range []string{
		"models--org--repo/blobs/" + hubtest.Sum(m),
		"models--org--repo/refs/main",
		"models--org--repo/snapshots/" + hubtest.Commit + "/m-Q4_K_M.gguf -> ../../blobs/" + hubtest.Sum(m),
		"models--org--repo/snapshots/" + hubtest.Commit + "/sub/m-Q8_0.gguf -> ../../../blobs/" + hubtest.Sum(big),
		".locks/models--org--repo/" + hubtest.Sum(m) + ".lock",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %s in\n%s", want, got)
		}
	}
	same(t, filepath.Join(c.HubCache, "models--org--repo/refs/main"), []byte(hubtest.Commit))
	if strings.Contains(got, "incomplete") || strings.Contains(got, ".pieces") {
		t.Errorf("left behind:\n%s", got)
	}
	for _, r := range s.Asked() {
		if r.Authorization != "Bearer secret" {
			t.Errorf("%s was asked without the token", r.Path)
		}
	}

	// as huggingface_hub 2.4 makes it
	python := storesFor(t, nil)
	repo := filepath.Join(python.HubCache, "models--a--b")
	for path, b := range map[string][]byte{"blobs/" + hubtest.Sum(m): m, "refs/main": []byte(hubtest.Commit),
		"snapshots/" + hubtest.Commit + "/config.json": nil} {
		at := filepath.Join(repo, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../../blobs/"+hubtest.Sum(m), filepath.Join(repo, "snapshots", hubtest.Commit, "m-Q6_K.gguf")); err != nil {
		t.Fatal(err)
	}
	before := filesBelow(t, python.HubCache)
	f, ok := find(t, python, "hf:a/b")
	if same(t, f.Path, m); !ok || f.Ours {
		t.Errorf("%+v", f)
	}
	if all := python.List(); len(all) != 1 || all[0].Name != "hf:a/b:Q6_K" || all[0].Size != int64(len(m)) {
		t.Errorf("listed: %+v", all)
	}
	n, _ := Parse("hf:a/b", "")
	if _, err := python.Remove(n, false); tandem.KindOf(err) != tandem.Invalid ||
		!strings.Contains(err.Error(), "was not pulled by tandem") {
		t.Errorf("removing another program's: %v", err)
	}
	if after := filesBelow(t, python.HubCache); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("looking has left %q", after)
	}
}

// TestOllamasLayout: models of a registry lie in Ollama's store, where Ollama's own are found.
func TestOllamasLayout(t *testing.T) {
	s := hubtest.New(t)
	m := aModel(t, 3<<20)
	s.Tag("library/tiny:1b", hubtest.Layer{Kind: "model", B: m}, hubtest.Layer{Kind: "template", B: []byte("{{ .Prompt }}")},
		hubtest.Layer{Kind: "params", B: []byte(`{"temperature":0.6}`)}, hubtest.Layer{Kind: "system", B: []byte("Be brief.")},
		hubtest.Layer{Kind: "projector", B: aModel(t, 1<<20)})
	s.Tag("library/tiny:other", hubtest.Layer{Kind: "model", B: m}, hubtest.Layer{Kind: "template", B: []byte("another")})
	c := storesFor(t, s)
	f, err := pull(t.Context(), c, "tiny:1b")
	if err != nil {
		t.Fatal(err)
	}
	store := c.Stores[0]
	same(t, f.Path, m)
	same(t, f.Template, []byte("{{ .Prompt }}"))
	same(t, f.Params, []byte(`{"temperature":0.6}`))
	same(t, f.System, []byte("Be brief."))
	if f.Path != filepath.Join(store, "blobs", "sha256-"+hubtest.Sum(m)) || !f.Ours || len(f.Left) != 1 {
		t.Errorf("%+v", f)
	}
	host := strings.TrimPrefix(s.URL, "http://")
	if _, err := os.Stat(filepath.Join(store, "manifests", host, "library", "tiny", "1b")); err != nil {
		t.Error(err)
	}
	for _, r := range s.Asked() {
		if r.Authorization != "" {
			t.Errorf("%s got the hub's token", r.Path)
		}
	}
	sent := s.Sent()
	if _, err := pull(t.Context(), c, "tiny:other"); err != nil {
		t.Fatal(err)
	}
	if more := s.Sent() - sent; more > int64(len(m))/2 { // its header
		t.Errorf("the same layer was fetched again: %d bytes", more)
	}
	if all := c.List(); len(all) != 2 || all[0].Name != "tiny:1b" || all[1].Name != "tiny:other" {
		t.Errorf("listed: %+v", all)
	}
	// removing one leaves what the other names
	n, _ := Parse("tiny:1b", "")
	out, err := c.Remove(n, false)
	if err != nil || out.Kept != 2 || out.Files != 3 { // the model and the configuration; template, parameters, system
		t.Errorf("%+v, %v", out, err)
	}
	f, ok := find(t, c, "tiny:other")
	if same(t, f.Path, m); !ok {
		t.Error("the other is gone")
	}
	n, _ = Parse("tiny:other", "")
	if out, err = c.Remove(n, false); err != nil || out.Files != 3 {
		t.Errorf("%+v, %v", out, err)
	}
	if left := filesBelow(t, filepath.Join(store, "blobs")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestRemove: of the hub's cache, tandem removes what it has pulled, and leaves what another snapshot names.
func TestRemove(t *testing.T) {
	s := hubtest.New(t)
	m := aModel(t, 3<<20)
	s.Add("org/repo", "m-Q4_K_M.gguf", m)
	c := storesFor(t, s)
	f, err := pull(t.Context(), c, "hf:org/repo")
	if err != nil {
		t.Fatal(err)
	}
	repo := filepath.Join(c.HubCache, "models--org--repo")
	other := filepath.Join(repo, "snapshots", strings.Repeat("f", 40))
	if err := os.MkdirAll(other, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../blobs/"+hubtest.Sum(m), filepath.Join(other, "x.gguf")); err != nil {
		t.Fatal(err)
	}
	n, _ := Parse("hf:org/repo:Q4_K_M", "")
	out, err := c.Remove(n, false)
	if err != nil || out.Kept != 1 || out.Files != 0 {
		t.Fatalf("%+v, %v", out, err)
	}
	same(t, filepath.Join(other, "x.gguf"), m)
	if _, err := os.Lstat(f.Path); err == nil {
		t.Error("the name is still there")
	}
	if err := os.RemoveAll(repo); err != nil {
		t.Fatal(err)
	}
	if _, err := pull(t.Context(), c, "hf:org/repo"); err != nil {
		t.Fatal(err)
	}
	if out, err = c.Remove(n, false); err != nil || out.Freed != int64(len(m)) {
		t.Fatalf("%+v, %v", out, err)
	}
	if _, err := os.Stat(repo); err == nil {
		t.Errorf("left: %q", filesBelow(t, repo))
	}
	if _, err := c.Remove(n, false); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("removing what is not there: %v", err)
	}
}

// TestRemoveSaysWhatIsRight: a name that means several models, that is nearly one, that leads out of the store, or whose model runs.
func TestRemoveSaysWhatIsRight(t *testing.T) {
	s := hubtest.New(t)
	s.Add("org/repo", "m-Q4_K_M.gguf", aModel(t, 2<<20))
	s.Add("org/repo", "m-Q8_0.gguf", aModel(t, 3<<20))
	c := storesFor(t, s)
	var path string
	for _, name := range []string{"hf:org/repo:Q8_0", "hf:org/repo"} {
		f, err := pull(t.Context(), c, name)
		if err != nil {
			t.Fatal(err)
		}
		path = f.Path
	}
	Use(path)
	for name, want := range map[string]string{
		"hf:org/repo":      "means 2 models on this machine: want one of hf:org/repo:Q4_K_M, hf:org/repo:Q8_0",
		"hf:org/repo:Q5_0": "hf:org/repo:Q5_0 is not on this machine: there is hf:org/repo:Q4_K_M, hf:org/repo:Q8_0",
		"hf:org/none":      "is not on this machine: tandem list names", "nobody:1b": "is not on this machine: tandem list names",
		"hf:org/repo:Q4_K_M": "used by a tandem that runs", "hf:../..": "want", "../../etc/passwd": "want", path: "is a path", "": "want",
	} {
		n, err := Parse(name, c.Endpoint)
		if err == nil {
			_, err = c.Remove(n, false)
		}
		if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, ErrAbsent) != strings.Contains(want, "not on this") {
			t.Errorf("rm %q: %v: want %q", name, err, want)
		}
	}
	same(t, path, aModel(t, 2<<20))
	n, _ := Parse("hf:org/repo:Q4_K_M", "")
	if out, err := c.Remove(n, true); err != nil || out.Files != 1 {
		t.Errorf("with force: %+v, %v", out, err)
	}
	if n, _ = Parse("hf:org/repo", ""); len(c.meant(n)) != 1 {
		t.Errorf("left: %q", c.meant(n))
	}
	if out, err := c.Remove(n, false); err != nil || out.Files != 1 { // there is one left
		t.Errorf("the only one of its repository: %+v, %v", out, err)
	}
}

// TestSplitModel: all files of a split model are fetched, and found by the first.
func TestSplitModel(t *testing.T) {
	s := hubtest.New(t)
	for i := range 2 {
		s.Add("org/repo", fmt.Sprintf("m-Q8_0-%05d-of-00002.gguf", i+1),
			aModel(t, 2<<20+i*4, "split.no", uint16(i), "split.count", uint16(2), "split.tensors.count", int32(2)))
	}
	c := storesFor(t, s)
	f, err := pull(t.Context(), c, "hf:org/repo")
	if err != nil {
		t.Fatal(err)
	}
	whole, err := gguf.Open(f.Path)
	if err != nil || whole.Parts() != 2 || len(f.Files) != 2 {
		t.Fatalf("%v: %q", err, f.Files)
	}
	whole.Close()
	n, _ := Parse("hf:org/repo", "")
	if out, err := c.Remove(n, false); err != nil || out.Files != 2 {
		t.Errorf("%+v, %v", out, err)
	}
}

// TestWeb: a file at an address is kept in tandem's folder.
func TestWeb(t *testing.T) {
	s := hubtest.New(t)
	m := aModel(t, 3<<20)
	s.Add("org/repo", "x.gguf", m)
	c := storesFor(t, s)
	c.Endpoint = "https://hub.example"
	name := s.URL + "/org/repo/resolve/main/x.gguf"
	f, err := pull(t.Context(), c, name)
	if err != nil {
		t.Fatal(err)
	}
	if same(t, f.Path, m); !f.Ours || filepath.Base(f.Path) != "x.gguf" {
		t.Errorf("%+v", f)
	}
	if all := c.List(); len(all) != 1 || all[0].Name != name {
		t.Errorf("listed: %+v", all)
	}
	n, _ := Parse(name, "")
	if out, err := c.Remove(n, false); err != nil || out.Files != 1 {
		t.Errorf("%+v, %v", out, err)
	}
}

// TestFolder: a folder means the model in it.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"m-Q8_0.gguf", "mmproj-f16.gguf"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if f, ok := find(t, Config{}, dir); !ok || filepath.Base(f.Path) != "m-Q8_0.gguf" || len(f.Left) != 1 {
		t.Errorf("%+v", f)
	}
	for _, path := range []string{t.TempDir(), filepath.Join(dir, "none.gguf")} {
		if _, _, err := (Config{}).Find(Name{Source: File, Path: path}); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestFromEnv: the variables are those of the hub's clients and of Ollama.
func TestFromEnv(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, tc := range []struct {
		env         map[string]string
		cache, says string
	}{
		{nil, home + "/.cache/huggingface/hub", ""},
		{map[string]string{"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub", ""},
		{map[string]string{"HF_HOME": "~/hf", "XDG_CACHE_HOME": "/x"}, home + "/hf/hub", ""},
		{map[string]string{"HF_HUB_CACHE": "/c", "HF_HOME": "/hf"}, "/c", ""},
		{map[string]string{"HF_TOKEN": "a\nb"}, "", "characters"},
	} {
		c, err := FromEnv(func(k string) string { return tc.env[k] }, "/own")
		if tc.says != "" {
			if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "a\nb") {
				t.Errorf("%v: %v", tc.env, err)
			}
			continue
		}
		if err != nil || c.HubCache != tc.cache || c.Stores[0] != home+"/.ollama/models" || c.Endpoint != defaultEndpoint {
			t.Errorf("%v: %+v, %v", tc.env, c, err)
		}
	}
	if err := os.MkdirAll(filepath.Join(home, ".cache/huggingface"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, ".cache/huggingface/token"), []byte("of-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := FromEnv(func(string) string { return "" }, ""); err != nil || c.Token != "of-file" {
		t.Errorf("token %q, %v", c.Token, err)
	}
}
