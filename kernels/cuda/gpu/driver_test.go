//go:build cuda

package gpu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/tandem-llm/tandem/kernels/cuda"
)

// withDriver runs the test named in another process, with the driver of testdata/driver.c and some environment. Without a folder there is
// no driver at all.
func withDriver(t *testing.T, dir, test string, env ...string) {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run", "^"+test+"$", "-test.count", "1")
	c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "GPU_TEST_CHILD=1")
	c.Env = append(c.Env, env...)
	out, err := c.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "PASS") {
		t.Errorf("%s with %q: %v\n%s", test, env, err, out)
	}
}

// child skips a test that withDriver has not started, and locks its goroutine to its thread.
func child(t *testing.T) {
	if os.Getenv("GPU_TEST_CHILD") == "" {
		t.Skip("runs in a process of TestDriver")
	}
	runtime.LockOSThread() // as Open wants it
}

func TestDriver(t *testing.T) {
	dir := t.TempDir()
	out, err := exec.Command("cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(dir, "libcuda.so.1"),
		"testdata/driver.c").CombinedOutput()
	if err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	for _, integrated := range []string{"0", "1"} {
		withDriver(t, dir, "TestCopies", "FAKE_INTEGRATED="+integrated)
		withDriver(t, dir, "TestCopies", "FAKE_INTEGRATED="+integrated, "SHARED=yes")
		withDriver(t, dir, "TestLaunches", "FAKE_INTEGRATED="+integrated)
	}
	for _, tc := range []struct{ major, version, not string }{{"9", "12030", "cuLaunchKernel"}, {"12", "13000", "cuLaunchKernel"},
		{"9", "12020", "cuLaunchKernelEx"}, {"8", "13000", "cuLaunchKernelEx"}, {"9", "12030", "cuLaunchKernelEx"}} {
		if tc.not == "cuLaunchKernel" && !strings.Contains(targets, "compute_90") {
			continue // compiled for other GPUs alone: these kernels do not wait
		}
		withDriver(t, dir, "TestLaunches", "FAKE_MAJOR="+tc.major, "FAKE_VERSION="+tc.version, "FAKE_FAIL="+tc.not+":1")
	}
	withDriver(t, dir, "TestChips", "FAKE_COUNT=2")
	withDriver(t, dir, "TestOutOfMemory", "FAKE_MEMORY=1000")
	withDriver(t, dir, "TestFree", "FAKE_MEMORY=1000", "FAKE_INTEGRATED=0")
	withDriver(t, dir, "TestFree", "FAKE_MEMORY=1000", "FAKE_INTEGRATED=1")
	withDriver(t, dir, "TestRegister", "FAKE_READ_ONLY=0")
	withDriver(t, dir, "TestRegister", "FAKE_READ_ONLY=1")
	withDriver(t, dir, "TestNotRegistered", "FAKE_REGISTERS=0", "WANT=its driver registers none")
	withDriver(t, dir, "TestNotRegistered", "FAKE_FAIL=cuMemHostRegister_v2:801", "WANT=registering it: what the driver says")
	for _, tc := range []struct{ fail, want string }{
		{"cuInit:100", "starting NVIDIA's driver: what the driver says (error 100 of CUDA): NVIDIA's driver finds no GPU"},
		{"cuInit:803", "restart the machine after an update"},
		{"cuInit:34", "remove its folder from LD_LIBRARY_PATH"},
		{"cuInit:999", "whether this user may open /dev/nvidia0"},
		{"cuModuleLoadData:209", "Fake 0: loading the kernels: what the driver says (error 209 of CUDA): the kernels are compiled for sm_"},
		{"cuModuleLoadData:222", "the driver, of CUDA 11.4, is older than the compiler, install a newer driver"},
		{"cuModuleLoadData:2", "no memory for"},
		{"cuDevicePrimaryCtxRetain:101", "opening the GPU"},
		{"cuStreamCreate:1", "making a stream"},
		{"cuMemHostAlloc:2", "Fake 0: no memory for 4 MB"},
	} {
		withDriver(t, dir, "TestRefused", "FAKE_FAIL="+tc.fail, "WANT="+tc.want)
	}
	withDriver(t, dir, "TestRefused", "FAKE_COUNT=0", "WANT=finds no GPU: look at CUDA_VISIBLE_DEVICES")
	withDriver(t, t.TempDir(), "TestRefused", "WANT=there is no NVIDIA driver: libcuda.so.1: cannot open shared object file")
	for _, fail := range []string{"cuLaunchKernel:719", "cuStreamSynchronize:700"} {
		withDriver(t, dir, "TestLost", "FAKE_FAIL="+fail)
	}
}

