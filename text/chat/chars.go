package chat

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// isSpace is Python's white space.
func isSpace(c rune) bool { return unicode.IsSpace(c) || 0x1c <= c && c <= 0x1f }

func isUpper(c rune) bool { return unicode.IsUpper(c) || unicode.Is(unicode.Other_Uppercase, c) }
func isLower(c rune) bool { return unicode.IsLower(c) || unicode.Is(unicode.Other_Lowercase, c) }
func isCased(c rune) bool { return isUpper(c) || isLower(c) || unicode.IsTitle(c) }

func within(ranges [][2]rune, c rune) bool {
	for _, r := range ranges {
		if r[0] <= c && c <= r[1] {
			return true
		}
	}
	return false
}

func isDigit(c rune) bool   { return unicode.IsDigit(c) || c > 0x7f && within(digitLike, c) }
func isNumeric(c rune) bool { return unicode.IsNumber(c) || c > 0x7f && within(numeric, c) }

// decimal returns the value of a decimal digit of any script, -1 for other characters.
func decimal(c rune) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case c <= 0x7f || !unicode.IsDigit(c):
		return -1
	}
	for _, r := range unicode.Nd.R16 {
		if rune(r.Lo) <= c && c <= rune(r.Hi) {
			return int(c-rune(r.Lo)) % 10
		}
	}
	for _, r := range unicode.Nd.R32 {
		if rune(r.Lo) <= c && c <= rune(r.Hi) {
			return int(c-rune(r.Lo)) % 10
		}
	}
	return -1
}

// rewrite returns s with each character replaced by what f returns, or where f has none by what simple returns; nil: by itself. What it
// reads and writes is counted piece by piece, so that it ends within the limits.
func rewrite(r *run, s string, f func(i int, c rune) (string, bool), simple func(c rune) rune) string {
	const piece = 4 << 10 // bytes
	b := builder{r: r}
	b.grow(len(s))
	next := 0
	for i, c := range s {
		if i >= next {
			r.step(min(piece, len(s)-i) / 64)
			next = i + piece
		}
		if b.b.Cap()-b.b.Len() < 12 { // what f returns has at most 12 bytes
			b.grow(12)
		}
		if long, ok := f(i, c); ok {
			b.b.WriteString(long)
		} else if simple != nil {
			b.b.WriteRune(simple(c))
		} else {
			b.b.WriteRune(c)
		}
	}
	return b.b.String()
}

func upper(r *run, s string) string {
	return rewrite(r, s, func(_ int, c rune) (string, bool) {
		long, ok := longUpper[c]
		return long, ok && c > 0x7f
	}, unicode.ToUpper)
}

func lower(r *run, s string) string { return lowerFrom(r, s, 0) }

// lowerFrom returns the lower case of what is from byte at on.
func lowerFrom(r *run, s string, at int) string {
	return rewrite(r, s[at:], func(i int, c rune) (string, bool) { return specialLower(s, at+i, c) }, unicode.ToLower)
}

// specialLower: İ becomes two characters, and Σ the form for ends of words at the end of a word.
func specialLower(s string, i int, c rune) (string, bool) {
	switch c {
	case 'İ':
		return "i̇", true
	case 'Σ':
		ignored := func(c rune) bool { return caseIgnorable(c) }
		before := strings.TrimRightFunc(s[:i], ignored)
		behind := strings.TrimLeftFunc(s[i+2:], ignored)
		last, n := utf8.DecodeLastRuneInString(before)
		next, m := utf8.DecodeRuneInString(behind)
		if n > 0 && isCased(last) && (m == 0 || !isCased(next)) {
			return "ς", true
		}
	}
	return "", false
}

func caseIgnorable(c rune) bool {
	return strings.ContainsRune("'.:^`¨\u00ad·´¸’", c) || unicode.In(c, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk)
}

func titleOf(c rune) string {
	if long, ok := longTitle[c]; ok {
		return long
	}
	if long, ok := longUpper[c]; ok && unicode.ToTitle(c) == c {
		return long
	}
	return string(unicode.ToTitle(c))
}

