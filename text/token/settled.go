package token

import (
	"slices"
	"sort"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// EncodeNext is Encode for text that continues a text. The tokens print the text as it is: no space is added, no white space is dropped
// and no character is composed.
func (v *Vocab) EncodeNext(text string) []tandem.Token {
	e := encoder{v: v, out: make([]tandem.Token, 0, len(text)/3+4), asIs: true}
	e.next(text)
	return e.out
}

func (e *encoder) next(text string) { e.cut(text, e.v.user, nil, nil) }

// Settled returns the length n of a part of text whose tokens are final: for every more, EncodeNext(text + more) is EncodeNext(text[:n])
// followed by EncodeNext(text[n:] + more).
func (v *Vocab) Settled(text string) int {
	s, plain := v.known(text)
	if v.byteLevel() {
		again, _ := v.steady(s[plain:])
		return plain + again
	}
	n, before := plain, rune(-1)
	for i, r := range s[plain:] {
		if r == ' ' {
			r = spaceRune
		}
		if i > 0 && !v.joins.has(before, r) {
			n = plain + i
		}
		before = r
	}
	return n
}

// known returns the part of text in which no further text can change a character or the place of a user-defined token, and where
// the text behind the last of those tokens begins.
func (v *Vocab) known(text string) (s string, plain int) {
	s = text[:lastWhole(text)]
	for at := 0; at < len(s); {
		i, _, size := v.user.find(s[at:])
		found := at + i
		if v.user != nil {
			for j := max(at, len(s)-v.user.longest); j <= found && j < len(s); j++ {
				if utf8.RuneStart(s[j]) && v.user.begins(s[j:]) {
					return s[:j], plain
				}
			}
		}
		if at = found + size; size > 0 {
			plain = at
		}
	}
	return s, plain
}

// lastWhole is whole for a string.
func lastWhole(s string) int {
	from := max(0, len(s)-utf8.UTFMax)
	return from + whole([]byte(s[from:]))
}

// begins reports whether s, which is not empty, is the beginning of a longer token.
func (u *texts) begins(s string) bool {
	i := sort.Search(len(u.list), func(i int) bool { return u.list[i].text > s })
	return i < len(u.list) && strings.HasPrefix(u.list[i].text, s)
}

// steady returns two places in a text without user-defined tokens that the pre-tokenizer cuts, whatever more follows: where one may begin
// anew, and where the first word begins that may still change.
//
// Only the last word can grow, but for spaces, which may be divided anew, the endings of English words, and letters without case. Spaces
// that end a text are one word; before other text, the last of them is not part of it. So one cannot begin behind spaces.
func (v *Vocab) steady(s string) (again, change int) {
	starts, at := []int{0}, 0
	split(s, v.bpe.pre.stages, func(w string) {
		if at > 0 {
			starts = append(starts, at)
		}
		at += len(w)
	})
	ending := strings.LastIndexByte(s, '\'')
	if ending < max(0, len(s)-3) {
		ending = len(s)
	}
	k := len(starts) - 1
	for k > 0 && loose(s, starts[k], ending) {
		k--
	}
	change = starts[k]
	for k > 0 && (loose(s, starts[k], ending) || unicode.IsSpace(lastRune(s[:starts[k]]))) {
		k--
	}
	return starts[k], change
}

// loose reports whether the word before s[n:] may still change. ending is the place of an apostrophe near the end of s. (The space that
// ends a text is a word of its own for deepseek-llm; before more text it may be part of the word before.)
func loose(s string, n, ending int) bool {
	before := lastRune(s[:n])
	after, _ := utf8.DecodeRuneInString(s[n:])
	blank := strings.TrimSpace(s[n:]) == ""
	return n >= ending || blank && (unicode.IsSpace(before) || unicode.IsControl(before)) ||
		before >= utf8.RuneSelf && (blank || after != ' ' && !unicode.IsSpace(before))
}

// Firm returns the tokens with which EncodeNext(text + more) begins for every more, as far as they are certain.
//
// The tokens of the settled part are certain. Behind it lies the beginning of a word that more may continue. In the continued word, one
// token covers the end of text or ends there; it begins at a place from which the rest of text begins some piece. Merges do not cross that
// place, so the tokens before it are those of the word cut there. Which place it is depends on more; so only the first tokens that all
// these cuts have in common are certain.
func (v *Vocab) Firm(text string) []tandem.Token {
	s, plain := v.known(text)
	e := encoder{v: v, asIs: true}
	var word string
	if v.byteLevel() {
		_, change := v.steady(s[plain:])
		e.next(s[:plain])
		at, words := 0, 0
		split(s[plain:], v.bpe.pre.stages, func(w string) {
			if at < change {
				e.encodeWord(w)
			} else {
				word = w
				words++
			}
			at += len(w)
		})
		if words > 1 || unicode.IsSpace(lastRune(word)) {
			word = ""
		}
	} else {
		n := v.Settled(text)
		e.next(s[:n])
		word = v.spaced(s[n:])
	}
	out := slices.Clone(e.out)
	if word == "" {
		return out
	}
	parts := func(w string) []tandem.Token {
		e.out = e.out[:0]
		if w != "" {
			e.merge(w)
		}
		return e.out
	}
	same := slices.Clone(parts(word))
	if v.bpe != nil && v.bpe.pre.whole { // if the word ends here
		e.out = e.out[:0]
		e.wordTokens(word)
		same = same[:common(same, e.out)]
	}
	for j := max(0, len(word)-v.begun().longest); j < len(word) && len(same) > 0; j++ {
		if (v.byteLevel() || utf8.RuneStart(word[j])) && v.begun().has(word[j:]) {
			same = same[:common(same, parts(word[:j]))]
		}
	}
	return append(out, same...)
}

// common returns how many tokens a and b begin with in common.
func common(a, b []tandem.Token) int {
	k := 0
	for k < min(len(a), len(b)) && a[k] == b[k] {
		k++
	}
	return k
}

func lastRune(s string) rune { r, _ := utf8.DecodeLastRuneInString(s); return r }

// beginnings are the texts that merges make, sorted: which texts some of them begin with.
type beginnings struct {
	made    sync.Once
	list    []string
	longest int // bytes
}

// begun returns the beginnings of v, which are made when they are first wanted.
func (v *Vocab) begun() *beginnings {
	b := v.begin
	b.made.Do(func() {
		for text := range v.ids() {
			b.list = append(b.list, text)
		}
		if v.bpe != nil {
			b.list = append(b.list, v.bpe.table().extra...)
		}
		for _, text := range b.list {
			b.longest = max(b.longest, len(text))
		}
		slices.Sort(b.list)
	})
	return b
}

// has reports whether s is the beginning of a longer text.
func (b *beginnings) has(s string) bool {
	i := sort.SearchStrings(b.list, s+"\x00")
	return i < len(b.list) && strings.HasPrefix(b.list[i], s)
}
