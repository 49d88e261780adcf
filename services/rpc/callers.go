package rpc

import (
	"context"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// headerProcess names the calling process, so that a server can tell when it is gone.
const headerProcess = "tandem-process"

// goneAfter is how long a process may be without a connection before it is taken for dead: one whose connection
// merely broke is back within milliseconds.
const goneAfter = 3 * time.Second

// process is this process' number, another one in each life.
var process = strconv.FormatUint(rand.Uint64()|1, 16)

// Caller returns the number of the process that made ctx's call, by Dial; 0 for others.
func Caller(ctx context.Context) uint64 {
	v := metadata.ValueFromIncomingContext(ctx, headerProcess)
	if len(v) != 1 {
		return 0
	}
	n, err := strconv.ParseUint(v[0], 16, 64)
	if err != nil {
		return 0
	}
	return n
}

// callers knows which processes have connections to a server.
type callers struct {
	after time.Duration
	gone  func(process uint64)

	mu     sync.Mutex
	of     map[uint64]*caller
	closed bool
}

type caller struct {
	links int
	timer *time.Timer // runs while there are none
}

// listener makes its connections known to their calls, as the remote address.
type listener struct {
	net.Listener
	callers *callers
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &link{Conn: c, callers: l.callers}, nil
}

// link is a connection. What is not atomic is guarded by callers.mu.
type link struct {
	net.Conn
	callers *callers
	known   atomic.Bool // whose it is
	caller  *caller     // nil until known
	process uint64
	closed  bool
}

type linkAddr struct {
	net.Addr
	link *link
}

func (l *link) RemoteAddr() net.Addr { return linkAddr{l.Conn.RemoteAddr(), l} }

func (l *link) Close() error {
	l.callers.left(l)
	return l.Conn.Close()
}

// seen notes whose connection ctx's call came by. A nil c does not care.
func (c *callers) seen(ctx context.Context) {
	if c == nil {
		return
	}
	from, ok := peer.FromContext(ctx)
	if !ok {
		return
	}
	at, ok := from.Addr.(linkAddr)
	if !ok || at.link.known.Load() {
		return
	}
	number, l := Caller(ctx), at.link
	if number == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.closed || l.caller != nil {
		return
	}
	if l.caller = c.of[number]; l.caller == nil {
		l.caller = new(caller)
		c.of[number] = l.caller
	}
	if l.process = number; l.caller.timer != nil {
		l.caller.timer.Stop()
	}
	l.caller.links++
	l.known.Store(true)
}

// left notes that a connection is closed.
func (c *callers) left(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	if l.caller == nil {
		return
	}
	if l.caller.links--; l.caller.links == 0 && !c.closed {
		l.caller.timer = time.AfterFunc(c.after, func() { c.end(l.process, l.caller) })
	}
}

// end tells that a process is gone, unless it came back meanwhile.
func (c *callers) end(number uint64, who *caller) {
	c.mu.Lock()
	gone := who.links == 0 && !c.closed && c.of[number] == who
	if gone {
		delete(c.of, number)
	}
	c.mu.Unlock()
	if gone {
		c.gone(number)
	}
}

// close ends the waits for processes to come back.
func (c *callers) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, who := range c.of {
		if who.timer != nil {
			who.timer.Stop()
		}
	}
}
