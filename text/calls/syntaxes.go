package calls

import "strings"

// maxName bounds what stands before a call's arguments, in bytes.
const maxName = 1 << 10

// inNamed reads a name, a marker, and an object.
func (r *Reader) inNamed() bool {
	if r.call.stage == inArguments {
		return r.inBody()
	}
	rest := r.skip()
	at := strings.IndexByte(rest, '{')
	switch {
	case strings.HasPrefix(rest, "["): // Mistral's older form
		r.state = (*Reader).inObject
		return true
	case at < 0 && len(rest) <= maxName:
		return r.more()
	case at < 0 || at > maxName:
		return r.no()
	}
	name := r.named(rest[:at])
	if strings.ContainsAny(name, space+"<>") || !r.begin(name) {
		return r.no()
	}
	r.pos += at
	r.call.stage = inArguments
	return true
}

// named returns the name of a tool in what stands before the arguments.
func (r *Reader) named(head string) string {
	name, rest := head, ""
	if r.f.split != "" {
		name, rest, _ = strings.Cut(head, r.f.split)
	}
	if r.f.split == kimi.split { // functions.NAME:NUMBER
		name, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimSpace(name), functions), ":")
	}
	if r.f.split == deepseek.split && strings.TrimSpace(name) == "function" { // function, marker, name, a fence
		name, _, _ = strings.Cut(strings.TrimSpace(rest), "\n")
	}
	name, _, _ = strings.Cut(name, "[CALL_ID]")
	return strings.TrimSpace(name)
}

// inBody reads arguments that are an object, behind the name of the tool.
func (r *Reader) inBody() bool {
	switch r.json() {
	case valueBad:
		return r.no()
	case valueCut:
		return r.more()
	}
	r.ready = append(r.ready, whole{r.call.name, string(r.call.value)})
	return r.complete()
}

// inXML reads NAME> and then parameters up to the closing marker.
func (r *Reader) inXML() bool {
	const open, shut, outer = "<parameter=", "</parameter>", "</tool_call>"
	if r.call.stage == inArguments {
		return r.inBody()
	}
	if !r.begun {
		return r.tagName('>')
	}
	rest := r.skip()
	if strings.HasPrefix(rest, "{") && r.call.params == 0 {
		r.call.stage = inArguments
		return true
	}
	for _, m := range []string{r.at.close, outer} {
		if strings.HasPrefix(rest, m) {
			r.pos += len(m)
			return r.parametersEnd()
		}
	}
	if !strings.HasPrefix(rest, open) {
		return r.mayBegin(rest, open, r.at.close, outer)
	}
	key := strings.IndexByte(rest[:min(len(rest), maxName)], '>')
	if key < 0 {
		return len(rest) < maxName && r.more() || len(rest) >= maxName && r.no()
	}
	name, from := strings.Trim(rest[len(open):key], `"'`+space), key+1
	end, wait := r.valueEnd(from, shut, open, r.at.close, outer)
	if wait {
		return false
	}
	skip := len(shut)
	switch lacks := r.lacksEnd(rest[from:], end-from); {
	case lacks >= 0 && end >= 0: // it can be read in two ways, and so can what follows
		r.at.close, r.at.mark = "", ""
		return r.no()
	case lacks >= 0:
		end, skip = from+lacks, 0
	case end < 0:
		return r.more()
	}
	r.pos += end + skip
	r.parameter(name, strings.TrimSuffix(strings.TrimPrefix(rest[from:end], "\n"), "\n"))
	return true
}

// lacksEnd returns where a value ends whose own closing tag is missing: where its call ends and another begins, or the output ends; -1 if
// it is not missing. s is what follows the value's tag, n where a closing tag stands that may be another call's, below 0 for nowhere.
func (r *Reader) lacksEnd(s string, n int) int {
	if n < 0 {
		if !r.ended || r.cut {
			return -1
		}
		n = len(s)
	}
	for from := 0; ; {
		i := strings.Index(s[from:n], r.at.close)
		if i < 0 {
			return -1
		}
		at := from + i
		rest := strings.TrimLeft(s[at+len(r.at.close):n], space)
		rest = strings.TrimLeft(strings.TrimPrefix(rest, "</tool_call>"), space)
		rest = strings.TrimLeft(strings.TrimPrefix(rest, "<tool_call>"), space)
		if n == len(s) && rest == "" || strings.HasPrefix(rest, tagged.mark) {
			return at
		}
		from = at + len(r.at.close)
	}
}

