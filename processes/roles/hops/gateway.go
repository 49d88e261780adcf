package hops

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/awake"
	"github.com/tandem-llm/tandem/services/peers/discovery"
	"github.com/tandem-llm/tandem/services/peers/drafting"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/route"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/verifying"
)

const (
	startTime = 20 * time.Second // until the processes have found each other
	roundTime = 5 * time.Second  // for one round; a loaded machine may stop a process for a while
	callTime  = 5 * time.Second  // for opening and closing
	trials    = 16               // rounds that are not counted, at the start
)

// Config configures a Gateway.
type Config struct {
	roles.Config
	Verifier, Drafter string // addresses
	PoolFile          string // into which the address of the pool is written for the others
	KeepAwake         bool   // as for a gateway process
}

// Gateway is the gateway of empty rounds, in the calling process: it serves the pool and asks drafter and verifier. One goroutine at a
// time may use it.
type Gateway struct {
	process   *roles.Process
	undo      roles.Cleanup
	publisher *pool.Publisher
	direct    *verifying.Client
	verifier  *route.Router
	found     chan peer // the drafter, once
	peer      peer
	up        atomic.Bool // verdicts come
	keep      bool
	next      tandem.SessionID

	mu       sync.Mutex
	asked    tandem.Ticket // the verdict on it is awaited; zero: none is
	arrivals chan arrival
}

// peer is the drafter process's entry in the table of processes.
type peer struct {
	tandem.Drafter
	mapped func() bool // its shared memory is
}

// arrival is a verdict and when it came.
type arrival struct {
	tandem.Verdict
	at time.Time
}

// Start starts the gateway. Peers may start before or after it. The caller must Close it.
func Start(ctx context.Context, c Config) (*Gateway, error) {
	r, err := roles.Start(ctx, rpc.Gateway, c.Config, nil)
	if err != nil {
		return nil, err
	}
	g := &Gateway{process: r, keep: c.KeepAwake, found: make(chan peer, 1), arrivals: make(chan arrival, 1)}
	g.undo.Add(r.Close)
	g.undo.Add(r.Server.Close)
	if err := g.assemble(c); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// assemble connects the gateway, as package processes/roles/gateway does.
func (g *Gateway) assemble(c Config) error {
	r := g.process
	server, err := pool.StartServer()
	if err != nil {
		return err
	}
	g.undo.Add(server.Close)
	if err := roles.WritePoolFile(c.PoolFile, server.Access()); err != nil {
		return err
	}
	g.undo.Add(func() { os.Remove(c.PoolFile) })
	config := pool.Config{Access: server.Access(), Counters: r.Counters, Log: r.Log}
	if g.publisher, err = pool.NewPublisher(pool.PublisherConfig{Config: config}); err != nil {
		return err
	}
	g.undo.Add(g.publisher.Close)
	conn, err := r.Credentials.Dialer(rpc.Verifier)(c.Verifier)
	if err != nil {
		return err
	}
	g.undo.Add(func() { conn.Close() })
	g.direct = verifying.NewClient(conn)
	g.verifier = route.New(route.Config{Verifier: g.direct, Pool: g.publisher, PoolUp: g.publisher.Connected, Counters: r.Counters})
	memory := discovery.NewMemory(shm.Gateway, new(shm.Set))
	table, err := discovery.NewTable(discovery.Config{Pool: config, Dial: r.Credentials.Dialer(rpc.Drafter), Vouch: r.Credentials.Vouch,
		Static:   []string{c.Drafter},
		Counters: r.Counters, Log: r.Log, Refused: r.Refused, Changed: func(processes []discovery.Process) {
			memory.Update(processes)
			g.meet(processes, memory)
		}})
	if err != nil {
		return err
	}
	g.undo.Add(table.Close)
	g.undo.Add(memory.Close)
	follow, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		verifying.Follow(follow, g.verifier, verifying.Subscriber{Deliver: g.deliver, State: g.up.Store})
	})
	g.undo.Add(func() { cancel(); work.Wait() })
	return nil
}

// meet keeps the drafter when the table first shows it.
func (g *Gateway) meet(processes []discovery.Process, memory *discovery.Memory) {
	for _, p := range processes {
		link := memory.Of(p.Conn)
		if !p.Up || link == nil {
			continue
		}
		select {
		case g.found <- peer{route.Drafter(Name, drafting.NewClient(p.Conn, Name).Mapping(link), g.verifier),
			func() bool { return link.Segment() != 0 }}:
		default:
		}
	}
}

// Close ends the gateway.
func (g *Gateway) Close() { g.undo.Run() }

