package hub

import (
	"slices"
	"testing"
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
