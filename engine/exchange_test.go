package engine_test

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestExchangeIsBounded: a pass that is divided between the processor and a GPU with memory of its own makes as many calls of the GPU's
// driver whatever its rows, and few for each layer.
func TestExchangeIsBounded(t *testing.T) {
	gpu, driver := testdevice.GPU(t, emulated.Options{})
	m := enginetest.Open(t, enginetest.Target, engine.Options{KVPages: 4, MaxRows: 64, Device: enginetest.Halves(t, testdevice.CPU(t, 1),
		gpu, nil)})
	seq := enginetest.NewSeq(t, m, 128, 64)
	count := func(rows int) (calls emulated.Calls) {
		tokens := enginetest.RandomTokens(rand.New(rand.NewPCG(1, 2)), m, rows)
		for range 3 { // from the third on all stages are graphs
			driver.Calls()
			enginetest.Forward(t, m, 3, engine.Part{Seq: seq, Extend: tokens, Want: engine.WantTail})
			calls = driver.Calls()
			if err := seq.Truncate(0); err != nil {
				t.Fatal(err)
			}
		}
		return calls
	}
	layers := int64(m.Config().Layers)
	few, many := count(3), count(64)
	if few != many {
		t.Errorf("a pass of 3 rows makes %+v, one of 64 rows %+v", few, many)
	}
	// Each way: q, k and v; attention; its output; gate and up; down. Then the logits, and what TopK found in two reads. A read or a write
	// of columns is a launch too, and a read tells it what to do by a write.
	if most := 8*layers + 3; many.Reads > most || many.Launches > 2*most || many.Writes > 2*most+1 {
		t.Errorf("%+v for %d layers: want at most %d reads, and twice as many launches and writes", many, layers, most)
	}
}
