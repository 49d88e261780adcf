package calls

import (
	"encoding/json"
	"strings"
)

// maxName bounds what stands before a call's arguments, in bytes.
const maxName = 1 << 10

// inNamed reads a name, a marker, and an object.
func (r *Reader) inNamed() bool {
	if r.call.stage == inArguments {
		return r.arguments(func() bool { r.state = (*Reader).over; return true })
	}
	r.skip()
	at := strings.IndexByte(r.buf, '{')
	switch {
	case strings.HasPrefix(r.buf, "["): // Mistral's older form
		r.state = (*Reader).inObject
		return true
	case at < 0 && len(r.buf) <= maxName:
		return r.more()
	case at < 0 || at > maxName:
		return r.no()
	}
	name := r.named(r.buf[:at])
	if strings.ContainsAny(name, space+"<>") || !r.begin(name) {
		return r.no()
	}
	r.consume(at)
	r.call.stage = inArguments
	return true
}

// named returns the name of a tool in what stands before the arguments.
func (r *Reader) named(head string) string {
	name, rest, _ := strings.Cut(head, r.f.split)
	if r.f == deepseek && strings.TrimSpace(name) == "function" { // function, marker, name, a fence
		name, _, _ = strings.Cut(strings.TrimSpace(rest), "\n")
	}
	name, _, _ = strings.Cut(name, "[CALL_ID]")
	return strings.TrimSpace(name)
}

// inXML reads NAME> and then parameters up to the closing marker.
func (r *Reader) inXML() bool {
	if r.call.stage == inArguments {
		return r.arguments(func() bool { r.state = (*Reader).over; return true })
	}
	if !r.begun {
		at := strings.IndexByte(r.buf, '>')
		switch {
		case at < 0 && len(r.buf) <= maxName:
			return r.more()
		case at < 0 || at > maxName:
			return r.no()
		}
		name := strings.Trim(r.buf[:at], `"'`+space)
		if strings.ContainsAny(name, space+"<") || !r.begin(name) {
			return r.no()
		}
		r.call.name = name
		r.consume(at + 1)
		return true
	}
	const open, shut = "<parameter=", "</parameter>"
	r.skip()
	switch {
	case strings.HasPrefix(r.buf, "{") && r.call.params == 0:
		r.call.stage = inArguments
		return true
	case strings.HasPrefix(r.buf, r.at.close), strings.HasPrefix(r.buf, "</tool_call>"):
		return r.parametersEnd()
	case !strings.HasPrefix(r.buf, open):
		begins := func(mark string) bool { return strings.HasPrefix(mark, r.buf) }
		if !r.ended && (begins(open) || begins(r.at.close) || begins("</tool_call>")) {
			return false
		}
		return r.no()
	}
	key := strings.IndexByte(r.buf, '>')
	if key < 0 {
		return r.more()
	}
	end, next := strings.Index(r.buf, shut), strings.Index(r.buf, r.at.close)
	skip := len(shut)
	switch {
	case end < 0 && next < 0:
		return r.more()
	case end < 0 || next >= 0 && next < end: // the parameter's own end is missing
		end, skip = next, 0
	}
	if end < key {
		return r.no()
	}
	name := strings.Trim(r.buf[len(open):key], `"'`+space)
	value := strings.TrimSuffix(strings.TrimPrefix(r.buf[key+1:end], "\n"), "\n")
	r.consume(end + skip)
	r.parameter(name, value)
	return true
}

// parameter tells one of a call's arguments, whose value is written without quotes.
func (r *Reader) parameter(name, value string) {
	lead := ", "
	if r.call.params++; r.call.params == 1 {
		lead = "{"
	}
	r.emit(Arguments, lead+quote(name)+": "+r.tools.value(r.call.name, name, value))
}

// parametersEnd tells the end of a call's arguments.
func (r *Reader) parametersEnd() bool {
	if r.call.params == 0 {
		r.emit(Arguments, "{")
	}
	r.emit(Arguments, "}")
	r.state = (*Reader).over
	return true
}

