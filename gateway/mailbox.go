package gateway

import (
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/round"
)

// mailbox takes the one verdict that its session waits for and refuses all others: after arm, the first
// offer that fits fills it, and nothing fits until it is armed again. offer never blocks.
type mailbox struct {
	answer chan tandem.Verdict // capacity 1
	stamps bool                // came is wanted; set before the first offer

	mu    sync.Mutex
	asked round.Question
	armed bool
	came  time.Time // of the answer; whoever has taken it may read came until the next arm
}

func newMailbox() *mailbox { return &mailbox{answer: make(chan tandem.Verdict, 1)} }

// arm makes the mailbox wait for an answer to q; an answer to an earlier question is dropped.
func (b *mailbox) arm(q round.Question) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.answer:
	default:
	}
	b.asked, b.armed = q, true
}

// offer takes v and returns "", or returns the counter that names why not.
func (b *mailbox) offer(v tandem.Verdict) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case v.Epoch != b.asked.Epoch:
		return "stale_epoch"
	case v.Base != b.asked.Base:
		return "stale_base"
	case v.Hash != b.asked.Hash:
		return "stale_hash"
	case !b.armed:
		return "duplicate"
	}
	b.armed = false
	if b.stamps {
		b.came = time.Now()
	}
	b.answer <- v
	return ""
}

// answered reports whether the answer is there already.
func (b *mailbox) answered() bool { return len(b.answer) > 0 }
