package token

import (
	"math"
	"unicode"
	"unicode/utf8"
)

// class is a set of the properties of a character that the splitters use. A byte that is not UTF-8
// has none.
type class uint8

const (
	letter class = 1 << iota // \p{L}
	number                   // \p{N}
	white                    // \s: Unicode's White_Space
	other  class = 0         // [^\s\p{L}\p{N}]
)

var asciiClasses = func() (table [utf8.RuneSelf]class) {
	for r := range table {
		table[r] = wideClass(rune(r))
	}
	return table
}()

func wideClass(r rune) class {
	switch {
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return number
	case unicode.IsSpace(r):
		return white
	}
	return other
}

// classAt returns the class and length of the character at s[i:].
func classAt(s string, i int) (class, int) {
	if c := s[i]; c < utf8.RuneSelf {
		return asciiClasses[c], 1
	}
	r, size := utf8.DecodeRuneInString(s[i:])
	return wideClass(r), size
}

// run returns the end of the characters of class c from s[i:] on.
func run(s string, i int, c class) int {
	for i < len(s) {
		k, size := classAt(s, i)
		if k != c {
			break
		}
		i += size
	}
	return i
}

// set is a set of characters; bytes that are not UTF-8 are never in it.
type set struct {
	ascii [utf8.RuneSelf]bool
	wide  func(rune) bool
}

func newSet(in func(rune) bool) *set {
	s := &set{wide: in}
	for r := range s.ascii {
		s.ascii[r] = in(rune(r))
	}
	return s
}

// at reports whether the character at s[i:] is in the set, and its length.
func (t *set) at(s string, i int) (bool, int) {
	if c := s[i]; c < utf8.RuneSelf {
		return t.ascii[c], 1
	}
	r, size := utf8.DecodeRuneInString(s[i:])
	return size > 1 && t.wide(r), size
}

// many lifts the limit of parts.
const many = math.MaxInt

// parts makes the stage that isolates [set]{1,most}, or \s?[set]{1,most} with lead.
func (t *set) parts(lead bool, most int) stage {
	return func(s string) int {
		at, in, size := 0, false, 0
		for at < len(s) {
			if in, size = t.at(s, at); in {
				break
			}
			at += size
		}
		from := at
		if before, n := utf8.DecodeLastRuneInString(s[:at]); lead && in && unicode.IsSpace(before) {
			from -= n
		}
		if from > 0 {
			return from // the text before the match, or all of s without a match
		}
		for n := 0; n < most && at < len(s); n++ {
			if in, size = t.at(s, at); !in {
				break
			}
			at += size
		}
		return at
	}
}

// oneOf makes the set of the characters of ranges: pairs of first and last, in ascending order.
func oneOf(ranges string) *set {
	var pairs [][2]rune
	for rest := []rune(ranges); len(rest) > 1; rest = rest[2:] {
		pairs = append(pairs, [2]rune{rest[0], rest[1]})
	}
	return newSet(func(r rune) bool {
		lo, hi := 0, len(pairs)
		for lo < hi {
			if mid := (lo + hi) / 2; pairs[mid][1] < r {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		return lo < len(pairs) && pairs[lo][0] <= r
	})
}

// punctuation makes the set of \p{P} and of more.
func punctuation(more string) *set {
	extra := map[rune]bool{}
	for _, r := range more {
		extra[r] = true
	}
	return newSet(func(r rune) bool { return unicode.IsPunct(r) || extra[r] })
}

var (
	letters     = newSet(unicode.IsLetter)
	numbers     = newSet(unicode.IsNumber)
	punct       = punctuation("")
	punctSigns  = punctuation("$+<=>^~|")
	punctSigns2 = punctuation("$+<=>^~|`")
	cjk         = oneOf("\u0800\u4e00\u4e00\u9fa5\uac00\ud7ff") // [一-龥ࠀ-一가-퟿]
	marks       = oneOf("!/:~\u2018\u201f\u3000\u3002\uff01\uff0f\uff1a\uff5e")
	cased       = oneOf(casedRanges)
)

// casedRanges are the letters with upper and lower case in deepseek-llm's tokenizer.json (about those of
// Unicode 11): pairs of first and last. Written as numbers, because normalising would merge some.
const casedRanges = "" +
	"AZaz\u00b5\u00b5\u00c0\u00d6\u00d8\u00f6\u00f8\u01ba\u01bc\u01bf\u01c4\u0293\u0295\u02af\u0370\u0373\u0376\u0377" +
	"\u037b\u037d\u037f\u037f\u0386\u0386\u0388\u038a\u038c\u038c\u038e\u03a1\u03a3\u03f5\u03f7\u0481\u048a\u052f" +
	"\u0531\u0556\u10a0\u10c5\u13a0\u13f5\u13f8\u13fd\u1c90\u1cba\u1cbd\u1cbf\u1d00\u1d2b\u1d6b\u1d77\u1d79\u1d9a" +
	"\u1e00\u1f15\u1f18\u1f1d\u1f20\u1f45\u1f48\u1f4d\u1f50\u1f57\u1f59\u1f59\u1f5b\u1f5b\u1f5d\u1f5d\u1f5f\u1f7d" +
	"\u1f80\u1fb4\u1fb6\u1fbc\u1fbe\u1fbe\u1fc2\u1fc4\u1fc6\u1fcc\u1fd0\u1fd3\u1fd6\u1fdb\u1fe0\u1fec\u1ff2\u1ff4" +
	"\u1ff6\u1ffc\u2102\u2102\u2107\u2107\u210a\u2113\u2115\u2115\u2119\u211d\u2124\u2124\u2126\u2126\u2128\u2128" +
	"\u212a\u212d\u212f\u2134\u2139\u2139\u213c\u213f\u2145\u2149\u214e\u214e\u2183\u2184\u2c00\u2c7b\u2c7e\u2ce4" +
	"\u2ceb\u2cee\u2cf2\u2cf3\ua640\ua66d\ua680\ua69b\ua722\ua76f\ua771\ua787\ua78b\ua78e\uab70\uabbf\ufb00\ufb06" +
	"\ufb13\ufb17\uff21\uff3a\uff41\uff5a\U00010400\U0001044f\U000104b0\U000104d3\U000104d8\U000104fb\U00010c80\U00010cb2" +
	"\U00010cc0\U00010cf2\U000118a0\U000118df\U0001e900\U0001e943"
