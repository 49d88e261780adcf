package gateway

import (
	"maps"
	"slices"

	"github.com/tandem-llm/tandem"
)

// Prefill is a session whose prompt, or all that it has, is being read by the verifier.
type Prefill struct {
	Session tandem.SessionID
	Held    int  // tokens that the verifier holds, those found in its memory included
	Total   int  // tokens that it is to hold
	Again   bool // its client has had output: it is read again
}

// Prefills returns the sessions that the verifier is reading, those with the lowest ids first.
func (g *Gateway) Prefills() []Prefill {
	g.mu.RLock()
	defer g.mu.RUnlock()
	out := make([]Prefill, 0, len(g.prefills))
	for _, id := range slices.Sorted(maps.Keys(g.prefills)) {
		out = append(out, g.prefills[id])
	}
	return out
}

// prefilling notes that the verifier has read held tokens of a session, of total.
func (g *Gateway) prefilling(id tandem.SessionID, held, total int, again bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.prefills[id] = Prefill{Session: id, Held: min(max(held, 0), total), Total: total, Again: again}
}

// prefilled notes that the verifier reads a session no more.
func (g *Gateway) prefilled(id tandem.SessionID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.prefills, id)
}
