package emulated_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
)

// TestMemory allocates, fills and releases at random: pieces are aligned, apart, full of zeros and keep what is theirs.
func TestMemory(t *testing.T) {
	for _, o := range []emulated.Options{{Memory: 1 << 20}, {Memory: 1 << 20, Integrated: true}, {Memory: 1 << 20, Sanitize: true}} {
		r := open(t, o)
		rng := rand.New(rand.NewPCG(1, 2))
		type held struct {
			cuda.Memory
			content []byte
		}
		var all []held
		full := 0
		for range 2000 {
			if len(all) > 0 && rng.IntN(5) < 2 {
				i := rng.IntN(len(all))
				got := make([]byte, all[i].Size)
				r.must(r.Read(got, all[i].At))
				if !bytes.Equal(got, all[i].content) {
					t.Fatalf("%+v: the content of %d bytes at %#x has changed", o, all[i].Size, all[i].At)
				}
				r.must(r.Release(all[i].Memory))
				all = slices.Delete(all, i, i+1)
				continue
			}
			alloc, seen := r.Alloc, rng.IntN(2) == 1
			if seen {
				alloc = r.AllocShared
			}
			m, err := alloc(1 + rng.IntN(50_000))
			var lacks *cuda.OutOfMemory
			if errors.As(err, &lacks) {
				full++
				continue
			}
			r.must(err)
			if m.At == 0 || m.At%256 != 0 || (m.Host != nil) != seen || (m.Host != nil && len(m.Host) != m.Size) {
				t.Fatalf("%+v: %d bytes at %#x, %d on the host", o, m.Size, m.At, len(m.Host))
			}
			for _, other := range all {
				if m.At < other.At+cuda.Pointer(other.Size) && other.At < m.At+cuda.Pointer(m.Size) {
					t.Fatalf("%+v: %#x lies in %#x", o, m.At, other.At)
				}
			}
			got := make([]byte, m.Size)
			r.must(r.Read(got, m.At))
			if !bytes.Equal(got, make([]byte, m.Size)) {
				t.Fatalf("%+v: new memory is not zero", o)
			}
			content := make([]byte, m.Size)
			for i := range content {
				content[i] = byte(rng.Uint32())
			}
			r.must(r.Write(m.At, content))
			if seen && !bytes.Equal(m.Host, content) {
				t.Fatalf("%+v: the host does not see what was written", o)
			}
			all = append(all, held{m, content})
		}
		if full == 0 {
			t.Errorf("%+v: memory never ran out: the test needs larger pieces", o)
		}
		for _, m := range all {
			r.must(r.Release(m.Memory))
		}
		// all room has come together again
		if free, err := r.Free(); err != nil || free != o.Memory {
			t.Errorf("%+v: %d bytes are free at the end, %v", o, free, err)
		}
		r.must(r.Release(r.alloc(int(o.Memory) - 256)))
	}
}

func TestOutOfMemory(t *testing.T) {
	r := open(t, emulated.Options{Memory: 1 << 20})
	lacks := func(n int, free int64) {
		t.Helper()
		_, err := r.Alloc(n)
		var oom *cuda.OutOfMemory
		if !errors.As(err, &oom) || oom.Wanted != int64(n) || oom.Free != free || oom.Device != r.Chip().Name {
			t.Errorf("Alloc of %d bytes: got %v, want out of memory with %d free", n, err, free)
		}
	}
	lacks(1<<20+1, 1<<20)
	m := r.alloc(1 << 19)
	lacks(1<<19+1, 1<<19)
	r.TakeMemory(1 << 18)
	if free, err := r.Free(); err != nil || free != 1<<18 {
		t.Errorf("%d bytes are free beside another process, %v", free, err)
	}
	lacks(1<<19, 1<<18)
	r.TakeMemory(1 << 20)
	lacks(1, 0)
	r.TakeMemory(0)
	// the device is not lost
	r.must(r.Write(m.At, []byte{1}))
	r.alloc(1 << 19)
	lacks(1, 0)
}

