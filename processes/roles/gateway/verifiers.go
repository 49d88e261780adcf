package gateway

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/gateway/enlist"
	"github.com/tandem-llm/tandem/gateway/fleet"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/discovery"
	"github.com/tandem-llm/tandem/services/peers/route"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/verifying"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/httpapi"
)

// balanceEvery is how often sessions are moved that should be elsewhere.
const balanceEvery = 100 * time.Millisecond

// verifiers are the verifiers that a gateway works with: those it is configured with, and those of its model that announce themselves.
type verifiers struct {
	*fleet.Fleet
	role   *roles.Process
	target model
	static []string // addresses
	pool   pooled
	told   *observers

	mu     sync.Mutex
	joined map[string]*joined              // those that have joined, by address
	table  atomic.Pointer[discovery.Table] // all processes of verifiers; nil before begin
}

// joined is a verifier that has joined the fleet.
type joined struct {
	v      *verifiers
	addr   string
	conn   any // connection to the process: with another one, the verifier joins anew
	client *verifying.Client
	router *route.Router
	leave  func()
}

// observers are told what changes with the fleet, once they are there.
type observers struct {
	*gateway.Gateway
	monitor *httpapi.Monitor
}

// VerifierState implements fleet.Gateway.
func (o *observers) VerifierState(up bool) {
	o.Gateway.VerifierState(up)
	o.monitor.VerifierState(up)
}

// newVerifiers returns those of a target, none before begin. static are the addresses of verifiers that need not announce themselves.
func newVerifiers(r *roles.Process, target model, static []string, p pooled) *verifiers {
	told := new(observers)
	return &verifiers{role: r, target: target, static: static, pool: p, told: told, joined: map[string]*joined{},
		Fleet: fleet.New(fleet.Config{Gateway: told, CloseTime: 5 * time.Second, Grace: 300 * time.Millisecond, Counters: r.Counters})}
}

// Place implements route.Routers.
func (v *verifiers) Place(o tandem.Opening) *route.Router { return router(v.Fleet.Place(o)) }

// Of implements route.Routers.
func (v *verifiers) Of(id tandem.SessionID) *route.Router { return router(v.Fleet.Of(id)) }

func router(_ string, v fleet.Verifier) *route.Router {
	r, _ := v.(*route.Router)
	return r
}

// begin finds the verifiers and keeps the gateway, its monitor and its drafters informed of them.
func (v *verifiers) begin(g *gateway.Gateway, monitor *httpapi.Monitor, members *enlist.Members, undo *roles.Cleanup) error {
	v.told.Gateway, v.told.monitor = g, monitor
	r := v.role
	known := enlist.VerifierConfig{Monitor: monitor, Members: members, Fingerprint: v.target.fingerprint, Counters: r.Counters, Log: r.Log}
	table, err := discovery.NewTable(discovery.TableConfig{Pool: v.pool.config, Kind: discovery.Verifiers, Static: v.static,
		Dial: r.Credentials.Dialer(rpc.Verifier), Vouch: r.Credentials.Vouch, Counters: r.Counters, Log: r.Log, Refused: r.Refused,
		Changed: func(processes []discovery.Process) { v.update(processes, known) }})
	if err != nil {
		return err
	}
	v.table.Store(table)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		for tick := time.NewTicker(balanceEvery); ctx.Err() == nil; {
			select {
			case <-ctx.Done():
				tick.Stop()
			case <-tick.C:
				v.Balance()
			}
		}
	})
	undo.Add(func() {
		cancel()
		work.Wait()
		table.Close()
		for _, x := range v.all() {
			x.leave()
		}
		v.Wait()
	})
	return nil
}

// update lets the verifiers that are there join, and those that are gone leave. known is what all of them have in common.
func (v *verifiers) update(processes []discovery.Process, known enlist.VerifierConfig) {
	processes = slices.DeleteFunc(processes, func(p discovery.Process) bool { return !v.ours(p) })
	v.mu.Lock()
	defer v.mu.Unlock()
	for addr, x := range v.joined {
		if !slices.ContainsFunc(processes, func(p discovery.Process) bool { return p.Addr == addr && p.Conn == x.conn }) {
			delete(v.joined, addr)
			x.leave()
			v.Leave(addr)
		}
	}
	for _, p := range processes {
		x := v.joined[p.Addr]
		if x == nil {
			x = v.join(p, known)
			v.joined[p.Addr] = x
		}
		x.router.At(v.placeOf(p, len(processes) > 1))
		v.Announced(p.Addr, p.Draining, p.Lapsed)
		if p.Verifier != nil {
			v.Costs(p.Addr, p.Verifier.Costs)
		}
	}
}

