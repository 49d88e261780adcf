package token

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestRealVocabularies compares ids of 200 texts with llama.cpp's, by the vocabularies of real models.
func TestRealVocabularies(t *testing.T) {
	for column, file := range map[string]string{"smollm": testkit.SmolLM2, "gemma": testkit.Gemma3, "qwen2": testkit.Qwen05} {
		t.Run(column, func(t *testing.T) {
			v, err := Open(testkit.RealModel(t, file))
			if err != nil {
				t.Fatal(err)
			}
			f, err := os.Open("../../test/testdata/real/ids.jsonl")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			n := 0
			for lines := bufio.NewScanner(f); lines.Scan(); n++ {
				var line map[string]json.RawMessage
				var text string
				var want []tandem.Token
				if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
					t.Fatal(err)
				}
				if json.Unmarshal(line["text"], &text) != nil || json.Unmarshal(line[column], &want) != nil {
					t.Fatalf("line %d has no text or no ids: %s", n+1, lines.Bytes())
				}
				if got := v.Encode(text, false); !slices.Equal(got, want) {
					t.Errorf("%q: ids %v, llama.cpp's are %v", text, got, want)
				}
			}
			if n != 200 {
				t.Errorf("%d texts: want 200", n)
			}
		})
	}
}
