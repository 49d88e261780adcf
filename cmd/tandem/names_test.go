package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/app/talk/status"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/processes/cache"
	"github.com/tandem-llm/tandem/processes/settings"
)

// TestNamesOutOfFiles: no command writes what a file or a folder is called, or what a file says, to a terminal as it is.
func TestNamesOutOfFiles(t *testing.T) {
	const evil = "x\x1b]0;owned\a\x1b[2J\u009b31m\n\u202e"
	dir := t.TempDir()
	path := filepath.Join(dir, "m"+evil+".gguf")
	f, err := gguf.Open("../../models/gopher-draft-go-f16.gguf")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := gguf.CopyOf(f)
	w.Set("general.name", evil)
	w.Set("custom."+evil, evil)
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.WriteTo(out)
	if err = errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(dir, "c"+evil)
	folder := settings.CacheFolder{CacheDir: settings.CacheDir{Cache: kept}, CacheLimit: 1 << 30}
	entry, err := cache.New(kept, 1<<30).Get(t.Context(), cache.Request{Kind: cache.Models, File: evil, From: "x", Size: 1,
		Make: func(_ context.Context, path string) error { return os.WriteFile(path, []byte("x"), 0o600) }})
	if err != nil {
		t.Fatal(err)
	}
	defer entry.Close()
	none := filepath.Join(dir, evil)
	for name, run := range map[string]func(*app) error{
		"model info":           (&modelInfoCmd{File: path, KV: settings.KV{KVType: "f16"}}).Run,
		"model info of a name": (&modelInfoCmd{File: none, KV: settings.KV{KVType: "f16"}}).Run,
		"cache list":           (&cacheListCmd{CacheFolder: folder}).Run,
		"cache clear":          (&cacheClearCmd{CacheFolder: folder}).Run,
		"tokenize":             (&tokenizeCmd{Model: none, Text: new(string)}).Run,
		"ps": func(a *app) error {
			return status.Status{Processes: []status.Process{{Role: "drafter", Up: true, Model: evil, Identity: evil}}}.Print(a.stdout)
		},
		"up": func(a *app) error {
			return (&upCmd{}).print(a, upResult{Gateway: "g", Target: path, Drafts: []string{path}, Heads: []string{path}, RunDir: kept})
		},
	} {
		var got bytes.Buffer
		a := &app{stdout: &got, stderr: &got, ctx: t.Context()}
		report(&got, run(a))
		printed := got.String()
		if printed == "" || strings.ContainsFunc(printed, terminal.Dangerous) || strings.Contains(printed, "\n\u202e") {
			t.Errorf("%s printed %q", name, printed)
		}
	}
}
