package layers_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestPrograms: every program gives the bits of the definitions with no layer, some, or all on another group of cores, with other kernels,
// and on an emulated GPU.
func TestPrograms(t *testing.T) {
	sets := cpu.Supported()
	cores := layers.New(layers.Config{Near: testdevice.CPU(t, 2), Far: testdevice.ISA(t, 1, sets[max(0, len(sets)-2)])})
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	mixed := layers.New(layers.Config{Near: testdevice.CPU(t, 1), Far: gpu})
	kerneltest.Programs(t, cores.With(1), cores.With(2), mixed.With(5))
}

// counting counts what crosses to and from a device, and in how many pieces its passes run.
type counting struct {
	kernels.Device
	in, out, runs int
	rows          int // most that crossed
}

func (d *counting) Compile(p *kernels.Program, w kernels.Weights, c kernels.Cache) (kernels.Runner, error) {
	r, err := d.Device.Compile(p, w, c)
	return &counted{r, d}, err
}

type counted struct {
	kernels.Runner
	dev *counting
}

func (r *counted) ReadRows(b kernels.Buf, n int, cols kernels.Range, dst []float32) error {
	r.dev.out, r.dev.rows = r.dev.out+1, max(r.dev.rows, n)
	return kernels.ReadRows(r.Runner, b, n, cols, dst)
}

func (r *counted) WriteRows(b kernels.Buf, n int, cols kernels.Range, src []float32) error {
	r.dev.in, r.dev.rows = r.dev.in+1, max(r.dev.rows, n)
	return kernels.WriteRows(r.Runner, b, n, cols, src)
}

func (r *counted) ReadParts(kernels.Parts, []kernels.Range, []float32) error {
	return errors.ErrUnsupported
}
func (r *counted) WriteParts(kernels.Parts, []kernels.Range, []float32) error {
	return errors.ErrUnsupported
}

func (r *counted) Stages(from, to int) error {
	r.dev.runs++
	return r.Runner.(kernels.StagesRunner).Stages(from, to)
}

// TestCrossings: with any number of layers on the far device the bits are those of one device, and the hidden states of the pass's rows
// cross once each way, a tapped state once more.
func TestCrossings(t *testing.T) {
	m := newModel(5, 1, 3, 5)
	want := m.on(t, testdevice.CPU(t, 1)).run(t)
	for n, taps := range []int{0, 1, 1, 2, 2, 3} { // that of the last far layer is copied on the near device
		if n > 0 && slices.Contains([]int{1, 3, 5}, n) {
			taps--
		}
		gpu, _ := testdevice.GPU(t, emulated.Options{})
		for _, to := range []kernels.Device{testdevice.CPU(t, 1), gpu} {
			far := &counting{Device: to}
			d := layers.New(layers.Config{Near: testdevice.CPU(t, 1), Far: far}).With(n)
			if got := m.on(t, d).run(t); kerneltest.FirstDifference(got, want) >= 0 {
				t.Errorf("%v: the results differ from those of one device", d.About())
			}
			cross := min(n, 1) * 4
			if far.in != cross || far.out != cross+4*taps || far.runs != cross || n > 0 && far.rows != maxRows {
				t.Errorf("%v: in 4 passes %d copies there, %d back, %d runs, of %d rows at most: want %d, %d, %d and %d", d.About(), far.in,
					far.out, far.runs, far.rows, cross, cross+4*taps, cross, maxRows)
			}
		}
	}
}

// TestStageByStage: passes that are run stage by stage, with rows that the caller changes in between, give the bits of one device.
func TestStageByStage(t *testing.T) {
	m := newModel(4, 2)
	run := func(d kernels.Device) (all []float32) {
		l := m.on(t, d)
		for _, rows := range []int{3, 9} {
			a := pass(0, rows)
			if err := l.runner.Start(a); err != nil {
				t.Fatal(err)
			}
			for i := range m.StageCount() {
				if err := l.runner.Stage(i); err != nil {
					t.Fatal(err)
				}
				x := l.runner.Row(m.x, 1)
				x[0] += float32(i) / 4
				all = append(all, x...)
			}
			all = append(all, l.results(a)...)
		}
		return all
	}
	want := run(testdevice.CPU(t, 1))
	gpu, _ := testdevice.GPU(t, emulated.Options{Integrated: true})
	d := layers.New(layers.Config{Near: testdevice.CPU(t, 1), Far: gpu})
	for n := 1; n <= 4; n++ {
		if i := kerneltest.FirstDifference(run(d.With(n)), want); i >= 0 {
			t.Errorf("%d layers: number %d differs", n, i)
		}
	}
}

