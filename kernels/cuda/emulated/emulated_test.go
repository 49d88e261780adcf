package emulated_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/cuda/src"
)

// testKernels are the sources of testdata with device.h.
func testKernels(t testing.TB) fs.FS {
	t.Helper()
	header, err := fs.ReadFile(src.Files, "device.h")
	if err != nil {
		t.Fatal(err)
	}
	kernels, err := os.ReadFile("testdata/tandem.cu")
	if err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{"device.h": {Data: header}, "tandem.cu": {Data: kernels}}
}

func open(t testing.TB, o emulated.Options) rig {
	t.Helper()
	if o.Sources == nil {
		o.Sources = testKernels(t)
	}
	return rig{t, emulated.Open(t, o)}
}

// rig is a driver whose errors end the test.
type rig struct {
	t testing.TB
	*emulated.Driver
}

func (r rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r rig) alloc(n int) cuda.Memory {
	r.t.Helper()
	m, err := r.Alloc(n)
	r.must(err)
	return m
}

// upload returns memory with the values.
func upload[T any](r rig, v []T) cuda.Pointer {
	r.t.Helper()
	b, err := binary.Append(nil, binary.NativeEndian, v)
	r.must(err)
	m := r.alloc(len(b))
	r.must(r.Write(m.At, b))
	return m.At
}

func download[T any](r rig, at cuda.Pointer, n int) []T {
	r.t.Helper()
	v := make([]T, n)
	b := make([]byte, binary.Size(v))
	r.must(r.Read(b, at))
	if _, err := binary.Decode(b, binary.NativeEndian, v); err != nil {
		r.t.Fatal(err)
	}
	return v
}

func line(blocks, threads int) cuda.Shape {
	return cuda.Shape{Grid: [3]int{blocks, 1, 1}, Block: [3]int{threads, 1, 1}}
}

func (s rig) launch(kernel string, shape cuda.Shape, in, out cuda.Pointer) {
	s.t.Helper()
	s.must(s.Launch(kernel, shape, in, out))
}

// calc runs a kernel in blocks of 64 threads, a thread for each of n, which reads in and writes a number of outputs each.
func calc[Out, In any](r rig, kernel string, in []In, n, each int) []Out {
	r.t.Helper()
	const threads = 64
	blocks := (n + threads - 1) / threads
	var out Out
	to := r.alloc(blocks * threads * each * binary.Size(out))
	per := len(in) / n
	for len(in) < blocks*threads*per {
		in = append(in, in[len(in)-1])
	}
	r.launch(kernel, line(blocks, threads), upload(r, in), to.At)
	return download[Out](r, to.At, n*each)
}

// TestShapes: every thread of every block runs once and knows its place.
func TestShapes(t *testing.T) {
	r := open(t, emulated.Options{})
	for _, s := range []cuda.Shape{
		line(1, 1), line(7, 33), line(3, 1024),
		{Grid: [3]int{2, 3, 4}, Block: [3]int{5, 6, 7}},
		{Grid: [3]int{1, 9, 1}, Block: [3]int{1, 1, 64}, Shared: 1000},
	} {
		blocks, threads := s.Grid[0]*s.Grid[1]*s.Grid[2], s.Block[0]*s.Block[1]*s.Block[2]
		out := r.alloc(blocks * threads * 32)
		r.launch("where", s, 0, out.At)
		got := download[[2][4]uint32](r, out.At, blocks*threads)
		at := func(i int, of [3]int) (v [4]uint32) {
			return [4]uint32{uint32(i % of[0]), uint32(i / of[0] % of[1]), uint32(i / of[0] / of[1]),
				uint32(of[0]*10000 + of[1]*100 + of[2])}
		}
		for i, g := range got {
			if want := [2][4]uint32{at(i%threads, s.Block), at(i/threads, s.Grid)}; g != want {
				t.Fatalf("%v: thread %d is at %v, want %v", s, i, g, want)
			}
		}
		r.must(r.Release(out))
	}
}

// TestShuffledOrder: blocks and threads run in another order with another seed, and in the same with the same.
func TestShuffledOrder(t *testing.T) {
	const blocks, threads = 20, 96
	run := func(seed uint64) []uint32 {
		r := open(t, emulated.Options{Seed: seed})
		out := r.alloc(4 * (1 + blocks*threads))
		r.launch("order", line(blocks, threads), 0, out.At)
		return download[uint32](r, out.At, 1+blocks*threads)[1:]
	}
	one, again, two := run(1), run(1), run(2)
	if !slices.Equal(one, again) || slices.Equal(one, two) {
		t.Error("want the order to depend on the seed alone")
	}
	sorted := slices.Clone(one)
	slices.Sort(sorted)
	for i, v := range sorted {
		if int(v) != i {
			t.Fatalf("thread %d ran not once", i)
		}
	}
	firsts := map[uint32]bool{}
	for i := 0; i < len(one); i += threads {
		firsts[one[i]%threads] = true
	}
	if len(firsts) < blocks/2 {
		t.Errorf("%d blocks begin with %d different threads, want most different", blocks, len(firsts))
	}
}

