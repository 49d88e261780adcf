package chat

import (
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
)

func absolute(r *run, v any, a args) any {
	r.bind(a, 0)
	v = r.sign(false, v)
	if f, ok := v.(float64); ok {
		return math.Abs(f)
	}
	return r.sign(large(v).Sign() < 0, v)
}

func toInt(r *run, v any, a args) any {
	p := r.bind(a, 0, "default", "base")
	switch v := number(v).(type) {
	case int64, *big.Int:
		return v
	case float64:
		switch {
		case math.IsInf(v, 0):
			r.fail(tandem.Invalid, "an infinite number has no whole number")
		case !math.IsNaN(v):
			return truncated(v)
		}
	case undefined:
		r.refuse(v, "number")
	case text:
		r.reads(v.s)
		if n, ok := readInt(v.s, p.int(1, 10)); ok {
			return n
		}
		if f, ok := readFloat(v.s); ok && !math.IsInf(f, 0) && !math.IsNaN(f) {
			return truncated(f)
		}
	}
	return p.or(0, int64(0))
}

// reads counts what ascii, readInt and readFloat do with s.
func (r *run) reads(s string) {
	r.spend(2 * len(s))
	r.step(len(s) / 8)
}

// ascii returns a number's text without the white space around it, with decimal digits of all scripts as ASCII.
func ascii(s string) string {
	return strings.Map(func(c rune) rune {
		if d := decimal(c); d >= 0 {
			return rune('0' + d)
		}
		return c
	}, strings.TrimFunc(s, isSpace))
}

// readInt is Python's int of a string.
func readInt(s string, base int) (any, bool) {
	s = ascii(s)
	minus := strings.HasPrefix(s, "-")
	if minus || strings.HasPrefix(s, "+") {
		s = s[1:]
	}
	prefix := 0
	if len(s) > 1 && s[0] == '0' {
		prefix = map[byte]int{'b': 2, 'o': 8, 'x': 16}[s[1]|0x20]
	}
	switch {
	case prefix != 0 && (base == 0 || base == prefix):
		base, s = prefix, strings.TrimPrefix(s[2:], "_")
	case base == 0:
		if base = 10; s != "" && s[0] == '0' && strings.Trim(s, "0_") != "" {
			return nil, false
		}
	}
	if base < 2 || base > 36 || s == "" || s[0] == '_' || digits(s, 0, base) != len(s) {
		return nil, false
	}
	n, ok := parseInt(strings.ReplaceAll(s, "_", ""), base)
	if i, small := n.(int64); ok && minus && small {
		return -i, true
	} else if ok && minus {
		return whole(new(big.Int).Neg(n.(*big.Int))), true
	}
	return n, ok
}

// readFloat is Python's float of a string.
func readFloat(s string) (float64, bool) {
	s = ascii(s)
	word := strings.ToLower(strings.TrimLeft(s, "+-"))
	if word != "inf" && word != "infinity" && word != "nan" {
		for i := range len(s) {
			between := s[i] == '_' && i > 0 && i+1 < len(s) && digitValue(rune(s[i-1])) < 10 && digitValue(rune(s[i+1])) < 10
			if strings.IndexByte("0123456789.eE+-", s[i]) < 0 && !between {
				return 0, false
			}
		}
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	return f, err == nil || math.IsInf(f, 0) && s != ""
}

func toFloat(r *run, v any, a args) any {
	p := r.bind(a, 0, "default")
	if isNumber(v) {
		return r.float(v)
	}
	switch v := v.(type) {
	case undefined:
		r.refuse(v, "number")
	case text:
		r.reads(v.s)
		if f, ok := readFloat(v.s); ok {
			return f
		}
	}
	return p.or(0, 0.0)
}

// toFraction is Python's float.
func (r *run) toFraction(v any) float64 {
	if t, ok := v.(text); ok {
		r.reads(t.s)
		f, ok := readFloat(t.s)
		if !ok {
			r.fail(tandem.Invalid, "%s is no number", short(t.s))
		}
		return f
	}
	return r.float(v)
}

func roundFilter(r *run, v any, a args) any {
	p := r.bind(a, 0, "precision", "method")
	how, ok := p.or(1, lit("common")).(text)
	if !ok || how.s != "common" && how.s != "ceil" && how.s != "floor" {
		r.fail(tandem.Invalid, "round: method is %s: want \"common\", \"ceil\" or \"floor\"", kind(p.or(1, nil)))
	}
	v = number(v)
	if !isNumber(v) {
		r.fail(tandem.Invalid, "round wants a number, not %s", kind(v))
	}
	if how.s == "common" {
		if p.or(0, int64(0)) == nil {
			return r.nearest(v, 0, true)
		}
		return r.nearest(v, p.int(0, 0), false)
	}
	scale := r.arithmetic("**", int64(10), p.or(0, int64(0)))
	v = r.arithmetic("*", v, scale)
	if f, ok := v.(float64); ok {
		if math.IsNaN(f) || math.IsInf(f, 0) {
			r.fail(tandem.Invalid, "round: %s has no whole number", pyFloat(f))
		}
		if v = truncated(math.Ceil(f)); how.s == "floor" {
			v = truncated(math.Floor(f))
		}
	}
	return r.arithmetic("/", v, scale)
}

// nearest is Python's round: to digits behind the point, halves to the even neighbour. whole: to a whole number.
func (r *run) nearest(v any, digits int, toWhole bool) any {
	r.step(16 + min(max(-digits, 0), maxDigits)/4) // a power of ten
	f, fraction := v.(float64)
	if !fraction {
		if digits >= 0 {
			return v
		}
		if digits < -maxDigits {
			return int64(0)
		}
		unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-digits)), nil)
		q, m := new(big.Int).DivMod(large(v), unit, new(big.Int))
		if c := m.Lsh(m, 1).Cmp(unit); c > 0 || c == 0 && q.Bit(0) == 1 {
			q.Add(q, big.NewInt(1))
		}
		return whole(q.Mul(q, unit))
	}
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		if toWhole {
			r.fail(tandem.Invalid, "round: %s has no whole number", pyFloat(f))
		}
		return f
	case toWhole:
		return truncated(math.RoundToEven(f))
	case digits > 323:
		return f
	case digits < -308:
		return math.Copysign(0, f)
	case digits >= 0:
		f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', digits, 64), 64)
		return f
	}
	n, _ := new(big.Float).SetPrec(2000).SetFloat64(f).Int(nil)
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-digits)), nil)
	rest := new(big.Rat).SetFloat64(f)
	q := new(big.Int).Quo(n, unit)
	rest.Sub(rest, new(big.Rat).SetInt(new(big.Int).Mul(q, unit)))
	half := new(big.Rat).SetFrac(unit, big.NewInt(2))
	if c := rest.Abs(rest).Cmp(half); c > 0 || c == 0 && q.Bit(0) == 1 {
		q.Add(q, big.NewInt(int64(signOf(f))))
	}
	out, _ := new(big.Float).SetInt(q.Mul(q, unit)).Float64()
	return math.Copysign(out, f)
}

func signOf(f float64) int {
	if f < 0 {
		return -1
	}
	return 1
}
