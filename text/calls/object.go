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
	shut   bool // its closing mark has come
	key    string
	name   string
	args   string // "" before they are complete
	scan   scan
	value  []byte // what scan has made of the value that is read, or the parameters so far
	params int    // how many
	quote  string // within which the search for the end is
	depth  int    // of brackets in that search
}

// stage is what comes next in an object.
type stage uint8

const (
	wantObject stage = iota
	wantKey
	wantColon
	wantValue
	wantComma
	inArguments // of another syntax
)

var (
	nameKeys     = []string{"name", "function", "tool", "tool_name", "function_name"}
	argumentKeys = []string{"arguments", "parameters", "args", "input", "tool_input", "function_arguments"}
	otherKeys    = []string{"type", "id", "index", "call_id", "tool_call_id", "strict", "description", "thought"}
)

// inObject reads {"name": NAME, "arguments": {…}} in any order of the keys, or an array of these.
func (r *Reader) inObject() bool {
	c := &r.call
	if c.stage == wantValue {
		return r.inValue()
	}
	rest := r.skip()
	if rest == "" {
		if r.ended && !r.cut && c.stage == wantComma {
			return r.lacksBrace("")
		}
		return r.more()
	}
	b := rest[0]
	switch c.stage {
	case wantObject:
		switch {
		case b == '{':
			*c = call{list: c.list, stage: wantKey}
		case b == '[' && !c.list:
			c.list = true
		case b == ',' && c.list && len(r.ready) > 0, b == '}' && c.double:
		case b == ']' && c.list && len(r.ready) > 0:
			r.pos++
			return r.complete()
		default:
			return r.no()
		}
		r.pos++
	case wantKey:
		return r.objectKey(b)
	case wantColon:
		if b != ':' {
			return r.no()
		}
		r.pos++
		c.stage, c.scan, c.value = wantValue, scan{}, c.value[:0]
	case wantComma:
		switch b {
		case ',':
			r.pos++
			c.stage = wantKey
		case '}':
			return r.objectEnds()
		default:
			return r.lacksBrace(rest)
		}
	}
	return true
}

// lacksBrace ends an object whose last brace is missing: its arguments are complete, and a mark or the end of the output is next.
func (r *Reader) lacksBrace(rest string) bool {
	c := &r.call
	if c.args == "" || c.name == "" || c.list {
		return r.no()
	}
	for _, m := range r.closers {
		switch {
		case rest == "" || strings.HasPrefix(rest, m):
			c.nested = false
			return r.called()
		case !r.ended && strings.HasPrefix(m, rest):
			return false
		}
	}
	if rest == "" && len(r.closers) == 0 {
		return r.called()
	}
	return r.no()
}

// objectKey reads a key, or the end of the object.
func (r *Reader) objectKey(b byte) bool {
	c := &r.call
	switch b {
	case '{': // Qwen 2.5's template shows the braces of its example twice, which small models copy
		if c.key == "" && !c.double && !c.nested {
			r.pos++
			c.double = true
			return true
		}
	case '}':
		return r.objectEnds()
	case '"':
		rest := r.rest()
		n := stringEnd(rest)
		if n == 0 && len(rest) < maxName {
			return r.more()
		}
		if n == 0 || json.Unmarshal([]byte(rest[:n]), &c.key) != nil ||
			c.args == "" && (!known(c.key) || r.at.soft && c.defines()) {
			return r.no()
		}
		r.pos += n
		r.begun = r.begun || !r.at.soft
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
	if len(c.value) == 0 {
		if rest := r.skip(); strings.HasPrefix(rest, "{") && c.key == "function" && !c.nested {
			r.pos++
			c.nested, c.stage = true, wantKey
			return true
		}
	}
	switch r.json() {
	case valueBad:
		return r.no()
	case valueCut:
		return r.more()
	}
	return r.valued() || r.no()
}

// verdict is what is known of a JSON value that is being read.
type verdict uint8

const (
	valueCut  verdict = iota // more of it is needed
	valueDone                // c.value is complete
	valueBad                 // it is none
)

// json reads on in a JSON value, and keeps it repaired in c.value.
func (r *Reader) json() verdict {
	c := &r.call
	for i := r.pos; i < len(r.buf); i++ {
		b, bad := r.buf[i], false
		if len(c.scan.word) > 0 && len(c.scan.stack) == 0 && strings.IndexByte(",}]"+space, b) >= 0 {
			r.pos = i
			if c.value, bad = c.scan.ends(c.value); bad {
				return valueBad
			}
			return valueDone
		}
		if c.value, bad = c.scan.step(b, c.value); bad {
			return valueBad
		}
		if c.scan.done() {
			r.pos = i + 1
			return valueDone
		}
	}
	r.pos = len(r.buf)
	return valueCut
}

// valued takes a value that is complete; false: this is no call. Two names, and arguments twice, could be read in two ways.
func (r *Reader) valued() bool {
	c := &r.call
	c.stage = wantComma
	switch {
	case slices.Contains(nameKeys, c.key):
		name := ""
		if json.Unmarshal(c.value, &name) != nil || name == "" || c.name != "" && c.name != name {
			return false
		}
		c.name = name
		if r.tools.find(name) != nil {
			r.begun = true
		} else if r.at.soft {
			return false
		}
	case slices.Contains(argumentKeys, c.key):
		ok := c.args == ""
		if ok {
			c.args, ok = objectOf(string(c.value))
		}
		return ok
	}
	return true
}

// objectOf returns the arguments of a call as an object: some models write the object as a string.
func objectOf(value string) (string, bool) {
	inner := ""
	if json.Unmarshal([]byte(value), &inner) == nil { // a string, or null
		if inner = strings.TrimSpace(inner); inner == "" || inner == "null" {
			return "{}", true
		}
		repaired, ok := repaired(inner)
		return repaired, ok && repaired[0] == '{'
	}
	return value, value[0] == '{'
}

// objectEnds reads the brace behind a call's keys.
func (r *Reader) objectEnds() bool {
	c := &r.call
	r.pos++
	if c.nested {
		c.nested, c.stage = false, wantComma
		return true
	}
	return r.called()
}

// called notes a call whose name and arguments are complete.
func (r *Reader) called() bool {
	c := &r.call
	name := c.name
	if !r.begin(name) {
		return r.no()
	}
	if c.args == "" {
		c.args = "{}"
	}
	r.ready = append(r.ready, whole{c.name, c.args})
	if c.list {
		c.stage = wantObject
		return true
	}
	return r.complete()
}
