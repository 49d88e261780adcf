package chat

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// isSpace is Python's white space.
func isSpace(c rune) bool { return unicode.IsSpace(c) || 0x1c <= c && c <= 0x1f }

func isCased(c rune) bool {
	return unicode.In(c, unicode.Upper, unicode.Lower, unicode.Title, unicode.Other_Uppercase, unicode.Other_Lowercase)
}

// recased counts what a change of case costs, at most three times the bytes, and makes it.
func recased(m *meter, s string, c cases.Caser) string {
	m.spend(3 * len(s))
	m.step(len(s) / 16)
	return c.String(s)
}

func upper(m *meter, s string) string { return recased(m, s, cases.Upper(language.Und)) }
func lower(m *meter, s string) string { return recased(m, s, cases.Lower(language.Und)) }

// capitalize is a capital letter and the rest in lower case.
func capitalize(m *meter, s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return cases.Title(language.Und, cases.NoLower).String(s[:n]) + strings.TrimPrefix(lower(m, "x"+s[n:]), "x")
}

// title is the method .title(): words begin behind each character without a case.
func title(m *meter, s string) string {
	return byWord(m, s, func(c rune) bool { return !isCased(c) }, capitalize)
}

// titleWords is the filter title: words begin behind white space and - ( { [ <.
func titleWords(m *meter, s string) string {
	part := func(c rune) bool { return isSpace(c) || strings.ContainsRune("-({[<", c) }
	return byWord(m, s, part, func(m *meter, s string) string {
		_, n := utf8.DecodeRuneInString(s)
		return upper(m, s[:n]) + lower(m, s[n:])
	})
}

// byWord rewrites each word of s, between characters that are part of none.
func byWord(m *meter, s string, apart func(c rune) bool, to func(*meter, string) string) string {
	b := builder{m: m}
	for s != "" {
		n := strings.IndexFunc(s, apart)
		word := n != 0
		if !word {
			n = strings.IndexFunc(s, func(c rune) bool { return !apart(c) })
		}
		if n < 0 {
			n = len(s)
		}
		if word {
			b.lit(to(m, s[:n]))
		} else {
			b.lit(s[:n])
		}
		s = s[n:]
	}
	return b.b.String()
}
