package chat

import (
	"math"
	"math/big"
	"math/bits"

	"github.com/tandem-llm/tandem"
)

// maxBits bounds whole numbers.
const maxBits = 1 << 14

// whole returns n as a template's value: int64 where it fits.
func whole(n *big.Int) any {
	if n != nil && n.IsInt64() {
		return n.Int64()
	}
	return n
}

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

// large returns a whole number or a bool, nil for other values.
func large(v any) *big.Int {
	switch v := number(v).(type) {
	case int64:
		return big.NewInt(v)
	case *big.Int:
		return v
	}
	return nil
}

// isWhole reports whether v is a whole number or a bool.
func isWhole(v any) bool {
	switch v.(type) {
	case int64, *big.Int, bool:
		return true
	}
	return false
}

// isNumber reports whether v is a number or a bool.
func isNumber(v any) bool {
	_, fraction := v.(float64)
	return fraction || isWhole(v)
}

// float returns a number as a fraction.
func (r *run) float(v any) float64 {
	switch v := number(v).(type) {
	case int64:
		return float64(v)
	case float64:
		return v
	case *big.Int:
		f, _ := new(big.Float).SetInt(v).Float64()
		if math.IsInf(f, 0) {
			r.fail(tandem.Invalid, "a whole number is too large for a fraction")
		}
		return f
	}
	r.fail(tandem.Invalid, "%s is no number", kind(v))
	return 0
}

// exact returns the whole number that f is.
func exact(f float64) (any, bool) {
	if f != math.Trunc(f) || math.IsInf(f, 0) {
		return nil, false
	}
	return truncated(f), true
}

// truncated returns a finite f without its fraction.
func truncated(f float64) any {
	if math.Abs(f) < 1<<62 {
		return int64(f)
	}
	n, _ := big.NewFloat(f).Int(nil)
	return whole(n)
}

// order compares two numbers exactly: -1, 0, 1, and 2 where one is not a number.
func (r *run) order(a, b any) int {
	a, b = number(a), number(b)
	x, xok := a.(int64)
	y, yok := b.(int64)
	if xok && yok {
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	}
	f, fok := a.(float64)
	g, gok := b.(float64)
	switch {
	case fok && math.IsNaN(f) || gok && math.IsNaN(g):
		return 2
	case fok && math.IsInf(f, 0) || gok && math.IsInf(g, 0) || fok && gok:
		if !fok {
			f = 0
		}
		if !gok {
			g = 0
		}
		return big.NewFloat(f).Cmp(big.NewFloat(g))
	}
	r.step(64) // of large numbers, with the room of rational
	if !fok && !gok {
		return large(a).Cmp(large(b))
	}
	return rational(a).Cmp(rational(b))
}

func rational(v any) *big.Float {
	if f, ok := v.(float64); ok {
		return big.NewFloat(f)
	}
	return new(big.Float).SetPrec(maxBits + 64).SetInt(large(v))
}

func (r *run) sign(minus bool, v any) any {
	v = number(v)
	if !isNumber(v) {
		r.fail(tandem.Invalid, "%s has no sign", kind(v))
	}
	if !minus {
		return v
	}
	if f, ok := v.(float64); ok {
		return -f
	}
	if n, ok := v.(int64); ok && n != math.MinInt64 {
		return -n
	}
	return whole(new(big.Int).Neg(large(v)))
}

// arithmetic computes with numbers as Python does.
func (r *run) arithmetic(op string, left, right any) any {
	left, right = number(left), number(right)
	if !isNumber(left) || !isNumber(right) {
		r.fail(tandem.Invalid, "%s %s %s is not defined", kind(left), op, kind(right))
	}
	if (op == "/" || op == "//" || op == "%") && !truth(right) || right == 0.0 && (op == "/" || op == "//" || op == "%") {
		r.fail(tandem.Invalid, "division by zero")
	}
	if !isWhole(left) || !isWhole(right) {
		return r.fractions(op, r.float(left), r.float(right))
	}
	i, iok := left.(int64)
	j, jok := right.(int64)
	if iok && jok {
		if n, ok := small(op, i, j); ok {
			return n
		}
	}
	return r.wholes(op, large(left), large(right))
}

