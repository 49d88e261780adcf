package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// decode reads JSON from the caller into values; objects keep the order of their keys, because models were
// trained on tool descriptions in the order in which they were written. Empty input gives none.
func (r *run) decode(what string, in json.RawMessage) any {
	if len(in) == 0 {
		return nil
	}
	if len(in) > maxInput {
		r.fail(tandem.Invalid, "%s has %d bytes: at most %d are read", what, len(in), maxInput)
	}
	dec := json.NewDecoder(bytes.NewReader(in))
	dec.UseNumber()
	v := r.decodeNext(what, dec)
	if _, err := dec.Token(); err != io.EOF {
		r.fail(tandem.Invalid, "%s has more than one JSON value", what)
	}
	return v
}

func (r *run) decodeNext(what string, dec *json.Decoder) any {
	r.enter()
	defer r.leave()
	t, err := dec.Token()
	if err != nil {
		r.fail(tandem.Invalid, "%s is not JSON: %v", what, err)
	}
	switch t := t.(type) {
	case string:
		r.spend(len(t))
		return caller(t)
	case json.Number:
		if digits := strings.TrimPrefix(t.String(), "-"); strings.Trim(digits, "0123456789") == "" {
			n, ok := readInt(t.String(), 10)
			if !ok {
				r.fail(tandem.Invalid, "%s: number %s has more than %d digits", what, short(digits), maxDigits)
			}
			return n
		}
		f, _ := t.Float64() // infinite beyond the range, as in Python
		return f
	case json.Delim:
		if t == '[' {
			l := r.listOf()
			for dec.More() {
				r.push(l, r.decodeNext(what, dec))
			}
			r.closing(what, dec)
			return l
		}
		r.spend(perPair)
		d := &dict{}
		for dec.More() {
			key := r.decodeNext(what, dec)
			r.put(d, key, r.decodeNext(what, dec))
		}
		r.closing(what, dec)
		return d
	}
	return t // nil, bool
}

func (r *run) closing(what string, dec *json.Decoder) {
	if _, err := dec.Token(); err != nil {
		r.fail(tandem.Invalid, "%s is not JSON: %v", what, err)
	}
}

// valueOf turns a caller's value of Options.Extra into a template's.
func (r *run) valueOf(what string, v any) any {
	r.enter()
	defer r.leave()
	switch v := v.(type) {
	case nil, bool, int64, float64:
		return v
	case int:
		return int64(v)
	case string:
		r.spend(len(v))
		return caller(v)
	case json.RawMessage:
		return r.decode(what, v)
	case []any:
		l := r.listOf()
		for _, e := range v {
			r.push(l, r.valueOf(what, e))
		}
		return l
	case map[string]any:
		r.spend(perPair)
		d := &dict{}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			r.put(d, caller(k), r.valueOf(what, v[k]))
		}
		return d
	}
	r.fail(tandem.Invalid, "variable %s holds a %T: want nil, bool, int, float64, string, JSON, []any or map[string]any", what, v)
	return nil
}

// toJSON is the filter tojson as transformers has it: Python's json.dumps without ASCII escapes and sorted keys.
func (r *run) toJSON(v any, a args) any {
	p := r.bind(a, 0, "ensure_ascii", "indent", "separators", "sort_keys")
	j := &jsonWriter{builder: builder{r: r}, item: lit(", "), pair: lit(": "), ascii: p.truth(0), sorted: p.truth(3)}
	switch n := p.or(1, nil).(type) {
	case nil:
	case text:
		j.indent, j.item, j.lines = n, lit(","), true
	default:
		width := p.int(1, 0)
		if width > 16 {
			r.fail(tandem.Invalid, "tojson: indent %d: want at most 16", width)
		}
		j.indent, j.item, j.lines = lit(strings.Repeat(" ", max(0, width))), lit(","), true
	}
	if p.or(2, nil) != nil {
		s := r.items(p.vals[2])
		if len(s) != 2 {
			r.fail(tandem.Invalid, "tojson: %d separators: want 2", len(s))
		}
		j.item, j.pair = r.str(s[0]), r.str(s[1])
	}
	j.write(v, 0)
	return j.text()
}

type jsonWriter struct {
	builder
	indent, item, pair   text
	lines, sorted, ascii bool
}

func (j *jsonWriter) write(v any, level int) {
	j.r.enter()
	defer j.r.leave()
	switch v := v.(type) {
	case nil:
		j.lit("null")
	case bool:
		j.lit(strconv.FormatBool(v))
	case int64:
		j.lit(strconv.FormatInt(v, 10))
	case *big.Int:
		j.lit(j.r.decimal(v))
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
		order := make([]int, len(v.keys))
		j.r.spend(8 * len(order))
		for i := range order {
			order[i] = i
		}
		if j.sorted {
			slices.SortStableFunc(order, func(a, b int) int {
				if j.r.less(v.keys[a], v.keys[b], false) {
					return -1
				}
				return 1
			})
		}
		j.lit("{")
		for i, k := range order {
			j.next(i, level+1)
			j.quote(j.key(v.keys[k]))
			j.add(j.pair)
			j.write(v.vals[k], level+1)
		}
		j.end(len(order), level, "}")
	default:
		j.r.fail(tandem.Invalid, "tojson: %s has no JSON form", kind(v))
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
	case int64, *big.Int:
		return j.r.str(v)
	}
	j.r.fail(tandem.Invalid, "tojson: %s cannot be a key", kind(v))
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
	s := rewrite(j.r, t.s, func(_ int, c rune) (string, bool) {
		switch i := strings.IndexRune("\"\\\n\r\t\b\f", c); {
		case i >= 0 && c != utf8.RuneError:
			return `\` + `"\nrtbf`[i:i+1], true
		case c < ' ' || j.ascii && c > 0x7e && c < 0x10000:
			return fmt.Sprintf(`\u%04x`, c), true
		case j.ascii && c >= 0x10000:
			return fmt.Sprintf(`\u%04x\u%04x`, 0xd800+(c-0x10000)>>10, 0xdc00+(c-0x10000)&0x3ff), true
		}
		return "", false
	}, nil)
	j.lit(`"`)
	j.add(t.remade(s))
	j.lit(`"`)
}
