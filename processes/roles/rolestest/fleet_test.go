package rolestest

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/processes/roles/gateway"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/discovery"
	"github.com/tandem-llm/tandem/services/peers/draining"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

const fleetTarget = "../../../models/gopher-19m-q8_0.gguf"

// member waits for the only process of a role in the fleet, in that state.
func (s *System) member(role, state string) (out *tandemv1.Member) {
	s.t.Helper()
	s.await("a "+role+" that is "+state, func() bool {
		d, err := s.Client.Describe(s.t.Context())
		n := 0
		for _, m := range d.GetFleet() {
			if m.GetRole() == role {
				out, n = m, n+1
			}
		}
		return err == nil && n == 1 && out.GetState() == state
	})
	return out
}

// TestFleet: gateway and verifier announce themselves, with a registry and without; the gateway tells of both, with identity, load and
// lease. A summary of what the verifier keeps is found by the text, with the fleet's key.
func TestFleet(t *testing.T) {
	for name, store := range map[string]string{"announcements alone": "", "a registry": pool.InMemory} {
		t.Run(name, func(t *testing.T) {
			s := Start(t, fleetTarget, func(c *gateway.Setup) { c.PoolStore = store })
			g := s.member("gateway", "up")
			if g.GetAddress() != s.addr("gateway") || g.GetModel() != "gopher-19m-q8_0" || g.GetHost() == "" || g.GetLeaseMs() <= 0 {
				t.Errorf("the gateway: %v", g)
			}
			prompt := ""
			for range 40 {
				prompt += "func (r *Reader) Read(p []byte) (n int, err error) {\n"
			}
			_, _, _, err := s.Generate(client.Request{Prompt: prompt, MaxTokens: new(4), IgnoreEOS: true})
			if err != nil {
				t.Fatal(err)
			}
			v := s.member("verifier", "up")
			if v.GetAddress() != s.addr("verifier") || v.GetIdentity() == "" || v.GetPages() < 1 || v.GetFreePages() < 1 ||
				v.LeaseMs == nil {
				t.Errorf("the verifier: %v", v)
			}
			s.keeps(v)
		})
	}
}

// keeps checks that a verifier announces a summary of what it keeps.
func (s *System) keeps(v *tandemv1.Member) {
	s.t.Helper()
	access, err := pool.FromFile(filepath.Join(s.dir, "pool"))
	if err != nil {
		s.t.Fatal(err)
	}
	table, err := discovery.NewTable(discovery.TableConfig{Pool: pool.Config{Access: access}, Kind: discovery.Verifiers})
	if err != nil {
		s.t.Fatal(err)
	}
	defer table.Close()
	s.await("a summary of the prompt's pages", func() bool {
		for _, p := range table.Processes() {
			if p.Verifier != nil && len(p.Verifier.Load.Prefixes) > 2 {
				return p.Addr == v.GetAddress()
			}
		}
		return false
	})
}

// TestDrain: a verifier that drains finishes what it has, takes nothing new until that is undone, and is shown as draining.
func TestDrain(t *testing.T) {
	s := Start(t, fleetTarget)
	drain := func(undo bool) {
		t.Helper()
		conn, err := rpc.Dial(s.addr("verifier"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if role, err := draining.Drain(t.Context(), conn, undo); err != nil || role != "verifier" {
			t.Fatalf("drained %q, %v", role, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tokens := 0
	for e, err := range s.Client.Generate(ctx, client.Request{Prompt: "package main\n", MaxTokens: new(48), IgnoreEOS: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Delta == nil {
			continue
		}
		if tokens == 0 {
			drain(false)
		}
		tokens += len(e.Delta.Tokens)
	}
	if tokens != 48 {
		t.Errorf("a session that it had got %d tokens: want 48", tokens)
	}
	s.member("verifier", "draining")
	short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	for e, err := range s.Client.Generate(short, client.Request{Prompt: "package main\n", MaxTokens: new(4), IgnoreEOS: true}) {
		if err == nil && e.Delta != nil {
			t.Error("a new session got tokens")
		}
	}
	drain(true)
	s.member("verifier", "up")
	all, _, _, err := s.Generate(client.Request{Prompt: "package main\n", MaxTokens: new(4), IgnoreEOS: true})
	if err != nil || len(all) != 4 {
		t.Errorf("undone: %d tokens, %v", len(all), err)
	}
}