// inPairs reads a name, and then keys and values in tags.
func (r *Reader) inPairs() bool {
	const (
		keyOpen, keyShut     = "<arg_key>", "</arg_key>"
		valueOpen, valueShut = "<arg_value>", "</arg_value>"
	)
	r.skip()
	if !r.begun {
		if strings.HasPrefix(r.buf, "{") { // Hermes' form
			r.state = (*Reader).inObject
			return true
		}
		at := strings.IndexAny(r.buf, "\n<")
		switch {
		case at < 0 && len(r.buf) <= maxName:
			return r.more()
		case at < 0:
			return r.no()
		}
		name := strings.TrimSpace(r.buf[:at])
		if strings.ContainsAny(name, space) || !r.begin(name) {
			return r.no()
		}
		r.call.name = name
		r.consume(at)
		return true
	}
	switch {
	case strings.HasPrefix(r.buf, r.at.close):
		return r.parametersEnd()
	case !strings.HasPrefix(r.buf, keyOpen):
		if !r.ended && (strings.HasPrefix(keyOpen, r.buf) || strings.HasPrefix(r.at.close, r.buf)) {
			return false
		}
		return r.no()
	}
	end := strings.Index(r.buf, valueShut)
	if end < 0 {
		return r.more()
	}
	key, rest, hasKey := strings.Cut(r.buf[len(keyOpen):end], keyShut)
	between, value, hasValue := strings.Cut(rest, valueOpen)
	if !hasKey || !hasValue || strings.TrimSpace(between) != "" {
		return r.no()
	}
	r.consume(end + len(valueShut))
	r.parameter(strings.TrimSpace(key), value)
	return true
}

// inWhole reads calls that are only understood once they are complete.
func (r *Reader) inWhole() bool {
	end := len(r.buf)
	if r.at.close != "" {
		end = strings.Index(r.buf, r.at.close)
	}
	if end < 0 || r.at.close == "" && !r.ended {
		if r.at.close == "" && !couldBeCalls(r.buf) {
			return r.no()
		}
		return r.more()
	}
	p := parser{s: r.buf[:end], quote: r.f.quote}
	all, ok := p.braces, false
	if r.at.syntax == python {
		all = p.python
	}
	found, ok := all()
	for _, c := range found {
		ok = ok && (!r.at.soft || r.tools.find(c.name) != nil)
	}
	if !ok || len(found) == 0 {
		return r.no()
	}
	for _, c := range found {
		r.begin(c.name)
		r.emit(Arguments, c.arguments)
	}
	r.begun = true
	r.buf = r.buf[end+len(r.at.close):]
	return r.ends()
}

// couldBeCalls reports whether an answer may be calls in Python's form: "[", a name and "(".
func couldBeCalls(s string) bool {
	s = strings.TrimLeft(strings.TrimPrefix(s, "["), space)
	for i := range len(s) {
		if c := s[i]; c == '(' {
			return i > 0
		} else if !inName(c) {
			return false
		}
	}
	return true
}

func inName(c byte) bool {
	return c == '_' || c == '.' || c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// whole is a call that was read as a whole.
type whole struct{ name, arguments string }

// parser reads values that are no JSON. Its methods report false where they do not understand.
type parser struct {
	s     string
	at    int
	quote string // around strings, besides those of the syntax
	depth int
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
	arguments, ok := p.dict(':', func() (string, bool) {
		if p.at < len(p.s) && (strings.HasPrefix(p.s[p.at:], p.quote) || p.s[p.at] == '"') {
			return p.text()
		}
		name := p.name()
		return quote(name), name != ""
	})
	return []whole{{name, arguments}}, ok && name != "" && p.end()
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
			v, ok := p.value('=')
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

// value reads a value as JSON; colon is what stands behind keys of objects in braces.
func (p *parser) value(colon byte) (string, bool) {
	p.skip()
	if p.depth++; p.depth > maxDepth || p.at == len(p.s) {
		return "", false
	}
	defer func() { p.depth-- }()
	switch c := p.s[p.at]; {
	case c == '"' || c == '\'' || p.quote != "" && strings.HasPrefix(p.s[p.at:], p.quote):
		return p.text()
	case c == '{' && colon == ':':
		return p.dict(':', func() (string, bool) {
			if p.at < len(p.s) && (p.s[p.at] == '"' || strings.HasPrefix(p.s[p.at:], p.quote)) {
				return p.text()
			}
			name := p.name()
			return quote(name), name != ""
		})
	case c == '{':
		return p.dict(':', p.text)
	case c == '[':
		return p.list(colon)
	}
	switch word := p.name(); word {
	case "True", "False":
		return strings.ToLower(word), true
	case "None":
		return "null", true
	default:
		return word, word != "" && json.Valid([]byte(word))
	}
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
func (p *parser) dict(colon byte, key func() (string, bool)) (string, bool) {
	if !p.take("{") {
		return "", false
	}
	var b strings.Builder
	b.WriteByte('{')
	for n := 0; !p.take("}"); n++ {
		if n > 0 && !p.take(",") {
			return "", false
		}
		p.skip()
		k, ok := key()
		if !ok || !p.take(string(colon)) {
			return "", false
		}
		v, ok := p.value(colon)
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
func (p *parser) list(colon byte) (string, bool) {
	p.take("[")
	var b strings.Builder
	b.WriteByte('[')
	for n := 0; !p.take("]"); n++ {
		if n > 0 && !p.take(",") {
			return "", false
		}
		v, ok := p.value(colon)
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
