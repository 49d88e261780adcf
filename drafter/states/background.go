package states

import (
	"context"
	"sync"

	"github.com/tandem-llm/tandem"
)

// background runs what no call waits for, until stop. Safe for concurrent use.
type background struct {
	closing context.Context
	close   context.CancelFunc
	mu      *sync.Mutex
	running *sync.WaitGroup
}

func newBackground() background {
	b := background{mu: new(sync.Mutex), running: new(sync.WaitGroup)}
	b.closing, b.close = context.WithCancel(context.Background())
	return b
}

// run runs fn, whose context has ctx's values and ends with stop. Errors: Unavailable after stop.
func (b *background) run(ctx context.Context, fn func(context.Context)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing.Err() != nil {
		return tandem.Errorf("propose", tandem.Unavailable, "drafter is shutting down")
	}
	b.running.Go(func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(b.closing, cancel)()
		fn(ctx)
	})
	return nil
}

// stop ends all that runs and waits for it.
func (b *background) stop() {
	b.mu.Lock()
	b.close()
	b.mu.Unlock()
	b.running.Wait()
}
