package gateway

import (
	"os"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/discovery"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/wire"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/httpapi"
)

// membership are the verifiers that the gateway works with, and the gateways that share its pool. It knows none of those before join. Safe
// for concurrent use.
type membership struct {
	verifiers *verifiers
	gateways  atomic.Pointer[discovery.Table]
}

// join announces the gateway g, of a model and with an HTTP server (nil: none), and finds the others, until undo runs.
func (f *membership) join(r *roles.Process, p pool.Config, g *gateway.Gateway, model string, web *httpapi.Server,
	undo *roles.Cleanup) error {
	cfg := discovery.TableConfig{Pool: p, Kind: discovery.Gateways, Counters: r.Counters, Log: r.Log, Refused: r.Refused}
	if r.Credentials.Secret != nil { // else nobody calls them, and on loopback they have no secret to prove
		cfg.Vouch = r.Credentials.Vouch
	}
	table, err := discovery.NewTable(cfg)
	if err != nil {
		return err
	}
	undo.Add(table.Close)
	f.gateways.Store(table)
	announcer, err := discovery.Announce(discovery.AnnouncerConfig{Pool: p, Sign: r.Credentials.Sign, What: announcement(r, model, web),
		Load: func(what *wire.Announcement) {
			now := *what.Gateway
			now.Running, now.Waiting = g.Load()
			what.Gateway = &now
		}})
	if err != nil {
		return err
	}
	undo.Add(announcer.Close)
	return nil
}

// announcement is what the gateway says of itself.
func announcement(r *roles.Process, model string, web *httpapi.Server) wire.Announcement {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	told := &wire.AnnouncedGateway{Name: host, Model: model, Version: r.Version}
	if web != nil {
		told.HTTP = roles.Reachable(web.Addr(), r.Certificate)
	}
	return wire.Announcement{Addr: roles.Reachable(r.Server.Addr(), r.Certificate), Gateway: told}
}

// members returns the processes of the fleet, the gateways first.
func (f *membership) members() (out []public.Member) {
	now := time.Now()
	for _, table := range []*discovery.Table{f.gateways.Load(), f.verifiers.table.Load()} {
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
