package arch_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/modelfile/convert"
)

// TestGolden compares logits and greedy continuations of the shipped target, as it is and in other types, with another engine's, and the
// distance from float arithmetic with that engine's own (test/testdata/golden/README.md).
func TestGolden(t *testing.T) {
	for _, typ := range []string{"f16", "q8_0", "q4_0", "q4_k_m"} {
		t.Run(typ, func(t *testing.T) {
			path := enginetest.Target
			if typ != "q8_0" {
				path = filepath.Join(t.TempDir(), "model.gguf")
				if _, err := convert.Quantize(t.Context(), enginetest.Target, path, typ, true, convert.Options{}); err != nil {
					t.Fatal(err)
				}
			}
			cases := gopherCases(t, typ)
			m := enginetest.Open(t, path, engine.Options{})
			var square, count float64
			for _, c := range cases {
				s, n := enginetest.CheckPrompt(t, m, c)
				square, count = square+s, count+n
				enginetest.CheckGreedy(t, m, c)
			}
			rms, limit := math.Sqrt(square/count), 1.05*cases[0].OtherRMS // by so many logits it is known to a few percent
			if typ == "f16" {
				limit = 0.002
			}
			t.Logf("r.m.s. distance from float arithmetic %.5f, the other engine's %.5f", rms, cases[0].OtherRMS)
			if rms > limit {
				t.Errorf("r.m.s. distance from float arithmetic %.5f: want at most %.5f", rms, limit)
			}
		})
	}
}

func gopherCases(t *testing.T, typ string) (cases []enginetest.GoldenCase) {
	t.Helper()
	text, err := os.ReadFile(enginetest.InRepository("test/testdata/golden/gopher-19m-" + typ + ".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var c enginetest.GoldenCase
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		if c.Tol <= 0 || c.OtherRMS <= 0 || len(c.PromptTop) == 0 || len(c.FloatTop) != len(c.PromptTop) || len(c.Greedy) == 0 ||
			len(c.Top2) != len(c.Greedy) {
			t.Fatalf("%s, %s: figures are missing", typ, c.ID)
		}
		cases = append(cases, c)
	}
	if len(cases) < 12 {
		t.Fatalf("%d cases of %s: want 12", len(cases), typ)
	}
	return cases
}
