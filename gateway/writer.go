package gateway

import (
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/stop"
)

// writer turns the tokens of a session into its client's text.
type writer struct {
	vocab     Vocab
	decoder   Decoder
	stops     *stop.Sequences
	ignoreEOS bool
}

// newWriter returns a writer of what follows prompt.
func newWriter(v Vocab, r tandem.Request, prompt []tandem.Token) writer {
	return writer{vocab: v, decoder: v.NewDecoder(r.Written, prompt...), stops: stop.New(r.Stop), ignoreEOS: r.IgnoreEOS}
}

// write returns the text of tokens, up to the one that ends it, and how many it took.
func (w *writer) write(tokens []tandem.Token) (n int, out string, ended bool) {
	var b strings.Builder
	for i, t := range tokens {
		if w.vocab.IsEnd(t) {
			if w.ignoreEOS {
				continue
			}
			return i + 1, b.String(), true
		}
		piece, stopped := w.stops.Next(w.decoder.Next(t))
		if b.WriteString(piece); stopped {
			return i + 1, b.String(), true
		}
	}
	return len(tokens), b.String(), false
}

// end returns the text that was held back, without a stop sequence, when the text is over. stopped reports that a stop sequence is in it.
func (w *writer) end() (out string, stopped bool) {
	if w.stops.Done() {
		return "", false
	}
	out, _ = w.stops.Next(w.decoder.Flush())
	rest, stopped := w.stops.End()
	return out + rest, stopped
}
