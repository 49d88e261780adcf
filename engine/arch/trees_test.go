package arch_test

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// TestFamilies: in every architecture, in the golden models and in random ones of other shapes, every row of trees of several sessions has
// the bits of the same row computed alone, with keys and values in both types.
func TestFamilies(t *testing.T) {
	dir := t.TempDir()
	for i, f := range family.All(1) {
		t.Run(f.Name, func(t *testing.T) {
			path := f.Write(t, dir)
			info, err := engine.Inspect(path)
			if err != nil {
				t.Fatal(err)
			}
			for j, kvType := range []string{"f16", "q8_0"} {
				if kvType == "q8_0" && info.Config.HeadDim%32 != 0 {
					continue // refused: Q8_0 has blocks of 32
				}
				m := enginetest.Open(t, path, engine.Options{Device: testdevice.CPU(t, 1+(i+j)%2), KVType: kvType,
					KVPages: engine.PagesFor(5, 320, 64)})
				enginetest.CompareTrees(t, m, rand.New(rand.NewPCG(uint64(i), uint64(j))), 30)
			}
		})
	}
}
