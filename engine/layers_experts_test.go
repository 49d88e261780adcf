package engine_test

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/naive"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestLayersOfExperts: a mixture with some or all of its layers on another device gives the bits of one device, and tells what was chosen.
func TestLayersOfExperts(t *testing.T) {
	n := naive.Tiny("qwen3moe", 3)
	n.Generate(3)
	path := n.Write(t, t.TempDir())
	near := testdevice.CPU(t, 2)
	both := layers.New(layers.Config{Near: near, Far: testdevice.CPU(t, 1)})
	o := engine.Options{KVPages: 24, MaxRows: 512, Device: near}
	plain := enginetest.Open(t, path, o)
	want := enginetest.Dialogue(t, plain, 40)
	for count := 1; count <= 3; count++ {
		o.Device = enginetest.Fixed{Device: both.With(count)}
		m := enginetest.Open(t, path, o)
		if err := enginetest.SameBits(enginetest.Dialogue(t, m, 40), want); err != nil {
			t.Errorf("%d layers elsewhere: %v", count, err)
		}
		e := enginetest.Forward(t, m, 0, engine.Part{Seq: enginetest.NewSeq(t, m, 9, 0),
			Extend: enginetest.RandomTokens(rand.New(rand.NewPCG(1, 2)), m, 9)}).Experts()
		if err := e.Validate(9); err != nil || e == nil || int(e[0]) != m.Passes().Work().Experts {
			t.Errorf("%d layers elsewhere: experts %v (%v), want %d of one row", count, e, err, m.Passes().Work().Experts)
		}
	}
}
