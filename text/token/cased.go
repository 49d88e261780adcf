package token

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// form says on which side of a change from capitals to small letters a character may stand: \p{L} and \p{M} by their kind.
type form uint8

const (
	capital form = 1 << iota       // before it: \p{Lu}, \p{Lt}
	small                          // behind it: \p{Ll}
	either       = capital | small // \p{Lm}, \p{Lo}, \p{M}
	neither form = 0               // no letter and no mark
)

var asciiForms = func() (table [utf8.RuneSelf]form) {
	for r := range table {
		table[r] = wideForm(rune(r))
	}
	return table
}()

func wideForm(r rune) form {
	switch {
	case unicode.In(r, unicode.Lu, unicode.Lt):
		return capital
	case unicode.Is(unicode.Ll, r):
		return small
	case unicode.In(r, unicode.L, unicode.M):
		return either
	}
	return neither
}

// formAt returns the form and length of the character at s[i:].
func formAt(s string, i int) (form, int) {
	if c := s[i]; c < utf8.RuneSelf {
		return asciiForms[c], 1
	}
	r, size := utf8.DecodeRuneInString(s[i:])
	return wideForm(r), size
}

// forms returns the end of the characters from s[i:] on that have one of the forms of want, and where the last that may stand on either
// side ends; i without one.
func forms(s string, i int, want form) (end, last int) {
	last = i
	for i < len(s) {
		f, size := formAt(s, i)
		if f&want == 0 {
			break
		}
		if i += size; f == either {
			last = i
		}
	}
	return i, last
}

// casedWord returns the end of [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ from s[i:] on, and that of
// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+ if that does not match. Both are i without a match.
//
// The first part takes all it can. If a small letter follows, the second goes on there. Otherwise the first part gives back the
// characters from the last one on that may stand on either side, and the second takes that one alone, since capitals follow.
func casedWord(s string, i int) (word, capitals int) {
	end, last := forms(s, i, capital)
	if end < len(s) {
		if f, _ := formAt(s, end); f == small {
			word, _ = forms(s, end, small)
			return word, i
		}
	}
	return last, end
}

// byCase makes the stage of o200k and, without endings, of tekken:
//
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
//	\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
func byCase(digits int, endings bool) stage {
	return func(s string) int {
		c, size := classAt(s, 0)
		if c == number {
			return digitRun(s, size, digits)
		}
		lead := size // behind the character that may stand before a word
		if c == letter || s[0] == '\r' || s[0] == '\n' || size == len(s) {
			lead = 0
		}
		if end := wordByCase(s, lead); end > 0 {
			if endings && end < len(s) {
				end += contraction(s[end:], true)
			}
			return end
		}
		return rest(s, "\r\n/", true)
	}
}

// wordByCase returns the end of the word of byCase's first two lines, 0 for none. lead is the size of the character before it, or 0.
func wordByCase(s string, lead int) int {
	word, capitals := casedWord(s, lead)
	if word > lead {
		return word
	}
	word0, capitals0 := casedWord(s, 0)
	switch {
	case word0 > 0:
		return word0
	case capitals > lead:
		return capitals
	}
	return capitals0
}

// marked is the stage of qwen35:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|
//	\s*[\r\n]+|\s+(?!\S)|\s+
func marked(s string) int {
	if n := contraction(s, true); n > 0 {
		return n
	}
	c, size := classAt(s, 0)
	if c == number {
		return size
	}
	if end, _ := forms(s, 0, either); end > 0 {
		return end
	}
	if size < len(s) && s[0] != '\r' && s[0] != '\n' {
		if end, _ := forms(s, size, either); end > size {
			return end
		}
	}
	return rest(s, "\r\n", false)
}

// rest is what follows words and numbers in a stage: ` ?[^\s\p{L}\p{N}]+[tail]*|\s*[\r\n]+|\s+(?!\S)|\s+`, with marks or without
// them in the first class.
func rest(s, tail string, marks bool) int {
	at := 0
	if s[0] == ' ' && len(s) > 1 {
		at = 1
	}
	if end := signs(s, at, marks); end > at {
		for end < len(s) && strings.IndexByte(tail, s[end]) >= 0 {
			end++
		}
		return end
	}
	if n := strings.LastIndexAny(s[:run(s, 0, white)], "\r\n"); n >= 0 {
		return n + 1
	}
	return spaces(s)
}

// signs returns the end of the characters from s[i:] on that are neither letters, numbers nor spaces, nor marks unless they count.
func signs(s string, i int, marks bool) int {
	if marks {
		return run(s, i, other)
	}
	for i < len(s) {
		c, size := classAt(s, i)
		if f, _ := formAt(s, i); c != other || f != neither {
			break
		}
		i += size
	}
	return i
}

// digitRun returns the end of a run of up to most digits, of which the first ends at i.
func digitRun(s string, i, most int) int {
	for n := 1; n < most && i < len(s); n++ {
		c, size := classAt(s, i)
		if c != number {
			break
		}
		i += size
	}
	return i
}
