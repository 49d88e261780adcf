package testkit

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// The files that test/scripts/real-models gets.
const (
	SmolLM2 = "smollm2-135m-instruct-q4_1.gguf"
	Gemma3  = "gemma-3-270m-q4_k_m.gguf"
	Qwen05  = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
	Qwen15  = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
)

// RealGoldens are the real models by the names of their files in test/testdata/real, which test/scripts/real-goldens makes.
var RealGoldens = map[string]string{"smollm2": SmolLM2, "gemma3": Gemma3, "qwen2.5-0.5b": Qwen05, "qwen2.5-1.5b": Qwen15}

// RealModel returns the path of a real model, in the folder TANDEM_REAL or else where test/scripts/real-models puts it. Without the
// file the test is skipped.
func RealModel(t testing.TB, file string) string {
	t.Helper()
	folder := os.Getenv("TANDEM_REAL")
	if folder == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skip(err)
		}
		folder = filepath.Join(cache, "tandem", "real")
	}
	path := filepath.Join(folder, file)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no real model %s in %s: test/scripts/real-models gets it", file, folder)
	}
	return path
}

// RealGolden reads what other programs make of a real model. root is the folder of the checkout.
func RealGolden(t testing.TB, root, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "test", "testdata", "real", name+".json"))
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}
