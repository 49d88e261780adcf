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
	freshPass = 5 * time.Second // a verify pass that ended no longer ago proves that the engine lives
	probeTime = 5 * time.Second // that a probe may take
	probeRest = time.Second     // after one that did not pass
)

// Monitor is a generator that knows whether the engine behind it lives: a verify pass ended in the last 5 s, or a
// probe of one token passes. All front ends must generate through it. Safe for concurrent use.
type Monitor struct {
	tandem.Generator
	mute func(context.Context) context.Context

	last atomic.Int64 // when the last pass ended, in nanoseconds from start; 0 = none yet
	ever atomic.Bool  // the verifier has been up
	up   atomic.Bool

	start time.Time
	mu    sync.Mutex
	probe *probe // the latest; nil before the first
}

// probe is one attempt to generate a token.
type probe struct {
	done  chan struct{}
	err   error     // valid once done is closed
	ended time.Time // likewise
}

// NewMonitor returns a monitor of g, whose verifier is not up yet. Mute keeps probes out of traces; it may be nil.
func NewMonitor(g tandem.Generator, mute func(context.Context) context.Context) *Monitor {
	if mute == nil {
		mute = func(ctx context.Context) context.Context { return ctx }
	}
	return &Monitor{Generator: g, mute: mute, start: time.Now()}
}

// VerifierState tells that the connection to the verifier came up or went down.
func (m *Monitor) VerifierState(up bool) {
	m.up.Store(up)
	if up {
		m.ever.Store(true)
	} else {
		m.last.Store(0) // what has ended before proves nothing of the next
	}
}

// Loading returns why requests cannot be answered yet; "" once the verifier has been up.
func (m *Monitor) Loading() string {
	if m.ever.Load() {
		return ""
	}
	return "the verifier is not up yet"
}

// Health tells whether the engine lives. It takes up to the time of a probe.
func (m *Monitor) Health(ctx context.Context) Health {
	if reason := m.Loading(); reason != "" {
		return Health{Reason: "the model is loading: " + reason}
	}
	if !m.up.Load() {
		return Health{Reason: "the verifier is down"}
	}
	if m.fresh() {
		return Health{Ready: true}
	}
	p := m.attempt()
	select {
	case <-p.done:
	case <-ctx.Done():
		return Health{Reason: "a probe of one token has not passed yet"}
	}
	if p.err != nil && !m.fresh() {
		return Health{Reason: fmt.Sprintf("no verify pass for %v, and a probe of one token did not pass: %v", freshPass, p.err)}
	}
	return Health{Ready: true}
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
		_, p.err = m.Generate(ctx, tandem.Request{Tokens: []tandem.Token{0}, MaxTokens: 1, IgnoreEOS: true, Sampling: tandem.Sampling{TopP: 1}}, discard{})
	}()
	return p
}

// Generate implements tandem.Generator.
func (m *Monitor) Generate(ctx context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
	return m.Generator.Generate(ctx, r, noting{s, m})
}

// noting is a sink that tells the monitor of passes: each piece of output is from one.
type noting struct {
	tandem.Sink
	m *Monitor
}

// Delta implements tandem.Sink.
func (n noting) Delta(d tandem.Delta) error {
	n.m.last.Store(int64(time.Since(n.m.start)) + 1)
	return n.Sink.Delta(d)
}

// discard is a sink for what nobody reads.
type discard struct{}

func (discard) Started(tandem.Started) error { return nil }
func (discard) Delta(tandem.Delta) error     { return nil }
