package side

import (
	"encoding/hex"
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// reader reads keys; the first error sticks.
type reader struct {
	file *gguf.File
	arch string // the prefix of keys
	spec *Spec
	err  error
}

func (r *reader) key(name string) string { return r.arch + "." + name }

func (r *reader) keep(err error) {
	if r.err == nil {
		r.err = err
	}
}

// count reads a whole number from 1 to most.
func (r *reader) count(name string, most int) int {
	n, err := r.file.Int(r.key(name), 1, most)
	r.keep(err)
	return n
}

// countOr is count for a key that may be missing.
func (r *reader) countOr(name string, most, def int) int {
	n, err := r.file.IntOr(r.key(name), 1, most, def)
	r.keep(err)
	return n
}

func (r *reader) fail(k tandem.Kind, format string, args ...any) {
	r.keep(tandem.Errorf(op, k, "%s: %w", r.file.Path(), fmt.Errorf(format, args...)))
}

func (r *reader) ints(name string, lo, hi int) []int {
	n, err := r.file.Ints(r.key(name), lo, hi)
	r.keep(err)
	return n
}

// number reads a finite number above 0.
func (r *reader) number(name string) float64 {
	v, err := r.file.Float(r.key(name))
	if r.keep(err); err == nil && !(v > 0) {
		r.fail(tandem.Corrupt, "key %q is %v: want a number above 0", r.key(name), v)
	}
	return v
}

// digits reads n hexadecimal digits.
func (r *reader) digits(key string, n int) string {
	s, err := r.file.String(key)
	if r.keep(err); err != nil {
		return ""
	}
	if b, err := hex.DecodeString(s); err != nil || 2*len(b) != n {
		r.fail(tandem.Corrupt, "key %q is %.80q: want %d hexadecimal digits", key, s, n)
	}
	return s
}
