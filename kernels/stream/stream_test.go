package stream

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// made is a source of made-up bytes: a model of some matrices.
type made struct {
	p    *kernels.Program
	seed byte
}

func (m made) Digest() string { return fmt.Sprint("digest ", m.seed) }
func (m made) Name() string   { return "made.gguf" }

func (m made) Pieces(w kernels.W) int { return (m.p.Weights[w].AllRows() + 31) / 32 }

func (m made) Rows(w kernels.W, i int) (int, int) {
	return 32 * i, min(32*i+32, m.p.Weights[w].AllRows())
}

func (m made) Read(w kernels.W, i int, _ []byte) ([]byte, error) {
	from, to := m.Rows(w, i)
	b := make([]byte, (to-from)*m.p.Weights[w].Cols*4)
	for k := range b {
		b[k] = byte(k*7+int(w)*31+i) ^ m.seed
	}
	return b, nil
}

// program has an embedding, four layers of two matrices, and the embedding again as output.
func program() *kernels.Program {
	p := kernels.NewProgram(4, 4)
	add := func(name string, rows, cols int) kernels.W {
		return p.Weight(kernels.Weight{Name: name, Type: kernels.F32, Rows: rows, Cols: cols, Layout: kernels.Groups16})
	}
	embed, x, n := add("embed", 500, 512), p.Buf(512), p.Act(512)
	p.Stage("embedding")
	p.Embed(embed, x)
	p.Feed(x, n)
	for i := range 4 {
		p.Stage(fmt.Sprint("layer ", i))
		wide, act := p.Buf(1500), p.Act(1500)
		p.MatMul(add("up", 1500, 512), n, wide, kernels.MatMulOpt{})
		p.Feed(wide, act)
		p.MatMul(add("down", 512, 1500), act, x, kernels.MatMulOpt{Add: true})
		p.Feed(x, n)
	}
	p.Stage("output")
	p.MatMul(embed, n, p.Buf(500), kernels.MatMulOpt{})
	return p
}

// pack copies rows: the layout does not matter here.
func pack(dst []byte, m kernels.Weight, row int, src []byte) error {
	copy(dst[row*m.Cols*4:], src)
	return nil
}

// flaky is a packed file whose reads stop early, and fail after some.
type flaky struct {
	*os.File
	reads, after atomic.Int64
	err          error
	hold         atomic.Pointer[chan struct{}] // reads wait until it is closed
	held         atomic.Int64                  // reads that have begun to
}

func (f *flaky) ReadAt(b []byte, at int64) (int, error) {
	if n := f.reads.Add(1); f.err != nil && n > f.after.Load() {
		return 0, f.err
	}
	if hold := f.hold.Load(); hold != nil {
		f.held.Add(1)
		<-*hold
	}
	n, err := f.File.ReadAt(b[:min(len(b), 1+len(b)/3)], at)
	if n < len(b) && err == nil {
		return n, syscall.EINTR
	}
	return n, err
}

// fixture is weights in the least memory.
type fixture struct {
	*Device
	*weights
	path string
	file *flaky
	src  made
	at   func(stage int) // called before each stage of foreseen; may be nil
}

func open(t *testing.T, path string, src made, memory int64, err error) (*fixture, error) {
	t.Helper()
	f := &fixture{path: path, file: &flaky{err: err}, src: src}
	f.file.after.Store(1 << 40)
	f.Device = New(testdevice.CPU(t, 1), Config{Memory: memory, Pack: pack,
		Keep: func(ctx context.Context, r Request) (string, func() error, error) {
			if r.Check(path) != nil {
				os.Remove(path)
				if err := r.Make(ctx, path, nil); err != nil {
					return "", nil, err
				}
			}
			return path, func() error { return nil }, nil
		}, Open: func(path string) (File, error) {
			var err error
			f.file.File, err = os.Open(path)
			return f.file, err
		}})
	s, failed := f.NewWeights(src.p)
	if failed != nil {
		return nil, failed
	}
	f.weights = s.(*weights)
	t.Cleanup(f.weights.Close)
	return f, f.Fill(t.Context(), src, nil)
}

func least(t *testing.T) int64 {
	var small *kernels.TooSmall
	if _, err := layOut(must(divided(program())), Config{}); !errors.As(err, &small) {
		t.Fatal(err)
	}
	return small.Least
}

func must(p *kernels.Program, _ []int) *kernels.Program { return p }

