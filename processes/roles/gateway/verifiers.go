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
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/route"
	"github.com/tandem-llm/tandem/services/peers/verifying"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/httpapi"
)

// balanceEvery is how often sessions are moved that should be elsewhere.
const balanceEvery = 100 * time.Millisecond

// verifiers are the verifiers that a gateway works with: those it is configured with, and those of its model that announce themselves. Each
// has a seat in the fleet.
type verifiers struct {
	*fleet.Fleet
	cfg verifiersConfig

	mu    sync.Mutex
	seats map[string]*seat                // by address
	table atomic.Pointer[discovery.Table] // nil before it is there
}

// verifiersConfig is what newVerifiers needs.
type verifiersConfig struct {
	role        *roles.Process
	static      []string // addresses
	model       string   // its name in its file
	fingerprint string   // of the vocabulary
	publisher   *pool.Publisher
	key         tandem.PrefixKey // of what verifiers announce of their prefixes
	socket      string           // on which verifiers of this host get the gateway's shared memory; "": none
}

// seat is a verifier of the fleet.
type seat struct {
	v      *verifiers
	addr   string
	conn   any // of the process: another one is another seat
	client *verifying.Client
	router *route.Router
	end    func()
}

// together is told what the fleet is, once the gateway and its monitor are there.
type together struct {
	*gateway.Gateway
	monitor *httpapi.Monitor
}

// VerifierState implements fleet.Gateway.
func (t *together) VerifierState(up bool) {
	t.Gateway.VerifierState(up)
	t.monitor.VerifierState(up)
}

func newVerifiers(c verifiersConfig, told *together) *verifiers {
	return &verifiers{cfg: c, seats: map[string]*seat{}, Fleet: fleet.New(fleet.Config{Gateway: told, CloseTime: 5 * time.Second,
		Grace: 300 * time.Millisecond, Counters: c.role.Counters})}
}

// Place implements route.Routers.
func (v *verifiers) Place(o tandem.Opening) *route.Router { return router(v.Fleet.Place(o)) }

// Of implements route.Routers.
func (v *verifiers) Of(id tandem.SessionID) *route.Router { return router(v.Fleet.Of(id)) }

func router(_ string, v fleet.Verifier) *route.Router {
	r, _ := v.(*route.Router)
	return r
}

// begin finds the verifiers and keeps the gateway informed of them until stop is called. known is for each of them, but for what only the
// verifier itself can say.
func (v *verifiers) begin(g *gateway.Gateway, known enlist.VerifierConfig, table discovery.TableConfig) (stop func(), err error) {
	table.Kind, table.Static = discovery.Verifiers, v.cfg.static
	table.Changed = func(processes []discovery.Process) { v.update(processes, g, known) }
	t, err := discovery.NewTable(table)
	if err != nil {
		return func() {}, err
	}
	v.table.Store(t)
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
	return func() {
		cancel()
		work.Wait()
		t.Close()
		for _, s := range v.all() {
			s.end()
		}
		v.Wait()
	}, nil
}

// update gives the verifiers that are there their seats.
func (v *verifiers) update(processes []discovery.Process, g *gateway.Gateway, known enlist.VerifierConfig) {
	processes = slices.DeleteFunc(processes, func(p discovery.Process) bool { return !v.ours(p) })
	v.mu.Lock()
	defer v.mu.Unlock()
	for addr, s := range v.seats {
		if !slices.ContainsFunc(processes, func(p discovery.Process) bool { return p.Addr == addr && p.Conn == s.conn }) {
			delete(v.seats, addr)
			s.end()
			v.Leave(addr)
		}
	}
	for _, p := range processes {
		s := v.seats[p.Addr]
		if s == nil {
			s = v.sit(p, g, known)
			v.seats[p.Addr] = s
		}
		s.router.At(v.placeOf(p, len(processes) > 1))
		v.Announced(p.Addr, p.Draining, p.Lapsed)
	}
}

// ours reports whether a process computes this gateway's model, as far as is known. One that it is configured with does.
func (v *verifiers) ours(p discovery.Process) bool {
	return slices.Contains(v.cfg.static, p.Addr) || p.Verifier != nil && p.Verifier.Model == v.cfg.model &&
		p.Verifier.Fingerprint == v.cfg.fingerprint
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

// sit gives a verifier its seat, and follows its verdicts.
func (v *verifiers) sit(p discovery.Process, g *gateway.Gateway, known enlist.VerifierConfig) *seat {
	client, tickets, r := verifying.NewClient(p.Conn), tandem.Pool(v.cfg.publisher.Inline()), v.cfg.role
	if strings.HasPrefix(p.Addr, "unix://") { // on this host
		client, tickets = client.Passing(v.cfg.socket), v.cfg.publisher
	}
	s := &seat{v: v, addr: p.Addr, conn: p.Conn, client: client}
	s.router = route.New(route.Config{Verifier: client, Pool: tickets, PoolUp: v.cfg.publisher.Connected, Events: r.Events,
		Counters: r.Counters})
	known.Gateway, known.Describe = s, client.Describe
	is := enlist.NewVerifier(known)
	v.Join(s.addr, s.router, s.load)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		verifying.Follow(ctx, client, verifying.Subscriber{Sessions: func() []tandem.SessionID { return v.At(s.addr) },
			Deliver: func(x tandem.Verdict) {
				if v.Belongs(s.addr, x) {
					g.Deliver(x)
				} else {
					r.Counters.Add("verdicts.elsewhere", 1)
				}
			}, Refused: is.Refused, State: is.State})
	})
	s.end = func() {
		cancel()
		work.Wait()
		is.Close()
	}
	return s
}

// State tells the fleet whether the verifier is up, for enlist.Verifier.
func (s *seat) State(up bool) { s.v.State(s.addr, up) }

// Is tells the fleet what the verifier is, for enlist.Verifier.
func (s *seat) Is(d tandem.Description) { s.v.Fleet.Is(s.addr, d) }

// load returns what the verifier has announced of its work and its memory.
func (s *seat) load() (l fleet.Load) {
	t := s.v.table.Load()
	if t == nil {
		return l
	}
	for _, p := range t.Processes() {
		if p.Addr == s.addr && p.Verifier != nil {
			is := p.Verifier
			l.Sessions, l.Waiting = is.Load.Sessions, is.Load.Waiting
			l.Cached = func(tenant string, tokens []tandem.Token) int {
				if len(is.Load.Prefixes) == 0 {
					return 0
				}
				return s.v.cfg.key.Query(is.Identity, tenant, is.PageTokens, tokens).Longest(is.Load.Prefixes)
			}
		}
	}
	return l
}

// all returns the seats by their addresses.
func (v *verifiers) all() (out []*seat) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.seats {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *seat) int { return strings.Compare(a.addr, b.addr) })
	return out
}

// describe asks all verifiers what they are, at once. Without any, the answer is one that is down.
func (v *verifiers) describe(ctx context.Context) []public.Process {
	all := v.all()
	out := make([]public.Process, len(all))
	var work sync.WaitGroup
	for i, s := range all {
		work.Go(func() {
			d, err := s.client.Describe(ctx)
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
	for _, s := range v.all() {
		if s.addr == name {
			return s.client.Vectors(ctx, q)
		}
	}
	return tandem.Vectors{}, tandem.Errorf("vectors", tandem.Unavailable, "no verifier is known")
}