func open(t *testing.T) cuda.Driver {
	t.Helper()
	child(t)
	d, err := Open(0, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// TestCopies writes and reads pieces of all sizes, many without waiting in between, and compares with the same in Go's memory.
func TestCopies(t *testing.T) {
	d := open(t)
	const size = 3*halfBytes + 12345
	alloc := d.Alloc
	if os.Getenv("SHARED") != "" {
		alloc = d.AllocShared
	}
	m, err := alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	if m.At%256 != 0 || m.Size != size || (m.Host != nil) != (os.Getenv("SHARED") != "") {
		t.Fatalf("memory at %x, of %d bytes, of which the processor sees %d", m.At, m.Size, len(m.Host))
	}
	random := rand.New(rand.NewPCG(1, 2))
	want, got := make([]byte, size), make([]byte, size)
	for round := range 40 {
		for range random.IntN(30) {
			at := random.IntN(size)
			src := make([]byte, random.IntN(min(size-at, 1<<random.IntN(25)))+1)
			for i := range src {
				src[i] = byte(random.Uint32())
			}
			if err := d.Write(m.At+cuda.Pointer(at), src); err != nil {
				t.Fatal(err)
			}
			copy(want[at:], src)
			clear(src) // the caller may change it at once
		}
		if err := d.Read(got, m.At); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("round %d: other bytes than those written", round)
		}
		if m.Host != nil && !bytes.Equal(m.Host, want) {
			t.Fatalf("round %d: the processor sees other bytes than those written", round)
		}
	}
	if err := d.Release(m); err != nil {
		t.Fatal(err)
	}
}

// TestLaunches adds numbers, one launch after the other and as a graph.
func TestLaunches(t *testing.T) {
	d := open(t)
	m, err := d.Alloc(512)
	if err != nil {
		t.Fatal(err)
	}
	number := func(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }
	if err := errors.Join(d.Write(m.At, number(5)), d.Write(m.At+256, number(7))); err != nil {
		t.Fatal(err)
	}
	one := cuda.Shape{Grid: [3]int{1, 1, 1}, Block: [3]int{32, 1, 1}}
	large := one
	large.Shared = 100 << 10
	launch := func() error {
		return errors.Join(d.Launch("add", one, m.At, m.At+256), d.Launch("add", large, m.At, m.At+256))
	}
	if err := launch(); err != nil {
		t.Fatal(err)
	}
	g, err := d.Capture(launch)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Run(g), d.Write(m.At+256, number(100)), d.Run(g), d.Wait()); err != nil {
		t.Fatal(err)
	}
	g.Close()
	g.Close()
	var got [8]byte
	if err := d.Read(got[:], m.At); err != nil {
		t.Fatal(err)
	}
	if sum := binary.LittleEndian.Uint64(got[:]); sum != 5+4*7+2*100 {
		t.Errorf("5 + 4·7 + 2·100 = %d", sum)
	}
	for _, tc := range []struct {
		kernel string
		shared int
		want   string
	}{
		{"sub", 0, `Fake 0: the compiled kernels have no "sub": run 'test/scripts/cuda build' and build again: what the driver says`},
		{"add", 300 << 10, "Fake 0: 307200 bytes of shared memory for add: what the driver says (error 1 of CUDA)"},
	} {
		s := one
		s.Shared = tc.shared
		wrong := func() error { return d.Launch(tc.kernel, s, m.At, m.At) }
		if err := wrong(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("launch: error %v: want %q", err, tc.want)
		}
		if _, err := d.Capture(wrong); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("capture: error %v: want %q", err, tc.want)
		}
	}
	if err := d.Wait(); err != nil {
		t.Errorf("after captures that failed: %v", err)
	}
}

