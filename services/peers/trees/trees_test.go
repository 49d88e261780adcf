package trees

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/wire"
	"github.com/tandem-llm/tandem/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func chain(n int) tandem.Tree {
	t := tandem.Root(1000)
	for i := 1; i < n; i++ {
		t.Tokens, t.Parents = append(t.Tokens, tandem.Token(1000+i)), append(t.Parents, int32(i-1))
	}
	return t
}

func ticket(base, nodes int) tandem.Ticket {
	return tandem.Ticket{Session: 5, Epoch: 2, Base: tandem.Position(base), Drafter: "d", Tree: chain(nodes)}
}

// rig is a writer and whoever reads what it wrote.
type rig struct {
	*Writer
	t        *testing.T
	segment  *shm.Segment
	socket   string
	counters *tandem.Counters
}

func newRig(t *testing.T, cfg shm.SegmentConfig, inline int) *rig {
	t.Helper()
	cfg.Lease = time.Hour
	segment, err := shm.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = segment.Close() })
	r := &rig{t: t, segment: segment, socket: filepath.Join(t.TempDir(), "s"), counters: new(tandem.Counters)}
	r.Writer = NewWriter(segment, inline, r.counters)
	l, err := net.Listen("unix", r.socket)
	if err == nil {
		err = segment.Serve(l)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// attach maps the segment as a verifier does, until the returned function is called.
func (r *rig) attach() (*shm.Reader, func()) {
	r.t.Helper()
	before := r.segment.Readers(shm.Verifier)
	reader, err := shm.Attach(context.Background(), r.socket, shm.Verifier)
	if err != nil {
		r.t.Fatal(err)
	}
	until := func(n int) {
		testkit.Eventually(r.t, fmt.Sprintf("there are %d readers", n), func() bool { return r.segment.Readers(shm.Verifier) == n })
	}
	until(before + 1)
	return reader, func() { _ = reader.Close(); until(before) }
}

func (r *rig) envelope(k tandem.Ticket) wire.Envelope {
	r.t.Helper()
	e, err := r.Envelope(k)
	if err != nil {
		r.t.Fatal(err)
	}
	return e
}

// TestWhereTreesTravel: by handle where a verifier has the segment mapped and the tree is worth one; by a handle to be fetched where it
// fits no ticket; else inside.
func TestWhereTreesTravel(t *testing.T) {
	r := newRig(t, shm.SegmentConfig{SlotSize: 16 << 10}, 0)
	wants := func(what string, nodes int, handle, leased bool) wire.Envelope {
		t.Helper()
		e := r.envelope(ticket(nodes, nodes))
		if (e.Handle.Segment != 0) != handle || (e.Lease > 0) != leased {
			t.Errorf("%s, %d nodes: handle %v, lease %v", what, nodes, e.Handle, e.Lease)
		}
		if _, err := e.Marshal(); err != nil {
			t.Errorf("%s, %d nodes: %v", what, nodes, err)
		}
		return e
	}
	wants("no reader", 16, false, false)
	wants("no reader", 256, false, false)
	if e := wants("no reader", 3000, true, false); e.Handle.Segment != 0 {
		if payload, err := r.Copy(e.Handle); err != nil || len(payload) != int(e.Handle.Length) {
			t.Errorf("a copy of %d bytes, %v", len(payload), err)
		}
	}
	reader, gone := r.attach()
	wants("mapped", 1, false, false)
	for _, nodes := range []int{16, 256, 3000} {
		e := wants("mapped", nodes, true, true)
		if tree, err := Read(reader, e.Handle); err != nil || !reflect.DeepEqual(tree, chain(nodes)) {
			t.Errorf("read %d nodes, %v: want %d", tree.Len(), err, nodes)
		}
		if _, err := r.Copy(e.Handle); err != nil { // for a verifier that shares the tickets with this one
			t.Error(err)
		}
	}
	gone()
	wants("reader gone", 16, false, false)
	if _, err := r.Envelope(tandem.Ticket{}); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("a ticket without a tree: %v: want invalid", err)
	}
	patient := newRig(t, shm.SegmentConfig{}, 1024)
	_, gone = patient.attach()
	defer gone()
	small, large := patient.envelope(ticket(1, 16)), patient.envelope(ticket(2, 400))
	if small.Handle.Segment != 0 || large.Handle.Segment == 0 {
		t.Errorf("with a limit of 1024 bytes: 16 nodes %v, 400 nodes %v", small.Handle, large.Handle)
	}
}

