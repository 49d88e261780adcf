package arch_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/naive"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestArchitectures compares every architecture and feature with the formulas in float64.
func TestArchitectures(t *testing.T) {
	for name, c := range naive.Cases() {
		t.Run(name, func(t *testing.T) {
			c.Model.Generate(uint64(len(name)))
			m := enginetest.Open(t, c.Model.Write(t, t.TempDir()), engine.Options{KVPages: engine.PagesFor(1, 512, 0), MaxRows: 512})
			tokens := enginetest.RandomTokens(rand.New(rand.NewPCG(5, 5)), m, c.Tokens)
			got := enginetest.Forward(t, m, 0, engine.Part{Seq: enginetest.NewSeq(t, m, c.Tokens, 0), Extend: tokens, Want: engine.WantAll})
			rms, worst := enginetest.Distance(got, c.Model.Forward(tokens))
			t.Logf("logits are %.2g (r.m.s.) and at most %.2g from the formulas'", rms, worst)
			tolerance := 2e-4 * math.Sqrt(float64(c.Model.Layers())) // roundings add up
			if rms > tolerance || worst > 100*tolerance || rms != rms {
				t.Errorf("want r.m.s. %.2g, at most %.2g", tolerance, 100*tolerance)
			}
			c.Without(c.Model)
			if rms, _ := enginetest.Distance(got, c.Model.Forward(tokens)); !(rms > 20*tolerance) {
				t.Errorf("without its feature the model's logits are only %.2g away: the case shows nothing", rms)
			}
		})
	}
}

// TestArchitecturesExact: on models of every architecture a row alone equals the row in a wide pass of several
// sessions with trees, and all instruction sets give the same bits.
func TestArchitecturesExact(t *testing.T) {
	cases := naive.Cases()
	for _, name := range naive.EveryArchitecture {
		t.Run(name, func(t *testing.T) {
			c := cases[name].Model
			c.Generate(3)
			path := c.Write(t, t.TempDir())
			var first []float32
			enginetest.CompareTrees(t, enginetest.Open(t, path, engine.Options{KVPages: engine.PagesFor(5, 320, 64)}),
				rand.New(rand.NewPCG(1, 9)), 25)
			for _, o := range enginetest.ExactOptions(t) {
				m := enginetest.Open(t, path, o)
				tokens := enginetest.RandomTokens(rand.New(rand.NewPCG(2, 9)), m, 50)
				logits := enginetest.InPieces(t, m, tokens, []int{50})
				if err := enginetest.SameBits(logits, enginetest.InPieces(t, m, tokens, []int{1, 20, 3, 26})); err != nil {
					t.Errorf("%v: in pieces: %v", m.About().Kernels, err)
				}
				if first == nil {
					first = logits
				}
				if err := enginetest.SameBits(first, logits); err != nil {
					t.Errorf("%v with %d threads: %v", m.About().Kernels, m.About().Threads, err)
				}
			}
		})
	}
}

// TestContextChoosesFactors: LongRoPE's long factors serve contexts beyond that of training, its short ones others.
func TestContextChoosesFactors(t *testing.T) {
	cases := naive.Cases()
	long, short := cases["phi3 long"].Model, cases["phi3 short"].Model
	long.Generate(1)
	short.Weights, short.Shapes = long.Weights, long.Shapes
	path := long.Write(t, t.TempDir())
	for context, model := range map[int]*naive.Model{0: long, 129: long, 128: short} {
		m := enginetest.Open(t, path, engine.Options{Context: context, KVPages: 4})
		tokens := enginetest.RandomTokens(rand.New(rand.NewPCG(6, 6)), m, 30)
		got := enginetest.Forward(t, m, 0, engine.Part{Seq: enginetest.NewSeq(t, m, 30, 0), Extend: tokens, Want: engine.WantAll})
		if rms, _ := enginetest.Distance(got, model.Forward(tokens)); !(rms < 3e-4) {
			t.Errorf("context %d: logits are %.2g from the formulas'", context, rms)
		}
	}
	m := enginetest.Open(t, path, engine.Options{Context: 128})
	if _, err := m.NewSequence(129, 0); tandem.KindOf(err) != tandem.Invalid || m.Config().Context != 128 {
		t.Errorf("129 positions of %d: error %v: want kind invalid", m.Config().Context, err)
	}
	if _, err := engine.Open(path, engine.Options{Device: testdevice.CPU(t, 0), Context: -1}); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("context -1: error %v: want kind invalid", err)
	}
}
