package shm

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
)

// Set is all segments that a process has mapped. The zero Set has none. Safe for concurrent use.
type Set struct {
	mu sync.RWMutex
	of map[uint64][]*Reader // by segment; more than one if several Links found the same owner
}

// Read returns a copy of the payload of h, with the errors of Reader.Read; Unavailable also if h's segment is not mapped.
func (s *Set) Read(h Handle) ([]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if readers := s.of[h.Segment]; len(readers) > 0 {
		return readers[0].Read(h)
	}
	return nil, tandem.Errorf("shm", tandem.Unavailable, "segment %016x is not mapped", h.Segment)
}

func (s *Set) add(r *Reader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[uint64][]*Reader{}
	}
	s.of[r.Segment()] = append(s.of[r.Segment()], r)
}

func (s *Set) remove(r *Reader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := r.Segment()
	if s.of[id] = slices.DeleteFunc(s.of[id], func(x *Reader) bool { return x == r }); len(s.of[id]) == 0 {
		delete(s.of, id)
	}
}

const (
	firstPause = 20 * time.Millisecond // before a segment that could not be mapped is tried again; doubles
	longPause  = time.Second
)

// Link keeps the segment of one owner mapped, in a Set. The owner may end and be started again with another segment. Link
// maps the segment once for each start of the owner. The segment of an owner that has ended stays mapped until there is a
// new one or the Link is closed: tickets may still name trees in it.
type Link struct {
	as     Role
	find   func(ctx context.Context) (socket string, err error)
	set    *Set
	now    atomic.Pointer[Reader] // nil before the first
	poke   chan struct{}
	cancel context.CancelFunc
	done   chan struct{}
}

// NewLink returns a Link of the owner whose socket find returns ("": it hands out nothing on this host); after an error find
// is called again. The caller must Close the Link while set is still in use.
func NewLink(as Role, set *Set, find func(ctx context.Context) (socket string, err error)) *Link {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Link{as: as, find: find, set: set, poke: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{})}
	go l.run(ctx)
	return l
}

// Segment returns the id of the segment that is mapped, 0 for none.
func (l *Link) Segment() uint64 {
	if r := l.now.Load(); r != nil {
		return r.Segment()
	}
	return 0
}

// Read returns a copy of the payload of h, which must be of the owner's segment, with the errors of Reader.Read.
func (l *Link) Read(h Handle) ([]byte, error) {
	if r := l.now.Load(); r != nil {
		return r.Read(h)
	}
	return nil, tandem.Errorf("shm", tandem.Unavailable, "segment %016x is not mapped", h.Segment)
}

// Poke has the Link ask again an owner that handed out nothing: another process may be there now.
func (l *Link) Poke() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// Close takes the segment out of the Set and unmaps it.
func (l *Link) Close() {
	l.cancel()
	<-l.done
	l.take(nil)
}

// take replaces the current reader by r, which may be nil.
func (l *Link) take(r *Reader) {
	if r != nil {
		l.set.add(r)
	}
	if old := l.now.Swap(r); old != nil {
		l.set.remove(old)
		_ = old.Close()
	}
}

func (l *Link) run(ctx context.Context) {
	defer close(l.done)
	pause := firstPause
	for ctx.Err() == nil {
		r, err := l.attach(ctx)
		var again <-chan time.Time
		switch {
		case r != nil:
			l.take(r)
			select {
			case <-r.Gone():
			case <-ctx.Done():
				return
			}
			pause = firstPause
			again = time.After(pause) // an owner that was killed is not back at once
		case err != nil:
			again = time.After(pause)
			pause = min(2*pause, longPause)
		}
		select {
		case <-again:
		case <-l.poke:
		case <-ctx.Done():
		}
	}
}

// attach returns a reader of the owner, nil without an error if it hands out nothing here.
func (l *Link) attach(ctx context.Context) (*Reader, error) {
	ctx, cancel := context.WithTimeout(ctx, handshake)
	defer cancel()
	socket, err := l.find(ctx)
	if err != nil || socket == "" {
		return nil, err
	}
	return Attach(ctx, socket, l.as)
}