func TestShuffles(t *testing.T) {
	for _, threads := range []int{32, 64, 160, 1024} {
		r := open(t, emulated.Options{Seed: uint64(threads)})
		n := 3 * threads
		in := make([]int32, n)
		for i := range in {
			in[i] = int32(i*i%1009) - 500
		}
		out := r.alloc(n * 32)
		r.launch("shuffles", line(3, threads), upload(r, in), out.At)
		got := download[[8]int32](r, out.At, n)
		for i, g := range got {
			lane, warp := i%threads%32, in[i/32*32:i/32*32+32]
			down := func(by int) int32 {
				if lane+by < 32 {
					return warp[lane+by]
				}
				return warp[lane]
			}
			var sum int32
			for _, v := range warp {
				sum += v
			}
			high := int32(uint64(int64(down(3+i%threads/32)) << 20))
			want := [8]int32{warp[5], warp[lane*7%32], warp[lane^1], warp[lane^16], down(1), down(20), sum, high}
			if g != want {
				t.Fatalf("%d threads: thread %d got %v, want %v", threads, i, g, want)
			}
		}
	}
}

// sums is what the kernel of this name computes.
func sums(in []uint32, threads int) (out []uint32) {
	for block := range slices.Chunk(in, threads) {
		var sum uint32
		for turn := range 8 {
			box := make([]uint32, threads)
			for i, v := range block {
				box[(i+turn)%threads] = v * uint32(i+turn)
			}
			for step := threads / 2; step > 0; step /= 2 {
				for i := range step {
					box[i] += box[i+step] * 3
				}
			}
			sum += box[0]
		}
		out = append(out, slices.Repeat([]uint32{sum}, threads)...)
	}
	return out
}

func warpSums(in []uint32, threads int) (out []uint32) {
	for block := range slices.Chunk(in, threads) {
		sum := make([]uint32, threads)
		for i := range block {
			sum[i] = block[0] + block[threads-1-i]*5
		}
		for i := range block {
			out = append(out, sum[(i+1)%threads])
		}
	}
	return out
}