// TestFit: as many layers as the budget holds with the whole cache, and no device has memory for the other's layers.
func TestFit(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{Memory: 64 << 20})
	m := newModel(6)
	host := testdevice.CPU(t, 1)
	var told []layers.Placement
	with := func(budget int64) *layers.Device {
		return layers.New(layers.Config{Near: host, Far: gpu, Budget: budget, Tell: func(p layers.Placement) { told = append(told, p) }})
	}
	one := *m.Program
	for i := range one.Weights {
		one.Weights[i].Layout = host.Layout(one.Weights[i].Type)
	}
	whole, err := host.Footprint(&one)
	if err != nil {
		t.Fatal(err)
	}
	last := int64(0)
	for n := 1; n <= 6; n++ {
		f, err := with(0).With(n).Footprint(&one)
		if err != nil {
			t.Fatal(err)
		}
		need := f.Own.Total(pages)
		if need <= last || f.Page != whole.Page*int64(6-n)/6 || f.Weights >= whole.Weights {
			t.Errorf("%d layers: %+v beside %+v on one device", n, f, whole)
		}
		for budget, want := range map[int64]int{need: n, need - 1: n - 1} {
			d, err := with(budget).Fit(&one, pages)
			if want == 0 {
				if err == nil || !strings.Contains(err.Error(), "holds no layer: one takes") {
					t.Errorf("a budget of %d: %v, want that it holds no layer", budget, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			told = nil
			l := m.on(t, d)
			if len(told) != 1 || told[0].Layers != want || told[0].Of != 6 || told[0].Weights+told[0].KV+told[0].Buffers > budget {
				t.Errorf("a budget of %d: told %v, want %d layers", budget, told, want)
			}
			if g, err := d.Footprint(&one); err != nil || l.store.Bytes() > g.Weights+g.Own.Weights+8*256*6+64*64 ||
				l.cache.Bytes() != pages*(g.Page+g.Own.Page) {
				t.Errorf("weights of %d bytes and a cache of %d in %d pages: planned %+v, %v", l.store.Bytes(), l.cache.Bytes(), pages, g,
					err)
			}
		}
		last = need
	}
	if _, err := with(65<<20).Fit(&one, pages); err == nil || !strings.Contains(err.Error(), "--gpu-memory is 65.0 MiB, but") {
		t.Errorf("a budget above what is free: %v", err)
	}
	d, err := with(5<<18).Fit(&one, 100)
	if err != nil {
		t.Fatal(err)
	}
	few, err := with(5<<18).Fit(&one, 8)
	if err != nil {
		t.Fatal(err)
	}
	if many := d.About().Kernels; !strings.HasPrefix(many, "1 on cuda") || strings.HasPrefix(few.About().Kernels, "1 on cuda") {
		t.Errorf("with 100 pages %q, with 8 %q: want one layer, and more", many, few.About().Kernels)
	}
}

// TestShared: layers that read the keys and values of an earlier one are on its device, and a number that would divide them does not fit.
func TestShared(t *testing.T) {
	m := newModel(4)
	m.KV.Layers[2] = kernels.KVLayer{Shared: true, Source: 1}
	m.Ops = slices.DeleteFunc(m.Ops, func(o kernels.Op) bool { s, ok := o.(kernels.StoreKV); return ok && s.Layer == 2 })
	m.Stages = nil
	for i, o := range m.Ops {
		if i == 0 {
			m.Program.Stages = append(m.Program.Stages, kernels.Stage{})
		} else if _, ok := o.(kernels.RMSNorm); ok {
			m.Program.Stages = append(m.Program.Stages, kernels.Stage{First: i})
		}
	}
	want := m.on(t, testdevice.CPU(t, 1)).run(t)
	all := layers.New(layers.Config{Near: testdevice.CPU(t, 1), Far: testdevice.CPU(t, 1), Budget: 1 << 30})
	for n := range 5 {
		if got := m.on(t, all.With(n)).run(t); kerneltest.FirstDifference(got, want) >= 0 {
			t.Errorf("%d layers: the results differ from those of one device", n)
		}
	}
	own := *m.Program
	for i := range own.Weights {
		own.Weights[i].Layout = all.Layout(own.Weights[i].Type)
	}
	three, err := all.With(3).Footprint(&own)
	if err != nil {
		t.Fatal(err)
	}
	one, err := all.With(0).Footprint(&own)
	if err != nil {
		t.Fatal(err)
	}
	for budget := one.Total(pages) / 8; budget < three.Total(pages); budget += one.Total(pages) / 16 {
		d, err := layers.New(layers.Config{Near: all.Near, Far: all.Far, Budget: budget}).Fit(&own, pages)
		if err == nil && strings.HasPrefix(d.About().Kernels, "2 on") {
			t.Errorf("a budget of %d: %v, which divides layers 1 and 2", budget, d.About())
		}
	}
}

// TestLoan: a program borrows the output matrix, which is near; one that is far cannot be borrowed for the near device.
func TestLoan(t *testing.T) {
	d := layers.New(layers.Config{Near: testdevice.CPU(t, 1), Far: testdevice.CPU(t, 1)}).With(2)
	l := newModel(2).on(t, d)
	borrow := func(w kernels.W) (kernels.Runner, error) {
		p := kernels.NewProgram(2, 0)
		x := l.Weights[w]
		in, act, out := p.Buf(x.Cols), p.Act(x.Cols), p.Buf(x.Rows)
		p.Feed(in, act)
		p.MatMul(p.Weight(x), act, out, kernels.MatMulOpt{})
		loan, err := kernels.Borrow(p, l.Program, l.store, []kernels.W{w})
		if err != nil {
			t.Fatal(err)
		}
		return d.Compile(p, loan, nil)
	}
	r, err := borrow(l.head)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Run(&kernels.Pass{Rows: 1}); err != nil {
		t.Error(err)
	}
	if _, err := borrow(l.down); err == nil || !strings.Contains(err.Error(), "lies on the other") {
		t.Errorf("a matrix of a far layer borrowed: %v", err)
	}
}

// TestLostFar: when the GPU is lost in the middle of a pass, the pass fails and says which side it was; so does the next, and everything
// can still be closed.
func TestLostFar(t *testing.T) {
	gpu, driver := testdevice.GPU(t, emulated.Options{})
	d := layers.New(layers.Config{Near: testdevice.CPU(t, 1), Far: gpu}).With(2)
	l := newModel(4).on(t, d)
	if err := l.runner.Run(pass(0, 3)); err != nil || d.Lost() != nil {
		t.Fatal(err, d.Lost())
	}
	driver.FailLaunch(7)
	for range 2 {
		err := l.runner.Run(pass(3, 3))
		if err == nil || !strings.Contains(err.Error(), "the far device (cuda): cuda: emulated GPU is lost") {
			t.Errorf("a pass whose far side is lost: %v", err)
		}
	}
	select {
	case <-d.Gone():
	default:
		t.Error("the far device is lost, but this one is not gone")
	}
	if err := d.Lost(); err == nil || !strings.Contains(err.Error(), "is lost") {
		t.Errorf("lost: %v", err)
	}
}

// TestOutOfMemory: memory that the GPU does not have is an error that wraps its own, and leaves nothing behind.
func TestOutOfMemory(t *testing.T) {
	gpu, driver := testdevice.GPU(t, emulated.Options{Memory: 8 << 20})
	d := layers.New(layers.Config{Near: testdevice.CPU(t, 1), Far: gpu, Budget: 6 << 20})
	m := newModel(3)
	for i := range m.Weights {
		m.Weights[i].Layout = d.Layout(m.Weights[i].Type)
	}
	fitted, err := d.Fit(m.Program, pages)
	if err != nil {
		t.Fatal(err)
	}
	driver.TakeMemory(8 << 20)
	for what, try := range map[string]func() error{
		"weights": func() error { _, err := fitted.NewWeights(m.Program); return err },
		"a cache": func() error { _, err := fitted.NewCache(m.KV, 4000); return err },
	} {
		if err := try(); !errors.As(err, new(*kernels.OutOfMemory)) || !strings.Contains(fmt.Sprint(err), "the far device") {
			t.Errorf("%s: %v, want that the far device has no memory", what, err)
		}
	}
	if _, err := d.Fit(m.Program, pages); err == nil || !strings.Contains(err.Error(), "has 0.0 MiB free") {
		t.Errorf("a budget when others hold the memory: %v", err)
	}
}
