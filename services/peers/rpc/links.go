package rpc

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/tandem-llm/tandem"
)

// listener bounds the number of connections, and passes each to its calls as their remote address.
//
// At the limit, a new connection replaces one that does nothing: first the oldest without an admitted
// call, then the one that has been idle longest. So clients that cannot identify themselves, or send
// nothing, keep nobody out. If all are at work the new one is closed.
type listener struct {
	net.Listener
	most     int
	callers  *callers // told whose each connection is; nil: the server tells nobody when a process is gone
	counters *tandem.Counters

	mu    sync.Mutex
	links []*link // open, oldest first
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if n := l.enter(&link{Conn: c, listener: l, callers: l.callers}); n != nil {
			return n, nil
		}
		_ = c.Close()
	}
}

// enter finds room for a new connection; nil if there is none.
func (l *listener) enter(n *link) *link {
	l.mu.Lock()
	defer l.mu.Unlock()
	n.idle.Store(int64(time.Since(started)))
	if len(l.links) >= l.most {
		i := l.victim()
		if i < 0 {
			l.counters.Add("rpc.connections.refused", 1)
			return nil
		}
		l.counters.Add("rpc.connections.displaced", 1)
		_ = l.links[i].Conn.Close() // whoever reads from it ends it
		l.links = slices.Delete(l.links, i, i+1)
	}
	l.links = append(l.links, n)
	return n
}

// victim returns the index of the connection that goes for a new one, -1 for none.
func (l *listener) victim() int {
	best := -1
	for i, k := range l.links {
		switch {
		case !k.admitted.Load():
			return i
		case k.calls.Load() == 0 && (best < 0 || k.idle.Load() < l.links[best].idle.Load()):
			best = i
		}
	}
	return best
}

// leave forgets a connection that is closed.
func (l *listener) leave(k *link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.links, k); i >= 0 {
		l.links = slices.Delete(l.links, i, i+1)
	}
}

// link is a connection. callers.mu guards the fields that are not atomic.
type link struct {
	net.Conn
	listener *listener
	admitted atomic.Bool  // it has made a call that was let in
	calls    atomic.Int32 // calls whose messages have come and that have not ended
	idle     atomic.Int64 // when the last of them ended, in nanoseconds since started
	refused  atomic.Int32 // calls that were not let in

	callers *callers
	known   atomic.Bool // caller is set
	caller  *caller     // nil until known
	process uint64
	closed  bool
}

type linkAddr struct {
	net.Addr
	link *link
}

// RemoteAddr implements net.Conn.
func (l *link) RemoteAddr() net.Addr { return linkAddr{l.Conn.RemoteAddr(), l} }

// Close implements net.Conn.
func (l *link) Close() error {
	l.listener.leave(l)
	l.callers.left(l)
	return l.Conn.Close()
}

var started = time.Now()

// linkOf returns the connection by which ctx's call came, nil if it is not a listener's.
func linkOf(ctx context.Context) *link {
	if from, ok := peer.FromContext(ctx); ok {
		if at, ok := from.Addr.(linkAddr); ok {
			return at.link
		}
	}
	return nil
}

// begin notes that the message of a call has come; the caller must call the function returned when the call ends.
func begin(ctx context.Context) (end func()) {
	arrived(ctx)
	l := linkOf(ctx)
	if l == nil {
		return func() {}
	}
	l.calls.Add(1)
	return func() {
		l.idle.Store(int64(time.Since(started)))
		l.calls.Add(-1)
	}
}