// TestMissingBarrier: with all barriers a kernel gives the right bits for every seed; without any one of them it does not, or it is
// seen that threads wait at different places.
func TestMissingBarrier(t *testing.T) {
	barriers, err := emulated.Barriers(testKernels(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []struct {
		kernel   string
		threads  int
		want     func([]uint32, int) []uint32
		barriers []emulated.Barrier // in order of the source
	}{
		{"sums", 128, sums, barriers[0:3]},
		{"warp_sums", 32, warpSums, barriers[3:6]},
		{"warp_sums", 20, warpSums, nil},
	} {
		in := make([]uint32, 2*k.threads)
		for i := range in {
			in[i] = uint32(i * 2654435761)
		}
		want := k.want(in, k.threads)
		right := func(seed uint64, drop emulated.Barrier) bool {
			r := open(t, emulated.Options{Seed: seed, Drop: drop})
			out := r.alloc(4 * len(in))
			shape := line(2, k.threads)
			shape.Shared = 4 * k.threads
			r.launch(k.kernel, shape, upload(r, in), out.At)
			got := make([]byte, 4*len(in))
			b, _ := binary.Append(nil, binary.NativeEndian, want)
			return r.Read(got, out.At) == nil && bytes.Equal(got, b)
		}
		for seed := range uint64(20) {
			if !right(seed, emulated.Barrier{}) {
				t.Errorf("%s, seed %d: wrong with all barriers", k.kernel, seed)
			}
		}
		for _, b := range k.barriers {
			seeds := 0
			for seed := range uint64(10) {
				if !right(seed, b) {
					seeds++
				}
			}
			t.Logf("%s without the barrier of %s:%d is wrong with %d of 10 seeds", k.kernel, b.File, b.Line, seeds)
			if seeds == 0 {
				t.Errorf("%s without the barrier of %s:%d: right for all seeds", k.kernel, b.File, b.Line)
			}
		}
	}
}

func TestBarriers(t *testing.T) {
	got, err := emulated.Barriers(fstest.MapFS{
		"b.cu": {Data: []byte("a\n  __syncthreads(); // __syncwarp()\n// __syncthreads();\n")},
		"a.h":  {Data: []byte("if (x) __syncwarp ();\n")}})
	want := []emulated.Barrier{{File: "a.h", Line: 1}, {File: "b.cu", Line: 2}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// TestGarbage: shared memory is never zero at the start, and holds NaNs in half of the blocks.
func TestGarbage(t *testing.T) {
	r := open(t, emulated.Options{})
	const blocks, threads = 50, 64
	out := r.alloc(4 * blocks * threads)
	shape := line(blocks, threads)
	shape.Shared = 4 * threads
	r.launch("garbage", shape, 0, out.At)
	nans := 0
	for i, v := range download[uint32](r, out.At, blocks*threads) {
		if v == 0 {
			t.Fatalf("thread %d sees 0", i)
		}
		if f := math.Float32frombits(v); f != f {
			nans++
		}
	}
	if nans < blocks*threads/5 || nans > blocks*threads*4/5 {
		t.Errorf("%d of %d values are NaN, want about half", nans, blocks*threads)
	}
}

func TestGraph(t *testing.T) {
	r := open(t, emulated.Options{})
	out := r.alloc(4 * 64)
	g, err := r.Capture(func() error {
		for range 3 {
			r.launch("twice_and_one", line(1, 64), 0, out.At)
		}
		if err := r.Wait(); err == nil || !strings.Contains(err.Error(), "while a graph is captured") {
			t.Errorf("Wait in a capture: %v", err)
		}
		return nil
	})
	r.must(err)
	if got := download[int32](r, out.At, 1)[0]; got != 0 {
		t.Errorf("capturing ran the launches: got %d", got)
	}
	for range 2 {
		r.must(r.Run(g))
	}
	for i, got := range download[int32](r, out.At, 64) {
		if got != 1<<6-1 {
			t.Errorf("thread %d: got %d after 6 launches, want %d", i, got, 1<<6-1)
		}
	}
	g.Close()
	failed := errors.New("no")
	if _, err := r.Capture(func() error { return failed }); err != failed {
		t.Errorf("Capture returned %v, want what f did", err)
	}
	other := open(t, emulated.Options{})
	if err := other.Run(g); err == nil {
		t.Error("Run took the graph of another driver")
	}
}

func TestParallelDrivers(t *testing.T) {
	var wg sync.WaitGroup
	for k := range 4 {
		r := open(t, emulated.Options{Seed: uint64(k), Integrated: k%2 == 0})
		wg.Go(func() {
			out, err := r.Alloc(4 * 256)
			for n := 0; n < 10 && err == nil; n++ {
				err = r.Launch("twice_and_one", line(4, 64), 0, out.At)
			}
			b := make([]byte, 4*256)
			if err == nil {
				err = r.Read(b, out.At)
			}
			if got := binary.NativeEndian.Uint32(b[4*255:]); err != nil || got != 1<<10-1 {
				t.Errorf("driver %d: got %d, %v, want %d", k, got, err, 1<<10-1)
			}
		})
	}
	wg.Wait()
}

func TestSources(t *testing.T) {
	d := emulated.Open(t, emulated.Options{}) // the kernels of kernels/cuda/src compile
	if c := d.Chip(); c.Arch != "emulated" || c.Integrated || c.Total != 4<<30 || c.Processors != 4 {
		t.Errorf("chip %+v", c)
	}
	sources := testKernels(t).(fstest.MapFS)
	sources["tandem.cu"] = &fstest.MapFile{Data: []byte("#include \"missing.h\"\n")}
	if _, err := emulated.New(emulated.Options{Sources: sources}); err == nil || !strings.Contains(err.Error(), "missing.h") {
		t.Errorf("sources that do not compile: %v, want g++'s message", err)
	}
	for _, o := range []emulated.Options{{Memory: -1}, {Memory: 5000}, {Limit: time.Millisecond}, {Sources: fstest.MapFS{}}} {
		if d, err := emulated.New(o); err == nil {
			d.Close()
			t.Errorf("New(%+v): no error", o)
		}
	}
	t.Setenv(emulated.SeedVariable, "x")
	if _, err := emulated.New(emulated.Options{}); err == nil || !strings.Contains(err.Error(), emulated.SeedVariable) {
		t.Errorf("a seed that is no number: %v", err)
	}
	t.Setenv("PATH", "")
	if _, err := emulated.New(emulated.Options{Seed: 1}); !errors.Is(err, emulated.ErrNoCompiler) {
		t.Errorf("without g++: %v", err)
	}
}