// tagName reads the name of a tool, up to one of the marks.
func (r *Reader) tagName(mark byte) bool {
	rest := r.rest()
	at := strings.IndexByte(rest[:min(len(rest), maxName)], mark)
	switch {
	case at < 0 && len(rest) < maxName:
		return r.more()
	case at < 0:
		return r.no()
	}
	name := strings.Trim(rest[:at], `"'`+space)
	if strings.ContainsAny(name, space+"<") || !r.begin(name) {
		return r.no()
	}
	r.pos += at + 1
	return true
}

// mayBegin waits if one of the marks may begin with rest; else this is no call.
func (r *Reader) mayBegin(rest string, marks ...string) bool {
	for _, m := range marks {
		if !r.ended && strings.HasPrefix(m, rest) {
			return false
		}
	}
	return r.no()
}

// maxBetween bounds the space between a value's end and what follows it, in bytes.
const maxBetween = 256

// valueEnd returns where shut ends a value that begins at from in what is not read yet, -1 for nowhere yet. A value may hold shut: what
// ends it is followed by one of the marks. wait: more must come to say.
func (r *Reader) valueEnd(from int, shut string, marks ...string) (end int, wait bool) {
	r.found = max(r.found, r.pos+from)
	for {
		at := r.find(shut)
		if at < 0 {
			return -1, false
		}
		behind := r.buf[r.found+len(shut):]
		next := strings.TrimLeft(behind[:min(len(behind), maxBetween)], space)
		for _, m := range marks {
			if strings.HasPrefix(next, m) {
				return at, false
			}
		}
		for _, m := range marks {
			if !r.ended && len(behind) < maxBetween && strings.HasPrefix(m, next) {
				return -1, true
			}
		}
		r.found += len(shut)
	}
}

// parameter notes one of a call's arguments, whose value is written without quotes.
func (r *Reader) parameter(name, value string) {
	c := &r.call
	lead := ", "
	if c.params++; c.params == 1 {
		lead = "{"
	}
	c.value = append(c.value, lead+quote(name)+": "+r.schema(c.name).property(name).value(value)...)
}

// schema returns the schema of a tool's parameters, nil for none.
func (r *Reader) schema(name string) *schema {
	s := r.roots[name]
	if tool := r.tools.find(name); s == nil && tool != nil && len(tool.Parameters) > 0 {
		s = newSchema(tool.Parameters)
		r.roots[name] = s
	}
	return s
}

// parametersEnd completes a call whose arguments were read one by one.
func (r *Reader) parametersEnd() bool {
	c := &r.call
	if c.params == 0 {
		c.value = append(c.value, '{')
	}
	r.ready = append(r.ready, whole{c.name, string(c.value) + "}"})
	return r.complete()
}

// inPairs reads a name, and then keys and values in tags.
func (r *Reader) inPairs() bool {
	const (
		keyOpen, keyShut     = "<arg_key>", "</arg_key>"
		valueOpen, valueShut = "<arg_value>", "</arg_value>"
	)
	rest := r.skip()
	if !r.begun {
		if strings.HasPrefix(rest, "{") { // Hermes' form
			r.state = (*Reader).inObject
			return true
		}
		at := strings.IndexAny(rest[:min(len(rest), maxName)], "\n<")
		switch {
		case at < 0 && len(rest) < maxName:
			return r.more()
		case at < 0:
			return r.no()
		}
		name := strings.TrimSpace(rest[:at])
		if strings.ContainsAny(name, space) || !r.begin(name) {
			return r.no()
		}
		r.pos += at
		return true
	}
	if strings.HasPrefix(rest, r.at.close) {
		r.pos += len(r.at.close)
		return r.parametersEnd()
	}
	if !strings.HasPrefix(rest, keyOpen) {
		return r.mayBegin(rest, keyOpen, r.at.close)
	}
	head := rest[len(keyOpen):min(len(rest), maxName)]
	key, between, _ := strings.Cut(head, keyShut)
	space_, _, ok := strings.Cut(between, valueOpen)
	switch {
	case !ok && len(rest) < maxName:
		return r.more()
	case !ok || strings.TrimSpace(space_) != "":
		return r.no()
	}
	from := len(keyOpen) + len(key) + len(keyShut) + len(space_) + len(valueOpen)
	end, wait := r.valueEnd(from, valueShut, keyOpen, r.at.close)
	switch {
	case wait:
		return false
	case end < 0:
		return r.more()
	}
	r.pos += end + len(valueShut)
	r.parameter(strings.TrimSpace(key), rest[from:end])
	return true
}