func TestWrongAddress(t *testing.T) {
	r := open(t, emulated.Options{})
	m, b := r.alloc(100), make([]byte, 101)
	for _, at := range []cuda.Pointer{0, m.At, m.At - 1, m.At + 100, 1 << 63} {
		if r.Read(b, at) == nil || r.Write(at, b) == nil {
			t.Errorf("101 bytes at %#x of 100 at %#x: no error", at, m.At)
		}
	}
	for _, n := range []int{0, -1} {
		if _, err := r.Alloc(n); err == nil {
			t.Errorf("Alloc of %d bytes: no error", n)
		}
	}
	r.must(r.Read(b[:99], m.At+1))
	r.must(r.Release(m))
	if err := r.Release(m); err == nil {
		t.Error("the second Release: no error")
	}
	if err := r.Read(b[:1], m.At); err == nil {
		t.Error("Read of released memory: no error")
	}
}

// TestRegister: a kernel reads what this process writes to a memory file, in place, until the memory is released.
func TestRegister(t *testing.T) {
	r := open(t, emulated.Options{Memory: 1 << 20, Registers: true})
	fd, err := unix.MemfdCreate("registered", unix.MFD_CLOEXEC)
	r.must(err)
	defer unix.Close(fd)
	const size = 4 * 64 * 100
	r.must(unix.Ftruncate(fd, 4096+size))
	all, err := unix.Mmap(fd, 0, 4096+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	r.must(err)
	defer func() { r.must(unix.Munmap(all)) }()
	host, out, got := all[4096:], r.alloc(size), make([]byte, size)
	before, err := r.Free()
	r.must(err)
	var cannot *cuda.Unsupported
	for i := range byte(3) {
		m, err := r.Register(host)
		r.must(err)
		if free, err := r.Free(); err != nil || free != before || m.Size != size || &m.Host[0] != &host[0] {
			t.Errorf("%d bytes are registered, and %d free (%v), want %d and %d", m.Size, free, err, size, before)
		}
		host[0], host[size-1] = i, i+1 // without a Write
		r.launch("copy", line(100, 64), m.At, out.At)
		r.must(r.Read(got, out.At))
		if !bytes.Equal(got, host) {
			t.Errorf("the kernel has read %d and %d, want %d and %d", got[0], got[size-1], i, i+1)
		}
		if _, err := r.Register(host[4096:]); !errors.As(err, &cannot) {
			t.Errorf("registering a part again: %v", err)
		}
		if r.Write(m.At, got) == nil {
			t.Error("Write to registered memory: no error")
		}
		r.must(r.Release(m))
	}
	for name, wrong := range map[string][]byte{"none": nil, "inside of a page": host[1:], "Go's memory": make([]byte, 1<<20)[:4096]} {
		if _, err := r.Register(wrong); !errors.As(err, &cannot) {
			t.Errorf("%s: %v, want that it cannot", name, err)
		}
	}
	other := open(t, emulated.Options{})
	if _, err := other.Register(host); !errors.As(err, &cannot) || other.Chip().Registers {
		t.Errorf("a GPU that registers none: %v", err)
	}
	m, err := r.Register(host)
	r.must(err)
	r.launch("copy", line(1, 1), out.At, m.At)
	if r.Wait() == nil {
		t.Error("a kernel has written to registered memory: no error")
	}
}

// TestOrder: a write, launches and a read happen in the order of the calls.
func TestOrder(t *testing.T) {
	for _, shared := range []bool{false, true} {
		r := open(t, emulated.Options{})
		in, a, b := r.alloc(4*64*100), r.alloc(4*64*100), r.alloc(4*64*100)
		if shared {
			var err error
			b, err = r.AllocShared(b.Size)
			r.must(err)
		}
		for i := range byte(20) {
			src := bytes.Repeat([]byte{i}, in.Size)
			r.must(r.Write(in.At, src))
			r.launch("copy", line(100, 64), in.At, a.At)
			r.launch("copy", line(100, 64), a.At, b.At)
			clear(src)
			r.must(r.Write(in.At, src)) // after the first copy
			got := make([]byte, b.Size)
			r.must(r.Read(got, b.At))
			if !bytes.Equal(got, bytes.Repeat([]byte{i}, in.Size)) {
				t.Fatalf("turn %d: got %d, then %d", i, got[0], got[b.Size-1])
			}
			if shared && !bytes.Equal(b.Host, got) {
				t.Fatalf("turn %d: the host sees other memory", i)
			}
		}
	}
}
