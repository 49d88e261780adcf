package chat

import (
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// format is Python's t.format(…).
func (r *run) format(t text, a args) text {
	return r.formatWith(t, a.pos, func(name string) (any, bool) { return r.named(a, name) })
}

// formatter is one .format under way.
type formatter struct {
	r      *run
	safe   bool
	pos    []any
	named  func(name string) (any, bool)
	next   int // of fields without a name
	manual bool
}

func (r *run) formatWith(t text, pos []any, named func(name string) (any, bool)) text {
	f := &formatter{r: r, safe: t.safe, pos: pos, named: named}
	out := f.fields(t, 2)
	out.safe = t.safe
	return out
}

func (f *formatter) fail(format string, args ...any) {
	f.r.fail(tandem.Invalid, ".format(): "+format, args...)
}

// fields replaces the fields of t; those within a format may have further ones, depth levels in all.
func (f *formatter) fields(t text, depth int) text {
	if depth == 0 {
		f.fail("fields are too deep inside one another")
	}
	b := &builder{r: f.r}
	s := t.s
	for from := 0; ; {
		i := strings.IndexAny(s[from:], "{}")
		if i < 0 {
			b.add(t.slice(from, len(s)))
			return b.text()
		}
		b.add(t.slice(from, from+i))
		from += i
		switch {
		case from+1 < len(s) && s[from+1] == s[from]:
			b.add(t.slice(from, from+1))
			from += 2
		case s[from] == '}':
			f.fail("a } without {: want }} for the character")
		default:
			end := f.end(s, from)
			b.add(f.field(t.slice(from+1, end), depth))
			from = end + 1
		}
	}
}

// end returns where the field that begins at i ends.
func (f *formatter) end(s string, i int) int {
	open, inName := 0, false
	for ; i < len(s); i++ {
		switch s[i] {
		case '[':
			inName = true
		case ']':
			inName = false
		case '{':
			if !inName || open == 0 {
				open++
			}
		case '}':
			if inName {
				continue
			}
			if open--; open == 0 {
				return i
			}
		}
	}
	f.fail("a { without }: want {{ for the character")
	return 0
}

// field returns the text of "name!conversion:format".
func (f *formatter) field(t text, depth int) text {
	end := 0
	for brackets := false; end < len(t.s) && (brackets || t.s[end] != '!' && t.s[end] != ':'); end++ {
		switch t.s[end] {
		case '[':
			brackets = true
		case ']':
			brackets = false
		case '{':
			f.fail("a { in the name of a field")
		}
	}
	name, rest, conversion := t.s[:end], t.slice(end, len(t.s)), ""
	if strings.HasPrefix(rest.s, "!") {
		_, n := utf8.DecodeRuneInString(rest.s[1:])
		if conversion = rest.s[1 : 1+n]; n == 0 || len(rest.s) > 1+n && rest.s[1+n] != ':' {
			f.fail("%s: want a conversion and nothing or a colon behind !", short(t.s))
		}
		rest = rest.slice(1+n, len(rest.s))
	}
	v := f.lookup(name)
	switch conversion {
	case "":
	case "s":
		v = f.r.str(v).plain()
	case "r":
		v = f.r.reprOf(v)
	case "a":
		repr := f.r.reprOf(v)
		v = repr.remade(pyEscapeASCII(f.r, repr.s))
	default:
		f.fail("conversion %s: want !s, !r or !a", short(conversion))
	}
	spec := text{}
	if rest.s != "" {
		spec = f.fields(rest.slice(1, len(rest.s)), depth-1)
	}
	out := f.r.formatValue(v, spec)
	if f.safe {
		out = f.r.escape(out)
	}
	return out
}

// lookup returns what a name like "a.b[c]" or "0" or "" means.
func (f *formatter) lookup(name string) any {
	end := strings.IndexAny(name, ".[")
	if end < 0 {
		end = len(name)
	}
	v := f.first(name[:end], end == len(name))
	for rest := name[end:]; rest != ""; {
		f.r.step(1)
		if rest[0] == '.' {
			if end = strings.IndexAny(rest[1:], ".[") + 1; end == 0 {
				end = len(rest)
			}
			if end == 1 {
				f.fail("%s: a name is empty", short(name))
			}
			v, rest = f.r.attr(v, rest[1:end]), rest[end:]
			continue
		}
		end = strings.IndexByte(rest, ']')
		if rest[0] != '[' || end < 2 {
			f.fail("%s: want .name or [key]", short(name))
		}
		var key any = lit(rest[1:end])
		if n, err := strconv.ParseInt(rest[1:end], 10, 64); err == nil && n >= 0 && rest[1] != '+' {
			key = n
		}
		v, rest = f.r.item(v, key), rest[end+1:]
	}
	return v
}

// first returns the value that a name, or the part before its first attribute, means.
func (f *formatter) first(name string, whole bool) any {
	n, err := strconv.Atoi(name)
	isNumber := err == nil && n >= 0 && name[0] != '+'
	if name == "" && whole || isNumber {
		if whole && (f.manual && name == "" || isNumber && f.next > 0) {
			f.fail("fields with and without numbers")
		}
		if name == "" {
			n = f.next
			f.next++
		} else {
			f.manual = f.manual || whole
		}
		if n >= len(f.pos) {
			f.fail("there is no value %d", n)
		}
		return f.pos[n]
	}
	v, ok := f.named(name)
	if !ok {
		f.fail("there is no value %s", short(name))
	}
	return v
}

// formatValue is Python's format(v, spec).
func (r *run) formatValue(v any, spec text) text {
	if spec.s == "" {
		return r.str(v)
	}
	switch x := v.(type) {
	case text:
		if x.safe {
			r.fail(tandem.Invalid, ".format(): a safe string has no format")
		}
		f, c := r.formatSpec(spec, '<')
		if c != 's' && c != 0 || f.sign != 0 || f.alt || f.align == '=' && f.fill.s != "0" || f.group != 0 {
			r.fail(tandem.Invalid, ".format(): format %s does not fit a string", short(spec.s))
		}
		if f.align == '=' {
			r.fail(tandem.Invalid, ".format(): format %s does not fit a string", short(spec.s))
		}
		if f.precision >= 0 {
			x = r.cutText(x, 0, f.precision, 1, false, true)
		}
		b := &builder{r: r}
		f.alignment(b, x, 0)
		return b.text()
	case bool, int64, *big.Int:
		return r.formatWhole(large(v), v, spec)
	case float64:
		return r.formatFloat(x, spec)
	}
	r.fail(tandem.Invalid, ".format(): %s has no format %s", kind(v), short(spec.s))
	return text{}
}

func (r *run) formatWhole(n *big.Int, v any, spec text) text {
	f, c := r.formatSpec(spec, '>')
	b := &builder{r: r}
	switch c {
	case 0, 'd', 'b', 'o', 'x', 'X', 'c':
		if f.precision >= 0 || c == 'c' && (f.sign != 0 || f.alt || f.group != 0) {
			r.fail(tandem.Invalid, ".format(): format %s does not fit a whole number", short(spec.s))
		}
		if f.group == ',' && c != 0 && c != 'd' {
			r.fail(tandem.Invalid, ".format(): \",\" does not fit %q", c)
		}
		if c == 'c' {
			if !n.IsInt64() || n.Int64() < 0 || n.Int64() > utf8.MaxRune {
				r.fail(tandem.Invalid, ".format(): a number is no character")
			}
			f.alignment(b, lit(string(rune(n.Int64()))), 0)
			return b.text()
		}
		base := map[byte]int{0: 10, 'd': 10, 'b': 2, 'o': 8, 'x': 16, 'X': 16}[c]
		f.whole(b, n, base, c == 'X')
		return b.text()
	}
	return r.formatFloat(r.float(v), spec)
}

func (r *run) formatFloat(v float64, spec text) text {
	f, c := r.formatSpec(spec, '>')
	b := &builder{r: r}
	switch c {
	case 'e', 'E', 'f', 'F', 'g', 'G', '%':
		if f.precision < 0 {
			f.precision = 6
		}
		if c != '%' {
			f.fraction(b, v, c)
			break
		}
		inner := f
		inner.width = 0
		one := &builder{r: r}
		inner.fraction(one, v*100, 'f')
		s := one.text().s + "%"
		prefix := len(s) - len(strings.TrimLeft(s, "+- "))
		f.alignment(b, lit(s), prefix)
	case 0:
		if f.precision < 0 {
			s := pyFloat(v)
			minus := strings.HasPrefix(s, "-")
			s = strings.TrimPrefix(s, "-")
			end := strings.IndexAny(s, ".e")
			if end < 0 {
				end = len(s)
			}
			f.digits(b, f.signOf(minus), s[:end], s[end:], 3)
			break
		}
		f.dotZero = true
		f.precision = max(1, f.precision)
		f.fraction(b, v, 'g')
	default:
		r.fail(tandem.Invalid, ".format(): format %s does not fit a number", short(spec.s))
	}
	return b.text()
}

// formatSpec reads [[fill]align][sign][#][0][width][group][.precision][letter].
func (r *run) formatSpec(spec text, align byte) (f numberFormat, letter byte) {
	s := spec.s
	f = numberFormat{fill: lit(" "), align: align, precision: -1}
	_, n := utf8.DecodeRuneInString(s)
	aligned := false
	switch {
	case len(s) > n && strings.IndexByte("<>^=", s[n]) >= 0:
		f.fill, f.align, s, aligned = spec.slice(0, n), s[n], s[n+1:], true
	case strings.IndexByte("<>^=", s[0]) >= 0:
		f.align, s, aligned = s[0], s[1:], true
	}
	next := func(chars string) byte {
		if s != "" && strings.IndexByte(chars, s[0]) >= 0 {
			c := s[0]
			s = s[1:]
			return c
		}
		return 0
	}
	if c := next("+- "); c != '-' {
		f.sign = c
	}
	if next("z") != 0 {
		r.fail(tandem.Unsupported, ".format(): z in the format %s is not something that tandem has", short(spec.s))
	}
	f.alt = next("#") != 0
	if strings.HasPrefix(s, "0") {
		if s = s[1:]; !aligned {
			f.fill = lit("0")
			if align == '>' {
				f.align = '='
			}
		} else if f.fill.s == " " && spec.s[0] != ' ' {
			f.fill = lit("0")
		}
	}
	size := func() int {
		end := digits(s, 0, 10)
		n, err := strconv.Atoi(strings.ReplaceAll(s[:end], "_", "?"))
		if err != nil || n > 1<<30 {
			r.fail(tandem.Invalid, ".format(): format %s: want a number of at most %d", short(spec.s), 1<<30)
		}
		s = s[end:]
		return n
	}
	if s != "" && s[0] >= '0' && s[0] <= '9' {
		f.width = size()
	}
	f.group = next(",_")
	if next(".") != 0 {
		f.precision = size()
	}
	letter = next("bcdeEfFgGnosxX%")
	if letter == 'n' {
		r.fail(tandem.Unsupported, ".format(): letter n is not something that tandem has")
	}
	if s != "" {
		r.fail(tandem.Invalid, ".format(): format %s is not one that there is", short(spec.s))
	}
	return f, letter
}

// pyEscapeASCII writes characters beyond ASCII as escapes.
func pyEscapeASCII(r *run, s string) string {
	return rewrite(r, s, func(_ int, c rune) (string, bool) { return pyCode(c), c >= utf8.RuneSelf }, nil)
}