// Await waits until drafter and verifier are there and the verifier reads trees in the drafter's memory, so that all counted rounds are
// alike. Errors: Unavailable, and that of ctx.
func (g *Gateway) Await(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	select {
	case g.peer = <-g.found:
	case <-limited.Done():
		return tandem.Errorf(op, tandem.Unavailable, "no drafter came in %v", startTime)
	}
	last := tandem.Errorf(op, tandem.Unavailable, "no round was sent")
	for {
		if g.peer.mapped() && g.publisher.Connected() && g.up.Load() {
			_, last = g.Rounds(limited, trials, Shape{Bounds: tandem.DefaultBounds(tandem.StrategyFixed), Prompt: 1})
			if last == nil && g.mapped(limited) {
				return nil
			}
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-limited.Done():
			return tandem.Errorf(op, tandem.Unavailable,
				"the processes did not find each other in %v: pool %v, shared memory %v, verdicts %v: %w", startTime,
				g.publisher.Connected(), g.peer.mapped(), g.up.Load(), last)
		}
	}
}

// mapped reports whether the verifier has read a tree in shared memory.
func (g *Gateway) mapped(ctx context.Context) bool {
	d, err := g.direct.Describe(ctx)
	return err == nil && d.Counters["tickets.mapped"] > 0
}

// Rounds sends n rounds, one after the other, in a session of their own. It returns the time of each from Propose to the verdict, without
// the time for which memory was read.
func (g *Gateway) Rounds(ctx context.Context, n int, s Shape) (took []time.Duration, err error) {
	run := work(func() error { took, err = g.rounds(ctx, n, s); return err })
	var generator tandem.Generator = run
	if g.keep {
		generator = awake.New(run, g.process.Counters)
	}
	_, err = generator.Generate(ctx, tandem.Request{}, nil)
	return took, err
}

// work implements tandem.Generator, which package awake needs.
type work func() error

// Generate implements tandem.Generator.
func (w work) Generate(context.Context, tandem.Request, tandem.Sink) (tandem.Result, error) {
	return tandem.Result{}, w()
}

func (g *Gateway) rounds(ctx context.Context, n int, s Shape) (took []time.Duration, err error) {
	if !s.Bounds.Plain() {
		s.Accepted = min(s.Accepted, s.Bounds.Depth, s.Bounds.Nodes-1)
	} else {
		s.Accepted = 0
	}
	g.next++
	o := tandem.Opening{Session: g.next, Tokens: make([]tandem.Token, max(s.Prompt, 1)), MaxNodes: max(s.Bounds.Nodes, 1)}
	perRound := s.Accepted + 1
	o.Limit = tandem.Position(len(o.Tokens) + (n+1)*perRound)
	if err := g.open(ctx, o); err != nil {
		return nil, err
	}
	defer g.close(o.Session)
	at := tandem.Position(len(o.Tokens))
	for range n {
		suffix := make([]tandem.Token, perRound)
		suffix[perRound-1] = word(s.Accepted, s.Read)
		from := at
		at += tandem.Position(perRound)
		t, err := g.round(ctx, tandem.Proposal{Session: o.Session, Base: at, Hash: tandem.PrefixHash(at), From: from, Suffix: suffix,
			Bounds: s.Bounds, Temper: 0.4})
		if err != nil {
			return took, err
		}
		took = append(took, t)
	}
	return took, nil
}

// round sends one round. It waits for everything that belongs to it, but counts until the verdict is there: in a real round the
// answers to drafter and gateway come while the target computes.
func (g *Gateway) round(ctx context.Context, p tandem.Proposal) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	t := tandem.Ticket{Session: p.Session, Base: p.Base, Hash: p.Hash}
	g.ask(t)
	begun := time.Now()
	var err error
	if p.Bounds.Plain() {
		t.Tree = tandem.Root(p.Suffix[len(p.Suffix)-1])
		err = g.verifier.Submit(ctx, t)
	} else {
		_, err = g.peer.Propose(ctx, p)
	}
	if err != nil {
		return 0, err
	}
	select {
	case a := <-g.arrivals:
		if a.Kind != tandem.OK {
			return 0, tandem.Errorf(op, a.Kind, "verdict: %s", a.Message)
		}
		return a.at.Sub(begun) - a.Busy, nil
	case <-ctx.Done():
		return 0, tandem.Errorf(op, tandem.KindOf(ctx.Err()), "no verdict came: %w", ctx.Err())
	}
}

// ask makes the verdict on a ticket the awaited one, and forgets any that came late.
func (g *Gateway) ask(t tandem.Ticket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = t
	select {
	case <-g.arrivals:
	default:
	}
}

// deliver takes a verdict. Repeated ones, which a repeated ticket brings, are dropped.
func (g *Gateway) deliver(v tandem.Verdict) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if v.Session == g.asked.Session && v.Base == g.asked.Base {
		g.asked = tandem.Ticket{}
		g.arrivals <- arrival{v, now}
	}
}

// open opens a session at both peers.
func (g *Gateway) open(ctx context.Context, o tandem.Opening) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if _, err := g.verifier.Open(ctx, o); err != nil {
		return err
	}
	_, err := g.peer.Open(ctx, o)
	return err
}

// close closes a session at both peers. It goes on if one does not answer: they end soon after.
func (g *Gateway) close(id tandem.SessionID) {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	_ = g.verifier.Close(ctx, id)
	_ = g.peer.Close(ctx, id)
}
