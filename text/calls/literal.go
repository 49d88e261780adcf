package calls

import (
	"encoding/json"
	"strings"
)

// whole is a call that was read as a whole.
type whole struct{ name, arguments string }

// parser reads values that are no JSON. Its methods report false where they do not understand.
type parser struct {
	s      string
	at     int
	quote  string // around strings, besides those of the syntax
	depth  int
	schema func(tool string) *schema
}

func (p *parser) skip() {
	for p.at < len(p.s) && strings.IndexByte(space, p.s[p.at]) >= 0 {
		p.at++
	}
}

// take consumes mark, if it is next.
func (p *parser) take(mark string) bool {
	p.skip()
	if mark == "" || !strings.HasPrefix(p.s[p.at:], mark) {
		return false
	}
	p.at += len(mark)
	return true
}

func (p *parser) name() string {
	p.skip()
	from := p.at
	for p.at < len(p.s) && inName(p.s[p.at]) {
		p.at++
	}
	return p.s[from:p.at]
}

// end reports whether all has been read.
func (p *parser) end() bool { p.skip(); return p.at == len(p.s) }

// braces reads call:NAME{key:value, …}.
func (p *parser) braces() (out []whole, ok bool) {
	if !p.take("call:") {
		return nil, false
	}
	name := p.name()
	arguments, ok := p.dict(':', p.key, p.schema(name))
	return []whole{{name, arguments}}, ok && name != "" && p.end()
}

// key reads the key of an object in braces, which may stand without quotes.
func (p *parser) key() (string, bool) {
	if p.at < len(p.s) && (p.quote != "" && strings.HasPrefix(p.s[p.at:], p.quote) || p.s[p.at] == '"' || p.s[p.at] == '\'') {
		return p.text()
	}
	name := p.name()
	return quote(name), name != ""
}

// python reads [name(key=value, …), …].
func (p *parser) python() (out []whole, ok bool) {
	list := p.take("[")
	for {
		name := p.name()
		if name == "" || !p.take("(") {
			return nil, false
		}
		var b strings.Builder
		b.WriteByte('{')
		for n := 0; !p.take(")"); n++ {
			if n > 0 && !p.take(",") {
				return nil, false
			}
			if n > 0 && p.take(")") {
				break
			}
			key := p.name()
			if key == "" || !p.take("=") {
				return nil, false
			}
			v, ok := p.value('=', p.schema(name).property(key))
			if !ok {
				return nil, false
			}
			if n > 0 {
				b.WriteString(", ")
			}
			b.WriteString(quote(key) + ": " + v)
		}
		b.WriteByte('}')
		out = append(out, whole{name, b.String()})
		if !p.take(",") {
			break
		}
	}
	return out, (!list || p.take("]")) && p.end()
}

// value reads a value as JSON, by its schema. Names may stand for themselves as keys where colon is one.
func (p *parser) value(colon byte, s *schema) (string, bool) {
	p.skip()
	if p.depth++; p.depth > maxDepth || p.at == len(p.s) {
		return "", false
	}
	defer func() { p.depth-- }()
	switch c := p.s[p.at]; {
	case c == '"' || c == '\'' || p.quote != "" && strings.HasPrefix(p.s[p.at:], p.quote):
		return p.text()
	case c == '{' && colon == ':':
		return p.dict(colon, p.key, s)
	case c == '{':
		return p.dict(colon, p.text, s)
	case c == '[':
		return p.list(colon, s)
	}
	return s.scalar(p.name())
}

// text reads a string.
func (p *parser) text() (string, bool) {
	p.skip()
	if p.quote != "" && p.take(p.quote) {
		s, rest, ok := strings.Cut(p.s[p.at:], p.quote)
		p.at = len(p.s) - len(rest)
		return quote(s), ok
	}
	if p.at == len(p.s) || p.s[p.at] != '"' && p.s[p.at] != '\'' {
		return "", false
	}
	mark := p.s[p.at]
	var b strings.Builder
	for p.at++; p.at < len(p.s); p.at++ {
		switch c := p.s[p.at]; {
		case c == mark:
			p.at++
			return quote(b.String()), true
		case c == '\\' && p.at+1 < len(p.s):
			p.at++
			switch e := p.s[p.at]; e {
			case 'n':
				b.WriteByte('\n')
			case 't':
				b.WriteByte('\t')
			case 'r':
				b.WriteByte('\r')
			case '\\', '"', '\'', '/':
				b.WriteByte(e)
			default:
				b.WriteByte('\\')
				b.WriteByte(e)
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", false
}

// dict reads an object in braces, whose keys key reads.
func (p *parser) dict(colon byte, key func() (string, bool), s *schema) (string, bool) {
	if !p.take("{") {
		return "", false
	}
	var b strings.Builder
	b.WriteByte('{')
	for n := 0; !p.take("}"); n++ {
		if n > 0 && !p.take(",") {
			return "", false
		}
		if n > 0 && p.take("}") {
			break
		}
		p.skip()
		k, ok := key()
		name := ""
		if !ok || json.Unmarshal([]byte(k), &name) != nil || !p.take(":") {
			return "", false
		}
		v, ok := p.value(colon, s.property(name))
		if !ok {
			return "", false
		}
		if n > 0 {
			b.WriteString(", ")
		}
		b.WriteString(k + ": " + v)
	}
	b.WriteByte('}')
	return b.String(), true
}

// list reads an array.
func (p *parser) list(colon byte, s *schema) (string, bool) {
	p.take("[")
	var b strings.Builder
	b.WriteByte('[')
	for n := 0; !p.take("]"); n++ {
		if n > 0 && !p.take(",") {
			return "", false
		}
		if n > 0 && p.take("]") {
			break
		}
		v, ok := p.value(colon, s.item())
		if !ok {
			return "", false
		}
		if n > 0 {
			b.WriteString(", ")
		}
		b.WriteString(v)
	}
	b.WriteByte(']')
	return b.String(), true
}
