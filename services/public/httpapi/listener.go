package httpapi

import (
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/logs"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

const (
	// sendBuffer bounds what the kernel keeps of an answer that its client does not take, in bytes; the kernel doubles it for
	// its own bookkeeping. It would grow to megabytes otherwise.
	sendBuffer = 64 << 10

	graceTime   = time.Second // a client that neither sends nor takes its next byte for this long may be closed in favour of another
	turnedTime  = 250 * time.Millisecond
	scarceTime  = 20 * time.Millisecond // before the next Accept when there are too many open files
	mostTurning = 32                    // connections at once that are told why they are closed
)

// limited is a listener with a limited number of connections. At the limit, a new one replaces the one that has made us
// wait longest: idle ones go first, then those that have owed a request, a body, or the reading of an answer for graceTime
// or more. A connection that waits for us, because its generation runs, is never closed. If there is no other, the new
// one is refused with 503. So a client that sends and reads nothing keeps nobody out.
//
// There is no limit per address: behind a proxy, or containers' port mapping, all clients have the same.
type limited struct {
	net.Listener
	room     int
	counters *tandem.Counters
	log      *slog.Logger
	warnings logs.Limit

	mu    sync.Mutex
	all   map[*guest]struct{}
	shut  func() error
	turns chan struct{} // one for each that is being refused
	work  sync.WaitGroup
}

func newLimited(l net.Listener, room int, counters *tandem.Counters, log *slog.Logger) *limited {
	out := &limited{Listener: l, room: room, counters: counters, log: log, all: map[*guest]struct{}{},
		turns: make(chan struct{}, mostTurning)}
	out.shut = sync.OnceValue(func() error {
		err := l.Close()
		out.work.Wait()
		return err
	})
	return out
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			if l.scarce(err) {
				continue
			}
			return nil, err
		}
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetWriteBuffer(sendBuffer)
		}
		g := &guest{Conn: c}
		g.leave = sync.OnceFunc(func() { l.leave(g) })
		g.owes(time.Now())
		g.heads.begin()
		if out, ok := l.enter(g); !ok {
			l.counters.Add("http.connections.refused", 1)
			l.turnAway(c)
			continue
		} else if out != nil {
			l.counters.Add("http.connections.displaced", 1)
			_ = out.Close()
		}
		return g, nil
	}
}

// scarce reports whether err is that of too many open files. It then closes the connection that has to go, and waits a moment.
func (l *limited) scarce(err error) bool {
	if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) {
		return false
	}
	l.mu.Lock()
	out, open := l.longest(time.Now()), len(l.all)
	delete(l.all, out)
	l.mu.Unlock()
	if out != nil {
		l.counters.Add("http.connections.displaced", 1)
		_ = out.Close()
	}
	if dropped, ok := l.warnings.Allow(time.Now()); ok {
		l.log.Warn("a connection cannot be accepted: raise the limit of open files (ulimit -n)", "error", err, "connections", open,
			"limit", rpc.Files(), "dropped", dropped)
	}
	time.Sleep(scarceTime)
	return true
}

// enter gives g a place, and returns the connection to close for it, if any; ok is false if there is no place.
func (l *limited) enter(g *guest) (out *guest, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) >= l.room {
		if out = l.longest(time.Now()); out == nil {
			return nil, false
		}
		delete(l.all, out)
	}
	l.all[g] = struct{}{}
	return out, true
}

// longest returns the connection that has to go, nil for none; l is locked.
func (l *limited) longest(now time.Time) (out *guest) {
	var most time.Duration
	idle := false
	for g := range l.all {
		waits, free := g.makesWait(now)
		if !free && waits < graceTime || idle && !free {
			continue
		}
		if free && !idle || out == nil || waits > most {
			out, most, idle = g, waits, free
		}
	}
	return out
}

func (l *limited) leave(g *guest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, g)
}

