package gateway

import (
	"time"

	"github.com/tandem-llm/tandem/gateway/admit"
	"github.com/tandem-llm/tandem/gateway/round"
)

const (
	firstAhead  = 256 // tokens that a request counts with, at the gate, beyond those that it has; doubles whenever it was too little
	mostStarved = 3   // times that a session yields for memory without getting further, before it waits until it is alone
)

// admission is what a session and the gate know of each other.
type admission struct {
	slot    *admit.Slot
	parked  time.Duration // in all, since its prompt was in
	counted int           // tokens that the gate counts it with
	ahead   int           // of these, beyond its own, when they were last set
	starved int           // times that the verifier had no memory for it, since the last commit
}

// first returns the tokens that a request counts with at the gate when it begins.
func first(prompt, maxTokens int) int { return prompt + min(maxTokens, firstAhead) }

// grow tells the gate when the text has become longer than what it counts with there.
func (a *admission) grow(g *admit.Gate, t *round.Text) {
	if t.Len() >= a.counted && a.counted < t.Limit {
		a.counted = min(t.Len()+a.ahead, t.Limit)
		g.Grow(a.slot, a.counted)
	}
}

// without adds the time since begun, for which the session had no slot or was being opened again.
func (a *admission) without(begun time.Time) { a.parked += time.Since(begun) }

// starve counts that the verifier has no memory for the session, and returns how it wants to come back.
func (a *admission) starve(t *round.Text) admit.Want {
	a.starved++
	a.ahead = min(2*a.ahead, t.Limit)
	a.counted = min(t.Len()+a.ahead, t.Limit)
	return admit.Want{Tokens: a.counted, Memory: true, Alone: a.starved > mostStarved}
}
