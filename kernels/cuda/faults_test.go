package cuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// small is a product of 64 by 64 with its weights, and the buffers that it reads and fills.
type small struct {
	*kernels.Program
	in, out kernels.Buf
}

func newSmall(rows int) small {
	p := kernels.NewProgram(rows, 0)
	s := small{p, p.Buf(64), p.Buf(64)}
	act := p.Act(64)
	p.Feed(s.in, act)
	w := p.Weight(kernels.Weight{Name: "w", Type: kernels.Q8_0, Rows: 64, Cols: 64, Layout: kernels.Groups32})
	p.MatMul(w, act, s.out, kernels.MatMulOpt{})
	return s
}

func (s small) compile(d kernels.Device) (kernels.Runner, kernels.Store, error) {
	w, err := d.NewWeights(s.Program)
	if err != nil {
		return nil, nil, err
	}
	r, err := d.Compile(s.Program, w, nil)
	return r, w, err
}

// TestLostDevice: a launch that fails in the middle of a pass, alone or in a graph, is an error that names the device; so is all that
// follows, and closing still works.
func TestLostDevice(t *testing.T) {
	for _, passes := range []int{1, 4} { // from the third pass on it is a graph
		d, driver := testdevice.GPU(t, emulated.Options{})
		s := newSmall(4)
		r, w, err := s.compile(d)
		if err != nil {
			t.Fatal(err)
		}
		for i := range passes {
			if i == passes-1 {
				driver.FailLaunch(2)
			}
			err = r.Run(&kernels.Pass{Rows: 4})
		}
		if err == nil || !strings.Contains(err.Error(), "is lost") || d.Lost() == nil {
			t.Fatalf("a failing launch: error %v, lost %v", err, d.Lost())
		}
		select {
		case <-d.Gone():
		default:
			t.Error("the device is lost, but not gone")
		}
		if again := r.Run(&kernels.Pass{Rows: 4}); again == nil || again.Error() != err.Error() {
			t.Errorf("a pass on a lost device: %v, want %v", again, err)
		}
		if _, err := d.NewWeights(s.Program); err == nil {
			t.Error("a lost device gave memory")
		}
		if x := r.Row(s.out, 0); len(x) != 64 {
			t.Errorf("a row of a lost device has %d numbers", len(x))
		}
		r.Close()
		w.Close()
		d.Close()
	}
}

// TestCoupleOutOfMemory: however little memory there is for the GPU's half of a couple, it is refused, and the device goes on.
func TestCoupleOutOfMemory(t *testing.T) {
	gpu, driver := testdevice.GPU(t, emulated.Options{Integrated: true, Memory: 64 << 20})
	d, failed := pair(t, gpu, testdevice.CPU(t, 1)), 0
	free, _, err := gpu.Free()
	if err != nil {
		t.Fatal(err)
	}
	s := newSmall(64)
	for i := range s.Weights {
		s.Weights[i].Layout = d.Layout(s.Weights[i].Type)
	}
	for left := int64(0); left < 1<<20; left += 16 << 10 {
		driver.TakeMemory(free - left)
		r, w, err := s.compile(d)
		if gpu.Lost() != nil {
			t.Fatalf("with %d bytes: %v", left, gpu.Lost())
		}
		if m := (*cuda.OutOfMemory)(nil); err != nil && !errors.As(err, &m) {
			t.Errorf("with %d bytes: %v", left, err)
		}
		if err != nil {
			failed++
		} else {
			r.Close()
		}
		if w != nil {
			w.Close()
		}
	}
	if failed < 2 || failed == 64 {
		t.Errorf("%d of 64 failed: want some, not all", failed)
	}
}