// inQuoted reads calls whose end is that of brackets, or a mark that stands in no quotes.
func (r *Reader) inQuoted() bool {
	rest := r.rest()
	switch {
	case r.at.syntax == braces && !couldBegin(rest, "call:"), r.at.syntax == python && !couldBeCalls(rest):
		return r.no()
	case !r.outOfQuotes():
		return r.more()
	}
	end, next := r.found-r.pos, r.found+len(r.at.close)
	if r.at.close == "" { // an answer of calls alone
		if behind := r.buf[next:]; len(behind) > maxBetween || strings.Trim(behind, space) != "" {
			return r.no()
		} else if !r.ended {
			return false
		}
	}
	p := parser{s: rest[:end], quote: r.f.quote, schema: r.schema}
	all := p.braces
	if r.at.syntax == python {
		all = p.python
	}
	found, ok := all()
	for i, c := range found {
		if r.begin(c.name) {
			found[i].name = r.call.name
		} else {
			ok = false
		}
	}
	if !ok || len(found) == 0 {
		return r.no()
	}
	r.pos, r.ready = next, found
	return r.complete()
}

// outOfQuotes looks for the end of calls from where it stopped, and leaves its place in r.found. It reports whether it is there.
func (r *Reader) outOfQuotes() bool {
	c := &r.call
	for r.found = max(r.found, r.pos); r.found < len(r.buf) && !c.shut; {
		rest := r.buf[r.found:]
		if !r.ended && len(rest) < max(2, len(r.at.close), len(r.f.quote)) {
			return false
		}
		n := 1
		switch {
		case c.quote != "" && strings.HasPrefix(rest, c.quote):
			n, c.quote = len(c.quote), ""
		case c.quote != "":
			if rest[0] == '\\' && c.quote != r.f.quote {
				n = min(2, len(rest))
			}
		case r.f.quote != "" && strings.HasPrefix(rest, r.f.quote):
			c.quote, n = r.f.quote, len(r.f.quote)
		case rest[0] == '"', rest[0] == '\'':
			c.quote = rest[:1]
		case r.at.close != "":
			if strings.HasPrefix(rest, r.at.close) {
				return true
			}
		case rest[0] == '[':
			c.depth++
		case rest[0] == ']':
			if c.depth--; c.depth == 0 {
				c.shut = true
			}
		}
		r.found += n
	}
	return c.shut
}

// couldBegin reports whether s, behind space, begins with mark or may when more comes.
func couldBegin(s, mark string) bool {
	s = strings.TrimLeft(s[:min(len(s), maxName)], space)
	return strings.HasPrefix(s, mark) || strings.HasPrefix(mark, s)
}

// couldBeCalls reports whether an answer may be calls in Python's form: "[", a name and "(".
func couldBeCalls(s string) bool {
	s = strings.TrimLeft(strings.TrimPrefix(strings.TrimLeft(s[:min(len(s), maxName)], space), "["), space)
	for i := range len(s) {
		if c := s[i]; c == '(' {
			return i > 0
		} else if !inName(c) {
			return false
		}
	}
	return len(s) < maxName/2
}

func inName(c byte) bool {
	return c == '_' || c == '.' || c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
