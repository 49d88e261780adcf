package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns an owner that serves a socket, and the socket.
func pair(t *testing.T, cfg SegmentConfig) (*Segment, string) {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(l); err != nil {
		t.Fatal(err)
	}
	return s, socket
}

func attach(t *testing.T, socket string) *Reader {
	t.Helper()
	return attachAs(t, socket, Verifier)
}

func attachAs(t *testing.T, socket string, as Role) *Reader {
	t.Helper()
	r, err := Attach(context.Background(), socket, as)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func put(t *testing.T, s *Segment, payload string) Handle {
	t.Helper()
	h, err := s.Put(Key{}, 0, []byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func wantKind(t *testing.T, err error, k tandem.Kind) {
	t.Helper()
	if tandem.KindOf(err) != k {
		t.Fatalf("error %v is %v: want %v", err, tandem.KindOf(err), k)
	}
}

func TestPayloadTravels(t *testing.T) {
	s, socket := pair(t, SegmentConfig{Slots: 4, SlotSize: 1000})
	r := attach(t, socket)
	for round := range 20 {
		text := strings.Repeat(fmt.Sprint(round), 10*round)
		h := put(t, s, text)
		got, err := r.Read(h)
		if err != nil || string(got) != text {
			t.Fatalf("read %q, %v: want %q", got, err, text)
		}
		s.Release(h)
		if _, err := r.Read(h); !errors.Is(err, tandem.Stale) {
			t.Fatalf("read after release: %v: want stale", err)
		}
		wantKind(t, held(s, h), tandem.Stale)
	}
	if n := s.Leased(); n != 0 {
		t.Fatalf("%d slots leased after all were released", n)
	}
	h := put(t, s, "far")
	for range 2 {
		if got, err := s.Copy(h); err != nil || string(got) != "far" {
			t.Fatalf("copy: %q, %v", got, err)
		}
	}
	s.Release(h)
	_, err := s.Copy(h)
	wantKind(t, err, tandem.Stale)
}

func TestLimits(t *testing.T) {
	s, _ := pair(t, SegmentConfig{Slots: 2, SlotSize: 100, Lease: time.Hour})
	_, err := s.Put(Key{}, 0, make([]byte, 200))
	wantKind(t, err, tandem.Invalid)
	put(t, s, "a")
	put(t, s, "b")
	_, err = s.Put(Key{}, 0, []byte("c"))
	wantKind(t, err, tandem.Exhausted)
	short, _ := pair(t, SegmentConfig{Slots: 1, Lease: 30 * time.Millisecond})
	first := put(t, short, "a")
	testkit.Eventually(t, "the lease ends", func() bool { return tandem.KindOf(held(short, first)) == tandem.Stale })
	put(t, short, "b") // its lease has ended
	for _, cfg := range []SegmentConfig{{Slots: -1}, {SlotSize: -1}, {Slots: 1 << 20, SlotSize: 1 << 20}, {SlotSize: maxSegment + 1}} {
		_, err := New(cfg)
		wantKind(t, err, tandem.Invalid)
	}
}

func TestLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the clock stands still, however busy the machine is
		s, err := New(SegmentConfig{Slots: 1, Lease: 60 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		h := put(t, s, "x")
		testkit.Sleep(59 * time.Millisecond)
		wantKind(t, held(s, h), tandem.OK)
		testkit.Sleep(2 * time.Millisecond)
		wantKind(t, held(s, h), tandem.Stale) // a copy does not extend it
	})
}

// held returns why a segment does not hold a payload any more, nil if it does.
func held(s *Segment, h Handle) error {
	_, err := s.Copy(h)
	return err
}

func TestHandleOutOfBounds(t *testing.T) {
	s, socket := pair(t, SegmentConfig{Slots: 2, SlotSize: 64})
	r := attach(t, socket)
	h := put(t, s, "x")
	for name, c := range map[string]struct {
		change func(*Handle)
		kind   tandem.Kind
	}{
		"slot":       {func(h *Handle) { h.Slot = 2 }, tandem.Corrupt},
		"far slot":   {func(h *Handle) { h.Slot = 1<<32 - 1 }, tandem.Corrupt},
		"length":     {func(h *Handle) { h.Length = 1 << 31 }, tandem.Corrupt},
		"generation": {func(h *Handle) { h.Generation++ }, tandem.Stale},
		"segment":    {func(h *Handle) { h.Segment++ }, tandem.Stale},
		"zero":       {func(h *Handle) { *h = Handle{} }, tandem.Stale},
	} {
		bad := h
		c.change(&bad)
		_, err := r.Read(bad)
		if tandem.KindOf(err) != c.kind {
			t.Errorf("%s: read: %v: want %v", name, err, c.kind)
		}
		if err := held(s, bad); tandem.KindOf(err) != c.kind {
			t.Errorf("%s: copy: %v: want %v", name, err, c.kind)
		}
		s.Release(bad)
	}
	short := h
	short.Length = 0
	if _, err := r.Read(short); !errors.Is(err, tandem.Corrupt) {
		t.Errorf("length that disagrees with the header: %v", err)
	}
	if _, err := r.Read(h); err != nil {
		t.Errorf("the real handle does not read any more: %v", err)
	}
}

func TestTornWritesAreDetected(t *testing.T) {
	s, socket := pair(t, SegmentConfig{Slots: 1, SlotSize: 256})
	r := attach(t, socket)
	h := put(t, s, "whole")
	at := s.geometry.offset(0)
	s.publish(0, h.Generation+1)
	_, err := r.Read(Handle{h.Segment, 0, h.Length, h.Generation + 1})
	wantKind(t, err, tandem.Stale) // odd: being written
	s.publish(0, h.Generation)
	s.mem[at+slotHeader] ^= 1
	_, err = r.Read(h)
	wantKind(t, err, tandem.Corrupt)
	s.mem[at] ^= 1
	_, err = r.Read(h)
	wantKind(t, err, tandem.Corrupt)
}

func TestReaderSeesWholePayloadsOnly(t *testing.T) {
	s, socket := pair(t, SegmentConfig{Slots: 2, SlotSize: 4096})
	r := attach(t, socket)
	handles := make(chan Handle, 8)
	var work sync.WaitGroup
	work.Go(func() {
		defer close(handles)
		for i := range 2000 {
			h, err := s.Put(Key{}, 0, bytes.Repeat([]byte{byte(i)}, 1+i%4000))
			if err != nil {
				continue
			}
			handles <- h
			s.Release(h) // at once: readers come too late more often than not
		}
	})
	read := 0
	for h := range handles {
		b, err := r.Read(h)
		if err != nil {
			if k := tandem.KindOf(err); k != tandem.Stale && k != tandem.Corrupt {
				t.Error(err)
			}
			continue
		}
		read++
		if len(b) != int(h.Length) || !bytes.Equal(b, bytes.Repeat(b[:1], len(b))) {
			t.Fatal("read a torn payload")
		}
	}
	work.Wait()
	t.Logf("%d of 2000 read before their end", read)
}

func TestSegmentCannotBeWrittenOrResizedByOthers(t *testing.T) {
	s, err := New(SegmentConfig{Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := unix.Ftruncate(s.file, 1); !errors.Is(err, unix.EPERM) {
		t.Errorf("shrinking a sealed segment: %v", err)
	}
	if m, err := unix.Mmap(s.file, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		_ = unix.Munmap(m)
		t.Error("a sealed segment can be mapped writable")
	}
}

// impostor serves fd, however unfit, to one reader.
func impostor(t *testing.T, answer []byte, fds ...int) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		c, err := l.(*net.UnixListener).AcceptUnix()
		if err != nil {
			return
		}
		defer c.Close()
		var hello [helloSize]byte
		_, _ = c.Read(hello[:])
		if answer == nil {
			answer = hello[:8]
		}
		_, _, _ = c.WriteMsgUnix(answer, unix.UnixRights(fds...), nil)
		_, _ = c.Read(hello[:])
	})
	t.Cleanup(func() {
		_ = l.Close()
		work.Wait()
	})
	return socket
}

func memfile(t *testing.T, size int64, seals int, header []byte) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Pwrite(fd, header, 0); err != nil {
		t.Fatal(err)
	}
	if err := seal(fd, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestAttachRefusesUnfitDescriptors(t *testing.T) {
	const all = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	good := geometry{segment: 7, slots: 2, stride: 128}
	head := make([]byte, slotHeader)
	good.encode(head)
	huge := geometry{segment: 7, slots: 1 << 30, stride: 1 << 30}
	hugeHead := make([]byte, slotHeader)
	huge.encode(hugeHead)
	file, err := os.CreateTemp(t.TempDir(), "plain")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(good.size()); err != nil {
		t.Fatal(err)
	}
	fit := memfile(t, good.size(), all, head)
	for name, c := range map[string]struct {
		answer []byte
		fds    []int
	}{
		"unsealed":       {nil, []int{memfile(t, good.size(), 0, head)}},
		"may shrink":     {nil, []int{memfile(t, good.size(), unix.F_SEAL_GROW|unix.F_SEAL_SEAL, head)}},
		"plain file":     {nil, []int{int(file.Fd())}},
		"too small":      {nil, []int{memfile(t, 100, all, head)}},
		"too large":      {nil, []int{memfile(t, maxSegment+4096, all, head)}},
		"other size":     {nil, []int{memfile(t, good.size()+64, all, head)}},
		"huge geometry":  {nil, []int{memfile(t, good.size(), all, hugeHead)}},
		"no header":      {nil, []int{memfile(t, good.size(), all, nil)}},
		"no descriptor":  {nil, nil},
		"two":            {nil, []int{fit, fit}},
		"too many":       {nil, []int{fit, fit, fit, fit, fit, fit, fit}},
		"wrong greeting": {[]byte("HTTP/1.1"), []int{fit}},
	} {
		t.Run(name, func(t *testing.T) {
			before := openFiles(t)
			socket := impostor(t, c.answer, c.fds...)
			r, err := Attach(context.Background(), socket, Verifier)
			if err == nil {
				_ = r.Close()
				t.Fatal("attached")
			}
			wantKind(t, err, tandem.Corrupt)
			testkit.Eventually(t, "descriptors leaked", func() bool { return openFiles(t) <= before+2 }) // the impostor's own two
		})
	}
	t.Run("fit", func(t *testing.T) { attach(t, impostor(t, nil, fit)) })
}

func TestAttachToNobody(t *testing.T) {
	_, err := Attach(context.Background(), filepath.Join(t.TempDir(), "none"), Verifier)
	wantKind(t, err, tandem.Unavailable)
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "mute"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	_, err = Attach(ctx, l.Addr().String(), Verifier)
	wantKind(t, err, tandem.Unavailable)
}

func TestSegmentSurvivesHostileReaders(t *testing.T) {
	s, socket := pair(t, SegmentConfig{Slots: 1})
	for _, hello := range []string{"", "x", strings.Repeat("x", 16), strings.Repeat("x", 1000)} {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte(hello))
		defer c.Close() // still open when the owner closes
	}
	r := attach(t, socket)
	h := put(t, s, "x")
	if _, err := r.Read(h); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_ = s.Close()
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("close took %v", d)
	}
	if _, err := r.Read(h); err != nil {
		t.Errorf("a mapping died with its owner: %v", err)
	}
	_, err := s.Put(Key{}, 0, nil)
	wantKind(t, err, tandem.Unavailable)
	wantKind(t, held(s, h), tandem.Stale)
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket file is left: %v", err)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

func mappings(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte("memfd:tandem"))
}

