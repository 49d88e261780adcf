package gateway

import (
	"sync/atomic"
	"time"
)

// Pace shows how many times as fast as plain decoding a gateway decodes. A round's time is from its start to its commit; prompts are not in
// it. Plain rounds are those in which the strategy chose to ask nobody. A round that asked for drafts and got none waited for them, and is
// not plain.
type Pace struct {
	Tokens      int64         // committed by all rounds
	PlainRounds int64         // each of which commits one token
	Time        time.Duration // of all rounds
	PlainTime   time.Duration // of plain rounds
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
