// Package gateway decides what happens to a request: it admits it, opens its session at verifier and drafters, runs the one decode loop
// round by round, and owns the committed text. It works on plain values and the interfaces of package tandem, and does not know
// how peers are reached.
package gateway

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/admit"
	"github.com/tandem-llm/tandem/gateway/peer"
	"github.com/tandem-llm/tandem/gateway/roster"
	"github.com/tandem-llm/tandem/gateway/source"
	"github.com/tandem-llm/tandem/gateway/strategy"
)

// Gateway implements tandem.Generator. Verdicts reach it through Deliver. Safe for concurrent use.
type Gateway struct {
	common
	running   context.Context // ends when Shutdown stops waiting
	stop      context.CancelCauseFunc
	roster    roster.Roster
	described chan struct{} // closed by the first SelfDraftsAre
	describe  sync.Once     // closes it
	served    atomic.Int64  // admitted requests that have not returned: they run, are parked, or are being read
}

// New returns a gateway that is ready for requests. Errors: Invalid if c is not as Config says. The caller must Shutdown it.
func New(c Config) (*Gateway, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	g := &Gateway{described: make(chan struct{}), common: common{cfg: c, gate: admit.New(c.Sessions, c.Queue),
		tasks: &tasks{idle: make(chan struct{})}, shared: strategy.NewShared(c.Rules), sessions: map[tandem.SessionID]*mailbox{}}}
	g.ends = sync.OnceValue(func() []tandem.Token { return endsOf(c.Vocab) })
	g.closer = &peer.Closer{Timeout: c.Timeouts.Close, Counters: c.Counters, Ending: g.tasks.closing}
	g.sources = &source.Shared{Roster: &g.roster, Run: g.tasks.run, Closer: g.closer, Events: c.Events, Counters: c.Counters,
		ProposeMin: c.Timeouts.ProposeMin, ProposeMax: c.Timeouts.ProposeMax, Stall: c.Timeouts.Stall, Vocab: c.Vocab.Size()}
	for _, m := range c.Drafters {
		g.Enlist(m)
	}
	if g.sources.Words, _ = c.Vocab.(source.Words); g.sources.Words != nil {
		g.roster.Enlist(Enlisted{Name: tandem.Grammar, Grammar: true, Last: true})
	}
	if c.Recycling {
		g.roster.Enlist(Enlisted{Name: tandem.Recycling, Recycling: true, Last: true})
	}
	g.running, g.stop = context.WithCancelCause(context.Background())
	return g, nil
}

// Generate implements tandem.Generator. The result counts what was done even when it comes with an error. s is called from the calling
// goroutine alone, and must return once ctx has ended. While s does not take its output, the request goes on for up to Config.Unread bytes
// and is then parked (session.park).
func (g *Gateway) Generate(ctx context.Context, r tandem.Request, s tandem.Sink) (res tandem.Result, err error) {
	if err := g.tasks.join(); err != nil {
		return res, err
	}
	defer g.tasks.leave()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(g.running, func() { cancel(context.Cause(g.running)) })()

	id := tandem.NewSessionID()
	ctx, end := g.cfg.Events.Begin(ctx, tandem.StageRequest, text("model", g.cfg.ModelName), text("session", id.String()),
		number("max_tokens", r.MaxTokens))
	defer func() {
		if p := recover(); p != nil {
			err = tandem.Panicked(op, p)
		}
		end(err, number("tokens_in", res.PromptTokens), number("tokens_out", res.OutputTokens), number("tokens_cached", res.CachedTokens),
			number("rounds", res.Stats.Rounds), number("accepted", res.Stats.Accepted), text("finish", string(res.Finish)))
	}()

	tokens, limit, slot, err := g.admit(ctx, r)
	if err != nil {
		return res, err
	}
	if c := r.Sampling.Constraint; c != nil {
		r.Sampling.Constraint = &tandem.Constraint{Spec: c.Spec, Digest: c.Digest, Ends: g.ends()}
	}
	g.served.Add(1)
	defer g.served.Add(-1)
	x := newSession(&g.common, id, r, tokens, limit, slot, newOutput(s, g.cfg.Unread, g.cfg.Timeouts.Unread))
	g.register(id, x.box)
	return g.deliver(ctx, x, cancel)
}

