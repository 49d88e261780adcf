package rpc

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
)

// headerProcess names the calling process, so that a server can tell whose a session is, and when the process is gone.
const headerProcess = "tandem-process"

// goneAfter is how long a process may be without a connection before it counts as dead: if only its connection
// broke, it is back within milliseconds.
const goneAfter = 3 * time.Second

// secret is what this process's numbers are derived from, another one at each start.
var secret = rand.Text()

// number returns the number of this process for the server at addr, in hexadecimal. Whoever knows it can act on the
// process's sessions there. So it cannot be guessed, is never logged, and differs for every server: a
// drafter cannot use a gateway's at the verifier.
func number(addr string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(addr))
	return strconv.FormatUint(binary.BigEndian.Uint64(mac.Sum(nil))|1, 16)
}

// Caller returns the number of the process that made ctx's call over a connection from Dial; 0 for other callers.
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

// seen notes which process's connection ctx's call came by. c may be nil.
func (c *callers) seen(ctx context.Context) {
	if c == nil {
		return
	}
	l := linkOf(ctx)
	if l == nil || l.known.Load() {
		return
	}
	number := Caller(ctx)
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

// left notes that a connection is closed. c may be nil.
func (c *callers) left(l *link) {
	if c == nil {
		return
	}
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

// end reports that a process is gone, unless it came back meanwhile.
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

// close ends the waits for processes to come back. c may be nil.
func (c *callers) close() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, who := range c.of {
		if who.timer != nil {
			who.timer.Stop()
		}
	}
}
