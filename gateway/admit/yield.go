package admit

import (
	"context"
	"time"
)

// shortFor is how long no request is admitted after the verifier had no memory for one that runs, unless another leaves before.
const shortFor = time.Second

// Grow makes a request count with tokens, but at most with Need.Tokens. It changes nothing if the request counts with more already.
func (g *Gate) Grow(p *Slot, tokens int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	tokens = min(tokens, p.most)
	if tokens <= p.need.Tokens {
		return
	}
	before := g.pages(p)
	p.need.Tokens = tokens
	if _, in := g.inside[p]; in {
		more := g.pages(p) - before
		g.held += more
		g.tenants[p.need.Tenant].held += more
	}
}

// Starved reports whether a request for which the verifier has no memory should Yield. It should if other requests run, because their
// memory will become free.
func (g *Gate) Starved(p *Slot) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, in := g.inside[p]
	return in && len(g.inside) > 1
}

// Want says how a request that yields comes back.
type Want struct {
	Tokens int  // it counts with these from now on, if they are more than before
	Memory bool // the verifier had no memory: another request must leave first, or a second must pass
	Alone  bool // it is admitted only when no other request runs
}

// Yield gives a slot back and waits for the next, as Return does: before the other requests of its tenant, but not before other tenants
// whose turn it is. Errors: Invalid if the memory has become too small for it meanwhile, or why ctx ended. The caller must Leave in any
// case.
func (g *Gate) Yield(ctx context.Context, p *Slot, w Want) error {
	g.yield(p, w)
	return g.wait(ctx, p)
}

func (g *Gate) yield(p *Slot, w Want) {
	g.Grow(p, w.Tokens)
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.forget()
	if p.opened.IsZero() {
		p.broken++
	}
	g.remove(p)
	g.enqueue(p)
	if p.alone = w.Alone; w.Memory {
		g.short = time.Now().Add(shortFor)
		time.AfterFunc(shortFor, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.admit()
		})
	}
	g.admit()
}
