package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem"
)

// TestLeaseEndsWithConnections: a payload stays while a reader is there that was there when it was put; one that came for
// it alone, over gRPC, has its time.
func TestLeaseEndsWithConnections(t *testing.T) {
	s, socket := pair(t, SegmentConfig{Slots: 4, Lease: time.Hour})
	early := put(t, s, "x")
	first, second := attach(t, socket), attach(t, socket)
	testkit.Eventually(t, "the readers are not known", func() bool { return s.Readers(Verifier) == 2 })
	both := put(t, s, "y")
	_ = second.Close()
	testkit.Eventually(t, "the reader that left is still known", func() bool { return s.Readers(Verifier) == 1 })
	if s.Leased() != 2 {
		t.Error("a lease ended with one of two connections")
	}
	late := attach(t, socket)
	testkit.Eventually(t, "the reader is not known", func() bool { return s.Readers(Verifier) == 2 })
	_ = first.Close()
	testkit.Eventually(t, "the lease outlived its readers", func() bool { return s.Leased() == 1 })
	_, err := late.Read(both)
	wantKind(t, err, tandem.Stale)
	if err := held(s, early); err != nil {
		t.Errorf("a lease from before ended too: %v", err)
	}
	_, err = first.Read(early)
	wantKind(t, err, tandem.Unavailable)
}

// TestOnePayloadOfAKey: the next payload of a session ends the lease of the one before, so nobody need release it.
func TestOnePayloadOfAKey(t *testing.T) {
	s, socket := pair(t, SegmentConfig{Slots: 3, Lease: time.Hour})
	r := attach(t, socket)
	var last Handle
	for i := range 20 {
		for _, key := range []Key{{"a", 1}, {"b", 1}} {
			h, err := s.Put(key, uint64(i), fmt.Append(nil, key, i))
			if err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
			if got, err := r.Read(h); err != nil || string(got) != fmt.Sprint(key, i) {
				t.Fatalf("read %q, %v", got, err)
			}
			if key.Drafter == "b" {
				continue
			}
			if _, err := r.Read(last); i > 0 && !errors.Is(err, tandem.Stale) {
				t.Fatalf("the payload before: %v: want stale", err)
			}
			last = h
			if found, ok := s.Find(key, uint64(i)); !ok || found != h {
				t.Errorf("found %v, %v: want %v", found, ok, h)
			}
			if _, ok := s.Find(key, uint64(i+1)); ok {
				t.Error("found a version that was never put")
			}
		}
	}
	if s.Leased() != 2 {
		t.Errorf("%d slots are leased by two keys", s.Leased())
	}
	s.Forget(Key{"a", 1})
	s.Forget(Key{"c", 1})
	if _, ok := s.Find(Key{"a", 1}, 19); ok || s.Leased() != 1 {
		t.Errorf("%d slots leased after one key was forgotten", s.Leased())
	}
}

// TestReadersSayWhatTheyAre: the owner counts readers by role; one of an earlier release, which says nothing, gets the segment too,
// and one that says nonsense is sent away.
func TestReadersSayWhatTheyAre(t *testing.T) {
	s, socket := pair(t, SegmentConfig{Slots: 1})
	v, g := attach(t, socket), attachAs(t, socket, Gateway)
	testkit.Eventually(t, "a verifier and a gateway", func() bool { return s.Readers(Verifier) == 1 && s.Readers(Gateway) == 1 })
	_ = v.Close()
	testkit.Eventually(t, "the verifier's end", func() bool { return s.Readers(Verifier) == 0 })
	for _, said := range [][]byte{nil, []byte("nonsense"), {'R', 'O', 'L', 'E', 0, 0, 0, 0}, {'R', 'O', 'L', 'E', 9, 0, 0, 0}} {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var hello [helloSize]byte
		binary.LittleEndian.PutUint64(hello[:], helloMagic)
		binary.LittleEndian.PutUint64(hello[8:], random())
		if _, err := c.Write(hello[:]); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(hello[:]); n != 8 || err != nil {
			t.Fatalf("an answer of %d bytes, %v", n, err)
		}
		if said == nil {
			continue
		}
		if _, err := c.Write(said); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		if n, err := c.Read(hello[:]); !errors.Is(err, io.EOF) {
			t.Errorf("%q: %d bytes, %v: want to be sent away", said, n, err)
		}
	}
	if s.Readers(Verifier) != 0 || s.Readers(Gateway) != 1 {
		t.Errorf("%d verifiers and %d gateways", s.Readers(Verifier), s.Readers(Gateway))
	}
	_ = g.Close()
}

// earlier is the owner of the last release: it is told nothing by its readers, and takes a word for the end.
func earlier(t *testing.T, fd int) string { return impostor(t, nil, fd) }

func TestOwnerOfTheLastRelease(t *testing.T) {
	head := make([]byte, slotHeader)
	g := geometry{segment: 7, slots: 2, stride: 128}
	g.encode(head)
	r := attach(t, earlier(t, memfile(t, g.size(), unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL, head)))
	select {
	case <-r.Gone():
		t.Error("the owner heard a word that it does not know, and hung up")
	case <-time.After(50 * time.Millisecond):
	}
}

// TestLink: the segment is mapped once, and again when its owner was started again; until then that of the dead owner can be read.
func TestLink(t *testing.T) {
	set := new(Set)
	socket := filepath.Join(t.TempDir(), "s")
	var asked atomic.Int32
	l := NewLink(Verifier, set, func(context.Context) (string, error) { asked.Add(1); return socket, nil })
	defer l.Close()
	start := func() *Segment {
		s, err := New(SegmentConfig{Slots: 2, Lease: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Serve(listener); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the segment is not mapped", func() bool { return l.Segment() == s.ID() && s.Readers(Verifier) == 1 })
		return s
	}
	reads := func(h Handle, want tandem.Kind) {
		t.Helper()
		for name, read := range map[string]func(Handle) ([]byte, error){"link": l.Read, "set": set.Read} {
			if got, err := read(h); tandem.KindOf(err) != want || want == tandem.OK && string(got) != "x" {
				t.Errorf("%s: read %q, %v: want %v", name, got, err, want)
			}
		}
	}
	reads(Handle{Segment: 1}, tandem.Unavailable)
	first := start()
	h := put(t, first, "x")
	reads(h, tandem.OK)
	before := asked.Load()
	time.Sleep(3 * firstPause)
	if asked.Load() != before {
		t.Error("an owner that is there is asked again")
	}
	_ = first.Close() // as if it had been killed: its slots stay as they are
	testkit.Eventually(t, "the end is not noticed", func() bool { return asked.Load() > before })
	reads(h, tandem.OK)
	second := start()
	if _, err := set.Read(h); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("a handle of the dead owner: %v: want unavailable", err)
	}
	reads(put(t, second, "x"), tandem.OK)
}

// TestLinkToNothing: an owner that passes nothing out is not asked again until it may be another one.
func TestLinkToNothing(t *testing.T) {
	var asked atomic.Int32
	l := NewLink(Gateway, new(Set), func(context.Context) (string, error) { asked.Add(1); return "", nil })
	defer l.Close()
	testkit.Eventually(t, "never asked", func() bool { return asked.Load() == 1 })
	time.Sleep(3 * firstPause)
	if asked.Load() != 1 {
		t.Errorf("asked %d times", asked.Load())
	}
	l.Poke()
	testkit.Eventually(t, "not asked again", func() bool { return asked.Load() == 2 })
}
