package tandem_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestPythonLoads: no Python of this repository reads a file in a way that runs what the file holds.
func TestPythonLoads(t *testing.T) {
	unsafe := regexp.MustCompile(`\bpickle\.|import pickle|allow_pickle=True|\byaml\.(load|unsafe_load)\(|\bjoblib\b|\bmarshal\.loads?\(|trust_remote_code=True`)
	load := regexp.MustCompile(`torch\.load\([^\n]*`)
	files, err := filepath.Glob("training/tandem_training/*.py")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, error %v: is the test looking at the right folder?", len(files), err)
	}
	for _, path := range append(files, "training/python", "training/train") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if s := unsafe.Find(text); s != nil {
			t.Errorf("%s: %s can run what a file holds", path, s)
		}
		for _, s := range load.FindAllString(string(text), -1) {
			if !regexp.MustCompile(`weights_only=True`).MatchString(s) {
				t.Errorf("%s: %s: want weights_only=True", path, s)
			}
		}
	}
}