// ours reports whether a process computes this gateway's model, as far as is known. One that it is configured with does.
func (v *verifiers) ours(p discovery.Process) bool {
	return slices.Contains(v.static, p.Addr) || p.Verifier != nil && p.Verifier.Model == v.target.info.Config.Name &&
		p.Verifier.Fingerprint == v.target.fingerprint
}

// placeOf returns where a verifier's tickets go, and where drafters ask it. They know a single verifier from their own settings, which may
// name it by another address.
func (v *verifiers) placeOf(p discovery.Process, several bool) (at tandem.Place) {
	if p.Verifier != nil {
		at.Queue = p.Verifier.Queue
	}
	if several {
		at.Addr = p.Addr
	}
	return at
}

// join lets a verifier join the fleet, and follows its verdicts.
func (v *verifiers) join(p discovery.Process, known enlist.VerifierConfig) *joined {
	client, tickets, r := verifying.NewClient(p.Conn), tandem.Pool(v.pool.publisher.Inline()), v.role
	if strings.HasPrefix(p.Addr, "unix://") { // on this host
		client, tickets = client.Passing(v.pool.socket), v.pool.publisher
	}
	x := &joined{v: v, addr: p.Addr, conn: p.Conn, client: client}
	x.router = route.New(route.Config{Verifier: client, Pool: tickets, PoolUp: v.pool.publisher.Connected, Events: r.Events,
		Counters: r.Counters})
	known.Gateway, known.Describe = x, client.Describe
	is := enlist.NewVerifier(known)
	v.Join(x.addr, x.router, x.load)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		verifying.Follow(ctx, client, verifying.Subscriber{Sessions: func() []tandem.SessionID { return v.At(x.addr) },
			Deliver: func(verdict tandem.Verdict) {
				if v.Belongs(x.addr, verdict) {
					v.told.Deliver(verdict)
				} else {
					r.Counters.Add("verdicts.elsewhere", 1)
				}
			}, Refused: is.Refused, State: is.State})
	})
	x.leave = func() {
		cancel()
		work.Wait()
		is.Close()
	}
	return x
}

// State tells the fleet whether the verifier is up, for enlist.Verifier.
func (x *joined) State(up bool) { x.v.State(x.addr, up) }

// Is tells the fleet what the verifier is, for enlist.Verifier.
func (x *joined) Is(d tandem.Description) { x.v.Fleet.Is(x.addr, d) }

// load returns what the verifier has announced of its work and its memory.
func (x *joined) load() (l fleet.Load) {
	t := x.v.table.Load()
	if t == nil {
		return l
	}
	for _, p := range t.Processes() {
		if p.Addr == x.addr && p.Verifier != nil {
			is := p.Verifier
			l.Sessions, l.Waiting = is.Load.Sessions, is.Load.Waiting
			l.Cached = func(tenant string, tokens []tandem.Token) int {
				if len(is.Load.Prefixes) == 0 {
					return 0
				}
				return x.v.pool.key.Query(is.Identity, tenant, is.PageTokens, tokens).Longest(is.Load.Prefixes)
			}
		}
	}
	return l
}

// all returns the verifiers that have joined, by their addresses.
func (v *verifiers) all() (out []*joined) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, x := range v.joined {
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b *joined) int { return strings.Compare(a.addr, b.addr) })
	return out
}

// describe asks all verifiers what they are, at once. Without any, the answer is one that is down.
func (v *verifiers) describe(ctx context.Context) []public.Process {
	all := v.all()
	out := make([]public.Process, len(all))
	var work sync.WaitGroup
	for i, x := range all {
		work.Go(func() {
			d, err := x.client.Describe(ctx)
			out[i] = public.Process{Role: "verifier", Up: err == nil, Description: d}
		})
	}
	work.Wait()
	if len(out) == 0 {
		out = append(out, public.Process{Role: "verifier"})
	}
	return out
}

// passes returns how many passes the verifiers have ended, those that answer.
func (v *verifiers) passes(ctx context.Context) (n int64, err error) {
	err = tandem.Errorf("", tandem.Unavailable, "no verifier answers")
	for _, p := range v.describe(ctx) {
		if p.Up {
			n, err = n+p.Description.Counters["passes"], nil
		}
	}
	return n, err
}

// Vectors implements tandem.VectorSource.
func (v *verifiers) Vectors(ctx context.Context, q tandem.VectorQuery) (tandem.Vectors, error) {
	name, _ := v.Any()
	for _, x := range v.all() {
		if x.addr == name {
			return x.client.Vectors(ctx, q)
		}
	}
	return tandem.Vectors{}, tandem.Errorf("vectors", tandem.Unavailable, "no verifier is known")
}
