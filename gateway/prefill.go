package gateway

import (
	"maps"
	"slices"
	"sync"

	"github.com/tandem-llm/tandem"
)

// Prefill is a session that the verifier is reading: its prompt, or, if it is opened again, all that it has.
type Prefill struct {
	Session tandem.SessionID
	Held    int  // tokens that the verifier holds, those found in its memory included
	Total   int  // tokens that it is to hold
	Again   bool // its client has had output, so it is being read again
}

// prefills are the sessions that the verifier is reading. Safe for concurrent use; the zero value has none.
type prefills struct {
	mu sync.Mutex
	of map[tandem.SessionID]Prefill
}

// list returns all, those with the lowest ids first.
func (p *prefills) list() []Prefill {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Prefill, 0, len(p.of))
	for _, id := range slices.Sorted(maps.Keys(p.of)) {
		out = append(out, p.of[id])
	}
	return out
}

// set notes how far the verifier has read a session.
func (p *prefills) set(x Prefill) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = map[tandem.SessionID]Prefill{}
	}
	x.Held = min(max(x.Held, 0), x.Total)
	p.of[x.Session] = x
}

// end notes that the verifier reads a session no more.
func (p *prefills) end(id tandem.SessionID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, id)
}
