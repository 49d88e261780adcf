package token

import "github.com/tandem-llm/tandem"

// Span is the bytes [From, To) of a text.
type Span struct{ From, To int }

// EncodeGuarded is EncodeWithControl for a text with spans, ascending and disjoint, that others wrote. A marker (a control or unknown
// token, or a user-defined token that serves as one) is recognised only wholly outside the spans, so that their authors can
// neither end their turn nor speak as somebody else. Other user-defined tokens are found everywhere. No
// tokens are added around the text.
func (v *Vocab) EncodeGuarded(text string, guarded []Span) []tandem.Token {
	e := encoder{v: v, out: make([]tandem.Token, 0, len(text)/3+4)}
	e.cut(text, v.others, v.marks, gapsOf(guarded, len(text)))
	return e.out
}

// gapsOf returns the non-empty gaps between spans, ascending.
func gapsOf(spans []Span, size int) (gaps []Span) {
	at := 0
	for _, s := range append(spans[:len(spans):len(spans)], Span{size, size}) {
		if to := min(s.From, size); to > at {
			gaps = append(gaps, Span{at, to})
		}
		at = max(at, s.To)
	}
	return gaps
}

// after drops the gaps that end before at.
func after(gaps []Span, at int) []Span {
	for len(gaps) > 0 && gaps[0].To <= at {
		gaps = gaps[1:]
	}
	return gaps
}

// findIn is find, from byte at on, for tokens that lie wholly within one of gaps; the length of s, and 0, for none.
func (u *texts) findIn(s string, gaps []Span, at int) (int, tandem.Token, int) {
	if u == nil {
		return len(s), 0, 0
	}
	for _, g := range gaps {
		from := max(g.From, at)
		if from >= g.To {
			continue
		}
		if i, id, n := u.find(s[from:g.To]); n > 0 {
			return from + i, id, n
		}
	}
	return len(s), 0, 0
}
