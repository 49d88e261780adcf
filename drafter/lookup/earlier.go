package lookup

import (
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
)

// pastTexts are the texts of one tenant that have ended. Safe for concurrent use; nil keeps none.
type pastTexts struct {
	mu    sync.Mutex
	texts *spec.Texts
}

// follow returns the place of the end of text, which without its last token stood at p.
func (e *pastTexts) follow(p spec.Occurrence, text []tandem.Token) spec.Occurrence {
	if e == nil {
		return p
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.texts.Follow(p, text)
}

// matches returns what followed the places where the end of text stood, of which p is one, as far as a tree within b has room.
func (e *pastTexts) matches(p spec.Occurrence, text []tandem.Token, b tandem.Bounds) []spec.Match {
	if e == nil || b.Plain() {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.texts.Matches(p, text, b.Depth, b.Width)
}
