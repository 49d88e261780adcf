package grammar

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// decimal is a number, exactly: whole has no leading zeros and part, behind the point, no trailing ones; either may be "".
type decimal struct {
	negative    bool
	whole, part string
}

// maxExponent bounds the exponents of numbers in a schema, and mostDigits their digits; float64 goes to 1e308.
const maxExponent, mostDigits = 400, 1000

// readDecimal reads a JSON number.
func readDecimal(s string) (d decimal) {
	if len(s) > mostDigits {
		panic(tooLarge("a number of %d digits", len(s)))
	}
	s, d.negative = strings.CutPrefix(s, "-")
	mantissa, exponent := s, 0
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		e, err := strconv.Atoi(s[i+1:])
		if err != nil || e > maxExponent || e < -maxExponent {
			panic(tooLarge("the exponent of %s", s))
		}
		mantissa, exponent = s[:i], e
	}
	whole, part, _ := strings.Cut(mantissa, ".")
	if exponent > 0 {
		part += strings.Repeat("0", max(0, exponent-len(part)))
		whole, part = whole+part[:exponent], part[exponent:]
	} else {
		whole = strings.Repeat("0", max(0, -exponent-len(whole))) + whole
		whole, part = whole[:len(whole)+exponent], whole[len(whole)+exponent:]+part
	}
	d.whole, d.part = strings.TrimLeft(whole, "0"), strings.TrimRight(part, "0")
	d.negative = d.negative && d.whole+d.part != ""
	return d
}

func (d decimal) String() string {
	s := d.whole
	if s == "" {
		s = "0"
	}
	if d.part != "" {
		s += "." + d.part
	}
	if d.negative {
		s = "-" + s
	}
	return s
}

func (d decimal) minus() decimal {
	d.negative = !d.negative && d.whole+d.part != ""
	return d
}

func (d decimal) compare(e decimal) int {
	if d.negative != e.negative {
		if d.negative {
			return -1
		}
		return 1
	}
	c := cmp.Or(cmp.Compare(len(d.whole), len(e.whole)), cmp.Compare(d.whole, e.whole), cmp.Compare(d.part, e.part))
	if d.negative {
		return -c
	}
	return c
}

// bound is a limit of a number: open if the limit itself is beyond it.
type bound struct {
	set, open bool
	at        decimal
}

// interval is the numbers between two bounds.
type interval struct{ low, high bound }

// narrow keeps the narrower of b and o; sign is 1 for lower bounds, −1 for upper ones.
func (b *bound) narrow(o bound, sign int) {
	if c := sign * o.at.compare(b.at); !b.set || c > 0 || c == 0 && o.open {
		*b = o
	}
}

func (i interval) has(d decimal) bool {
	low, high := d.compare(i.low.at), d.compare(i.high.at)
	return !(i.low.set && (low < 0 || low == 0 && i.low.open)) && !(i.high.set && (high > 0 || high == 0 && i.high.open))
}

// apart reports whether no number is in both.
func (i interval) apart(o interval) bool {
	if o.low.set {
		i.low.narrow(o.low, 1)
	}
	if o.high.set {
		i.high.narrow(o.high, -1)
	}
	if !i.low.set || !i.high.set {
		return false
	}
	c := i.low.at.compare(i.high.at)
	return c > 0 || c == 0 && (i.low.open || i.high.open)
}

// sides returns the intervals of the absolute values of i's numbers: of those not below 0, and of those below 0. ok is false for a side
// that is empty.
func (i interval) sides() (out [2]interval, ok [2]bool) {
	zero := decimal{}
	up := interval{low: bound{set: true}, high: i.high}
	if i.low.set {
		up.low.narrow(i.low, 1)
	}
	down := interval{low: bound{set: true, open: true}, high: bound{i.low.set, i.low.open, i.low.at.minus()}}
	if i.high.set {
		down.low.narrow(bound{true, i.high.open, i.high.at.minus()}, 1)
	}
	return [2]interval{up, down}, [2]bool{!i.high.set || i.high.at.compare(zero) >= 0, !i.low.set || i.low.at.negative}
}

// The places in a number.
const (
	atStart = iota
	atSign
	atWhole
	atPoint
	atPart
)

// digits is a number that is being read, and how it compares with the bounds of its side: −1, 0 or 1 for what was read of the whole part
// and, behind the point, for all that was read.
type digits struct {
	place uint8
	side  uint8
	count int16 // of digits: of the whole part, where 0 has none; then of the part
	c     [2]int8
}

// numberForm is how numbers are written.
type numberForm uint8

const (
	integers  numberForm = iota // without a fraction
	fractions                   // with any fraction or none
	wholes                      // integers, with or without a fraction of zeros
)

