// Package oai reads and writes the JSON of OpenAI's API as tandem speaks it. Bodies are read while they arrive. A field that occurs
// twice, or asks for an answer of another meaning than tandem can give, is refused by name; fields.go says which are ignored.
package oai

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
)

// bad returns the error of a field: what it is, and what would be right.
func bad(param, format string, args ...any) error {
	return &tandem.Error{Op: "", Kind: tandem.Invalid, Field: param, Err: fmt.Errorf(format, args...)}
}

// unsupported returns the error of a field that asks for what tandem does not do.
func unsupported(param, format string, args ...any) error {
	return &tandem.Error{Op: "", Kind: tandem.Unsupported, Field: param, Err: fmt.Errorf(format, args...)}
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

// readText reads a string other than a prompt.
func readText(param string, s *source, to *string) error {
	if s.kind() != "a string" {
		return bad(param, "%s is %s: want a string", param, s.show())
	}
	text, n := s.text(maxSmall)
	if n > maxSmall {
		return bad(param, "%s has %d bytes: want at most %d", param, n, maxSmall)
	}
	*to = text
	return nil
}

func readBool(param string, s *source, to *bool) error {
	if s.kind() != "a boolean" {
		return bad(param, "%s is %s: want true or false", param, s.show())
	}
	*to = s.raw(maxNumber)[0] == 't'
	return nil
}

// maxNumber is the length of the longest number that is read, in bytes.
const maxNumber = 1 << 10

func readFloat(param string, s *source, to *float64) error {
	number := s.kind() == "a number"
	raw := s.raw(maxNumber)
	f, err := strconv.ParseFloat(string(raw), 64)
	if !number || err != nil {
		return bad(param, "%s is %s: want a number", param, show(raw))
	}
	*to = f
	return nil
}

// readInt reads an integer of 32 bits, the size on the wire between processes. 16.0 is accepted too.
func readInt(param string, s *source, to *int) error {
	n, err := integerIn(s)
	if err != nil {
		return bad(param, "%s is %w", param, err)
	}
	*to = n
	return nil
}

// integerIn reads the same without a field name. Its error begins with the value.
func integerIn(s *source) (int, error) {
	if n, ok := s.digits(); ok {
		return n, nil
	}
	if s.kind() != "a number" {
		return 0, fmt.Errorf("%s: want an integer", s.show())
	}
	return wholeNumber(s.raw(maxNumber))
}

// wholeNumber reads the same.
func wholeNumber(raw []byte) (int, error) {
	f, err := strconv.ParseFloat(string(raw), 64)
	switch {
	case err != nil || f != math.Trunc(f):
		return 0, fmt.Errorf("%s: want an integer", show(raw))
	case f < math.MinInt32 || f > math.MaxInt32:
		return 0, fmt.Errorf("%s: want an integer from %d to %d", show(raw), math.MinInt32, math.MaxInt32)
	}
	return int(f), nil
}

// readSeed reads an integer of 64 bits, with a sign or without; -1 and null ask for a random one (ok is false), as in llama.cpp and vLLM.
// 1.0 and 1e3 are integers too.
func readSeed(param string, s *source) (seed uint64, ok bool, err error) {
	number := s.kind() == "a number"
	raw := string(s.raw(maxNumber))
	if n, err := strconv.ParseUint(raw, 10, 64); err == nil {
		return n, true, nil
	}
	if n, err := strconv.ParseInt(raw, 10, 64); err == nil {
		return uint64(n), n != -1, nil
	}
	f, err := strconv.ParseFloat(raw, 64)
	switch {
	case !number || err != nil || !strings.ContainsAny(raw, ".eE") || f != math.Trunc(f) || f < math.MinInt64 || f >= 1<<64:
		return 0, false, bad(param, "%s is %s: want an integer from %d to %d, or none for a random one", param, show([]byte(raw)),
			math.MinInt64,
			uint64(math.MaxUint64))
	case f < 0:
		return uint64(int64(f)), f != -1, nil
	}
	return uint64(f), true, nil
}
