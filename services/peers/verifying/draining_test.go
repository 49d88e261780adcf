package verifying

import (
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// TestDraining: a verifier that drains opens no new session and says how to take that back; sessions that it holds go on, also those that
// are opened again.
func TestDraining(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "v")
	v, drains := new(sure), new(atomic.Bool)
	serve(t, addr, ServerConfig{Verifier: v, Draining: drains.Load})
	a, b := as(t, addr, "a1"), as(t, addr, "b2")
	ctx := t.Context()
	open := func(c *Client, id tandem.SessionID) error {
		_, err := c.Open(ctx, opening(id))
		return rpc.FromStatus(err)
	}
	if err := open(a, 1); err != nil {
		t.Fatal(err)
	}
	drains.Store(true)
	if err := open(a, 2); !errors.Is(err, tandem.Unavailable) || !strings.Contains(err.Error(), "drain --undo") {
		t.Errorf("a new session: %v: want unavailable, and how to undo it", err)
	}
	if err := open(b, 1); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("another's session: %v: want unavailable", err)
	}
	if err := open(a, 1); err != nil {
		t.Errorf("a session that it holds: %v", err)
	}
	if err := a.Submit(ctx, tandem.Ticket{Session: 1, Epoch: 1, Base: 1, Tree: tandem.Root(1)}); err != nil {
		t.Errorf("a ticket: %v", err)
	}
	if err := a.Close(ctx, 1); err != nil {
		t.Error(err)
	}
	if err := open(a, 1); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("a session that it held: %v: want unavailable", err)
	}
	drains.Store(false)
	if err := open(a, 2); err != nil {
		t.Errorf("undone: %v", err)
	}
	if n := v.opens.Load(); n != 3 {
		t.Errorf("the verifier was asked %d times: want 3", n)
	}
}
