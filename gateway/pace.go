package gateway

import (
	"sync/atomic"
	"time"
)

// Pace shows how many times as fast as plain decoding a gateway decodes. A round's time is from its start to its commit; prompts are not in
// it.
type Pace struct {
	Tokens int64         // committed by all rounds
	Time   time.Duration // of all rounds
	Plain  time.Duration // what plain decoding of the answers that have ended would have taken (worth.Plain)
}

// pace counts what Pace tells. Safe for concurrent use.
type pace struct{ tokens, time, plain atomic.Int64 }

func (p *pace) count(tokens int, wall time.Duration) {
	p.tokens.Add(int64(tokens))
	p.time.Add(int64(wall))
}

// sum returns what was counted so far.
func (p *pace) sum() Pace {
	return Pace{Tokens: p.tokens.Load(), Time: time.Duration(p.time.Load()), Plain: time.Duration(p.plain.Load())}
}
