package httpapi

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
)

const (
	freshPass = 5 * time.Second // a verify pass that ended this recently proves that the engine works
	probeTime = 5 * time.Second // longest time of a probe
	probeRest = time.Second     // pause after a failed probe

	healthTime = 500 * time.Millisecond // longest time of Health
	lookTime   = 200 * time.Millisecond // the verifier's share of it, to count its passes
	lookFresh  = 15 * time.Second       // an older count proves nothing: orchestrators ask every 5 to 10 s
)

// Monitor is a generator that knows whether the engine behind it works: a request got a token in the last 5 s, the verifier
// has ended passes since it was last asked, or a probe of one token succeeds. A busy engine is healthy: while long prompts
// take all slots, no request gets a token and a probe waits like any other, but passes end. Health always answers
// soon; while a probe is under way it repeats its last answer. All front ends must generate through a monitor. Safe for
// concurrent use.
type Monitor struct {
	tandem.Generator
	mute   func(context.Context) context.Context
	passes func(context.Context) (int64, error)

	last atomic.Int64 // when the last pass ended, in nanoseconds from start; 0 = none yet
	ever atomic.Bool  // the verifier has been up
	up   atomic.Bool
	why  atomic.Pointer[string] // the verifier is there but cannot be used; nil: no such reason

	slots slotTable

	start time.Time
	mu    sync.Mutex
	probe *probe // the latest; nil before the first
	seen  int64  // passes when they were last counted
	at    time.Time
	ready bool // what Health said last
}

// probe is one attempt to generate a token.
type probe struct {
	done  chan struct{}
	err   error     // valid once done is closed
	ended time.Time // valid once done is closed
}

// NewMonitor returns a monitor of g, whose verifier is not up yet. mute keeps probes out of traces; passes asks the verifier how
// many passes it has ended, those of prompts included. Both may be nil.
func NewMonitor(g tandem.Generator, mute func(context.Context) context.Context, passes func(context.Context) (int64, error)) *Monitor {
	if mute == nil {
		mute = func(ctx context.Context) context.Context { return ctx }
	}
	return &Monitor{Generator: g, mute: mute, passes: passes, start: time.Now()}
}

// VerifierState tells that the connection to the verifier came up or went down.
func (m *Monitor) VerifierState(up bool) {
	m.up.Store(up)
	if up {
		m.why.Store(nil)
		m.ever.Store(true)
	} else {
		m.last.Store(0) // passes of the one before prove nothing about the next
	}
}

// VerifierRefused tells why the present verifier cannot be used; it holds until one comes up.
func (m *Monitor) VerifierRefused(why string) { m.why.Store(&why) }

// away returns why there is no usable verifier, otherwise if no reason is known.
func (m *Monitor) away(otherwise string) string {
	if why := m.why.Load(); why != nil {
		return *why
	}
	return otherwise
}

// Loading returns why requests cannot be answered yet; "" once the verifier has been up.
func (m *Monitor) Loading() string {
	if m.ever.Load() {
		return ""
	}
	return m.away("the verifier is not up yet")
}

// Health reports within healthTime whether the engine works.
func (m *Monitor) Health(ctx context.Context) Health {
	h := m.health(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ready = h.Ready
	return h
}

func (m *Monitor) health(ctx context.Context) Health {
	if reason := m.Loading(); reason != "" {
		return Health{Reason: "the model is loading: " + reason}
	}
	if !m.up.Load() {
		return Health{Reason: m.away("the verifier is down")}
	}
	if m.fresh() || m.moved(ctx) {
		return Health{Ready: true}
	}
	p := m.attempt()
	late := time.NewTimer(healthTime - lookTime)
	defer late.Stop()
	select {
	case <-p.done:
		if p.err == nil || m.fresh() || m.moved(ctx) {
			return Health{Ready: true}
		}
		return Health{Reason: fmt.Sprintf("no verify pass for %v, and a probe of one token did not pass: %v", freshPass, p.err)}
	case <-late.C:
	case <-ctx.Done():
	}
	m.mu.Lock()
	before := m.ready
	m.mu.Unlock()
	if before || m.fresh() || m.moved(ctx) {
		return Health{Ready: true}
	}
	return Health{Reason: "a probe of one token has not passed yet"}
}

// moved reports whether the verifier has ended passes since it was last asked.
func (m *Monitor) moved(ctx context.Context) bool {
	if m.passes == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	n, err := m.passes(ctx)
	if err != nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	moved := n > m.seen && time.Since(m.at) <= lookFresh
	m.seen, m.at = n, time.Now()
	return moved
}

func (m *Monitor) fresh() bool {
	last := m.last.Load()
	return last != 0 && time.Since(m.start)-time.Duration(last) <= freshPass
}

// attempt returns the probe under way, or one that failed just now, or a new one.
func (m *Monitor) attempt() *probe {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.probe; p != nil {
		select {
		case <-p.done:
			if p.err != nil && time.Since(p.ended) < probeRest {
				return p
			}
			m.ready = m.ready && p.err == nil // what was said before the last probe ended does not count
		default:
			return p
		}
	}
	p := &probe{done: make(chan struct{})}
	m.probe = p
	go func() { // ends with its time, or with the generator
		defer close(p.done)
		defer func() {
			if x := recover(); x != nil {
				p.err = tandem.Errorf(op, tandem.Internal, "panic: %v", x)
			}
			p.ended = time.Now()
		}()
		ctx, cancel := context.WithTimeout(m.mute(context.Background()), probeTime)
		defer cancel()
		_, p.err = m.Generate(ctx, tandem.Request{Tokens: []tandem.Token{0}, MaxTokens: 1, IgnoreEOS: true,
			Sampling: tandem.Sampling{TopP: 1}}, discard{})
	}()
	return p
}

// Generate implements tandem.Generator.
func (m *Monitor) Generate(ctx context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
	x := m.slots.take(r)
	defer m.slots.leave(x)
	return m.Generator.Generate(ctx, r, noting{s, m, x})
}

// noting is a sink that tells the monitor of passes: each piece of output comes from one.
type noting struct {
	tandem.Sink
	m *Monitor
	x *running
}

// Delta implements tandem.Sink.
func (n noting) Delta(d tandem.Delta) error {
	n.m.last.Store(int64(time.Since(n.m.start)) + 1)
	n.m.slots.grew(n.x, len(d.Tokens))
	return n.Sink.Delta(d)
}

// discard is a sink for what nobody reads.
type discard struct{}

func (discard) Progress(tandem.PromptProgress) error { return nil }
func (discard) Started(tandem.Started) error         { return nil }
func (discard) Delta(tandem.Delta) error             { return nil }