// admit returns r's prompt as tokens, and how many it may grow to, once r may run; then the caller must leave the gate.
func (g *Gateway) admit(ctx context.Context, r tandem.Request) (tokens []tandem.Token, limit int, p *admit.Slot, err error) {
	ctx, end := g.cfg.Events.Begin(ctx, tandem.StageAdmit)
	defer func() { end(err, number("tokens_in", len(tokens))) }()
	if err := r.Validate(g.cfg.Limits); err != nil {
		return nil, 0, nil, err
	}
	if err := g.known(ctx, r.Drafters); err != nil {
		return nil, 0, nil, err
	}
	if tokens = r.Tokens; tokens == nil {
		tokens = g.cfg.Vocab.Encode(r.Prompt, true)
		if err := tandem.ValidatePromptTokens(tokens, g.cfg.Limits); err != nil {
			return nil, 0, nil, err
		}
	}
	rows := max(r.Bounds.Nodes, 1) - 1
	most := g.gate.Longest(g.cfg.Limits.Context, rows)
	if len(tokens) >= most && most < g.cfg.Limits.Context {
		return nil, 0, nil, &tandem.Error{Op: "request", Kind: tandem.Invalid, Field: "prompt", Err: fmt.Errorf("prompt has %d tokens: "+
			"the context holds %d in the verifier's memory, and at least one must be left to generate", len(tokens), most)}
	}
	limit = len(tokens) + min(r.MaxTokens, most-len(tokens))
	p, err = g.gate.Enter(ctx, admit.Need{Tenant: r.Tenant, Tokens: limit, First: first(len(tokens), r.MaxTokens), Rows: rows})
	return tokens, limit, p, err
}

// describeWait is how long a request that names one of the target's self-drafts waits for the verifier's first description.
const describeWait = 10 * time.Second

// known returns an error of kind Invalid if a drafter that a request names was never there. A request that names one of the
// target's self-drafts waits until the verifier has told which there are.
func (g *Gateway) known(ctx context.Context, names []string) error {
	if slices.ContainsFunc(names, func(n string) bool { return slices.Contains(tandem.SelfDrafts(), n) }) {
		late := time.NewTimer(describeWait)
		defer late.Stop()
		select {
		case <-g.described:
		case <-late.C:
		case <-ctx.Done():
			return ended(ctx, "while it waited for the verifier to tell its self-drafts")
		}
	}
	return g.roster.Check(names)
}

// Deliver takes a verdict from the verifier. It never blocks; a verdict that no session waits for is
// dropped and counted by reason. The gateway only reads v's slices.
func (g *Gateway) Deliver(v tandem.Verdict) {
	g.mu.RLock()
	box := g.sessions[v.Session]
	g.mu.RUnlock()
	dropped := "unknown_session"
	if box != nil {
		dropped = box.offer(v)
	}
	if dropped != "" {
		g.cfg.Counters.Add("verdicts."+dropped, 1)
	}
}

// VerifierState is a hint that the connection to the verifier came up or went down. Coming up ends
// the waits of sessions that have lost it.
func (g *Gateway) VerifierState(up bool) { g.verifier.Set(up) }

// VerifierIs describes the verifiers that are up: costs are those of their passes (nil: not measured); their KV caches hold kvTokens
// tokens together, in pages of pageTokens (0 of either: unknown), and the largest of them holds longest. The description replaces the one
// before. Requests that wait for more memory than there is now are refused.
func (g *Gateway) VerifierIs(costs []tandem.Cost, kvTokens int64, pageTokens int, longest int64) {
	g.shared.Measured("", costs)
	g.gate.Capacity(kvTokens, pageTokens, longest)
}

// Measured says what passes cost at one of several verifiers, by its name in Opened.Verifier. It replaces what was known of them.
func (g *Gateway) Measured(verifier string, costs []tandem.Cost) { g.shared.Measured(verifier, costs) }

// Moved says that the verifier no longer holds some sessions. Sessions that wait for a verdict put their tickets again. A session whose
// ticket is answered with UnknownSession is opened again.
func (g *Gateway) Moved() { g.verifier.Pulse() }

// Away returns, by name, how far away the drafters are that rounds have asked: what a call takes beside their arithmetic. The map is the
// caller's.
func (g *Gateway) Away() map[string]time.Duration { return g.shared.Away() }

