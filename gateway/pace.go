package gateway

import (
	"sync/atomic"
	"time"
)

// Pace shows how many times as fast as plain decoding a gateway decodes: what all its rounds have committed and how long they took, and the
// same of those in which the strategy chose to decode plainly. A round that asked for drafts and got none is not among these: it waited for
// them. A round's time is from its start to its commit; prompts are not in it.
type Pace struct {
	Tokens, PlainRounds int64
	Time, PlainTime     time.Duration
}

// pace counts what Pace tells. Safe for concurrent use.
type pace struct{ tokens, plainRounds, time, plainTime atomic.Int64 }

func (p *pace) count(tokens int, wall time.Duration, plain bool) {
	p.tokens.Add(int64(tokens))
	p.time.Add(int64(wall))
	if plain {
		p.plainRounds.Add(1)
		p.plainTime.Add(int64(wall))
	}
}

// sum returns what was counted so far.
func (p *pace) sum() Pace {
	return Pace{Tokens: p.tokens.Load(), PlainRounds: p.plainRounds.Load(), Time: time.Duration(p.time.Load()),
		PlainTime: time.Duration(p.plainTime.Load())}
}
