package token

import (
	"slices"
	"strings"
	"unicode"
)

// stage cuts a text: it returns the length of the first part of s. s and the part are not empty. A part is a
// match of the stage's regular expression or the text before the next match, and depends on s alone; cutting all of
// s takes linear time.
type stage func(s string) int

// pre is a pre-tokenizer: it cuts a text into words that merges do not cross. Each stage cuts the
// parts of the one before.
type pre struct {
	names  []string // in tokenizer.ggml.pre; the first stands for all
	stages []stage
	whole  bool // a word that is a token is that token, whatever the merges make of it
	addBOS bool // where add_bos_token is missing

	composed bool // the text is brought into normal form C before
}

// pres are the pre-tokenizers. The regular expressions are those of the models' tokenizer.json, the
// names and flags those that llama.cpp gives them (src/llama-vocab.cpp).
var pres = []*pre{
	{names: []string{"llama-bpe", "llama3", "llama-v3", "falcon3"}, stages: []stage{cl100k(3)}, whole: true, addBOS: true},
	{names: []string{"dbrx", "smaug-bpe"}, stages: []stage{cl100k(3)}},
	{names: []string{"glm4", "chatglm-bpe"}, stages: []stage{cl100k(3)}},
	{names: []string{"gpt-4o", "llama4"}, stages: []stage{byCase(3, true)}},
	{names: []string{"tekken"}, stages: []stage{byCase(1, false)}, whole: true, addBOS: true},
	{names: []string{"qwen35"}, stages: []stage{marked}, composed: true},
	{names: []string{"qwen2", "deepseek-r1-qwen", "stablelm2"}, stages: []stage{cl100k(1)}, composed: true},
	{names: []string{"gpt-2", "phi-2", "jais"}, stages: []stage{gpt2}},
	{names: []string{"mpt", "olmo"}, stages: []stage{gpt2}, composed: true},
	{names: []string{"starcoder", "refact", "smollm", "codeshell", "exaone"}, stages: []stage{numbers.parts(false, 1), gpt2}},
	{names: []string{"command-r"}, stages: []stage{numbers.parts(false, 1), gpt2}, composed: true},
	{names: []string{"falcon"}, stages: []stage{punctSigns2.parts(false, many), gpt2, threeDigits}},
	{names: []string{"deepseek-llm"}, stages: []stage{newline, cased.parts(true, many), marks.parts(true, many), trailing,
		cjk.parts(false, many), numbers.parts(false, many)}},
	{names: []string{"deepseek-coder"}, stages: []stage{newline, letters.parts(true, many), punct.parts(true, many),
		cjk.parts(false, many), numbers.parts(false, 1)}},
	{names: []string{defaultPre}, stages: []stage{punctSigns.parts(false, many), gpt2, numbers.parts(false, many), threeDigits}},
}

// findPre returns the pre-tokenizer of that name, nil for none, and the names there are.
func findPre(name string) (found *pre, names []string) {
	for _, p := range pres {
		if slices.Contains(p.names, name) {
			found = p
		}
		names = append(names, p.names...)
	}
	slices.Sort(names)
	return found, names
}

// split cuts s by stages and gives the parts to word, in order.
func split(s string, stages []stage, word func(string)) {
	if len(stages) == 0 {
		if s != "" {
			word(s)
		}
		return
	}
	for s != "" {
		n := stages[0](s)
		split(s[:n], stages[1:], word)
		s = s[n:]
	}
}

// gpt2 is the stage
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)
//
// which leaves only single spaces unmatched.
func gpt2(s string) int {
	if n := contraction(s, false); n > 0 {
		return n
	}
	at := 0
	if s[0] == ' ' && len(s) > 1 {
		at = 1
	}
	if c, size := classAt(s, at); c != white {
		return run(s, at+size, c)
	}
	return spaces(s)
}

// cl100k makes the stage
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}|
//	 ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func cl100k(digits int) stage {
	return func(s string) int {
		if n := contraction(s, true); n > 0 {
			return n
		}
		c, size := classAt(s, 0)
		switch {
		case c == letter:
			return run(s, size, letter)
		case c == number:
			return digitRun(s, size, digits)
		case size < len(s) && s[0] != '\r' && s[0] != '\n':
			if c, more := classAt(s, size); c == letter {
				return run(s, size+more, letter)
			}
		}
		return rest(s, "\r\n", true)
	}
}

// contraction returns the length of an English ending at the start of s ('s, 't, 're, 've, 'm, 'll, 'd),
// or 0. With fold, capitals count as small letters, and so does the long s (U+017F): Unicode folds it to s.
func contraction(s string, fold bool) int {
	if s[0] != '\'' || len(s) < 2 {
		return 0
	}
	if fold && strings.HasPrefix(s[1:], "\u017f") {
		return 1 + len("\u017f")
	}
	low := func(c byte) byte {
		if fold && 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		return c
	}
	switch low(s[1]) {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if len(s) > 2 && low(s[2]) == 'e' {
			return 3
		}
	case 'l':
		if len(s) > 2 && low(s[2]) == 'l' {
			return 3
		}
	}
	return 0
}

// spaces returns the length of the spaces that s begins with, without the last if other text follows and there are
// several: \s+(?!\S)|\s+
func spaces(s string) int {
	end, last := 0, 0
	for end < len(s) {
		c, size := classAt(s, end)
		if c != white {
			if last > 0 {
				return last
			}
			return end
		}
		last, end = end, end+size
	}
	return end
}

// newline is the stage [\r\n].
func newline(s string) int {
	switch i := strings.IndexAny(s, "\r\n"); i {
	case -1:
		return len(s)
	case 0:
		return 1
	default:
		return i
	}
}

// trailing is the stage \s+$
func trailing(s string) int {
	if n := len(strings.TrimRightFunc(s, unicode.IsSpace)); n > 0 {
		return n
	}
	return len(s)
}

// threeDigits is the stage [0-9][0-9][0-9].
func threeDigits(s string) int {
	digits := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			digits = 0
			continue
		}
		if digits++; digits == 3 {
			if i > 2 {
				return i - 2
			}
			return 3
		}
	}
	return len(s)
}
