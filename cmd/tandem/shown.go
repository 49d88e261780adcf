package main

import (
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// shown returns a name, key or path, which may come out of a file, as it is written to a terminal: as it is, or quoted if it holds
// anything that is not printable, such as an escape sequence or a line break.
func shown(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	return strconv.Quote(s)
}

// allShown returns shown of each, with commas between them.
func allShown(all []string) string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = shown(s)
	}
	return strings.Join(out, ", ")
}

// printable passes lines and tables on to a terminal with control characters written out, but for line breaks and tabs. It is for text that
// is made of names out of files in many places; shown is for a single name. A rune must not be split between two writes.
type printable struct{ to io.Writer }

// Write implements io.Writer.
func (p printable) Write(b []byte) (int, error) {
	clean := strings.ToValidUTF8(string(b), "\uFFFD")
	if strings.ContainsFunc(clean, dangerous) {
		var out strings.Builder
		for _, r := range clean {
			if dangerous(r) {
				out.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
			} else {
				out.WriteRune(r)
			}
		}
		clean = out.String()
	}
	if _, err := io.WriteString(p.to, clean); err != nil {
		return 0, err
	}
	return len(b), nil
}

// dangerous reports whether a terminal may take r for more than a character: control characters, and those that turn the direction of text.
func dangerous(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r))
}