// numbers is the numbers of an interval, without exponents and without −0.
type numbers struct {
	sides [2]interval // of absolute values
	ok    [2]bool
	form  numberForm
	most  int // digits before and behind the point
}

func (n *numbers) at(d digits, k int) bound {
	return [2]bound{n.sides[d.side].low, n.sides[d.side].high}[k]
}

// settle compares the whole part, which has ended.
func (n *numbers) settle(d digits) digits {
	for k := range d.c {
		if of := len(n.at(d, k).at.whole); int(d.count) != of {
			d.c[k] = int8(cmp.Compare(int(d.count), of))
		}
	}
	d.count = 0
	return d
}

func (n *numbers) step(d digits, r rune) (digits, bool) {
	was := d.place
	switch {
	case r == '-':
		d.side, d.place = 1, atSign
		return d, was == atStart
	case r == '.':
		d = n.settle(d)
		d.place = atPoint
		return d, was == atWhole && n.form != integers
	case r < '0' || r > '9' || was >= atPoint && n.form == wholes && r != '0' || int(d.count) == n.most || was == atWhole && d.count == 0:
		return d, false
	}
	if d.place = atPart; was < atPoint {
		d.place = atWhole
	}
	if was < atWhole && r == '0' {
		return d, true
	}
	for k := range d.c {
		digit, of := '0', n.at(d, k).at.whole
		if was >= atPoint {
			of = n.at(d, k).at.part
		}
		if int(d.count) < len(of) {
			digit = rune(of[d.count])
		}
		if d.c[k] == 0 {
			d.c[k] = int8(cmp.Compare(r, digit))
		}
	}
	d.count++
	return d, true
}

func (n *numbers) accept(d digits) bool {
	if d.place == atWhole {
		d = n.settle(d)
	} else if d.place != atPart {
		return false
	}
	for k, beyond := range [2]int8{-1, 1} {
		it := n.at(d, k)
		if d.c[k] == 0 && int(d.count) < len(it.at.part) {
			d.c[k] = -1
		}
		if it.set && (d.c[k] == beyond || d.c[k] == 0 && it.open) {
			return false
		}
	}
	return n.ok[d.side]
}

// rest is a number that is being read: what is left of its digits when they are divided, and how many stand behind the point.
type rest struct {
	place uint8
	left  uint64
	part  int
}

// maxDivisor bounds the digits of multipleOf, without the point.
const maxDivisor = 1 << 16

// multiples returns the automaton of the multiples of d.
func (b *builder) multiples(d decimal) *automaton {
	by, err := strconv.ParseUint(strings.TrimLeft(d.whole+d.part, "0"), 10, 64)
	if d.negative || err != nil && d.whole+d.part == "" {
		panic(invalid("it is above 0"))
	}
	if err != nil || by > maxDivisor {
		panic(tooLarge("%v has too many digits", d))
	}
	return b.automaton("multiples of "+d.String(), func() *automaton {
		al := everything()
		for _, r := range "0123456789-." {
			al = al.cut(&b.budget, []rune{r, r})
		}
		a, _ := explore(&b.budget, al, rest{}, func(n rest, r rune) (rest, bool) {
			switch {
			case r == '-':
				return rest{place: atSign}, n.place == atStart
			case r == '.':
				was := n.place
				n.place = atPoint
				return n, was == atWhole
			case r < '0' || r > '9' || n.place >= atPoint && n.part == len(d.part) && r != '0':
				return n, false
			}
			if n.place < atPoint {
				n.place = atWhole
			} else {
				n.place = atPart
			}
			if n.place == atWhole || n.part < len(d.part) {
				n.left = (n.left*10 + uint64(r-'0')) % by
				if n.place == atPart {
					n.part++
				}
			}
			return n, true
		}, func(n rest) bool {
			left := n.left
			for range len(d.part) - n.part {
				left = left * 10 % by
			}
			return left == 0 && (n.place == atWhole || n.place == atPart)
		})
		return a
	})
}

// numbers returns the automaton of the numbers in i, nil if there are none.
func (b *builder) numbers(i interval, form numberForm) *automaton {
	return b.automaton(fmt.Sprint("numbers", form, i), func() *automaton {
		low, high := i.low.at, i.high.at
		n := &numbers{form: form, most: max(maxDigits, len(low.whole), len(high.whole), len(low.part), len(high.part))}
		n.sides, n.ok = i.sides()
		al := everything()
		for _, r := range "0123456789-." {
			al = al.cut(&b.budget, []rune{r, r})
		}
		a, _ := explore(&b.budget, al, digits{}, n.step, n.accept)
		return a
	})
}
