package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// decode reads JSON from the caller into values; objects keep the order of their keys, because models were
// trained on tool descriptions in the order in which they were written. Empty input gives none.
func decode(m *meter, what string, in json.RawMessage) any {
	if len(in) == 0 {
		return nil
	}
	m.invalidIf(len(in) > maxInput, "%s has %d bytes: at most %d are read", what, len(in), maxInput)
	dec := json.NewDecoder(bytes.NewReader(in))
	dec.UseNumber()
	v := decodeNext(m, what, dec)
	if _, err := dec.Token(); err != io.EOF {
		m.invalid("%s has more than one JSON value", what)
	}
	return v
}

func decodeNext(m *meter, what string, dec *json.Decoder) any {
	m.enter()
	defer m.leave()
	t, err := dec.Token()
	m.invalidIf(err != nil, "%s is not JSON: %v", what, err)
	switch t := t.(type) {
	case string:
		m.spend(len(t))
		return caller(t)
	case json.Number:
		if digits := strings.TrimPrefix(t.String(), "-"); strings.Trim(digits, "0123456789") == "" {
			n, ok := parseInt(t.String(), 10)
			m.invalidIf(!ok, "%s: number %s has more than %d digits", what, short(digits), maxDigits)
			return n
		}
		f, _ := t.Float64() // infinite beyond the range, as in Python
		return f
	case json.Delim:
		if t == '[' {
			l := &list{}
			for dec.More() {
				l.push(m, decodeNext(m, what, dec))
			}
			closing(m, what, dec)
			return l
		}
		m.spend(perPair)
		d := &dict{}
		for dec.More() {
			key := decodeNext(m, what, dec)
			d.put(m, key, decodeNext(m, what, dec))
		}
		closing(m, what, dec)
		return d
	}
	return t // nil, bool
}

func closing(m *meter, what string, dec *json.Decoder) {
	if _, err := dec.Token(); err != nil {
		m.invalid("%s is not JSON: %v", what, err)
	}
}

// toJSON is the filter tojson as transformers has it: Python's json.dumps, without ASCII escapes unless they are asked for.
func toJSON(v any, a args) any {
	p := a.bind(0, "ensure_ascii", "indent", "separators", "sort_keys")
	j := &jsonWriter{builder: builder{m: a.m}, item: lit(", "), pair: lit(": ")}
	if j.ascii = p.truth(0); p.truth(3) {
		a.m.unknown("tojson with sort_keys")
	}
	switch n := p.or(1, nil).(type) {
	case nil:
	case text:
		j.indent, j.item, j.lines = n, lit(","), true
	default:
		width := p.int(1, 0)
		a.m.invalidIf(width > 16, "tojson: indent %d: want at most 16", width)
		j.indent, j.item, j.lines = lit(strings.Repeat(" ", max(0, width))), lit(","), true
	}
	if p.or(2, nil) != nil {
		s := items(a.m, p.vals[2])
		a.m.invalidIf(len(s) != 2, "tojson: %d separators: want 2", len(s))
		j.item, j.pair = str(a.m, s[0]), str(a.m, s[1])
	}
	j.write(v, 0)
	return j.text()
}

type jsonWriter struct {
	builder
	indent, item, pair text
	lines, ascii       bool
}

func (j *jsonWriter) write(v any, level int) {
	j.m.enter()
	defer j.m.leave()
	switch v := v.(type) {
	case nil:
		j.lit("null")
	case bool:
		j.lit(strconv.FormatBool(v))
	case int64:
		j.lit(strconv.FormatInt(v, 10))
	case wide:
		j.lit(string(v))
	case float64:
		j.lit(jsonFloat(v))
	case text:
		j.quote(v)
	case *list:
		j.lit("[")
		for i, e := range v.items {
			j.next(i, level+1)
			j.write(e, level+1)
		}
		j.end(len(v.items), level, "]")
	case *dict:
		j.lit("{")
		for i, k := range v.keys {
			j.next(i, level+1)
			j.quote(j.key(k))
			j.add(j.pair)
			j.write(v.vals[i], level+1)
		}
		j.end(len(v.keys), level, "}")
	default:
		j.m.invalid("tojson: %s has no JSON form", kind(v))
	}
}

// key returns a dict's key as JSON has it.
func (j *jsonWriter) key(v any) text {
	switch v := v.(type) {
	case text:
		return v
	case nil:
		return lit("null")
	case bool:
		return lit(strconv.FormatBool(v))
	case float64:
		return lit(jsonFloat(v))
	case int64, wide:
		return str(j.m, v)
	}
	j.m.invalid("tojson: %s cannot be a key", kind(v))
	return text{}
}

func jsonFloat(f float64) string {
	return strings.Replace(strings.Replace(pyFloat(f), "nan", "NaN", 1), "inf", "Infinity", 1)
}

// next writes the separator before the i-th element.
func (j *jsonWriter) next(i, level int) {
	if i > 0 {
		j.add(j.item)
	}
	j.newline(level)
}

func (j *jsonWriter) end(count, level int, bracket string) {
	if count > 0 {
		j.newline(level)
	}
	j.lit(bracket)
}

func (j *jsonWriter) newline(level int) {
	if j.lines {
		j.lit("\n")
		j.pad(j.indent, level)
	}
}

func (j *jsonWriter) quote(t text) {
	s := rewrite(j.m, t.s, func(c rune) string {
		switch i := strings.IndexRune("\"\\\n\r\t\b\f", c); {
		case i >= 0 && c != utf8.RuneError:
			return `\` + `"\nrtbf`[i:i+1]
		case j.ascii && c > 0xffff:
			return fmt.Sprintf(`\u%04x\u%04x`, 0xd800+(c-0x10000)>>10, 0xdc00+(c-0x10000)&0x3ff)
		case c < ' ', j.ascii && c > 0x7e:
			return fmt.Sprintf(`\u%04x`, c)
		}
		return string(c)
	})
	j.lit(`"`)
	j.add(t.remade(s))
	j.lit(`"`)
}
