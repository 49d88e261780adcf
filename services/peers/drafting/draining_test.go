package drafting

import (
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

// TestDraining: a drafter that drains opens no new session, goes on with those that it has, and says so when it is asked.
func TestDraining(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "d")
	drains := new(atomic.Bool)
	cfg := one(Named{Name: "go", Drafter: new(fake)}, nil)
	cfg.Draining = drains.Load
	cfg.Announced = func() wire.Announcement { return wire.Announcement{Instance: 7, Draining: drains.Load()} }
	serve(t, addr, cfg)
	a := as(t, addr, "a1")
	open := func(id tandem.SessionID) error {
		_, err := a.Open(t.Context(), tandem.Opening{Session: id, Epoch: 1, Tokens: []tandem.Token{1, 2}, Limit: 10, MaxNodes: 8,
			Sampling: tandem.Sampling{TopP: 1}})
		return rpc.FromStatus(err)
	}
	if err := open(3); err != nil {
		t.Fatal(err)
	}
	drains.Store(true)
	if err := open(4); !errors.Is(err, tandem.Unavailable) || !strings.Contains(err.Error(), "drain --undo") {
		t.Errorf("a new session: %v: want unavailable, and how to undo it", err)
	}
	if err := open(3); err != nil {
		t.Errorf("a session that it holds: %v", err)
	}
	if d, err := a.Describe(t.Context()); err != nil || d.Instance != 7 || !d.Draining {
		t.Errorf("describes itself as instance %d, draining %v, %v", d.Instance, d.Draining, err)
	}
	drains.Store(false)
	if err := open(4); err != nil {
		t.Errorf("undone: %v", err)
	}
}
