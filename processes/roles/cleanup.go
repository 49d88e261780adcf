package roles

import (
	"context"
	"time"
)

// Cleanup collects functions that Run calls in reverse order.
type Cleanup struct{ steps []func() }

// Add makes Run call f.
func (c *Cleanup) Add(f func()) { c.steps = append(c.steps, f) }

// Run calls all functions, the last added first.
func (c *Cleanup) Run() {
	for i := len(c.steps) - 1; i >= 0; i-- {
		c.steps[i]()
	}
	c.steps = nil
}

// Shutdown calls a room's Shutdown with two seconds to finish; work that is cut off is computed again elsewhere.
func Shutdown(f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = f(ctx)
}
