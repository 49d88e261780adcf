package arch_test

import (
	"math"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestRealModels compares logits of real models with llama.cpp's, each within twice llama.cpp's largest distance from float arithmetic, and
// with float arithmetic: their r.m.s. distance is at most 1.5 of llama.cpp's. Greedy continuations are compared until the best two logits
// are so close that either may be first.
func TestRealModels(t *testing.T) {
	for name, file := range testkit.RealGoldens {
		t.Run(name, func(t *testing.T) {
			path := testkit.RealModel(t, file)
			c := enginetest.GoldenCase{ID: name}
			testkit.RealGolden(t, "../..", name, &c)
			if len(c.PromptTop) == 0 || len(c.FloatTop) != len(c.PromptTop) || len(c.Greedy) == 0 || !(c.Tol > 0 && c.OtherRMS > 0) {
				t.Fatalf("test/testdata/real/%s.json lacks figures", name)
			}
			m, err := engine.Open(path, engine.Options{Device: testdevice.CPU(t, 0), Context: 512, KVPages: engine.PagesFor(1, 512, 0)})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			square, count := enginetest.CheckPrompt(t, m, c)
			rms := math.Sqrt(square / count)
			t.Logf("r.m.s. distance of %v logits from float arithmetic %.4f, llama.cpp's %.4f", count, rms, c.OtherRMS)
			if rms > 1.5*c.OtherRMS {
				t.Errorf("r.m.s. distance from float arithmetic %.4f: want at most 1.5 of llama.cpp's %.4f", rms, c.OtherRMS)
			}
			enginetest.CheckGreedy(t, m, c)
		})
	}
}
