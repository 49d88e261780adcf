package verifier

import (
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
)

// loadAge is how old what Load returns may be before it is counted again.
const loadAge = time.Second

// Load is what the verifier has to do, and what it keeps.
type Load struct {
	FreePages int // of KV memory, that no session has
	Sessions  int // that it holds
	Waiting   int // tickets
	// Prefixes are those of kept texts, the most recently used first: see engine.Prefixes. Not to be written to.
	Prefixes []tandem.Prefix
}

// counted is what the schedule's goroutine alone can count. It counts when asked, between two passes.
type counted struct {
	mu      sync.Mutex
	pending bool // it was asked
	at      time.Time
	load    Load
}

// Load returns the load without waiting for a pass: sessions and prefixes are as of a moment ago, which a long pass makes longer. Safe for
// concurrent use.
func (v *Verifier) Load() Load {
	c := &v.counted
	c.mu.Lock()
	ask := !c.pending && time.Since(c.at) > loadAge
	c.pending = c.pending || ask
	out := c.load
	c.mu.Unlock()
	if ask {
		v.sched.Post(v.count)
	}
	out.FreePages, out.Waiting = v.cfg.Model.FreePages(), v.Waiting().Tickets
	return out
}

// count counts sessions and prefixes, on the schedule's goroutine.
func (v *Verifier) count() {
	sessions, prefixes := v.sched.Load().Sessions, v.cfg.Model.Prefixes().Summary(tandem.MostPrefixes)
	c := &v.counted
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending, c.at, c.load.Sessions, c.load.Prefixes = false, time.Now(), sessions, prefixes
}
