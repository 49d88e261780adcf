package testkit

import (
	"os"
	"path/filepath"
	"testing"
)

// The real models that scripts/real-models gets: their files' names.
const (
	SmolLM2 = "smollm2-135m-instruct-q4_1.gguf"
	Gemma   = "gemma-3-270m-q4_k_m.gguf"
	Qwen05  = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
	Qwen15  = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
)

// RealModel returns the path of a real model, in the folder TANDEM_REAL or else where scripts/real-models puts it. Without the file the
// test is skipped.
func RealModel(t testing.TB, name string) string {
	t.Helper()
	folder := os.Getenv("TANDEM_REAL")
	if folder == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skip(err)
		}
		folder = filepath.Join(cache, "tandem", "real")
	}
	path := filepath.Join(folder, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no real model %s in %s: scripts/real-models gets it", name, folder)
	}
	return path
}
