package token

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// A slow regular-expression matcher with look-ahead, to say what the splitters should do: leftmost, the
// first alternative, greedy, backtracking. It matches s from i on and asks k whether the rest matches.
type regex func(s string, i int, k func(end int) bool) bool

// regexParser reads (?:…), (?!…), […], |, ?, *, +, {m,n}, $, \s, \S, \p{…} of the classes that the sources name, \r, \n.
type regexParser struct{ rest []rune }

func compile(source string) regex {
	p := &regexParser{[]rune(source)}
	re := p.alternatives()
	if len(p.rest) > 0 {
		panic("what is " + string(p.rest))
	}
	return re
}

func (p *regexParser) take(prefix string) bool {
	if !strings.HasPrefix(string(p.rest[:min(len(p.rest), len(prefix))]), prefix) {
		return false
	}
	p.rest = p.rest[len([]rune(prefix)):]
	return true
}

func (p *regexParser) alternatives() regex {
	list := []regex{p.sequence()}
	for p.take("|") {
		list = append(list, p.sequence())
	}
	return func(s string, i int, k func(int) bool) bool {
		return slices.ContainsFunc(list, func(re regex) bool { return re(s, i, k) })
	}
}

func (p *regexParser) sequence() regex {
	seq := regex(func(s string, i int, k func(int) bool) bool { return k(i) })
	for len(p.rest) > 0 && p.rest[0] != '|' && p.rest[0] != ')' {
		first, then := seq, p.repeated(p.atom())
		seq = func(s string, i int, k func(int) bool) bool {
			return first(s, i, func(j int) bool { return then(s, j, k) })
		}
	}
	return seq
}

func (p *regexParser) atom() regex {
	switch {
	case p.take("(?:"):
		re := p.alternatives()
		p.take(")")
		return re
	case p.take("(?!"):
		re := p.alternatives()
		p.take(")")
		return func(s string, i int, k func(int) bool) bool {
			return !re(s, i, func(int) bool { return true }) && k(i)
		}
	case p.take("$"):
		return func(s string, i int, k func(int) bool) bool { return i == len(s) && k(i) }
	}
	in := p.class()
	return func(s string, i int, k func(int) bool) bool {
		if i == len(s) {
			return false
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if size == 1 && r == utf8.RuneError {
			r = -1 // a byte that is not UTF-8 is in no class but the negated
		}
		return in(r) && k(i+size)
	}
}

func (p *regexParser) repeated(re regex) regex {
	least, most := 1, 1
	switch {
	case p.take("?"):
		least = 0
	case p.take("*"):
		least, most = 0, 1000
	case p.take("+"):
		most = 1000
	case p.take("{"):
		end := slices.Index(p.rest, '}')
		lo, hi, _ := strings.Cut(string(p.rest[:end]), ",")
		least, _ = strconv.Atoi(lo)
		most, _ = strconv.Atoi(hi)
		p.rest = p.rest[end+1:]
	}
	var times func(n int, s string, i int, k func(int) bool) bool
	times = func(n int, s string, i int, k func(int) bool) bool {
		return n < most && re(s, i, func(j int) bool { return times(n+1, s, j, k) }) || n >= least && k(i)
	}
	return func(s string, i int, k func(int) bool) bool { return times(0, s, i, k) }
}

func in(table *unicode.RangeTable) func(rune) bool {
	return func(r rune) bool { return unicode.Is(table, r) }
}

// class reads one character, escape or […].
func (p *regexParser) class() func(rune) bool {
	named := map[string]func(rune) bool{`\p{L}`: unicode.IsLetter, `\p{N}`: unicode.IsNumber, `\p{P}`: unicode.IsPunct,
		`\p{M}`: unicode.IsMark, `\p{Lu}`: unicode.IsUpper, `\p{Lt}`: in(unicode.Lt), `\p{Ll}`: in(unicode.Ll), `\p{Lm}`: in(unicode.Lm),
		`\p{Lo}`: in(unicode.Lo),
		`\s`:     func(r rune) bool { return unicode.Is(unicode.White_Space, r) }}
	for name, in := range named {
		if p.take(name) {
			return in
		}
	}
	switch {
	case p.take(`\S`):
		return func(r rune) bool { return !unicode.Is(unicode.White_Space, r) }
	case !p.take("["):
		r := p.character()
		return func(x rune) bool { return x == r }
	}
	negated := p.take("^")
	var list []func(rune) bool
next:
	for !p.take("]") {
		for name, in := range named {
			if p.take(name) {
				list = append(list, in)
				continue next
			}
		}
		lo := p.character()
		hi := lo
		if p.take("-") {
			hi = p.character()
		}
		list = append(list, func(r rune) bool { return lo <= r && r <= hi })
	}
	return func(r rune) bool {
		return slices.ContainsFunc(list, func(in func(rune) bool) bool { return in(r) }) != negated
	}
}

func (p *regexParser) character() rune {
	if p.take(`\r`) {
		return '\r'
	}
	if p.take(`\n`) {
		return '\n'
	}
	p.take(`\`)
	r := p.rest[0]
	p.rest = p.rest[1:]
	return r
}

// parts cuts s into the matches of list's first and what lies between, those by the second, and so on.
func parts(s string, list []regex) (out []string) {
	if len(list) == 0 {
		return []string{s}
	}
	from := 0
	for i := 0; i < len(s); {
		end := -1
		if !list[0](s, i, func(j int) bool { end = j; return j > i }) {
			_, size := utf8.DecodeRuneInString(s[i:])
			i += size
			continue
		}
		if i > from {
			out = append(out, parts(s[from:i], list[1:])...)
		}
		out = append(out, parts(s[i:end], list[1:])...)
		from, i = end, end
	}
	if from < len(s) {
		out = append(out, parts(s[from:], list[1:])...)
	}
	return out
}

// checkSplit says how the splitter differs from the regular expressions on s.
func checkSplit(stages []stage, list []regex, s string) error {
	var got []string
	split(s, stages, func(w string) { got = append(got, w) })
	if want := parts(s, list); !slices.Equal(got, want) {
		return fmt.Errorf("%q is cut into\n    %q: want\n    %q", s, got, want)
	}
	return nil
}

// checkLinear says whether the splitter takes longer than limit for s; it stops soon after.
func checkLinear(stages []stage, s string, limit time.Duration) (err error) {
	start, size := time.Now(), len(s)
	last := func(s string) int {
		if time.Since(start) > limit {
			err = fmt.Errorf("cutting %d bytes takes longer than %v", size, limit)
		}
		return len(s)
	}
	for s != "" && err == nil {
		n := stages[0](s)
		split(s[:n], append(slices.Clone(stages[1:]), last), func(string) {})
		s = s[n:]
	}
	return err
}
