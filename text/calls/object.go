package calls

import (
	"encoding/json"
	"slices"
	"strings"
)

// call is what is known of the call that is being read.
type call struct {
	stage  stage
	list   bool // within an array of calls
	nested bool // within the object "function"
	double bool // it began with two braces
	key    string
	name   string
	args   string // that came before the name
	told   bool   // arguments have been told
	scan   scan
	value  []byte
	params int
	lead   bool // space is skipped until something else comes
	kind   Kind // of a message of gpt-oss
}

// stage is what comes next in an object.
type stage uint8

const (
	wantObject stage = iota
	wantKey
	wantColon
	wantValue
	inArguments
	wantComma
)

var (
	nameKeys     = []string{"name", "function", "tool", "tool_name", "function_name"}
	argumentKeys = []string{"arguments", "parameters", "args", "input", "tool_input", "function_arguments"}
	otherKeys    = []string{"type", "id", "index", "call_id", "tool_call_id", "strict", "description", "thought"}
)

// inObject reads {"name": NAME, "arguments": {…}} in any order of the keys, or an array of these.
func (r *Reader) inObject() bool {
	c := &r.call
	if c.stage == inArguments {
		return r.arguments(func() bool { c.stage = wantComma; return true })
	}
	if c.stage == wantValue {
		return r.inValue()
	}
	r.skip()
	if r.buf == "" {
		if r.ended && r.begun {
			return r.ends()
		}
		return r.more()
	}
	b := r.buf[0]
	switch c.stage {
	case wantObject:
		switch {
		case b == '{':
			list := c.list
			*c = call{list: list, stage: wantKey}
		case b == '[' && !c.list && !r.past:
			c.list = true
		case b == ',' && c.list:
		case b == ']' && c.list && r.calls > 0:
			r.consume(1)
			r.state = (*Reader).over
			return true
		default:
			return r.no()
		}
		r.consume(1)
	case wantKey:
		return r.objectKey(b)
	case wantColon:
		if b != ':' {
			return r.no()
		}
		r.consume(1)
		c.stage, c.scan, c.value = wantValue, scan{}, c.value[:0]
	case wantComma:
		switch {
		case b == ',':
			r.consume(1)
			c.stage = wantKey
		case b == '}':
			return r.objectEnds()
		case r.begun: // the last brace is missing
			r.state = (*Reader).over
		default:
			return r.no()
		}
	}
	return true
}

// objectKey reads a key, or the end of the object.
func (r *Reader) objectKey(b byte) bool {
	switch b {
	case '{': // Qwen 2.5's template shows the braces of its example twice, which small models copy
		if c := &r.call; c.key == "" && !c.double && !c.nested {
			r.consume(1)
			c.double = true
			return true
		}
	case '}':
		return r.objectEnds()
	case ',':
		r.consume(1)
		return true
	case '"':
		c, n := &r.call, stringEnd(r.buf)
		if n == 0 {
			return r.more()
		}
		if json.Unmarshal([]byte(r.buf[:n]), &c.key) != nil || !r.begun && (!known(c.key) || r.at.soft && c.defines()) {
			return r.no()
		}
		r.consume(n)
		c.stage = wantColon
		return true
	}
	return r.no()
}

// known reports whether a call may have that key.
func known(key string) bool {
	return slices.Contains(nameKeys, key) || slices.Contains(argumentKeys, key) || slices.Contains(otherKeys, key)
}

// defines reports whether the key is one of a tool's definition, which some models repeat from the prompt: it names a tool and is no call.
func (c *call) defines() bool { return c.key == "description" || c.nested && c.key == "parameters" }

// stringEnd returns the length of the JSON string at the beginning of s, 0 if it is not complete.
func stringEnd(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return 0
}

// inValue reads the value of a key.
func (r *Reader) inValue() bool {
	c := &r.call
	isName, isArguments := slices.Contains(nameKeys, c.key), slices.Contains(argumentKeys, c.key)
	if len(c.value) == 0 {
		r.skip()
		switch {
		case r.buf == "":
			return r.more()
		case r.buf[0] == '{' && c.key == "function" && !c.nested:
			r.consume(1)
			c.nested, c.stage = true, wantKey
			return true
		case r.buf[0] == '{' && isArguments && c.name != "":
			if !r.begun && !r.begin(c.name) {
				return r.no()
			}
			c.stage, c.told = inArguments, true
			return true
		}
	}
	for i := 0; i < len(r.buf); i++ {
		b, bad := r.buf[i], false
		if len(c.scan.word) > 0 && len(c.scan.stack) == 0 && strings.IndexByte(",}]"+space, b) >= 0 {
			r.consume(i)
			return isWord(c.scan.word) && r.valued(isName, isArguments) || r.no()
		}
		if c.value, bad = c.scan.step(b, c.value); bad {
			r.consume(i)
			return r.no()
		}
		if c.scan.done() {
			r.consume(i + 1)
			return r.valued(isName, isArguments) || r.no()
		}
	}
	r.consume(len(r.buf))
	return r.more()
}

// valued takes a value that is complete; false: this is no call.
func (r *Reader) valued(isName, isArguments bool) bool {
	c := &r.call
	c.stage = wantComma
	switch {
	case isName && c.name == "":
		return json.Unmarshal(c.value, &c.name) == nil && c.name != "" && (!r.at.soft || r.tools.find(c.name) != nil)
	case isArguments && !c.told && c.args == "":
		c.args = objectOf(string(c.value))
	}
	return true
}

// objectOf returns the arguments of a call as an object: some models write the object as a string.
func objectOf(value string) string {
	inner := ""
	if json.Unmarshal([]byte(value), &inner) == nil && (inner == "" || json.Valid([]byte(inner))) {
		value = inner
	}
	if value = strings.TrimSpace(value); value == "" || value == "null" {
		return "{}"
	}
	return value
}

// objectEnds reads the brace behind a call's keys.
func (r *Reader) objectEnds() bool {
	c := &r.call
	if c.nested {
		r.consume(1)
		c.nested, c.stage = false, wantComma
		return true
	}
	if !r.begun && !r.begin(c.name) {
		return r.no()
	}
	r.consume(1)
	if !c.told {
		if c.args == "" {
			c.args = "{}"
		}
		r.emit(Arguments, c.args)
	}
	if c.list {
		r.begun, r.mark, r.past = false, "", true
		c.stage = wantObject
		return true
	}
	r.state = (*Reader).over
	return true
}

// arguments tells an object as it comes, and calls end once it is complete.
func (r *Reader) arguments(end func() bool) bool {
	c, out := &r.call, []byte(nil)
	for i := 0; i < len(r.buf); i++ {
		var bad bool
		if out, bad = c.scan.step(r.buf[i], out); bad {
			r.emit(Arguments, string(out))
			r.consume(i)
			return r.no()
		}
		if c.scan.done() {
			r.emit(Arguments, string(out))
			r.consume(i + 1)
			c.scan = scan{}
			return end()
		}
	}
	r.emit(Arguments, string(out))
	r.consume(len(r.buf))
	return r.more()
}
