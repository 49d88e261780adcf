package agents

import (
	"io"
	"sync"
)

// mostHeld bounds what Held keeps, in bytes: the last lines.
const mostHeld = 16 << 10

// Held passes on what is written to it, or keeps it while a program has the terminal's screen for itself. Safe for concurrent use.
type Held struct {
	To io.Writer

	mu   sync.Mutex
	hold bool
	kept []byte
}

// Write implements io.Writer.
func (h *Held) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.hold {
		return h.To.Write(p)
	}
	h.kept = append(h.kept, p...)
	if n := len(h.kept) - mostHeld; n > 0 {
		h.kept = append(h.kept[:0], h.kept[n:]...)
	}
	return len(p), nil
}

// Hold keeps what is written from now on, at most the latest mostHeld bytes. The caller must call release, which passes them on to To.
func (h *Held) Hold() (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hold = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.hold = false
		_, _ = h.To.Write(h.kept)
		h.kept = nil
	}
}
