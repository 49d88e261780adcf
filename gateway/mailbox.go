package gateway

import (
	"sync"

	"github.com/tandem-llm/tandem"
)

// question is what a ticket asks. A verdict answers it only if all of it is the same.
type question struct {
	epoch tandem.Epoch
	base  tandem.Position
	hash  tandem.PrefixHash
}

// mailbox takes the one verdict that its session waits for and turns all others away: arm, then one
// offer that fits fills it, then nothing fits until it is armed again. offer never blocks.
type mailbox struct {
	answer chan tandem.Verdict // capacity 1

	mu    sync.Mutex
	asked question
	armed bool
}

func newMailbox() *mailbox { return &mailbox{answer: make(chan tandem.Verdict, 1)} }

// arm makes the mailbox wait for an answer to q; an answer to an earlier question is dropped.
func (b *mailbox) arm(q question) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.answer:
	default:
	}
	b.asked, b.armed = q, true
}

// offer takes v, or returns why not, as the name of a counter.
func (b *mailbox) offer(v tandem.Verdict) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case v.Epoch != b.asked.epoch:
		return "stale_epoch"
	case v.Base != b.asked.base:
		return "stale_base"
	case v.Hash != b.asked.hash:
		return "stale_hash"
	case !b.armed:
		return "duplicate"
	}
	b.armed = false
	b.answer <- v
	return ""
}

// answered reports whether the answer is there already.
func (b *mailbox) answered() bool { return len(b.answer) > 0 }

// recovery tells sessions that a peer came up. The zero value is ready: nothing is known.
type recovery struct {
	mu   sync.Mutex
	up   bool
	came chan struct{} // closed and replaced whenever the peer comes up
}

func (r *recovery) set(up bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if up && !r.up && r.came != nil {
		close(r.came)
		r.came = nil
	}
	r.up = up
}

// next returns a channel that closes when the peer comes up the next time.
func (r *recovery) next() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.came == nil {
		r.came = make(chan struct{})
	}
	return r.came
}
