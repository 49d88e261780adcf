package gateway

import (
	"os"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem/roles"
	"github.com/tandem-llm/tandem/services/discovery"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/wire"
)

// fleet are the verifiers and gateways that share the gateway's pool. It knows none before join. Safe for concurrent use.
type fleet struct {
	verifiers, gateways atomic.Pointer[discovery.Table]
}

// join announces the gateway and finds the other processes of the fleet, until undo runs.
func (f front) join(r *roles.Process, undo *roles.Cleanup) error {
	cfg := discovery.Config{Pool: f.pool, Counters: r.Counters, Log: r.Log, Refused: r.Refused, Vouch: r.Credentials.Vouch}
	verifiers := cfg
	verifiers.Kind, verifiers.Dial = discovery.Verifiers, r.Credentials.Dialer(rpc.Verifier)
	gateways := cfg
	gateways.Kind = discovery.Gateways
	if r.Credentials.Secret == nil {
		gateways.Vouch = nil // nobody calls them, and on loopback they have no secret to prove
	}
	for _, x := range []struct {
		cfg discovery.Config
		to  *atomic.Pointer[discovery.Table]
	}{{verifiers, &f.fleet.verifiers}, {gateways, &f.fleet.gateways}} {
		table, err := discovery.NewTable(x.cfg)
		if err != nil {
			return err
		}
		undo.Add(table.Close)
		x.to.Store(table)
	}
	announcer, err := discovery.Announce(discovery.AnnouncerConfig{Pool: f.pool, Sign: r.Credentials.Sign, What: f.announcement(r),
		Load: func(what *wire.Announcement) {
			now := *what.Gateway
			now.Running, now.Waiting = f.Gateway.Load()
			what.Gateway = &now
		}})
	if err != nil {
		return err
	}
	undo.Add(announcer.Close)
	return nil
}

// announcement is what the gateway says of itself.
func (f front) announcement(r *roles.Process) wire.Announcement {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	told := &wire.AnnouncedGateway{Name: host, Model: f.model, Version: r.Version}
	if f.web != nil {
		told.HTTP = roles.Reachable(f.web.Addr(), r.Certificate)
	}
	return wire.Announcement{Addr: roles.Reachable(r.Server.Addr(), r.Certificate), Gateway: told}
}

// members returns the processes of the fleet, the gateways first.
func (f *fleet) members() (out []public.Member) {
	now := time.Now()
	for _, table := range []*discovery.Table{f.gateways.Load(), f.verifiers.Load()} {
		if table == nil {
			continue
		}
		for _, p := range table.Processes() {
			out = append(out, memberOf(p, now))
		}
	}
	return out
}

// memberOf returns what is shown of a process.
func memberOf(p discovery.Process, now time.Time) public.Member {
	m := public.Member{Role: string(rpc.Verifier), Addr: p.Addr, State: "up"}
	switch {
	case !p.Up:
		m.State = "down"
	case p.Draining:
		m.State = "draining"
	case p.Lapsed:
		m.State = "lapsed"
	}
	if !p.Lease.IsZero() {
		left := p.Lease.Sub(now)
		m.Lease = &left
	}
	if g := p.Gateway; g != nil {
		m.Role, m.Model, m.Version, m.HTTP, m.Host = string(rpc.Gateway), g.Model, g.Version, g.HTTP, g.Name
		m.Running, m.Waiting = g.Running, g.Waiting
	}
	if v := p.Verifier; v != nil {
		m.Model, m.Version, m.Identity = v.Model, v.Version, v.Identity
		m.Running, m.Waiting, m.FreePages = v.Load.Sessions, v.Load.Waiting, v.Load.FreePages
		m.Pages = int(v.KVTokens / int64(max(1, v.PageTokens)))
	}
	return m
}
