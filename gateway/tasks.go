package gateway

import (
	"sync"

	"github.com/tandem-llm/tandem"
)

// tasks counts the gateway's requests and goroutines, so that Shutdown can wait for all of them.
type tasks struct {
	mu     sync.Mutex
	n      int
	closed bool
	idle   chan struct{} // closed once closed is set and n is 0
}

// join admits a request unless close was called.
func (c *tasks) join() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return tandem.Errorf(op, tandem.Unavailable, "gateway is shutting down")
	}
	c.n++
	return nil
}

func (c *tasks) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 && c.closed {
		close(c.idle)
	}
}

// run starts f in a goroutine. The caller must have joined, so that n is not 0 here.
func (c *tasks) run(f func()) {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	go func() {
		defer c.leave()
		f()
	}()
}

// closing reports whether close was called.
func (c *tasks) closing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// close refuses newcomers and returns the channel that closes when the last has left.
func (c *tasks) close() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		if c.n == 0 {
			close(c.idle)
		}
	}
	return c.idle
}
