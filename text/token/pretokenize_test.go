package token

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/tandem-llm/tandem"
)

const gpt2Regex = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)`

// (?i:'s|'t|…) of the models' tokenizer.json: the long s is an s there.
const contractionRegex = `(?:'[sSſ]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`

// byCaseRegex is o200k's and tekken's, without the vocabulary of either at hand: from their public definitions.
func byCaseRegex(ending, digits string) string {
	const upper, lower = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
	return `[^\r\n\p{L}\p{N}]?` + upper + `*` + lower + `+` + ending + `|[^\r\n\p{L}\p{N}]?` + upper + `+` + lower + `*` + ending + `|` +
		digits + `| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
}

func cl100kRegex(digits string) string {
	return contractionRegex + `|[^\r\n\p{L}\p{N}]?\p{L}+|` + digits +
		`| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
}

// sources are the regular expressions of each pre-tokenizer, as the models have them.
var sources = map[string][]string{
	"llama-bpe": {cl100kRegex(`\p{N}{1,3}`)},
	"dbrx":      {cl100kRegex(`\p{N}{1,3}`)},
	"glm4":      {cl100kRegex(`\p{N}{1,3}`)},
	"gpt-4o":    {byCaseRegex(contractionRegex+`?`, `\p{N}{1,3}`)},
	"tekken":    {byCaseRegex(``, `\p{N}`)},
	"qwen35": {contractionRegex + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|` +
		`\s*[\r\n]+|\s+(?!\S)|\s+`},
	"qwen2":     {cl100kRegex(`\p{N}`)},
	"gpt-2":     {gpt2Regex},
	"mpt":       {gpt2Regex},
	"starcoder": {`\p{N}`, gpt2Regex},
	"command-r": {`\p{N}`, gpt2Regex},
	"falcon":    {"[\\p{P}\\$\\+<=>\\^~\\|`]+", gpt2Regex, `[0-9][0-9][0-9]`},
	"deepseek-llm": {`[\r\n]`, `\s?[` + dashed(casedRanges) + `]+`, `\s?[!-/:-~！-／：-～‘-‟　-。]+`, `\s+$`,
		`[一-龥ࠀ-一가-퟿]+`, `\p{N}+`},
	"deepseek-coder": {`[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, `[一-龥ࠀ-一가-퟿]+`, `\p{N}`},
	"default":        {`[\p{P}\$\+<=>\^~\|]+`, gpt2Regex, `\p{N}+`, `[0-9][0-9][0-9]`},
}

func dashed(ranges string) string {
	var b strings.Builder
	for i, r := range []rune(ranges) {
		if i%2 == 1 {
			b.WriteByte('-')
		}
		b.WriteRune(r)
	}
	return b.String()
}

func compiled(t testing.TB, p *pre) (list []regex) {
	t.Helper()
	for _, s := range sources[p.names[0]] {
		list = append(list, compile(s))
	}
	if len(list) != len(p.stages) {
		t.Fatalf("%s has %d stages: want %d", p.names[0], len(p.stages), len(list))
	}
	return list
}

// nasty are the strings that random texts are made of: every class, and characters that Go's tables, the
// regular expressions and UTF-8 might treat differently.
var nasty = []string{"a", "Z", "é", "e\u0301", "ſ", "\u212a", "µ", "ʔ", "1", "23", "٣", "½", "Ⅷ", " ", " ", "  ", "\t", "\n",
	"\r", "\r\n", "\v", "\x1c", "\x00", "\u0085", "\u00a0", "\u3000", "\u2028", "\u200d", "/", "ǅ", "ʰ", "B", "b", "'", "s",
	"t", "re", "l", "'S", "'ſ", "'Ve", "'LL", "!", "$", "+", "`", "_", "~", "|", "…", "。", "！", "漢", "가", "\ud7ff", "ก", "\u0941",
	"😀", "«", "\xff", "\xe2\x82", "\xc2", "\ufffd"}

func randomText(rng *rand.Rand, most int) string {
	var b strings.Builder
	few := 2 + rng.IntN(len(nasty)-1)
	at := rng.IntN(len(nasty))
	for range rng.IntN(most) {
		b.WriteString(nasty[(at+rng.IntN(few))%len(nasty)])
	}
	return b.String()
}

func TestSplittersAreTheirRegexps(t *testing.T) {
	for _, p := range pres {
		list := compiled(t, p)
		rng := rand.New(rand.NewPCG(5, 6))
		for range 1000 {
			if err := checkSplit(p.stages, list, randomText(rng, 24)); err != nil {
				t.Fatalf("%s: %v", p.names[0], err)
			}
		}
	}
}

// Splits worked out by hand from the regular expressions. For glm4, gpt-4o, tekken and qwen35 there was nothing else: no vocabulary of
// theirs, and no other engine's splits, was at hand.
func TestSplitCases(t *testing.T) {
	for _, c := range []struct{ pre, text, want string }{
		{"llama-bpe", "Hello, y'all! I'LL pay 12345$", "Hello|,| y|'all|!| I|'LL| pay| |123|45|$"},
		{"llama-bpe", "a  b\n\n  c \n d  ", "a| | b|\n\n| | c| \n| d|  "},
		{"llama-bpe", "x();\n\ty", "x|();\n|\ty"},
		{"llama-bpe", "!Hi...\r\n", "!Hi|...\r\n"},
		{"smaug-bpe", "1234", "123|4"},
		{"glm4", "don't 1234", "don|'t| |123|4"},
		{"gpt-4o", "JSONParser parseHTML's iPhone", "JSONParser| parse|HTML's| i|Phone"},
		{"gpt-4o", "I'LL don't y'all", "I'LL| don't| y|'all"},
		{"gpt-4o", "12345 a/b ://\n\n//", "123|45| a|/b| ://\n\n//"},
		{"gpt-4o", "漢ABC 漢Ab e\u0301E", "漢|ABC| 漢Ab| e\u0301|E"},
		{"gpt-4o", "\u0301a !\u0301B", "\u0301a| !\u0301|B"},
		{"tekken", "JSONParser parseHTML's", "JSONParser| parse|HTML|'s"},
		{"tekken", "in 1234 ways\n\n  x", "in| |1|2|3|4| ways|\n\n| | x"},
		{"tekken", "x);/\r\n/y", "x|);/\r\n/|y"},
		{"qwen35", "in 12 we\u0301 !\u0301a", "in| |1|2| we\u0301| !|\u0301a"},
		{"qwen35", "I'LL don't!!\u0301\n", "I|'LL| don|'t|!!|\u0301|\n"},
		{"qwen2", "in 1234 ways", "in| |1|2|3|4| ways"},
		{"deepseek-r1-qwen", "don't \n\n\n x", "don|'t| \n\n\n| x"},
		{"gpt-2", "I've 123 <<a>>  b\n\nc", "I|'ve| 123| <<|a|>>| | b|\n|\n|c"},
		{"smollm", "v10 b'll", "v|1|0| b|'ll"},
		{"falcon", "a 12345!=b", "a| |123|45|!=|b"},
		{"default", "a 12345!=b`", "a| |123|45|!=|b|`"},
		{"deepseek-llm", "Hi there!\n 漢字123 4 ", "Hi| there|!|\n| |漢字|123| |4| "},
		{"deepseek-llm", "Führer", "F|ü|hrer"}, // the class [:-~] cuts what the letters joined
		{"deepseek-coder", "if x==10:\n\tgo", "if| x|==|1|0|:|\n|\tgo"},
	} {
		p, _ := findPre(c.pre)
		var got []string
		split(c.text, p.stages, func(w string) { got = append(got, w) })
		if strings.Join(got, "|") != c.want {
			t.Errorf("%s: %q is %q: want %q", c.pre, c.text, strings.Join(got, "|"), c.want)
		}
	}
}

func TestUnknownPreIsRefused(t *testing.T) {
	_, err := newBytes("viking").parse(t)
	if !errors.Is(err, tandem.Unsupported) {
		t.Fatalf("error %v of kind %v", err, tandem.KindOf(err))
	}
	for _, name := range []string{`tokenizer.ggml.pre is "viking"`, "default", "deepseek-coder", "deepseek-llm", "deepseek-r1-qwen",
		"falcon3", "codeshell", "stablelm2"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("error %v does not say %s", err, name)
		}
	}
	seen := map[string]bool{}
	for _, p := range pres {
		for _, n := range p.names {
			if seen[n] {
				t.Errorf("%s is there twice", n)
			}
			seen[n] = true
		}
	}
}

// The ranges of deepseek-llm hold letters that have a case, in ascending order.
func TestCasedRanges(t *testing.T) {
	before := rune(0)
	for i, r := range []rune(casedRanges) {
		if !unicode.In(r, unicode.Lu, unicode.Ll, unicode.Lt) || r < before || i%2 == 0 && r == before {
			t.Errorf("range %d: %U after %U", i/2, r, before)
		}
		before = r
	}
	for r := rune(0); r < 0x1BB; r++ {
		if got, want := cased.wide(r), unicode.In(r, unicode.Lu, unicode.Ll, unicode.Lt); got != want {
			t.Errorf("%U: %v", r, got)
		}
	}
}

const mebi = 1 << 20

// FuzzPretokenize cuts unit by one of the pre-tokenizers, as its regular expressions say, and a mebibyte
// of it in linear time.
func FuzzPretokenize(f *testing.F) {
	for i, unit := range []string{" ", "'", "\n ", " \n", "a", "\xff", "1", "a 1! \n", " \u3000", "'ll've", "漢é\r\n", "!\n\n  x",
		"\t\ty=12'S"} {
		f.Add(unit, byte(i), byte(8*i))
	}
	lists := make([][]regex, len(pres))
	for i, p := range pres {
		lists[i] = compiled(f, p)
	}
	f.Fuzz(func(t *testing.T, unit string, which, last byte) {
		if unit == "" || len(unit) > 100 {
			return // the matcher takes cubic time
		}
		p := pres[int(which)%len(pres)]
		if err := checkSplit(p.stages, lists[int(which)%len(pres)], unit); err != nil {
			t.Fatalf("%s: %v", p.names[0], err)
		}
		if last%8 != 0 {
			return // long texts take most of the time
		}
		if err := checkLinear(p.stages, strings.Repeat(unit, mebi/len(unit))+string([]byte{last}), 20*time.Second); err != nil {
			t.Fatalf("%s, %q again and again: %v", p.names[0], unit, err)
		}
	})
}

// The oracles of FuzzPretokenize find splitters with a fault.
func TestBrokenSplittersAreFound(t *testing.T) {
	for name, broken := range map[string]stage{
		"takes the last space too": func(s string) int {
			if n := run(s, 0, white); n > 1 && n < len(s) {
				return n
			}
			return gpt2(s)
		},
		"no contractions": func(s string) int {
			if s[0] == '\'' {
				return run(s, 0, other)
			}
			return gpt2(s)
		},
		"bytes that are not UTF-8 are letters": func(s string) int {
			if s[0] >= 0xC0 {
				return 1
			}
			return gpt2(s)
		},
	} {
		list := []regex{compile(gpt2Regex)}
		rng := rand.New(rand.NewPCG(7, 8))
		found := slices.ContainsFunc(make([]int, 2000), func(int) bool {
			return checkSplit([]stage{broken}, list, randomText(rng, 24)) != nil
		})
		if !found {
			t.Errorf("%s: not found", name)
		}
	}
	quadratic := func(s string) int {
		if strings.Count(s, "\n") > 0 { // looks at all of the rest each time
			return gpt2(s)
		}
		return gpt2(s)
	}
	if checkLinear([]stage{quadratic}, strings.Repeat("a ", mebi/2), 200*time.Millisecond) == nil {
		t.Error("quadratic time: not found")
	}
}
