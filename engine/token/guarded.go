package token

import (
	"strings"

	"github.com/tandem-llm/tandem"
)

// Span is the bytes [From, To) of a text.
type Span struct{ From, To int }

// EncodeGuarded is EncodeWithControl for a text with spans, ascending and disjoint, that others wrote. A marker (a control
// token, or a user-defined token that serves as one) is recognised only wholly outside the spans, so that their authors can
// neither end their turn nor speak as somebody else. Other user-defined tokens are found everywhere. No
// tokens are added around the text.
func (v *Vocab) EncodeGuarded(text string, guarded []Span) []tandem.Token {
	e := encoder{v: v, out: make([]tandem.Token, 0, len(text)/3+4)}
	gaps := gapsOf(guarded, len(text))
	for done := 0; done < len(text); {
		at, id, n := v.control.findIn(text, gaps, done)
		if at > done {
			e.plainGuarded(text[done:at], clip(gaps, done, at))
		}
		if n > 0 {
			e.out = append(e.out, id)
		}
		done = at + n
		gaps = after(gaps, done)
	}
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

// clip returns the parts of gaps in [from, to), relative to from.
func clip(gaps []Span, from, to int) (out []Span) {
	for _, g := range gaps {
		if g.From >= to {
			break
		}
		if a, b := max(g.From, from), min(g.To, to); a < b {
			out = append(out, Span{a - from, b - from})
		}
	}
	return out
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

// plainGuarded is plain for a text in which markers count only within gaps.
func (e *encoder) plainGuarded(text string, gaps []Span) {
	v := e.v
	if v.marks == nil {
		e.plain(text)
		return
	}
	if !v.byteLevel() {
		text, gaps = v.normalize(text), v.normalGaps(text, gaps)
	}
	mark, other := token{at: -1}, token{at: -1}
	for done := 0; done < len(text); {
		gaps = after(gaps, done)
		if mark.at < done {
			mark.at, mark.id, mark.size = v.marks.findIn(text, gaps, done)
		}
		if other.at < done {
			other.at, other.id, other.size = v.others.find(text[done:])
			other.at += done
		}
		next := other
		if mark.at < other.at || mark.at == other.at && mark.size > other.size {
			next = mark
		}
		if next.at > done {
			e.words(text[done:next.at])
		}
		if next.size > 0 {
			e.out = append(e.out, next.id)
		}
		done = next.at + next.size
	}
}

// token is a token written in a text, its position and size; size 0 at the text's end stands for none.
type token struct {
	at, size int
	id       tandem.Token
}

// normalGaps returns where gaps of text lie once it is normalized. A space added at the start belongs to the gap or span there.
func (v *Vocab) normalGaps(text string, gaps []Span) []Span {
	moved, at, shift := make([]Span, len(gaps)), 0, 0
	if v.spacePrefix {
		shift = len(space)
	}
	place := func(to int) int {
		shift += (len(space) - 1) * strings.Count(text[at:to], " ")
		at = to
		return to + shift
	}
	for i, g := range gaps {
		moved[i] = Span{place(g.From), place(g.To)}
		if g.From == 0 {
			moved[i].From = 0
		}
	}
	return moved
}
