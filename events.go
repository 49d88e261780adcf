package tandem

import (
	"context"
	"maps"
	"sync"
)

// Stage names a part of a request's life that telemetry may record.
type Stage string

const (
	StageRequest Stage = "chat"    // gateway: admission to last token
	StageEmbed   Stage = "embed"   // gateway: admission to last vector
	StageAdmit   Stage = "admit"   // gateway: tokenising and waiting for a slot
	StagePrefill Stage = "prefill" // gateway: Open of one process, by attribute
	StageRounds  Stage = "rounds"  // gateway: up to 32 rounds
	StageRound   Stage = "round"   // gateway: one round
	StageCommit  Stage = "commit"  // gateway: verdict to text
	StageParked  Stage = "parked"  // gateway: a session without a slot
	StageOpen    Stage = "open"    // drafter, verifier: a session's prefill
	StageDraft   Stage = "draft"   // drafter: one tree
	StageSend    Stage = "send"    // drafter or gateway: ticket into the pool (producer)
	StageProcess Stage = "process" // verifier: ticket to verdict (consumer)
	StageVerify  Stage = "verify"  // verifier: the pass
)

// Attr is an attribute of a stage: an integer, or a string if Str is set.
type Attr struct {
	Key string // without the prefix "tandem."
	Int int64
	Str string
}

// Link returns an attribute that links a stage to the one whose carrier (Events.Carrier) is given.
func Link(carrier string) Attr { return Attr{Key: "link", Str: carrier} }

// End ends a stage. A nil error is success; speculation that was rejected is no error.
type End func(err error, attrs ...Attr)

// Events is how the rooms tell telemetry what happens. Any field may be nil; use the methods.
type Events struct {
	// BeginFunc opens a stage as a child of ctx's and returns a ctx that carries it.
	BeginFunc func(ctx context.Context, s Stage, attrs []Attr) (context.Context, End)
	// CarrierFunc returns ctx's stage as a W3C traceparent, "" if ctx carries none.
	CarrierFunc func(ctx context.Context) string
	// AdoptFunc returns ctx with the carrier's stage as parent of the next.
	AdoptFunc func(ctx context.Context, carrier string) context.Context
	// MuteFunc returns ctx such that stages below it, in every process, are not recorded.
	MuteFunc func(ctx context.Context) context.Context
}

// Begin opens a stage; the returned End must be called once.
func (e Events) Begin(ctx context.Context, s Stage, attrs ...Attr) (context.Context, End) {
	if e.BeginFunc == nil {
		return ctx, func(error, ...Attr) {}
	}
	return e.BeginFunc(ctx, s, attrs)
}

// Carrier returns ctx's stage as a W3C traceparent, "" if there is none.
func (e Events) Carrier(ctx context.Context) string {
	if e.CarrierFunc == nil {
		return ""
	}
	return e.CarrierFunc(ctx)
}

// Adopt returns ctx with the carrier's stage as parent of the next; an empty carrier changes nothing.
func (e Events) Adopt(ctx context.Context, carrier string) context.Context {
	if e.AdoptFunc == nil || carrier == "" {
		return ctx
	}
	return e.AdoptFunc(ctx, carrier)
}

// Mute returns ctx such that stages below it are not recorded.
func (e Events) Mute(ctx context.Context) context.Context {
	if e.MuteFunc == nil {
		return ctx
	}
	return e.MuteFunc(ctx)
}

// Counters counts what operators want to see, by name, for example "stale_tickets.epoch". Safe for
// concurrent use; the zero value is ready.
type Counters struct {
	mu sync.Mutex
	n  map[string]int64
}

// Add adds n to the named counter.
func (c *Counters) Add(name string, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int64{}
	}
	c.n[name] += n
}

// Snapshot returns a copy of all counters.
func (c *Counters) Snapshot() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n)
}
