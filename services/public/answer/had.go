package answer

import (
	"strings"

	"github.com/tandem-llm/tandem"
)

// Had counts what a client has already of an answer whose stream it takes up again. That much is not sent once more.
type Had struct {
	Text   int // bytes, and one for each beginning of a call or what else a front end counts
	Tokens int
}

// Skip counts n units of text and returns how many of them are left out.
func (h *Had) Skip(n int) int {
	n = min(n, h.Text)
	h.Text -= n
	return n
}

// Rest returns a text without what the client has. Where a client says that it has half a character, it gets U+FFFD for the other half.
func (h *Had) Rest(text string) string {
	return strings.ToValidUTF8(text[h.Skip(len(text)):], "\uFFFD")
}

// Output returns an output without the tokens that the client has. Its text is as it was.
func (h *Had) Output(d tandem.Delta) tandem.Delta {
	n := min(len(d.Tokens), h.Tokens)
	h.Tokens -= n
	d.Tokens, d.Origins = d.Tokens[n:], d.Origins[min(n, len(d.Origins)):]
	d.Logprobs = d.Logprobs[min(n, len(d.Logprobs)):]
	return d
}
