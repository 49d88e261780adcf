package engine

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// counted is a driver that counts its calls.
type counted struct {
	cuda.Driver
	calls map[string]int
}

func (c counted) Write(to cuda.Pointer, src []byte) error {
	c.calls["write"]++
	return c.Driver.Write(to, src)
}

func (c counted) Read(dst []byte, from cuda.Pointer) error {
	c.calls["read"]++
	return c.Driver.Read(dst, from)
}

func (c counted) Launch(kernel string, s cuda.Shape, op, pass cuda.Pointer) error {
	if kernel == "pack" || kernel == "unpack" {
		c.calls[kernel]++
	}
	return c.Driver.Launch(kernel, s, op, pass)
}

// TestExchangeIsBounded: a pass that is divided between the processor and a GPU with memory of its own makes as many calls of the GPU's
// driver whatever its rows, and few for each layer.
func TestExchangeIsBounded(t *testing.T) {
	driver := counted{emulated.Open(t, emulated.Options{}), map[string]int{}}
	gpu, err := cuda.New(func() (cuda.Driver, error) { return driver, nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gpu.Close)
	m := openTest(t, targetPath, Options{KVPages: 4, MaxRows: 64, Device: halves(t, testdevice.CPU(t, 1), gpu, split.Plan{})})
	seq := newSeq(t, m, 128, 64)
	defer seq.Close()
	count := func(rows int) map[string]int {
		tokens := randomTokens(rand.New(rand.NewPCG(1, 2)), m, rows)
		for range 2 { // the first makes room
			clear(driver.calls)
			forward(t, m, 3, Part{Seq: seq, Extend: tokens, Want: WantTail})
			if err := seq.Truncate(0); err != nil {
				t.Fatal(err)
			}
		}
		return maps.Clone(driver.calls)
	}
	layers := m.config.Layers
	few, many := count(3), count(64)
	if !maps.Equal(few, many) {
		t.Errorf("a pass of 3 rows makes %v calls, one of 64 rows %v", few, many)
	}
	// q, k and v; attention; its output; gate and up; down; then the logits, and what TopK found in two reads
	if most := 8*layers + 3; many["read"] > most || many["unpack"] > most || many["write"] > 2*most+1 {
		t.Errorf("%v calls for %d layers: want at most %d reads, as many unpack, and twice as many writes", many, layers, most)
	}
}