// TestAnswers: whoever has mapped the segment is told the handle of the ticket's tree, which is written once; a tree without a ticket is
// written for the answer.
func TestAnswers(t *testing.T) {
	r := newRig(t, shm.SegmentConfig{Slots: 4}, 0)
	id := r.segment.ID()
	p := tandem.Proposal{Session: 5, Epoch: 2, Base: 7}
	reader, gone := r.attach()
	e := r.envelope(ticket(7, 16))
	if h := r.Answer("d", p, chain(16), id); h != e.Handle {
		t.Errorf("answered %v: the ticket has %v", h, e.Handle)
	}
	for what, h := range map[string]shm.Handle{"not mapped": r.Answer("d", p, chain(16), 0),
		"another segment": r.Answer("d", p, chain(16), id+1), "a root": r.Answer("d", p, chain(1), id)} {
		if h != (shm.Handle{}) {
			t.Errorf("%s: answered %v", what, h)
		}
	}
	if n := r.counters.Snapshot()["trees.shared"]; n != 1 {
		t.Errorf("one tree was written %d times", n)
	}
	other := r.Answer("e", p, chain(20), id) // another drafter's tree of the same round
	merge := p
	merge.Return = true
	again := r.Answer("d", merge, chain(24), id) // asked once more at the same base, for another tree
	for h, nodes := range map[shm.Handle]int{other: 20, again: 24} {
		if tree, err := Read(reader, h); err != nil || tree.Len() != nodes {
			t.Errorf("read %d nodes, %v: want %d", tree.Len(), err, nodes)
		}
	}
	if _, err := reader.Read(e.Handle); tandem.KindOf(err) != tandem.Stale {
		t.Errorf("the tree before: %v: want stale", err)
	}
	gone() // the verifier: tickets have their trees inside, and answers must not tell an older one of that base
	r.envelope(ticket(7, 30))
	if h := r.Answer("d", p, chain(30), id); h == again || int(h.Length) == 0 {
		t.Errorf("answered %v: want a tree of its own", h)
	}
	r.Forget("d", 5)
	r.Forget("e", 5)
	if n := r.segment.Leased(); n != 0 {
		t.Errorf("%d slots are leased after the session's end", n)
	}
}

// TestNoRoom: what finds no slot travels inside, and is counted.
func TestNoRoom(t *testing.T) {
	r := newRig(t, shm.SegmentConfig{Slots: 1}, 0)
	_, gone := r.attach()
	defer gone()
	held := ticket(1, 16)
	held.Session = 6
	r.envelope(held)
	if e := r.envelope(ticket(1, 16)); e.Handle.Segment != 0 || e.Ticket.Tree.Len() != 16 || r.counters.Snapshot()["tickets.no_slot"] != 1 {
		t.Errorf("%+v, counted %v", e, r.counters.Snapshot())
	}
	if h := r.Answer("d", tandem.Proposal{Session: 5, Epoch: 2, Base: 1}, chain(16), r.segment.ID()); h != (shm.Handle{}) {
		t.Errorf("answered %v", h)
	}
}

// TestNobodyWrites: a process without shared memory.
func TestNobodyWrites(t *testing.T) {
	var w *Writer
	if e, err := w.Envelope(ticket(1, 16)); err != nil || e.Handle.Segment != 0 || e.Ticket.Tree.Len() != 16 {
		t.Errorf("%+v, %v", e, err)
	}
	if h := w.Answer("d", tandem.Proposal{}, chain(16), 0); h != (shm.Handle{}) {
		t.Errorf("answered %v", h)
	}
	w.Forget("d", 5)
	w.Release(shm.Handle{})
	if _, err := w.Copy(shm.Handle{}); tandem.KindOf(err) != tandem.Stale {
		t.Errorf("%v: want stale", err)
	}
}
