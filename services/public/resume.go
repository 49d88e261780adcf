package public

import (
	"math"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// Had is what a client has of a generation whose stream is taken up again: it is left out.
type Had struct {
	Text   int // bytes, or what else the caller counts
	Tokens int
}

func had(r *tandemv1.Resume) Had {
	return Had{Text: int(min(r.GetText(), math.MaxInt)), Tokens: int(r.GetTokens())}
}

// Skip counts n units of text and returns how many of them are left out.
func (h *Had) Skip(n int) int {
	n = min(n, h.Text)
	h.Text -= n
	return n
}

// Rest returns a delta without what the client has.
func (h *Had) Rest(d tandem.Delta) tandem.Delta {
	d.Text = d.Text[h.Skip(len(d.Text)):]
	return h.RestOfTokens(d)
}

// RestOfTokens returns a delta without the tokens that the client has.
func (h *Had) RestOfTokens(d tandem.Delta) tandem.Delta {
	n := min(len(d.Tokens), h.Tokens)
	h.Tokens -= n
	d.Tokens, d.Origins = d.Tokens[n:], d.Origins[min(n, len(d.Origins)):]
	d.Logprobs = d.Logprobs[min(n, len(d.Logprobs)):]
	return d
}
