package verifier

import (
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
)

// loadAge is how old what Verifier.Load returns may be before it is counted again.
const loadAge = time.Second

// Load is what the verifier has to do, and what it keeps.
type Load struct {
	FreePages int // of KV memory, of engine.PageTokens tokens each, that no session has
	Sessions  int // that it holds
	Waiting   int // tickets that wait for a pass
	// Prefixes are those of kept texts, the most recently used first: see engine.Prefixes. Not to be written to.
	Prefixes []tandem.Prefix
}

// counter counts what the schedule's goroutine alone can count, when asked, between two passes. Safe for concurrent use.
type counter struct {
	model *engine.Model
	sched *schedule.Schedule

	mu      sync.Mutex
	pending bool // it was asked
	at      time.Time
	load    Load
}

// latest returns what was counted a moment ago, which a long pass makes longer, and has it counted again if that is old.
func (c *counter) latest() Load {
	c.mu.Lock()
	ask := !c.pending && time.Since(c.at) > loadAge
	c.pending = c.pending || ask
	out := c.load
	c.mu.Unlock()
	if ask {
		c.sched.Post(c.count)
	}
	return out
}

// count counts sessions and prefixes, on the schedule's goroutine.
func (c *counter) count() {
	sessions, prefixes := c.sched.Load().Sessions, c.model.Prefixes().Summary(tandem.MostPrefixes)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending, c.at, c.load.Sessions, c.load.Prefixes = false, time.Now(), sessions, prefixes
}
