package trim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

const draft = "../../models/gopher-draft-all-f16.gguf"

// TestRun: the file has the tokens of the texts, of files and of folders; files in folders that are no text are left out.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("texts/a.txt", "func (r *Reader) Read(p []byte) (n int, err error) {\n")
	write("texts/deep/b.md", "# Readers\n")
	binary, empty := write("texts/c.bin", "\x00\xff"), write("empty/d.txt", "")
	more, out := write("more.go", "package main\n"), filepath.Join(dir, "out.gguf")
	r, err := Run(t.Context(), Config{In: draft, Out: out, Keep: 512, Texts: []string{filepath.Join(dir, "texts"), more}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Kept != 512 || r.Vocabulary != 4096 || r.Texts != 3 || r.LeftOut != 1 || r.Covered != 1 || r.Tokens < 20 ||
		!strings.HasPrefix(r.String(), "512 of 4096 tokens, 100.00 % of the ") {
		t.Errorf("%+v: %v", r, r)
	}
	f, err := gguf.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if ids, err := f.OutputIDs(4096); err != nil || len(ids) != 512 {
		t.Errorf("%d ids, %v", len(ids), err)
	}
	if r, err := Run(t.Context(), Config{In: draft, Out: filepath.Join(dir, "half.gguf")}); err != nil || r.Kept != 2048 || r.Texts != 0 {
		t.Errorf("by default %+v, %v: want half of a small vocabulary", r, err)
	}
	for _, c := range []struct {
		config Config
		says   string
	}{
		{Config{Texts: []string{binary}}, "not UTF-8"}, {Config{Texts: []string{"absent"}}, "absent"},
		{Config{Texts: []string{filepath.Dir(empty)}}, "no text in 1 files"}, {Config{Keep: -1}, "--keep is -1"},
		{Config{Keep: 4096}, "fewer than all 4096"}, {Config{Keep: 3}, "3 tokens to keep"}, {Config{In: more}, "more.go"},
	} {
		if c.config.In == "" {
			c.config.In = draft
		}
		c.config.Out = filepath.Join(dir, "no.gguf")
		if _, err := Run(t.Context(), c.config); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want one that says %q", c.config, err, c.says)
		}
		if _, err := os.Stat(c.config.Out); err == nil {
			t.Errorf("%+v: a file was made", c.config)
		}
	}
	over, stop := context.WithCancel(t.Context())
	stop()
	if _, err := Run(over, Config{In: draft, Out: filepath.Join(dir, "no.gguf"), Texts: []string{dir}}); !errors.Is(err, tandem.Canceled) {
		t.Errorf("stopped: %v", err)
	}
}
