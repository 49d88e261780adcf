package chat

import (
	"cmp"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"unicode"
)

// wide is a whole number beyond 64 bits, in digits, as JSON and templates may hold one. It is printed and compared for equality, but not
// computed with.
type wide string

// number returns a bool as the number that it is in Python, and other values as they are.
func number(v any) any {
	if b, ok := v.(bool); ok {
		if b {
			return int64(1)
		}
		return int64(0)
	}
	return v
}

// integer returns the value of a whole number or a bool; false also beyond 64 bits.
func integer(v any) (int64, bool) {
	n, ok := number(v).(int64)
	return n, ok
}

// isWhole reports whether v is a whole number or a bool.
func isWhole(v any) bool {
	switch v.(type) {
	case int64, wide, bool:
		return true
	}
	return false
}

// isNumber reports whether v is a number or a bool.
func isNumber(v any) bool {
	_, fraction := v.(float64)
	return fraction || isWhole(v)
}

// fraction returns a number as a float64.
func fraction(m *meter, v any) float64 {
	switch v := number(v).(type) {
	case int64:
		return float64(v)
	case float64:
		return v
	case wide:
		tooWide(m)
	}
	m.invalid("%s is no number", kind(v))
	return 0
}

func tooWide(m *meter) { m.unknown("computing with a whole number of more than 64 bits") }

// exact returns the whole number that f is; false if it is none, or beyond 64 bits.
func exact(f float64) (int64, bool) {
	if f != math.Trunc(f) || f < -1<<63 || f >= 1<<63 {
		return 0, false
	}
	return int64(f), true
}

// truncated returns f without its fraction.
func truncated(m *meter, f float64) int64 {
	n, ok := exact(math.Trunc(f))
	if !ok {
		tooWide(m)
	}
	return n
}

// order compares two numbers: -1, 0, 1, and 2 where one is not a number.
func order(m *meter, a, b any) int {
	x, xok := integer(a)
	y, yok := integer(b)
	if xok && yok {
		return cmp.Compare(x, y)
	}
	if xok && magnitude(x) > 1<<53 || yok && magnitude(y) > 1<<53 {
		tooWide(m)
	}
	f, g := fraction(m, a), fraction(m, b)
	if math.IsNaN(f) || math.IsNaN(g) {
		return 2
	}
	return cmp.Compare(f, g)
}

// sameNumber is a == b of two numbers.
func sameNumber(m *meter, a, b any) bool {
	w, wok := a.(wide)
	x, xok := b.(wide)
	switch {
	case wok && xok:
		return w == x
	case wok:
		f, ok := b.(float64)
		return ok && string(w) == strconv.FormatFloat(f, 'f', 0, 64)
	case xok:
		return sameNumber(m, b, a)
	}
	return order(m, a, b) == 0
}

// signed is -v or +v.
func signed(m *meter, minus bool, v any) any {
	m.invalidIf(!isNumber(v), "%s is no number", kind(v))
	v = number(v)
	if !minus {
		return v
	}
	if f, ok := v.(float64); ok {
		return -f
	}
	n, ok := v.(int64)
	if !ok || n == math.MinInt64 {
		tooWide(m)
	}
	return -n
}

// arithmetic computes with numbers as Python does.
func arithmetic(m *meter, op string, left, right any) any {
	left, right = number(left), number(right)
	if !isNumber(left) || !isNumber(right) {
		m.invalid("%s %s %s is not defined", kind(left), op, kind(right))
	}
	if (op == "/" || op == "//" || op == "%") && !truth(right) {
		m.invalid("division by zero")
	}
	i, iok := left.(int64)
	j, jok := right.(int64)
	if !iok || !jok {
		return fractions(m, op, fraction(m, left), fraction(m, right))
	}
	n, ok := wholes(m, op, i, j)
	if !ok {
		m.unknown("%s with such large whole numbers", op)
	}
	return n
}

// wholes computes with whole numbers; false where the result does not fit.
func wholes(m *meter, op string, i, j int64) (any, bool) {
	switch op {
	case "+":
		n := i + j
		return n, (n > i) == (j > 0)
	case "-":
		n := i - j
		return n, (n < i) == (j > 0)
	case "*":
		hi, lo := bits.Mul64(magnitude(i), magnitude(j))
		return i * j, hi == 0 && lo < 1<<63
	case "/":
		return float64(i) / float64(j), magnitude(i) <= 1<<53 && magnitude(j) <= 1<<53
	case "**":
		return power(m, i, j)
	}
	if i == math.MinInt64 {
		return nil, false
	}
	rest := i % j
	if rest != 0 && (rest < 0) != (j < 0) {
		rest += j
	}
	if op == "%" {
		return rest, true
	}
	return (i - rest) / j, magnitude(i) < 1<<62 && magnitude(j) < 1<<62
}

func magnitude(i int64) uint64 {
	if i < 0 {
		return -uint64(i)
	}
	return uint64(i)
}

func power(m *meter, i, n int64) (any, bool) {
	m.unknownIf(n < 0, "** with a fraction")
	if magnitude(i) < 2 && n > 1 {
		n = 2 - n%2 // of 0, 1 and -1
	}
	p, ok := int64(1), true
	for ; n > 0 && ok; n-- {
		var v any
		v, ok = wholes(m, "*", p, i)
		p = v.(int64)
	}
	return p, ok
}

func fractions(m *meter, op string, x, y float64) any {
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "/":
		return x / y
	}
	m.unknown("%s with a fraction", op)
	return nil
}

// modulo is v % x, which also formats strings.
func modulo(m *meter, v, x any) any {
	if t, ok := v.(text); ok {
		return percent(m, t, x)
	}
	return arithmetic(m, "%", v, x)
}

// readable returns a number's text without the white space around it, and counts what reading it costs.
func readable(m *meter, s string) string {
	m.spend(2 * len(s))
	m.step(len(s) / 8)
	if strings.ContainsFunc(s, func(c rune) bool { return c == '_' || c > 0x7f && unicode.IsDigit(c) }) || len(s) > maxDigits {
		m.unknown("a number with _, other digits than 0 to 9, or of more than %d", maxDigits)
	}
	return strings.TrimFunc(s, isSpace)
}