func TestChips(t *testing.T) {
	child(t)
	chips, err := Chips()
	if err != nil {
		t.Fatal(err)
	}
	want := cuda.Chip{Name: "Fake 1", Arch: "sm_87", Registers: true, Total: 8 << 30, Processors: 16}
	if len(chips) != 2 || chips[1] != want {
		t.Errorf("%+v: want two, the second %+v", chips, want)
	}
	d, err := Open(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d.Chip() != want {
		t.Errorf("GPU 1 is %+v: want %+v", d.Chip(), want)
	}
	d.Close()
	for _, i := range []int{-1, 2} {
		if _, err := Open(i, nil); err == nil || !strings.Contains(err.Error(), "want 0 to 1, for Fake 0, Fake 1") {
			t.Errorf("GPU %d: error %v", i, err)
		}
	}
}

func TestOutOfMemory(t *testing.T) {
	d := open(t)
	m, err := d.Alloc(600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Alloc(500)
	var out *cuda.OutOfMemory
	if !errors.As(err, &out) || *out != (cuda.OutOfMemory{Device: "Fake 0", Wanted: 500, Free: 400}) {
		t.Errorf("error %v: want what is free", err)
	}
	if free, err := d.Free(); free != 400 || err != nil {
		t.Errorf("%d bytes are free, %v: want 400", free, err)
	}
	if err := d.Write(m.At, make([]byte, 600)); err != nil {
		t.Errorf("after a lack of memory: %v", err)
	}
	if _, err := d.Alloc(0); err == nil || !strings.Contains(err.Error(), "want 1 or more") {
		t.Errorf("no bytes: error %v", err)
	}
}

// TestRegister: memory of the processor is read in place until it is released, and then can be registered again.
func TestRegister(t *testing.T) {
	d := open(t)
	all := make([]byte, 3*4096)
	host := all[4096-int(uintptr(unsafe.Pointer(&all[0]))%4096):][:4096]
	for range 2 {
		m, err := d.Register(host)
		if err != nil || m.Size != len(host) || &m.Host[0] != &host[0] {
			t.Fatalf("%d bytes at %x, %v", m.Size, m.At, err)
		}
		host[5]++
		var got [6]byte
		if err := d.Read(got[:], m.At); err != nil || got[5] != host[5] {
			t.Errorf("read %v, %v, want %d behind", got, err, host[5])
		}
		if err := d.Release(m); err != nil {
			t.Fatal(err)
		}
	}
	var cannot *cuda.Unsupported
	for _, wrong := range [][]byte{nil, host[1:]} {
		if _, err := d.Register(wrong); !errors.As(err, &cannot) || !strings.Contains(err.Error(), "from the beginning of a page on") {
			t.Errorf("%d bytes: error %v", len(wrong), err)
		}
	}
}

func TestNotRegistered(t *testing.T) {
	d := open(t)
	m, err := d.Alloc(8192)
	if err != nil {
		t.Fatal(err)
	}
	var cannot *cuda.Unsupported
	host := make([]byte, 8192)
	host = host[4096-int(uintptr(unsafe.Pointer(&host[0]))%4096):]
	if _, err := d.Register(host); !errors.As(err, &cannot) || !strings.Contains(err.Error(), os.Getenv("WANT")) {
		t.Errorf("error %v: want %q", err, os.Getenv("WANT"))
	}
	if err := d.Release(m); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// TestFree: a GPU with memory of its own has free what its driver says; one that shares the processor's, what this process may take.
func TestFree(t *testing.T) {
	child(t)
	d, err := Open(0, func() int64 { return 5000 })
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	want := int64(1000)
	if d.Chip().Integrated {
		want = 5000
	}
	if free, err := d.Free(); free != want || err != nil {
		t.Errorf("%d bytes are free, %v, want %d", free, err, want)
	}
}

func TestRefused(t *testing.T) {
	child(t)
	if _, err := Open(0, nil); err == nil || !strings.Contains(err.Error(), os.Getenv("WANT")) {
		t.Errorf("error %v: want %q", err, os.Getenv("WANT"))
	}
}

// TestLost loses the GPU in mid-pass: the error says so, and closing still works.
func TestLost(t *testing.T) {
	d := open(t)
	m, err := d.Alloc(512)
	if err != nil {
		t.Fatal(err)
	}
	one := cuda.Shape{Grid: [3]int{1, 1, 1}, Block: [3]int{1, 1, 1}}
	err = errors.Join(d.Launch("add", one, m.At, m.At+256), d.Wait())
	if err == nil || !strings.Contains(err.Error(), "the GPU is lost to this process") || errors.As(err, new(*cuda.OutOfMemory)) {
		t.Errorf("error %v: want that the GPU is lost", err)
	}
}
