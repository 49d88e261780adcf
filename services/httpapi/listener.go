package httpapi

import (
	"log"
	"log/slog"
	"net"
	"sync"
)

// sendBuffer bounds what the kernel keeps of an answer that its client does not take, in bytes; it takes twice as much
// for its own accounts. It would grow to megabytes otherwise.
const sendBuffer = 64 << 10

// limited is a listener with room for so many connections; it accepts no more until one is closed.
type limited struct {
	net.Listener
	room chan struct{}
	done chan struct{}
	shut func() error
}

func newLimited(l net.Listener, room int) *limited {
	out := &limited{Listener: l, room: make(chan struct{}, room), done: make(chan struct{})}
	out.shut = sync.OnceValue(func() error {
		close(out.done)
		return l.Close()
	})
	return out
}

// Accept waits for room, then for a connection.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.room
		return nil, err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(sendBuffer)
	}
	return &guest{Conn: c, leave: sync.OnceFunc(func() { <-l.room })}, nil
}

// Close implements net.Listener; it may be called again.
func (l *limited) Close() error { return l.shut() }

// guest is a connection that takes room until it is closed.
type guest struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *guest) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// quiet returns a logger for what net/http has to say of connections: anybody who can connect can cause it.
func quiet(l *slog.Logger) *log.Logger { return slog.NewLogLogger(l.Handler(), slog.LevelDebug) }
