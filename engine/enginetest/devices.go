package enginetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/kernels/stream"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// Dialogue runs two sequences, one with a long prefix, with trees, commits and a roll back, and returns all logits: the same
// passes on any device.
func Dialogue(t *testing.T, m *engine.Model, long int) (logits []float32) {
	t.Helper()
	r := rand.New(rand.NewPCG(8, 8))
	a, b := NewSeq(t, m, long+32, 16), NewSeq(t, m, 64, 16)
	defer a.Close()
	defer b.Close()
	keep := func(o *engine.Output) {
		for i := range o.Len() {
			logits = append(append(logits, o.Logits(i)...), o.Top(i).Logits...)
		}
	}
	keep(Forward(t, m, 3, engine.Part{Seq: a, Extend: RandomTokens(r, m, long), Want: engine.WantTail}))
	tree := func(s *engine.Sequence) engine.Part {
		return engine.Part{Seq: s, Nodes: RandomTokens(r, m, 4), Parents: []int32{-1, 0, 0, 1}, Want: engine.WantTail}
	}
	keep(Forward(t, m, 3, tree(a), engine.Part{Seq: b, Extend: RandomTokens(r, m, 3), Want: engine.WantAll}))
	if err := a.Commit([]int32{0, 2}); err != nil { // a row that has to be copied
		t.Fatal(err)
	}
	keep(Forward(t, m, 3, tree(a), tree(b)))
	if err := a.Truncate(long - 1); err != nil {
		t.Fatal(err)
	}
	keep(Forward(t, m, 3, engine.Part{Seq: a, Extend: []tandem.Token{5}, Want: engine.WantTail}))
	return logits
}

// Unshared hides that a device can share memory with another one.
type Unshared struct{ kernels.Device }

// Halves returns a device made of two.
func Halves(t *testing.T, left, right kernels.Device, all []kernels.Division) *split.Device {
	d, err := split.New(left, right, all)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// SideDevices are one of each kind and instruction set.
func SideDevices(t *testing.T) map[string]kernels.Device {
	gpu, _ := testdevice.GPU(t, emulated.Options{Integrated: true})
	apart, _ := testdevice.GPU(t, emulated.Options{})
	all := map[string]kernels.Device{"ref": testdevice.Ref(), "cuda": gpu,
		"layers": layers.New(layers.Config{Near: testdevice.CPU(t, 1), Far: apart, Budget: 512 << 20}),
		"split":  Halves(t, testdevice.CPU(t, 2), testdevice.CPU(t, 1), nil)}
	for _, isa := range cpu.Supported() {
		all[fmt.Sprint("cpu ", isa)] = testdevice.ISA(t, 2, isa)
	}
	return all
}

// Fixed hides that a device suits itself to models.
type Fixed struct{ kernels.Device }

// keptIn returns a stream.Config.Keep that keeps one file in a folder.
func keptIn(dir string) func(context.Context, stream.Request) (string, func() error, error) {
	return func(ctx context.Context, r stream.Request) (string, func() error, error) {
		path := filepath.Join(dir, "packed")
		if r.Check(path) != nil {
			os.Remove(path)
			if err := r.Make(ctx, path, nil); err != nil {
				return "", nil, err
			}
		}
		return path, func() error { return nil }, nil
	}
}

// Streaming returns a device with so much memory for weights.
func Streaming(t *testing.T, memory int64, dir string) *stream.Device {
	c := stream.Config{Memory: memory, Pack: cpu.Pack}
	if dir != "" {
		c.Keep = keptIn(dir)
	}
	return stream.New(testdevice.CPU(t, 2), c)
}

// Least returns the least memory for weights with which a model can be streamed.
func Least(t *testing.T, path string, o engine.Options) int64 {
	o.Device = Streaming(t, 0, "")
	_, err := engine.Measure(path, o)
	var small *kernels.TooSmall
	if !errors.As(err, &small) {
		t.Fatalf("no memory at all: %v", err)
	}
	return small.Least
}

// WeightsOf returns the bytes of the weights of a model.
func WeightsOf(t *testing.T, path string, o engine.Options) int64 {
	need, err := engine.Measure(path, o)
	if err != nil {
		t.Fatal(err)
	}
	return need.Weights
}
