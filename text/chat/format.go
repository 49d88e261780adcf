package chat

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// placeholder is what begins with %: the form of a value, with its letter. field is what begins with a brace: a name and a form.
var (
	placeholder = regexp.MustCompile(`^%(?:%|(0?[0-9]{0,2}(?:\.[0-9])?[sdf]))`)
	field       = regexp.MustCompile(`^(?:\{\{|\}\}|\{(\w*)(?::(0?[0-9]{0,2}d|\.[0-9]f|[sd]?))?\})`)
)

// substitute replaces each re, which begins with one of signs, by what with returns of its parts, and signs that are doubled by themselves.
func (t text) substitute(m *meter, signs string, re *regexp.Regexp, with func(found []string) text) text {
	m.unknownIf(t.safe, "a format that is a safe string")
	m.spend(16 * len(t.user))
	b := builder{m: m}
	for from := 0; ; {
		i := strings.IndexAny(t.s[from:], signs)
		if i < 0 {
			b.add(t.slice(from, len(t.s)))
			return b.text()
		}
		b.add(t.slice(from, from+i))
		from += i
		m.step(1)
		found := re.FindStringSubmatch(t.s[from:min(len(t.s), from+2*maxName)])
		if found == nil {
			m.unknown("the format %s", short(t.s[from:min(len(t.s), from+20)]))
		}
		if whole := found[0]; len(whole) == 2 && whole[0] == whole[1] {
			b.add(t.slice(from, from+1))
		} else {
			b.add(with(found))
		}
		from += len(found[0])
	}
}

// percent is Python's t % v, with %s, %d, %05d, %f, %.2f and %%.
func percent(m *meter, t text, v any) text {
	pos := []any{v}
	l, ok := v.(*list)
	if ok && l.tuple {
		pos = l.items
	}
	used := 0
	out := t.substitute(m, "%", placeholder, func(found []string) text {
		m.invalidIf(used == len(pos), "%s wants more values than there are", short(found[0]))
		used++
		return formatted(m, found[1], pos[used-1], true)
	})
	_, isText := v.(text)
	if hasItems := iterable(v) && !isText && len(pos) == 1; used < len(pos) && !hasItems {
		m.invalid("%s %% …: %d values, of which %d are used", short(t.s), len(pos), used)
	}
	return out
}

// format is Python's t.format(…), with fields {}, {0} and {name}, which may have the forms of formatted.
func format(t text, a args) text {
	next := 0
	return t.substitute(a.m, "{}", field, func(found []string) text {
		v, ok := a.named(found[1])
		if n, err := strconv.Atoi(found[1]); found[1] == "" || err == nil {
			if found[1] == "" {
				n = next
				next++
			} else if next > 0 {
				a.m.invalid(".format(): fields with and without numbers")
			}
			if ok = n < len(a.pos); ok {
				v = a.pos[n]
			}
		}
		a.m.invalidIf(!ok, ".format(): there is no value %s", short(found[0]))
		return formatted(a.m, found[2], v, false)
	})
}

// formatted is v in a form: "" or s as it prints, d and 05d for whole numbers, f and .2f for fractions. cut: d takes fractions too.
func formatted(m *meter, form string, v any, cut bool) text {
	if form == "" || form == "s" && (cut || kind(v) == "a string") {
		return str(m, v)
	}
	var out string
	switch n := number(v).(type) {
	case int64:
		switch {
		case form[len(form)-1] == 'd':
			return lit(fmt.Sprintf("%"+form, n))
		case form[len(form)-1] == 'f':
			out = fmt.Sprintf("%"+form, float64(n))
		}
	case float64:
		switch {
		case form[len(form)-1] == 'd' && cut && !math.IsNaN(n) && !math.IsInf(n, 0):
			return lit(fmt.Sprintf("%"+form, truncated(m, n)))
		case form[len(form)-1] == 'f' && !math.IsNaN(n) && !math.IsInf(n, 0):
			out = fmt.Sprintf("%"+form, n)
		}
	}
	m.unknownIf(out == "", "%s in the format %s", kind(v), short(form))
	return lit(out)
}
