package token

import "github.com/tandem-llm/tandem"

// Span is the bytes [From, To) of a text.
type Span struct{ From, To int }

// EncodeGuarded is EncodeWithControl for a text of which others wrote the spans, ascending and disjoint: a control
// token that is written in it is one only where it lies wholly outside of them, so that they cannot end their turn. No
// tokens are added around the text.
func (v *Vocab) EncodeGuarded(text string, guarded []Span) []tandem.Token {
	e := encoder{v: v, out: make([]tandem.Token, 0, len(text)/3+4)}
	done := 0 // what lies before is encoded
	trusted := func(from, to int) {
		for from = max(from, 0); from < to; {
			at, id, n := v.control.find(text[from:to])
			if n == 0 {
				return
			}
			if from += at; from > done {
				e.plain(text[done:from])
			}
			e.out = append(e.out, id)
			from += n
			done = from
		}
	}
	at := 0
	for _, g := range guarded {
		trusted(at, min(g.From, len(text)))
		at = max(at, g.To)
	}
	trusted(at, len(text))
	if done < len(text) {
		e.plain(text[done:])
	}
	return e.out
}
