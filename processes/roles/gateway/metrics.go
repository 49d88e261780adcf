package gateway

import (
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/telemetry"
)

// tellGateway adds the gauges of a gateway to those of its process.
func tellGateway(r *roles.Process, g *gateway.Gateway) {
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
}

// PrefillOf is the prefix of the gauges of sessions that the verifier is reading: done and total tokens, by session.
const PrefillOf = "prefill.of."

// mostPrefills bounds the sessions that are listed one by one.
const mostPrefills = 64

// AwayOf is the prefix of the gauges, one a drafter, of how long a message takes to it and back, in microseconds.
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
	PlainTime   = "rounds.plain_us"
)

func tellPace(counters map[string]int64, p gateway.Pace) {
	counters[RoundTokens], counters[RoundTime] = p.Tokens, p.Time.Microseconds()
	counters[PlainTime] = p.Plain.Microseconds()
}