// small computes where the result fits into 64 bits and is quickly found.
func small(op string, i, j int64) (any, bool) {
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
		return float64(i) / float64(j), magnitude(i) < 1<<53 && magnitude(j) < 1<<53
	case "//", "%":
		if i == math.MinInt64 {
			return nil, false
		}
		m := i % j
		if m != 0 && (m < 0) != (j < 0) {
			m += j
		}
		if op == "%" {
			return m, true
		}
		return (i - m) / j, magnitude(i) < 1<<62 && magnitude(j) < 1<<62
	}
	return nil, false
}

func magnitude(i int64) uint64 {
	if i < 0 {
		return -uint64(i)
	}
	return uint64(i)
}

func (r *run) wholes(op string, x, y *big.Int) any {
	most := max(x.BitLen(), y.BitLen()) + 1
	switch op {
	case "*":
		most = x.BitLen() + y.BitLen()
	case "**":
		if y.Sign() < 0 {
			return r.fractions(op, r.float(x), r.float(y))
		}
		if x.BitLen() > 1 {
			if !y.IsInt64() || y.Int64() > maxBits {
				most = maxBits + 1
			} else {
				most = x.BitLen() * int(y.Int64())
			}
		}
	}
	if most > maxBits {
		r.fail(tandem.Invalid, "a whole number of more than %d bits", maxBits)
	}
	r.step(1 + most/64)
	r.spend(most / 4)
	n := new(big.Int)
	switch op {
	case "+":
		n.Add(x, y)
	case "-":
		n.Sub(x, y)
	case "*":
		n.Mul(x, y)
	case "**":
		if x.BitLen() <= 1 && y.BitLen() > 1 { // of 0, 1 and -1, whose power depends on whether y is even
			y = new(big.Int).Add(big.NewInt(2), new(big.Int).And(y, big.NewInt(1)))
		}
		n.Exp(x, y, nil)
	case "/":
		f, _ := new(big.Rat).SetFrac(x, y).Float64()
		if math.IsInf(f, 0) {
			r.fail(tandem.Invalid, "a quotient is too large")
		}
		return f
	case "//", "%":
		m := new(big.Int)
		n.DivMod(x, y, m) // m is never negative
		if m.Sign() != 0 && y.Sign() < 0 {
			m.Add(m, y)
			n.Sub(n, big.NewInt(1))
		}
		if op == "%" {
			n = m
		}
	}
	return whole(n)
}

func (r *run) fractions(op string, x, y float64) any {
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "/":
		return x / y
	case "**":
		return r.power(x, y)
	}
	m := math.Mod(x, y)
	d := (x - m) / y
	switch {
	case m == 0:
		m = math.Copysign(0, y)
	case (y < 0) != (m < 0):
		m += y
		d--
	}
	if op == "%" {
		return m
	}
	if d == 0 {
		return math.Copysign(0, x/y)
	}
	f := math.Floor(d)
	if d-f > 0.5 {
		f++
	}
	return f
}

func (r *run) power(x, y float64) any {
	switch {
	case x == 0 && y < 0:
		r.fail(tandem.Invalid, "0 ** %v is not defined", y)
	case x < 0 && y != math.Trunc(y) && !math.IsInf(x, 0):
		r.fail(tandem.Unsupported, "%v ** %v is a complex number, which tandem does not know", x, y)
	}
	f := math.Pow(x, y)
	if n := math.Abs(y); n == math.Trunc(n) && n <= 1024 && !math.IsInf(x, 0) && !math.IsNaN(x) && f != 0 && !math.IsInf(f, 0) {
		f = powerOf(x, int(n), y < 0) // correctly rounded, which math.Pow is not
	}
	if math.IsInf(f, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
		r.fail(tandem.Invalid, "%v ** %v is too large", x, y)
	}
	return f
}

func powerOf(x float64, n int, inverse bool) float64 {
	p, b := big.NewFloat(1).SetPrec(256), big.NewFloat(x).SetPrec(256)
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			p.Mul(p, b)
		}
		b.Mul(b, b)
	}
	if inverse {
		p.Quo(big.NewFloat(1).SetPrec(256), p)
	}
	f, _ := p.Float64()
	return f
}