// turnAway answers a connection with 503 and closes it. Those beyond mostTurning are only closed.
func (l *limited) turnAway(c net.Conn) {
	select {
	case l.turns <- struct{}{}:
	default:
		_ = c.Close()
		return
	}
	l.work.Go(func() {
		defer func() { <-l.turns }()
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(turnedTime))
		if _, err := io.WriteString(c, turnedAway); err != nil {
			return
		}
		if half, ok := c.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(c, 64<<10)) // closing with unread bytes would lose the answer
		}
	})
}

// turnedAway is the answer to a connection for which there is no room.
var turnedAway = func() string {
	body := encode(oai.FromError(tandem.Errorf("", tandem.Unavailable, "too many connections: try again")).Body())
	return "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\nRetry-After: 1\r\nConnection: " +
		"close\r\nContent-Length: " +
		strconv.Itoa(len(body)) + "\r\n\r\n" + string(body)
}()

// Close implements net.Listener; it may be called again.
func (l *limited) Close() error { return l.shut() }

// guest is a connection that takes a place until it is closed. It notes since when its client makes us wait.
type guest struct {
	net.Conn
	leave   func()
	idle    atomic.Bool  // between two requests
	owed    atomic.Int64 // since when, by ticks, it owes a byte; 0 = it does not
	writing atomic.Int64 // since when a write waits; 0 = none does
	reading atomic.Bool  // a handler reads the body
	heads   heads
}

// makesWait returns for how long the client has made us wait, and whether it may go at once.
func (g *guest) makesWait(now time.Time) (d time.Duration, idle bool) {
	for _, since := range []*atomic.Int64{&g.owed, &g.writing} {
		if t := since.Load(); t != 0 {
			d = max(d, time.Duration(ticks(now)-t))
		}
	}
	return d, g.idle.Load()
}

func (g *guest) owes(now time.Time) { g.owed.Store(ticks(now)) }

var started = time.Now()

// ticks returns a time as nanoseconds of a clock that nobody sets, never 0.
func ticks(t time.Time) int64 { return int64(t.Sub(started)) + 1 }

// reads notes that a handler begins or ends to read a body. g may be nil.
func (g *guest) reads(on bool) {
	if g == nil || g.reading.Swap(on) == on {
		return
	}
	if g.owed.Store(0); on {
		g.owes(time.Now())
	}
}

// Read implements net.Conn.
func (g *guest) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	g.heads.read(p[:max(n, 0)])
	if n > 0 && g.reading.Load() {
		g.owes(time.Now())
	}
	return n, err
}

// Write implements net.Conn.
func (g *guest) Write(p []byte) (int, error) {
	g.writing.Store(ticks(time.Now()))
	sent := inOurForm(p)
	n, err := g.Conn.Write(sent)
	g.writing.Store(0)
	if err == nil && n == len(sent) {
		n = len(p)
	}
	return min(n, len(p)), err
}

// Close implements net.Conn.
func (g *guest) Close() error {
	defer g.leave()
	return g.Conn.Close()
}

// state notes how net/http sees a connection.
func state(c net.Conn, s http.ConnState) {
	g, ok := c.(*guest)
	if !ok {
		return
	}
	switch s {
	case http.StateActive: // its request is read
		g.idle.Store(false)
		g.owed.Store(0)
	case http.StateIdle:
		g.heads.begin()
		g.owes(time.Now())
		g.idle.Store(true)
	}
}

// guestKey is the key of a request's connection in its context.
type guestKey struct{}

// guestOf returns the connection of a request, nil outside of a server that listens.
func guestOf(ctx context.Context) *guest {
	g, _ := ctx.Value(guestKey{}).(*guest)
	return g
}

// quiet returns a debug-level logger for net/http's messages about connections, which anybody who can connect can cause.
func quiet(l *slog.Logger) *log.Logger { return slog.NewLogLogger(l.Handler(), slog.LevelDebug) }