// pass acquires the first n stages and returns a sum over what they hold, all for n < 0.
func (f *fixture) pass(n int) (sum uint32, err error) {
	if err := f.weights.rows([]int32{0, 17, 499}); err != nil {
		return 0, err
	}
	for i := range f.stages {
		if i == n {
			break
		}
		all, err := f.Acquire(i, nil)
		if err != nil {
			return 0, err
		}
		for k, b := range all {
			if f.order[i][k].look != nil { // rows 0 to 31, and the last ones
				b = append(b[:32*2048:32*2048], b[496*2048:]...)
			}
			sum = crc32.Update(sum, crc32.IEEETable, b)
		}
		f.Release(i)
	}
	return sum, nil
}

// TestPasses: every pass finds the bytes that a resident one finds, after passes that end in the middle, too, with reads that stop early.
func TestPasses(t *testing.T) {
	path, src := filepath.Join(t.TempDir(), "packed"), made{program(), 3}
	all, err := open(t, path, src, 1<<30, nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := all.pass(-1)
	if err != nil || all.StreamStats().Streamed != 0 {
		t.Fatalf("%v, %+v", err, all.StreamStats())
	}
	for extra := int64(0); extra < 20<<20; extra += 3 << 20 {
		f, err := open(t, path, src, least(t)+extra, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{-1, 3, -1, 1, 0, 5, 2, -1, -1} {
			if sum, err := f.pass(n); err != nil || n < 0 && sum != want {
				t.Fatalf("%d bytes more than the least, %d stages: %v, sum %x, want %x", extra, n, err, sum, want)
			}
		}
		if f.budget.bytes() > least(t)+extra {
			t.Errorf("%d bytes of memory, want at most %d", f.budget.bytes(), least(t)+extra)
		}
	}
}

// TestReadFails: a read that fails, and a file that ends, are errors of the pass with file, place and reason, and the device is gone.
func TestReadFails(t *testing.T) {
	for _, c := range []struct {
		err  error
		says string
	}{{syscall.EIO, "input/output error"}, {io.EOF, "somebody has cut it"}} {
		f, err := open(t, filepath.Join(t.TempDir(), "packed"), made{program(), 4}, least(t), c.err)
		if err != nil {
			t.Fatal(err)
		}
		f.file.after.Store(f.file.reads.Load() + 3)
		for err == nil {
			_, err = f.pass(-1)
		}
		var fault *Fault
		if !errors.As(err, &fault) || fault.File != f.path || fault.At == 0 || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v", c.err, err)
		}
		<-f.Gone()
		if !errors.Is(f.Lost(), err) {
			t.Errorf("lost: %v, want %v", f.Lost(), err)
		}
		if _, again := f.pass(-1); again == nil {
			t.Error("the next pass has a result")
		}
	}
}

// TestChanged: a byte that changes in the file while it is read is an error of the pass, whoever compares it: the weights, or the runner
// of the device that computes. Both name the group of rows, and the device is gone.
func TestChanged(t *testing.T) {
	for _, compiled := range []bool{false, true} {
		path, p := filepath.Join(t.TempDir(), "packed"), program()
		f, err := open(t, path, made{p, 6}, least(t), nil)
		if err != nil {
			t.Fatal(err)
		}
		pass := func() error { _, err := f.pass(-1); return err }
		if compiled {
			r, err := f.Compile(p, f.weights, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(r.Close)
			pass = func() error {
				return r.Run(&kernels.Pass{Rows: 1, Tokens: []int32{7}, Pos: []int32{0}, Wanted: []int32{0}})
			}
		}
		if err := pass(); err != nil {
			t.Fatal(compiled, err)
		}
		last := f.ring.order[len(f.ring.order)-1]
		at := f.feed.(*packed).table.Stages[last].At + 100
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteAt([]byte{0xa5}, at); err != nil {
			t.Fatal(err)
		}
		for err == nil && f.Lost() == nil {
			err = pass()
		}
		var fault *Fault
		if !errors.As(err, &fault) || !errors.Is(err, errChanged) || fault.At != at-100 {
			t.Errorf("compiled %v: %v", compiled, err)
		}
		<-f.Gone()
		if _, err := os.Stat(path); err == nil {
			t.Errorf("compiled %v: the changed file is still there", compiled)
		}
	}
}

// TestStale: a file that was cut at any place, that is of another model or version, or that was not finished, is not believed, and is made
// again; an ended context, and a place where nothing can be written, are errors.
func TestStale(t *testing.T) {
	path := filepath.Join(t.TempDir(), "packed")
	f, err := open(t, path, made{program(), 5}, least(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := f.pass(-1)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	table, err := readTable(strings.NewReader(string(whole)), int64(len(whole)))
	if err != nil {
		t.Fatal(err)
	}
	older := *table
	older.Version--
	for what, b := range map[string][]byte{"empty": {}, "of some bytes": whole[:20], "without extents": whole[:page],
		"cut":    whole[:len(whole)-1],
		"longer": append(whole[:len(whole):len(whole)], 0), "without a header": append(make([]byte, page), whole[page:]...),
		"of another version": append(older.header(), whole[len(older.header()):]...),
		"with a bit changed": append([]byte{whole[0], whole[1], whole[2] ^ 1}, whole[3:]...)} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := checkFile(path, f.wanted(5)); err == nil {
			t.Errorf("a file %s is believed", what)
		}
		again, err := open(t, path, made{program(), 5}, least(t), nil)
		if err != nil {
			t.Fatal(what, err)
		}
		if sum, err := again.pass(-1); err != nil || sum != want {
			t.Errorf("a file %s: %v, sum %x, want %x", what, err, sum, want)
		}
	}
	if _, err := checkFile(path, f.wanted(6)); err == nil || !strings.Contains(err.Error(), "digest 5") {
		t.Errorf("another model's file: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	half := path + ".half"
	if err := f.write(ctx, half, made{program(), 5}, f.wanted(5), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("ended: %v", err)
	}
	if _, err := checkFile(half, f.wanted(5)); err == nil {
		t.Error("an unfinished file is believed")
	}
	if err := f.write(t.Context(), "/dev/full/packed", made{program(), 5}, f.wanted(5), nil); err == nil {
		t.Error("written to a folder that is none")
	}
}

func (f *fixture) wanted(seed byte) *table {
	return newTable(made{seed: seed}.Digest(), f.prog, f.stages, f.looks)
}

// FuzzTable: a table of any bytes is an error or one that is written as it was read.
func FuzzTable(f *testing.F) {
	p, _ := divided(program())
	w, err := layOut(p, Config{Memory: 1 << 30})
	if err != nil {
		f.Fatal(err)
	}
	want := newTable("digest", p, w.stages, w.looks)
	f.Add(want.header(), false)
	f.Add([]byte(magic+"\xff\xff\xff\xff\xff\xff\xff\x7f"), false)
	f.Add([]byte(`{"version":2,"sums":"zz","stages":[{"at":-1}]}`), true)
	f.Fuzz(func(t *testing.T, b []byte, body bool) {
		if body { // with a header that fits
			b = headerOf(b)
		}
		got, err := readTable(strings.NewReader(string(b)), int64(len(b)))
		if err != nil {
			return
		}
		if _, err := got.match(want, int64(len(b))); err == nil && int64(len(b)) != want.Bytes {
			t.Errorf("%d bytes are a file of %d", len(b), want.Bytes)
		}
		again, err := readTable(strings.NewReader(string(got.header())), 1<<40)
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("%+v is read as %+v, %v", got, again, err)
		}
	})
}

// TestNoDirectReads: on a file system without direct reads (ramfs) a packed file is made and read with the bytes of any other, and that is
// said.
func TestNoDirectReads(t *testing.T) {
	want, err := open(t, filepath.Join(t.TempDir(), "packed"), made{program(), 7}, least(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	sum, err := want.pass(-1)
	if err != nil {
		t.Fatal(err)
	}
	f, said, err := mounted(t, "ramfs", "")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := f.pass(-1); err != nil || got != sum || f.feed.(*packed).direct {
		t.Errorf("%v, sum %x, want %x; direct reads: %v", err, got, sum, f.feed.(*packed).direct)
	}
	if !strings.Contains(*said, "has no direct reads: pages are dropped after ordinary ones") {
		t.Errorf("said %q", *said)
	}
}

// TestDiskFull: a disk that fills up while a file is packed is an error that says so, and what was written is not believed.
func TestDiskFull(t *testing.T) {
	f, _, err := mounted(t, "tmpfs", "size=4m")
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v: want %v", err, syscall.ENOSPC)
	}
	if _, err := checkFile(f.path, f.wanted(7)); err == nil {
		t.Error("what was written to a full disk is believed")
	}
}

// mounted is open on a file system of its own, with the program's way of reading, and what it said.
func mounted(t *testing.T, kind, options string) (f *fixture, said *string, err error) {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount(kind, dir, kind, 0, options); err != nil {
		t.Skipf("needs the right to mount %s: %v", kind, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	f, said = &fixture{path: filepath.Join(dir, "packed")}, new(string)
	f.Device = New(testdevice.CPU(t, 1), Config{Memory: least(t), Pack: pack, Tell: func(line string) { *said += line + "\n" },
		Keep: func(ctx context.Context, r Request) (string, func() error, error) {
			return f.path, func() error { return nil }, r.Make(ctx, f.path, nil)
		}})
	s, err := f.NewWeights(program())
	if err != nil {
		return nil, nil, err
	}
	f.weights = s.(*weights)
	t.Cleanup(f.weights.Close)
	return f, said, f.Fill(t.Context(), made{program(), 7}, nil)
}
