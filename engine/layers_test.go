package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// budgets returns, for the model at path, the least budgets that hold 1, 2 … of its layers on d's far device.
func budgets(t *testing.T, path string, o Options, d *layers.Device) (all []int64) {
	t.Helper()
	info, err := Inspect(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= info.Config.Layers; n++ {
		o.Device = fixed{d.With(n)}
		p, err := Measure(path, o)
		if err != nil {
			t.Fatal(err)
		}
		o.Device = fixed{d.With(0)}
		none, err := Measure(path, o)
		if err != nil {
			t.Fatal(err)
		}
		if p.Own == (kernels.Space{}) || p.Weights >= none.Weights || p.PageBytes >= none.PageBytes {
			t.Fatalf("%s: %d layers on the GPU take %+v, none %+v", path, n, p, none)
		}
		all = append(all, p.Own.Total(o.KVPages))
	}
	return all
}

// fixed hides that a device suits itself to models.
type fixed struct{ kernels.Device }

// TestLayers: whole models of every architecture with some of their layers on another device, or all of them, give the bits of one device,
// with keys and values in both types.
func TestLayers(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	sets := cpu.Supported()
	near := testdevice.CPU(t, 2)
	onGPU := layers.New(layers.Config{Near: near, Far: gpu})
	onCores := layers.New(layers.Config{Near: near, Far: testdevice.ISA(t, 1, sets[max(0, len(sets)-2)])})
	same := func(name, path, kvType string, long int, d *layers.Device, counts ...int) {
		o := Options{KVType: kvType, KVPages: 24, MaxRows: 512, Device: near}
		want := dialogue(t, openTest(t, path, o), long)
		for _, n := range counts {
			o.Device = fixed{d.With(n)}
			if d == onGPU {
				c := d.Config
				c.Budget = budgets(t, path, o, d)[n-1]
				o.Device = layers.New(c)
			}
			m := openTest(t, path, o)
			if about := m.About().Kernels; !strings.HasPrefix(about, fmt.Sprintf("%d on ", n)) {
				t.Errorf("%s: %s, want %d layers on the other device", name, about, n)
			}
			if err := sameBits(dialogue(t, m, long), want); err != nil {
				t.Errorf("%s, %s: %v", name, m.About().Kernels, err)
			}
		}
	}
	for name, c := range archCases() {
		c.model.generate(3)
		same(name, c.model.write(t, t.TempDir()), "f16", 40, onCores, 1)
	}
	same("target", targetPath, "f16", 270, onCores, 1, 2, 3)
	same("target", targetPath, "f16", 30, onGPU, 2, 4)
	same("draft", draftPath, "q8_0", 40, onGPU, 1)
}

// TestLayersMemory: a budget that holds no layer, or is more than the GPU has, is refused before anything is allocated, with the figures;
// one that holds more has more layers there.
func TestLayersMemory(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{Memory: 1 << 30})
	c := layers.Config{Near: testdevice.CPU(t, 1), Far: gpu}
	o := Options{KVPages: 8, MaxRows: 16}
	all := budgets(t, targetPath, o, layers.New(c))
	for budget, want := range map[int64]string{
		all[0] - 1: "which holds no layer: one takes " + Bytes(all[0]), 2 << 30: "emulated GPU has 1.0 GiB free"} {
		c.Budget = budget
		o.Device = layers.New(c)
		for _, err := range []error{second(Measure(targetPath, o)), second(Open(targetPath, o))} {
			if tandem.KindOf(err) != tandem.Exhausted || !strings.Contains(err.Error(), want) {
				t.Errorf("a budget of %s: %v, want kind exhausted and %q", Bytes(budget), err, want)
			}
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestOwnMemory: what a GPU with memory of its own takes is compared with that, not with the machine's; what one without takes is the
// machine's.
func TestOwnMemory(t *testing.T) {
	small, _ := testdevice.GPU(t, emulated.Options{Memory: 4 << 20})
	o := Options{Device: small, KVPages: 8, MaxRows: 16}
	p, err := Measure(draftPath, o)
	if err != nil {
		t.Fatal(err)
	}
	if p.Total() != ProcessBytes || p.Own.Weights == 0 || p.Own.Page == 0 || p.Own.Buffers == 0 {
		t.Errorf("on a GPU %+v, want all of it in the GPU's memory", p)
	}
	_, err = Open(draftPath, o)
	if tandem.KindOf(err) != tandem.Exhausted || !strings.Contains(err.Error(), "MB are free") ||
		!strings.Contains(err.Error(), "needs "+p.OwnString()+" of the GPU's memory") {
		t.Errorf("a GPU with too little memory: %v", err)
	}
	shared, _ := testdevice.GPU(t, emulated.Options{Integrated: true})
	o.Device = shared
	if q, err := Measure(draftPath, o); err != nil || q.Own != (kernels.Space{}) || q.Weights != p.Own.Weights {
		t.Errorf("on a GPU that shares the memory %+v, %v; apart %+v", q, err, p)
	}
}
