package engine

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestLayersOfExperts: a mixture with some or all of its layers on another device gives the bits of one device, and tells what was chosen.
func TestLayersOfExperts(t *testing.T) {
	n := tiny("qwen3moe", 3)
	n.generate(3)
	path := n.write(t, t.TempDir())
	near := testdevice.CPU(t, 2)
	both := layers.New(layers.Config{Near: near, Far: testdevice.CPU(t, 1)})
	o := Options{KVPages: 24, MaxRows: 512, Device: near}
	plain := openTest(t, path, o)
	want := dialogue(t, plain, 40)
	for count := 1; count <= 3; count++ {
		o.Device = fixed{both.With(count)}
		m := openTest(t, path, o)
		if err := sameBits(dialogue(t, m, 40), want); err != nil {
			t.Errorf("%d layers elsewhere: %v", count, err)
		}
		e := forward(t, m, 0, Part{Seq: newSeq(t, m, 9, 0), Extend: randomTokens(rand.New(rand.NewPCG(1, 2)), m, 9)}).Experts()
		if err := e.Validate(9); err != nil || e == nil || int(e[0]) != m.Passes().Work().Experts {
			t.Errorf("%d layers elsewhere: experts %v (%v), want %d of one row", count, e, err, m.Passes().Work().Experts)
		}
	}
}
