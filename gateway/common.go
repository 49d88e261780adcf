package gateway

import (
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/admit"
	"github.com/tandem-llm/tandem/gateway/peer"
	"github.com/tandem-llm/tandem/gateway/roster"
	"github.com/tandem-llm/tandem/gateway/source"
	"github.com/tandem-llm/tandem/gateway/strategy"
)

// common is what all requests of a gateway use. Safe for concurrent use.
type common struct {
	cfg      Config
	gate     *admit.Gate
	tasks    *tasks
	verifier roster.Recovery
	shared   *strategy.Shared
	closer   *peer.Closer
	sources  *source.Shared
	pace     pace
	prefills prefills
	ends     func() []tandem.Token // the tokens that end a text, ascending; found once

	mu       sync.RWMutex
	sessions map[tandem.SessionID]*mailbox // that peers may hold
}

// endsOf returns the tokens that end a text.
func endsOf(v Vocab) (ends []tandem.Token) {
	for t := range v.Size() {
		if v.IsEnd(tandem.Token(t)) {
			ends = append(ends, tandem.Token(t))
		}
	}
	return ends
}

func (g *common) register(id tandem.SessionID, b *mailbox) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sessions[id] = b
}

func (g *common) forget(id tandem.SessionID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.sessions, id)
}
