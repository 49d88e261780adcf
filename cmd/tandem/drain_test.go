package main

import (
	"bytes"
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/draining"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// TestDrainCommand: drain reaches the process and says what it does now, also as JSON; an address that is none, or where nobody is, is an
// error.
func TestDrainCommand(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "v")
	s, err := rpc.NewServer(rpc.ServerConfig{Listen: addr, Internal: true})
	if err != nil {
		t.Fatal(err)
	}
	var drains atomic.Bool
	draining.Register(s.Registrar(), "verifier", func(undo bool) { drains.Store(!undo) })
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	defer work.Wait()
	defer cancel()
	for _, c := range []struct {
		cmd    drainCmd
		says   string
		drains bool
	}{
		{drainCmd{Address: addr}, "verifier at " + addr + " drains: its sessions go on, new ones are refused\n", true},
		{drainCmd{Address: addr, Undo: true}, "verifier at " + addr + " takes new sessions again\n", false},
		{drainCmd{Address: addr, output: output{JSON: true}}, `{"address":"` + addr + `","role":"verifier","draining":true}` + "\n", true},
	} {
		var out bytes.Buffer
		if err := c.cmd.Run(&app{ctx: t.Context(), stdout: &out}); err != nil || out.String() != c.says || drains.Load() != c.drains {
			t.Errorf("%+v: %v, drains %v, says %q: want %v, %q", c.cmd, err, drains.Load(), out.String(), c.drains, c.says)
		}
	}
	for bad, kind := range map[string]tandem.Kind{"nowhere": tandem.Invalid, addr + "-none": tandem.Unavailable} {
		err := (&drainCmd{Address: bad}).Run(&app{ctx: t.Context(), stdout: new(bytes.Buffer)})
		if tandem.KindOf(err) != kind {
			t.Errorf("%s: %v: want %v", bad, err, kind)
		}
	}
}