// title is the method .title(): words begin behind each character without a case.
func title(r *run, s string) string {
	inWord := false
	return rewrite(r, s, func(i int, c rune) (string, bool) {
		first := !inWord
		inWord = isCased(c)
		if first {
			return titleOf(c), true
		}
		return specialLower(s, i, c)
	}, unicode.ToLower)
}

func capitalize(r *run, s string) string {
	c, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return ""
	}
	return titleOf(c) + lowerFrom(r, s, n)
}

func swapcase(r *run, s string) string {
	return rewrite(r, s, func(i int, c rune) (string, bool) {
		switch {
		case isUpper(c):
			return specialLower(s, i, c)
		case isLower(c):
			long, ok := longUpper[c]
			return long, ok
		}
		return string(c), true
	}, func(c rune) rune {
		if isUpper(c) {
			return unicode.ToLower(c)
		}
		return unicode.ToUpper(c)
	})
}

func casefold(r *run, s string) string {
	return rewrite(r, s, func(_ int, c rune) (string, bool) {
		if c < utf8.RuneSelf {
			return "", false
		}
		to, ok := folded[c]
		switch { // Cherokee folds to its upper case
		case c == 'İ':
			return "i̇", true
		case 0x13a0 <= c && c <= 0x13f5:
			return string(c), true
		case 0xab70 <= c && c <= 0xabbf:
			return string(c - 0xab70 + 0x13a0), true
		}
		return to, ok
	}, unicode.ToLower)
}

// titleWords is the filter title. Unlike the method it begins words behind white space and - ( { [ <.
func titleWords(r *run, s string) string {
	b := builder{r: r}
	part := func(c rune) bool { return isSpace(c) || strings.ContainsRune("-({[<", c) }
	for s != "" {
		n := strings.IndexFunc(s, part)
		if n == 0 {
			n = strings.IndexFunc(s, func(c rune) bool { return !part(c) })
		}
		if n < 0 {
			n = len(s)
		}
		_, first := utf8.DecodeRuneInString(s)
		b.lit(upper(r, s[:first]) + lower(r, s[first:n]))
		s = s[n:]
	}
	return b.b.String()
}

// is tests that s has characters and all are of a class; isupper, islower and istitle look only at letters with a case.
func is(s, class string) bool {
	switch class {
	case "isupper", "islower":
		found := false
		for _, c := range s {
			if class == "isupper" && (isLower(c) || unicode.IsTitle(c)) || class == "islower" && (isUpper(c) || unicode.IsTitle(c)) {
				return false
			}
			found = found || isUpper(c) || isLower(c)
		}
		return found
	case "istitle":
		return isTitle(s)
	case "isascii", "isprintable":
		bad := func(c rune) bool { return c > 0x7f }
		if class == "isprintable" {
			bad = func(c rune) bool { return !unicode.IsPrint(c) }
		}
		return strings.IndexFunc(s, bad) < 0
	case "isidentifier":
		c, _ := utf8.DecodeRuneInString(s)
		return s != "" && (c == '_' || unicode.IsLetter(c)) && strings.IndexFunc(s, func(c rune) bool {
			return c != '_' && !unicode.In(c, unicode.L, unicode.Nd, unicode.Mn, unicode.Mc, unicode.Pc, unicode.Nl)
		}) < 0
	}
	in := map[string]func(rune) bool{"isdecimal": unicode.IsDigit, "isdigit": isDigit, "isnumeric": isNumeric, "isalpha": unicode.IsLetter,
		"isspace": isSpace, "isalnum": func(c rune) bool { return unicode.IsLetter(c) || isDigit(c) || isNumeric(c) }}[class]
	return s != "" && strings.IndexFunc(s, func(c rune) bool { return !in(c) }) < 0
}

func isTitle(s string) bool {
	inWord, found := false, false
	for _, c := range s {
		switch {
		case isUpper(c) || unicode.IsTitle(c):
			if inWord {
				return false
			}
			inWord, found = true, true
		case isLower(c):
			if !inWord {
				return false
			}
			found = true
		default:
			inWord = false
		}
	}
	return found
}
