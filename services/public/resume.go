package public

import (
	"math"
	"strings"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/text/calls"
)

// Had is what a client has of a generation whose stream is taken up again: it is left out.
type Had struct {
	Text   int // bytes, or what else the caller counts
	Tokens int
}

func had(r *tandemv1.Resume) Had {
	return Had{Text: int(min(r.GetText(), math.MaxInt)), Tokens: int(r.GetTokens())}
}

// started returns an answer's first event, with the stream's place if it is taken up. Errors: Invalid for one of another identity.
func started(e tandem.Started, model string, r *tandemv1.Resume) (*tandemv1.Started, error) {
	out := fromStarted(e, model)
	if out.Resumed = r != nil; out.Resumed && r.GetIdentity() != string(e.Identity) {
		return nil, tandem.Errorf("request", tandem.Invalid, "resume.identity is %.100q: this gateway's verifier is %s; ask without "+
			"resume, for a new text", r.GetIdentity(), e.Identity)
	}
	return out, nil
}

// Skip counts n units of text and returns how many of them are left out.
func (h *Had) Skip(n int) int {
	n = min(n, h.Text)
	h.Text -= n
	return n
}

// RestOf returns a text without what the client has. Where a client says that it has half a character, it gets U+FFFD for the other half.
func (h *Had) RestOf(text string) string {
	return strings.ToValidUTF8(text[h.Skip(len(text)):], "\uFFFD")
}

// Rest returns a delta without what the client has.
func (h *Had) Rest(d tandem.Delta) tandem.Delta {
	d.Text = h.RestOf(d.Text)
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

// Pieces returns pieces of a chat's answer without those that the client has, and how many units each is: its bytes, or one for the
// beginning of a call.
func (h *Had) Pieces(pieces []calls.Piece) (left []calls.Piece, units []int) {
	for _, p := range pieces {
		if p.Kind == calls.Begin {
			if h.Skip(1) == 0 {
				left, units = append(left, p), append(units, 1)
			}
			continue
		}
		before := h.Text
		if p.Text = h.RestOf(p.Text); p.Text != "" || before == 0 {
			left, units = append(left, p), append(units, len(p.Text))
		}
	}
	return left, units
}