func TestNothingLeaks(t *testing.T) {
	cycle := func() {
		s, err := New(SegmentConfig{Slots: 2})
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Serve(l); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			r, err := Attach(context.Background(), l.Addr().String(), Gateway)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	cycle()
	files, maps := openFiles(t), mappings(t)
	for range 10 {
		cycle()
	}
	if f, m := openFiles(t), mappings(t); f > files || m > maps {
		t.Errorf("10 cycles went from %d to %d descriptors and from %d to %d mappings", files, f, maps, m)
	}
}

func FuzzHeaders(f *testing.F) {
	good := make([]byte, slotHeader)
	geometry{segment: 7, slots: 2, stride: 128}.encode(good)
	f.Add(good, uint32(1), uint32(10), uint64(2))
	slotHead := make([]byte, slotHeader)
	header{length: 10, checksum: 3}.encode(slotHead)
	slotHead[generationAt] = 2
	f.Add(slotHead, uint32(1), uint32(10), uint64(2))
	f.Fuzz(func(t *testing.T, b []byte, slot, length uint32, generation uint64) {
		const size = segmentHeader + 2*128
		if g, err := parseGeometry(b, size); err == nil && (g.size() != size || g.capacity() == 0 ||
			g.offset(g.slots-1)+int(g.stride) > size) {
			t.Errorf("accepted geometry %+v", g)
		}
		g := geometry{segment: 7, slots: 2, stride: 128}
		h := Handle{7, slot, length, generation}
		got, err := parseHeader(b, h, g.capacity())
		if err == nil && g.check(h) == nil && g.offset(h.Slot)+slotHeader+int(got.length) > size {
			t.Errorf("accepted header %+v", got)
		}
	})
}
