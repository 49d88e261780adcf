package gateway

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/gateway/enlist"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/drafting"
	"github.com/tandem-llm/tandem/services/peers/telemetry"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/httpapi"
)

// newMetrics returns the metrics of a gateway and the processes behind it.
func newMetrics(r *roles.Process, g *gateway.Gateway, model string, describe func(context.Context) public.Description) *telemetry.Metrics {
	r.Gauge("requests.running", func() int64 {
		running, _ := g.Load()
		return int64(running)
	})
	r.Gauge("requests.waiting", func() int64 {
		_, waiting := g.Load()
		return int64(waiting)
	})
	r.Tell(func(counters map[string]int64) {
		tellPrefills(counters, g.Prefills())
		tellPace(counters, g.Pace())
		for name, away := range g.Away() {
			counters[AwayOf+name] = away.Microseconds()
		}
	})
	return telemetry.NewMetrics(telemetry.MetricsConfig{Model: model, Version: r.Version, Describe: describe, Prefilling: func() (n int) {
		for _, p := range g.Prefills() {
			if !p.Again {
				n++
			}
		}
		return n
	}})
}

// counted counts what is generated for gRPC's clients, as httpapi counts the requests of its APIs.
type counted struct {
	tandem.Generator
	counters *tandem.Counters
}

// Generate implements tandem.Generator.
func (c counted) Generate(ctx context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
	c.counters.Add(httpapi.CountedCalls+"grpc", 1)
	return c.Generator.Generate(ctx, r, s)
}

// PrefillOf is the prefix of the gauges of sessions that the verifier is reading: done and total tokens, by session.
const PrefillOf = "prefill.of."

// mostPrefills bounds the sessions that are listed one by one.
const mostPrefills = 64

// AwayOf is the prefix of the gauges of the ways to drafters and back, in microseconds.
const AwayOf = "drafters.away_us."

// tellPrefills tells how far the verifier has read which sessions.
func tellPrefills(counters map[string]int64, all []gateway.Prefill) {
	counters[telemetry.Prefills], counters[telemetry.PrefillTotal], counters[telemetry.PrefillDone] = int64(len(all)), 0, 0
	for i, p := range all {
		counters[telemetry.PrefillTotal] += int64(p.Total)
		counters[telemetry.PrefillDone] += int64(p.Held)
		if i < mostPrefills {
			of := PrefillOf + p.Session.String()
			counters[of+".total"], counters[of+".done"] = int64(p.Total), int64(p.Held)
		}
	}
}

// Counters of a gateway's rounds, which together say how many times as fast as plain decoding it decodes: gateway.Pace.
const (
	RoundTokens = "rounds.tokens"
	RoundTime   = "rounds.us"
	PlainRounds = "rounds.plain"
	PlainTime   = "rounds.plain_us"
)

func tellPace(counters map[string]int64, p gateway.Pace) {
	counters[RoundTokens], counters[RoundTime] = p.Tokens, p.Time.Microseconds()
	counters[PlainRounds], counters[PlainTime] = p.PlainRounds, p.PlainTime.Microseconds()
}

// peers are the processes behind a gateway.
type peers struct {
	verifiers *verifiers
	members   *enlist.Members
	lookup    func() []public.Process // without a process of its own
	fleet     *membership
}

// describer returns a function that describes the gateway and the processes behind it.
func (p *peers) describer(r *roles.Process, model string, l tandem.Limits) func(context.Context) public.Description {
	self := r.DescribeProcess("gateway", "")
	return func(ctx context.Context) public.Description {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		here := self()
		here.Model = model
		d := public.Description{Version: here.Version, Model: model, Vocab: l.Vocab, Context: l.Context, Counters: here.Counters,
			Fleet: p.fleet.members()}
		d.Processes = append(d.Processes, public.Process{Role: "gateway", Up: true, Description: here})
		d.Processes = append(d.Processes, p.verifiers.describe(ctx)...)
		for _, x := range p.members.Processes() {
			v, err := drafting.NewClient(x.Link.(link).conn, "").Describe(ctx)
			if v.Name == "" && len(x.Drafters) > 0 { // away
				v.Name = x.Drafters[0].Name
			}
			if v.Model = x.Models(); v.Model == "" {
				v.Model = v.Name
			}
			d.Processes = append(d.Processes, public.Process{Role: "drafter", Up: err == nil && x.Used > 0, Description: v})
		}
		d.Processes = append(d.Processes, p.lookup()...)
		return d
	}
}
