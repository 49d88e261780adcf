package find

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/hub"
)

// named writes a file with a header alone.
func named(t *testing.T, path, arch, name string) string {
	t.Helper()
	w := gguf.NewWriter()
	w.Set("general.architecture", arch)
	w.Set("general.name", name)
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFamilies: each row is complete, no field is misspelt, its names can be parsed, and no sibling is a target of its own family.
func TestFamilies(t *testing.T) {
	d := yaml.NewDecoder(bytes.NewReader(families))
	d.KnownFields(true)
	var all []Family
	if err := d.Decode(&all); err != nil || len(all) < 5 {
		t.Fatal(len(all), err)
	}
	for _, f := range all {
		if f.Family == "" || f.Architecture == "" || f.Source == "" ||
			f.Targets.Regexp == nil || f.Files.Regexp == nil || len(f.Names) == 0 {
			t.Errorf("%+v lacks something", f)
		}
		for _, name := range f.Names {
			if _, err := hub.Parse(name, ""); err != nil {
				t.Error(err)
			}
			if f.Targets.MatchString(plainName(name)) {
				t.Errorf("%s drafts for itself", name)
			}
		}
		for _, m := range f.Measured {
			if m.Gain <= 0 || m.Source == "" || m.Targets.Regexp == nil {
				t.Errorf("%s: %+v", f.Family, m)
			}
		}
	}
}

// TestBeside: drafts made for the target come before its family's sibling, which is found in the folder or in a store, or is to be fetched.
func TestBeside(t *testing.T) {
	dir, cache := t.TempDir(), t.TempDir()
	store := hub.Config{HubCache: cache, Own: t.TempDir()}
	target := named(t, filepath.Join(dir, "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf"), "qwen2", "Qwen2.5 Coder 1.5B Instruct")
	if all, fetch, err := Beside(target, store); err != nil || len(all) > 0 ||
		!slices.Equal(fetch, []string{"hf:Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"}) {
		t.Errorf("nothing here: %+v, %q, %v", all, fetch, err)
	}
	snapshot := filepath.Join(cache, "models--Qwen--Qwen2.5-Coder-0.5B-Instruct-GGUF", "snapshots",
		"0123456789abcdef0123456789abcdef01234567")
	stored := named(t, filepath.Join(snapshot, "q-q4_k_m.gguf"), "qwen2", "x")
	want := []Candidate{{File: stored, Sibling: "Qwen2.5-Coder", Gain: 1.25}}
	if all, fetch, err := Beside(target, store); err != nil || !slices.Equal(all, want) || len(fetch) > 0 {
		t.Errorf("in the store: %+v, %q, %v", all, fetch, err)
	}
	want[0].File = named(t, filepath.Join(dir, "qwen2.5-coder-0.5b-instruct-q8_0.gguf"), "qwen2", "x")
	made := named(t, filepath.Join(dir, "eagle3-Qwen2.5-Coder-1.5B-Instruct-Q8_0.gguf"), "eagle3", "x")
	named(t, filepath.Join(dir, "mmproj-F16.gguf"), "clip", "x")
	want = append([]Candidate{{File: made}}, want...)
	if all, _, err := Beside(target, store); err != nil || !slices.Equal(all, want) {
		t.Errorf("in the folder: %+v, %v", all, err)
	}
	if all, fetch, err := Beside(want[1].File, store); err != nil || len(all) != 1 || len(fetch) > 0 {
		t.Errorf("of the sibling: %+v, %q, %v", all, fetch, err)
	}
	other := named(t, filepath.Join(t.TempDir(), "Qwen2.5-7B-Q4_K_M.gguf"), "qwen2", "")
	if all, fetch, err := Beside(other, store); err != nil || len(all) != 0 ||
		!slices.Equal(fetch, []string{"hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF"}) {
		t.Errorf("by the file's name: %+v, %q, %v", all, fetch, err)
	}
	if _, _, err := Beside(filepath.Join(dir, "none.gguf"), store); err == nil {
		t.Error("no target is no error")
	}
}
