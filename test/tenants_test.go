package test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem/client"
)

// TestGreedyKey: with two keys, one of which keeps the only place busy and the queue full, the other's requests are neither
// refused nor behind more than one of the greedy one's.
func TestGreedyKey(t *testing.T) {
	g := up(t, "--no-draft", "--sessions", "1", "--api-key", "greedy-key", "--api-key", "modest-key")
	addr := "unix://" + g.w.tmp + "/g.sock"
	dial := func(key string) *client.Client {
		c, err := client.Dial(addr, client.WithToken(key))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	ctx, stop := context.WithCancel(t.Context())
	var (
		wg             sync.WaitGroup
		ended, refused atomic.Int64
		greedy         = dial("greedy-key")
	)
	for range 60 { // 17 of them fill place and queue
		wg.Go(func() {
			for ctx.Err() == nil {
				switch err := askFor(ctx, greedy, 200); {
				case err == nil:
					ended.Add(1)
				case errors.Is(err, client.Exhausted):
					refused.Add(1)
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
	}
	testkit.Eventually(t, "a full queue", func() bool { return refused.Load() > 20 && ended.Load() > 0 })
	modest := dial("modest-key")
	for range 5 {
		before := ended.Load()
		if err := askFor(t.Context(), modest, 2); err != nil {
			t.Errorf("the modest key is told: %v", err)
		}
		if passed := ended.Load() - before; passed > 3 { // that which ran, and what a scheduler may put between
			t.Errorf("%d requests of the greedy key ended while one of the other waited: want at most 1 or 2", passed)
		}
	}
	stop()
	wg.Wait()
}

// askFor runs a request to its end.
func askFor(ctx context.Context, c *client.Client, tokens int) error {
	for _, err := range c.Generate(ctx, client.Request{Prompt: "import os", MaxTokens: &tokens}) {
		if err != nil {
			return err
		}
	}
	return nil
}
