// Package oai reads and writes the JSON of OpenAI's API as tandem speaks it. Bodies are read strictly: a field
// that is not known, is there twice or asks for what tandem does not do is refused by name, never ignored.
package oai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

const (
	maxDepth  = 64   // objects and arrays inside one another
	maxFields = 1024 // of one object
)

// bad returns the error of a field: what it is, and what would be right.
func bad(param, format string, args ...any) error {
	return &tandem.Error{Op: "", Kind: tandem.Invalid, Field: param, Err: fmt.Errorf(format, args...)}
}

// unsupported returns the error of a field that asks for what tandem does not do.
func unsupported(param, format string, args ...any) error {
	return &tandem.Error{Op: "", Kind: tandem.Unsupported, Field: param, Err: fmt.Errorf(format, args...)}
}

// check refuses what is not one JSON object in UTF-8, with the offset of the first wrong byte.
func check(body []byte) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return bad("", "the body is empty: want a JSON object")
	}
	for at := 0; at < len(body); {
		r, n := utf8.DecodeRune(body[at:])
		if r == utf8.RuneError && n == 1 {
			return bad("", "the body is not valid UTF-8 at byte %d", at)
		}
		at += n
	}
	if at := tooDeep(body); at >= 0 {
		return bad("", "the body nests more than %d deep at byte %d", maxDepth, at)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	var whole json.RawMessage
	if err := dec.Decode(&whole); err != nil {
		return syntax(err, len(body))
	}
	end := dec.InputOffset()
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return bad("", "the body goes on at byte %d, after the end of the JSON value", end)
	}
	if at := loneSurrogate(body); at >= 0 {
		return bad("", "the body has half a character at byte %d: %s", at, body[at:at+6])
	}
	if kindOf(whole) != "an object" {
		return bad("", "the body is %s: want a JSON object", kindOf(whole))
	}
	return nil
}

func syntax(err error, size int) error {
	var s *json.SyntaxError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return bad("", "the body is no JSON: it ends at byte %d, inside of a value", size)
	case errors.As(err, &s):
		return bad("", "the body is no JSON: %w at byte %d", err, max(s.Offset-1, 0))
	}
	return bad("", "the body is no JSON: %w", err)
}

// loneSurrogate returns where body, which is valid JSON, escapes half a UTF-16 pair, -1 for nowhere. Go would read
// U+FFFD, another text than was sent.
func loneSurrogate(body []byte) int {
	for i := 0; i+1 < len(body); i++ {
		if body[i] != '\\' {
			continue
		}
		r := escaped(body[i:])
		if utf16.IsSurrogate(r) {
			if utf16.DecodeRune(r, escaped(body[i+6:])) == utf8.RuneError {
				return i
			}
			i += 6
		}
		i++ // an escaped backslash begins nothing
	}
	return -1
}

// escaped returns the code that b begins with, as in \u00e9; -1 if it does not.
func escaped(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(b[2:6]), 16, 32)
	if err != nil {
		return -1
	}
	return rune(n)
}

// tooDeep returns where body nests deeper than is allowed, -1 for nowhere.
func tooDeep(body []byte) int {
	depth, inString := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return i
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return -1
}

// object calls each for the fields of raw, which is valid JSON, in their order. Param is raw's own name, "" for
// the body.
func object(param string, raw json.RawMessage, each func(name string, value json.RawMessage) error) error {
	if kindOf(raw) != "an object" {
		return bad(param, "%s is %s: want an object", param, show(raw))
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	_, _ = dec.Token()
	seen := map[string]bool{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return syntax(err, len(raw))
		}
		name, _ := key.(string)
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return syntax(err, len(raw))
		}
		switch {
		case seen[name]:
			return bad(join(param, name), "%.100s is there twice: want it once", join(param, name))
		case len(seen) == maxFields:
			return bad(param, "%s has more than %d fields", or(param, "the body"), maxFields)
		}
		seen[name] = true
		if err := each(name, value); err != nil {
			return err
		}
	}
	return nil
}

// array calls each for the elements of raw, which is valid JSON, at most most of them.
func array(param string, raw json.RawMessage, most int, each func(i int, value json.RawMessage) error) error {
	if kindOf(raw) != "an array" {
		return bad(param, "%s is %s: want an array", param, show(raw))
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	_, _ = dec.Token()
	for i := 0; dec.More(); i++ {
		if i == most {
			return bad(param, "%s has more than %d elements", param, most)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return syntax(err, len(raw))
		}
		if err := each(i, value); err != nil {
			return err
		}
	}
	return nil
}

func kindOf(raw json.RawMessage) string {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

func isNull(raw json.RawMessage) bool { return kindOf(raw) == "null" }

// show returns a value for an error message.
func show(raw json.RawMessage) string {
	const most = 50
	s := string(bytes.TrimSpace(raw))
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

func join(param, name string) string {
	if param == "" {
		return name
	}
	return param + "." + name
}

func or(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

func readText(param string, raw json.RawMessage, to *string) error {
	if kindOf(raw) != "a string" {
		return bad(param, "%s is %s: want a string", param, show(raw))
	}
	if err := json.Unmarshal(raw, to); err != nil {
		return bad(param, "%s: %w", param, err)
	}
	return nil
}

func readBool(param string, raw json.RawMessage, to *bool) error {
	if kindOf(raw) != "a boolean" {
		return bad(param, "%s is %s: want true or false", param, show(raw))
	}
	*to = bytes.TrimSpace(raw)[0] == 't'
	return nil
}

func readFloat(param string, raw json.RawMessage, to *float64) error {
	f, err := strconv.ParseFloat(string(bytes.TrimSpace(raw)), 64)
	if kindOf(raw) != "a number" || err != nil {
		return bad(param, "%s is %s: want a number", param, show(raw))
	}
	*to = f
	return nil
}

// readInt reads an integer of 32 bits, the size that they have between processes. 16.0 is one too.
func readInt(param string, raw json.RawMessage, to *int) error {
	f, err := strconv.ParseFloat(string(bytes.TrimSpace(raw)), 64)
	switch {
	case kindOf(raw) != "a number" || err != nil || f != math.Trunc(f):
		return bad(param, "%s is %s: want an integer", param, show(raw))
	case f < math.MinInt32 || f > math.MaxInt32:
		return bad(param, "%s is %s: want an integer from %d to %d", param, show(raw), math.MinInt32, math.MaxInt32)
	}
	*to = int(f)
	return nil
}

// readSeed reads an integer of 64 bits without a sign.
func readSeed(param string, raw json.RawMessage, to *uint64) error {
	n, err := strconv.ParseUint(string(bytes.TrimSpace(raw)), 10, 64)
	if err != nil {
		return bad(param, "%s is %s: want an integer from 0 to %d, or none for a random one", param, show(raw), uint64(math.MaxUint64))
	}
	*to = n
	return nil
}
