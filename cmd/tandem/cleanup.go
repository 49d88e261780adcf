package main

import (
	"context"
	"time"
)

// cleanup collects what must be undone, in the reverse order of doing.
type cleanup struct{ steps []func() }

func (c *cleanup) add(f func()) { c.steps = append(c.steps, f) }

// run undoes everything.
func (c *cleanup) run() {
	for i := len(c.steps) - 1; i >= 0; i-- {
		c.steps[i]()
	}
	c.steps = nil
}

// shutdown gives a room's Shutdown two seconds: what is cut off is computed again elsewhere.
func shutdown(f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = f(ctx)
}