// TestOutOfMemory: what does not fit is refused with what is free, at the start and later, and the device goes on.
func TestOutOfMemory(t *testing.T) {
	d, driver := testdevice.GPU(t, emulated.Options{Memory: 64 << 20})
	s := newSmall(4)
	r, _, err := s.compile(d)
	if err != nil {
		t.Fatal(err)
	}
	wantMemory := func(what string, err error) {
		t.Helper()
		if m := (*cuda.OutOfMemory)(nil); !errors.As(err, &m) || !strings.Contains(err.Error(), "MB are free") || d.Lost() != nil {
			t.Errorf("%s: %v (lost: %v), want that there is no memory", what, err, d.Lost())
		}
	}
	_, err = d.NewCache(kernels.UniformKV(1, 8, 64, kernels.KVF16), 1<<12)
	wantMemory("a cache", err)
	large := kernels.NewProgram(1, 0)
	in, act, out := large.Buf(4096), large.Act(4096), large.Buf(1<<15)
	large.Feed(in, act)
	large.MatMul(large.Weight(kernels.Weight{Name: "w", Type: kernels.Q8_0, Rows: 1 << 15, Cols: 4096, Layout: kernels.Groups32}), act, out,
		kernels.MatMulOpt{})
	_, err = d.NewWeights(large)
	wantMemory("weights", err)
	driver.TakeMemory(64 << 20)
	_, _, err = newSmall(64).compile(d)
	wantMemory("a second program while others hold the memory", err)
	if err := r.Run(&kernels.Pass{Rows: 4}); err != nil {
		t.Errorf("a pass afterwards: %v", err)
	}
}

// TestClosedDevice: a closed device refuses everything, and closing what it made, or it again, does nothing.
func TestClosedDevice(t *testing.T) {
	d, _ := testdevice.GPU(t, emulated.Options{})
	s := newSmall(1)
	r, w, err := s.compile(d)
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	if err := r.Run(&kernels.Pass{Rows: 1}); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("a pass on a closed device: %v", err)
	}
	r.Close()
	w.Close()
	d.Close()
}

// TestOpenErrors: what the driver says at its start is the error of New, and no goroutine stays behind.
func TestOpenErrors(t *testing.T) {
	want := errors.New("no driver")
	if _, err := cuda.New(func() (cuda.Driver, error) { return nil, want }); err != want {
		t.Errorf("%v, want %v", err, want)
	}
}

// TestPackInPieces: rows may come in pieces of 16, in any order, on a device with memory of its own.
func TestPackInPieces(t *testing.T) {
	d, _ := testdevice.GPU(t, emulated.Options{})
	const rows, cols = 90, 288
	p := kernels.NewProgram(1, 0)
	w := p.Weight(kernels.Weight{Name: "w", Type: kernels.Q5_0, Rows: rows, Cols: cols, Layout: kernels.Groups32})
	in, act, out := p.Buf(cols), p.Act(cols), p.Buf(rows)
	p.Feed(in, act)
	p.MatMul(w, act, out, kernels.MatMulOpt{})
	src := kerneltest.RandomRows(rand.New(rand.NewPCG(1, 7)), kernels.Q5_0, rows, cols)
	perRow := len(src) / rows
	var views [2][]byte
	for i, pieces := range [][]int{{0, 90}, {80, 90, 16, 48, 0, 16, 64, 80, 48, 64}} {
		s, err := d.NewWeights(p)
		if err != nil {
			t.Fatal(err)
		}
		for j := 0; j < len(pieces); j += 2 {
			if err := s.Pack(w, pieces[j], src[pieces[j]*perRow:pieces[j+1]*perRow]); err != nil {
				t.Fatal(err)
			}
		}
		all, err := s.Acquire(0, nil)
		if err != nil {
			t.Fatal(err)
		}
		views[i] = all[0]
		s.Close()
	}
	if string(views[0]) != string(views[1]) {
		t.Error("rows packed in pieces differ from rows packed at once")
	}
	s, err := d.NewWeights(p)
	if err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]struct {
		w        kernels.W
		row, len int
	}{"weight 1 of 1": {1, 0, perRow}, "multiple of a row's 198": {0, 0, 5}, "rows 8 to 8": {0, 8, perRow},
		"rows 80 to 95": {0, 80, 16 * perRow}, "packing 8 rows": {0, 0, 8 * perRow}, "packing 0 bytes": {0, 0, 0}} {
		if err := s.Pack(c.w, c.row, src[:c.len]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", fmt.Sprint(c), err)
		}
	}
}
