package tandem

import (
	"strings"
	"unicode/utf8"
)

// Lossy returns bytes as valid UTF-8: the longest beginning of a character that is cut becomes one U+FFFD, and so does every other byte
// that is part of no character (Unicode, section 3.9, "Substitution of Maximal Subparts"), as browsers and Python decode it.
func Lossy[T string | []byte](bytes T) string {
	text := string(bytes)
	if utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	b.Grow(len(text) + 8)
	for text != "" {
		r, n := utf8.DecodeRuneInString(text)
		if r == utf8.RuneError && n == 1 {
			n = cut(text)
		}
		b.WriteRune(r)
		text = text[n:]
	}
	return b.String()
}

// cut returns how many bytes of text, which begins with no whole character, are the beginning of one; 1 if none are.
func cut(text string) int {
	n := 1
	for n < min(len(text), utf8.UTFMax) && !utf8.FullRuneInString(text[:n]) {
		n++
	}
	if n > 1 && utf8.FullRuneInString(text[:n]) { // the last byte does not belong to it
		n--
	}
	return n
}