// Enlist adds a drafter, which running sessions may ask too, or replaces the drafter of that name, such as after a restart. An e without a
// name or a drafter, or with the name of a self-draft or of recycling, is ignored.
func (g *Gateway) Enlist(e Enlisted) {
	if e.Name != "" && e.Name != tandem.Recycling && e.Name != tandem.Grammar && e.Drafter != nil && !slices.Contains(tandem.SelfDrafts(),
		e.Name) {
		g.shared.PassCosts(e.Name, e.Costs)
		g.shared.Window(e.Name, e.Window)
		g.roster.Enlist(e)
	}
}

// PassCosts says what passes of a drafter's model cost, which its process has measured since it was enlisted. Running sessions use them
// from their next round on. What was not measured changes nothing.
func (g *Gateway) PassCosts(drafter string, costs []tandem.Cost) { g.shared.PassCosts(drafter, costs) }

// SelfDraftsAre says which self-drafts the verifier's target has. Sessions may ask them like drafters, by their names. Self-drafts that
// are not among drafts are dismissed.
func (g *Gateway) SelfDraftsAre(drafts []tandem.SelfDraft) {
	defer g.describe.Do(func() { close(g.described) })
	for _, name := range tandem.SelfDrafts() {
		i := slices.IndexFunc(drafts, func(d tandem.SelfDraft) bool { return d.Name == name && d.Valid() })
		if i < 0 {
			g.roster.Dismiss(name)
			continue
		}
		d := drafts[i]
		g.shared.Costs(name, d.Time)
		g.roster.Enlist(Enlisted{Name: name, Self: &d})
	}
}

// Dismiss removes a drafter that is gone or draining. Sessions stop asking it before their next
// round; calls in flight may end, and its sessions are closed.
func (g *Gateway) Dismiss(name string) { g.roster.Dismiss(name) }

// DrafterState is a hint like VerifierState, for one drafter. It enlists and dismisses nobody.
func (g *Gateway) DrafterState(name string, up bool) { g.roster.State(name, up) }

// Shutdown refuses new requests, lets those that run or wait go on until ctx ends, and cancels the rest. It returns when every goroutine
// of the gateway has ended, or twice the Close timeout after ctx ended: sinks that have not returned by then are given up. Errors:
// Deadline if a sink was given up or a request was cancelled.
func (g *Gateway) Shutdown(ctx context.Context) error {
	idle := g.tasks.close()
	select {
	case <-idle:
		g.stop(nil)
		return nil
	case <-ctx.Done():
	}
	running := g.served.Load()
	g.stop(tandem.Errorf(op, tandem.Unavailable, "gateway is shutting down"))
	late := time.NewTimer(2 * g.cfg.Timeouts.Close)
	defer late.Stop()
	select {
	case <-idle:
		if running == 0 {
			return nil // all that was left were sessions being closed at the peers
		}
		return tandem.Errorf("shutdown", tandem.Deadline, "%d requests were cut short", running)
	case <-late.C:
		return tandem.Errorf("shutdown", tandem.Deadline, "requests still held after %v", 2*g.cfg.Timeouts.Close)
	}
}

// Sessions returns the ids of the sessions that peers may hold for this gateway, in no order.
func (g *Gateway) Sessions() []tandem.SessionID {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return slices.Collect(maps.Keys(g.sessions))
}

// Prefills returns the sessions that the verifier is reading now, ascending by id.
func (g *Gateway) Prefills() []Prefill { return g.prefills.list() }

// Pace returns the sums over all rounds of the gateway so far.
func (g *Gateway) Pace() Pace { return g.pace.sum() }

// Load returns how many requests run now and how many wait for a slot. Parked ones do neither.
func (g *Gateway) Load() (running, waiting int) { return g.gate.Load() }

// deliver runs an admitted session in a goroutine of its own, while the caller's hands its output to the sink.
func (g *Gateway) deliver(ctx context.Context, x *session, quit context.CancelCauseFunc) (res tandem.Result, err error) {
	ended := make(chan error, 1)
	g.tasks.run(func() {
		var err error
		res, err = x.live(ctx)
		ended <- err
	})
	if err := peer.Guard(func() error { return tandem.Admitted(ctx) }); err != nil {
		quit(x.out.fail(sinkError(err)))
	}
	whole, failed := x.out.deliver(ctx, quit)
	err = <-ended
	switch {
	case failed != nil:
		err = failed
	case err == nil && !whole:
		err = x.ended(ctx)
	}
	return res, err
}

var _ tandem.Generator = (*Gateway)(nil)
