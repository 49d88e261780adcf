package discovery

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/drafting"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

// Memory is the shared memory of all drafter processes of a table. It maps the segment of each process on this host that hands one out, and
// fetches what the others hold by gRPC, as a pool.Fetcher. Safe for concurrent use.
type Memory struct {
	as   shm.Role
	set  *shm.Set
	mu   sync.Mutex
	of   []*memory // in the order of Update
	done bool
	work sync.WaitGroup
}

// memory is the shared memory of one process.
type memory struct {
	Process
	link *shm.Link
}

// NewMemory returns a Memory that knows no process yet. It maps segments into set, which stays the caller's, as a reader of that role. The
// caller must Close it.
func NewMemory(as shm.Role, set *shm.Set) *Memory { return &Memory{as: as, set: set} }

// Update replaces the processes whose memory is mapped: use it as TableConfig.Changed.
func (m *Memory) Update(processes []Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done {
		return
	}
	var now []*memory
	for _, p := range processes {
		i := slices.IndexFunc(m.of, func(x *memory) bool { return x.Conn == p.Conn })
		if i < 0 {
			now = append(now, &memory{p, shm.NewLink(m.as, m.set, finder(p.Addr, p.Conn))})
			continue
		}
		x := m.of[i]
		if p.Instance != x.Instance || p.Up && !x.Up {
			x.link.Poke()
		}
		now = append(now, &memory{p, x.link})
	}
	for _, x := range m.of {
		if !slices.ContainsFunc(now, func(y *memory) bool { return x.link == y.link }) {
			m.work.Go(x.link.Close)
		}
	}
	m.of = now
}

// finder returns a function that asks the process at addr, the other end of conn, for the socket of its segment; "" for a process on
// another host, which must not choose a path here.
func finder(addr string, conn *grpc.ClientConn) func(context.Context) (string, error) {
	if !rpc.OnThisHost(addr) {
		return func(context.Context) (string, error) { return "", nil }
	}
	client := drafting.NewClient(conn, "")
	return func(ctx context.Context) (string, error) {
		d, err := client.Describe(ctx)
		return d.SegmentSocket, err
	}
}

// Of returns the shared memory of the process at the other end of conn, nil if the latest Update had no such process, or m is nil.
func (m *Memory) Of(conn *grpc.ClientConn) *shm.Link {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range m.of {
		if x.Conn == conn {
			return x.link
		}
	}
	return nil
}

// Close unmaps all segments; later Updates do nothing. Close it before the table, whose connections it uses.
func (m *Memory) Close() {
	m.mu.Lock()
	for _, x := range m.of {
		m.work.Go(x.link.Close)
	}
	m.of, m.done = nil, true
	m.mu.Unlock()
	m.work.Wait()
}

// Fetch implements pool.Fetcher. It asks the process that announced h's segment; if none did, one after the other those that have a drafter
// of that name or have not told their drafters. Errors: Unavailable if there is none; else those of the last that was asked.
func (m *Memory) Fetch(ctx context.Context, drafter string, h shm.Handle) ([]byte, error) {
	err := tandem.Errorf(op, tandem.Unavailable, "drafter %.210q, whose segment is %016x, is not known", drafter, h.Segment)
	for _, conn := range m.owners(drafter, h) {
		var payload []byte
		payload, err = drafting.NewClient(conn, "").Fetch(ctx, h)
		if tandem.KindOf(err) != tandem.Stale && tandem.KindOf(err) != tandem.Unavailable {
			return payload, err
		}
	}
	return nil, err
}

// owners returns the processes that may own h.
func (m *Memory) owners(drafter string, h shm.Handle) (out []*grpc.ClientConn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range m.of {
		if x.Segment == h.Segment {
			return []*grpc.ClientConn{x.Conn}
		}
		if len(x.Drafters) == 0 || slices.ContainsFunc(x.Drafters, func(d wire.AnnouncedDrafter) bool { return d.Name == drafter }) {
			out = append(out, x.Conn)
		}
	}
	return out
}
