package chat

import (
	"sort"
	"strings"
	"unicode/utf8"
)

// text is a string that knows which of its bytes the caller supplied (user: ascending, disjoint, not empty, not touching). Operations
// that cut or join keep this for each byte; others mark the whole result.
type text struct {
	s    string
	user []Span
	safe bool // MarkupSafe's Markup: what is joined to it with + is escaped
}

func lit(s string) text { return text{s: s} }

// caller returns s as a text supplied wholly by the caller.
func caller(s string) text {
	if s == "" {
		return text{}
	}
	return text{s: s, user: []Span{{0, len(s)}}}
}

// remade returns s as the result of rewriting t.
func (t text) remade(s string) text {
	out := lit(s)
	if len(t.user) > 0 {
		out = caller(s)
	}
	out.safe = t.safe
	return out
}

// plain returns t as a string that is not safe.
func (t text) plain() text {
	t.safe = false
	return t
}

// slice returns bytes [i, j).
func (t text) slice(i, j int) text {
	out := text{s: t.s[i:j], safe: t.safe}
	for k := sort.Search(len(t.user), func(k int) bool { return t.user[k].To > i }); k < len(t.user) && t.user[k].From < j; k++ {
		out.user = append(out.user, Span{max(t.user[k].From, i) - i, min(t.user[k].To, j) - i})
	}
	return out
}

// trimmed drops the characters of cut (white space for nil) at the left and right.
func (t text) trimmed(cut *text, left, right bool) text {
	in := isSpace
	if cut != nil {
		in = func(c rune) bool { return strings.ContainsRune(cut.s, c) }
	}
	i, j := 0, len(t.s)
	if left {
		i = j - len(strings.TrimLeftFunc(t.s, in))
	}
	if right {
		j = i + len(strings.TrimRightFunc(t.s[i:], in))
	}
	return t.slice(i, j)
}

// characters returns each as a text.
func (t text) characters(m *meter) []any {
	n := utf8.RuneCountInString(t.s)
	m.spend(perItem * n)
	out := make([]any, 0, n)
	for i := 0; i < len(t.s); {
		_, n := utf8.DecodeRuneInString(t.s[i:])
		out = append(out, t.slice(i, i+n))
		i += n
	}
	return out
}

// cut is t[from:to:step] of characters.
func (t text) cut(m *meter, by span) text {
	m.spend(16 * len(t.user))
	m.work(len(t.s))
	i, j := by.of(utf8.RuneCountInString(t.s))
	if by.step == 1 {
		start := offset(t.s, i)
		return t.slice(start, start+offset(t.s[start:], max(0, j-i)))
	}
	all := t.characters(m)
	b := builder{m: m}
	for ; by.step > 0 && i < j || by.step < 0 && i > j; i += by.step {
		b.add(all[i].(text))
	}
	out := b.text()
	out.safe = t.safe
	return out
}

// offset returns the byte at which character i of s begins.
func offset(s string, i int) int {
	if i == 0 {
		return 0
	}
	for at := range s {
		if i == 0 {
			return at
		}
		i--
	}
	return len(s)
}

// escape returns t with the characters that mean something in HTML replaced, unless it is safe already.
func (t text) escape(m *meter) text {
	if t.safe {
		return t
	}
	m.spend(6 * len(t.s))
	b := builder{m: m}
	from := 0
	for i := range len(t.s) {
		if to, ok := entities[t.s[i]]; ok {
			b.add(t.slice(from, i))
			b.add(t.slice(i, i+1).remade(to))
			from = i + 1
		}
	}
	b.add(t.slice(from, len(t.s)))
	out := b.text()
	out.safe = true
	return out
}

var entities = map[byte]string{'&': "&amp;", '<': "&lt;", '>': "&gt;", '\'': "&#39;", '"': "&#34;"}

// builder joins texts.
type builder struct {
	m    *meter
	b    strings.Builder
	user []Span
	most int // bytes; 0 for what m bounds anyhow
}

func (b *builder) add(t text) {
	b.m.work(len(t.s))
	if b.most > 0 && b.b.Len()+len(t.s) > b.most {
		b.m.invalid("%w prints more than %d bytes", errLimit, b.most)
	}
	if room := b.b.Cap() - b.b.Len(); room < len(t.s) {
		b.grow(len(t.s))
	}
	at := b.b.Len()
	b.b.WriteString(t.s)
	if len(t.user) > 0 {
		b.m.spend(32 * len(t.user))
	}
	for _, s := range t.user {
		if n := len(b.user); n > 0 && b.user[n-1].To == at+s.From {
			b.user[n-1].To = at + s.To
		} else {
			b.user = append(b.user, Span{at + s.From, at + s.To})
		}
	}
}

// grow makes room for n more bytes, and counts all the new room as spent.
func (b *builder) grow(n int) {
	b.m.spend(2*b.b.Cap() + n) // as strings.Builder grows
	b.b.Grow(n)
}

func (b *builder) lit(s string) { b.add(lit(s)) }

// pad writes a text n times.
func (b *builder) pad(c text, n int) {
	if n > 0 {
		b.m.spend(n * len(c.s))
		b.add(c.remade(strings.Repeat(c.s, n)))
	}
}

func (b *builder) text() text { return text{s: b.b.String(), user: b.user} }

func join(m *meter, parts ...text) text {
	b := builder{m: m}
	n := 0
	for _, p := range parts {
		n += len(p.s)
	}
	b.grow(n)
	for _, p := range parts {
		b.add(p)
	}
	return b.text()
}
