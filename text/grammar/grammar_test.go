package grammar

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func compile(t testing.TB, s Spec) *Grammar {
	t.Helper()
	g, err := Compile(s, Limits{})
	if err != nil {
		t.Fatalf("%+v: %v", s, err)
	}
	return g
}

func schema(s string) Spec { return Spec{Schema: json.RawMessage(s)} }

// takes reports whether text is one of g's texts. It reads text at once and in two pieces, and fails if these differ.
func takes(t testing.TB, g *Grammar, text string) bool {
	t.Helper()
	s, ok := g.Start().Next([]byte(text))
	if cut := len(text) / 2; cut > 0 {
		a, okA := g.Start().Next([]byte(text[:cut]))
		b, okB := a.Next([]byte(text[cut:]))
		if both := okA && okB; both != ok || ok && string(b.key(nil, longest)) != string(s.key(nil, longest)) {
			t.Fatalf("%q: read at once %v, cut at %d %v, or the states differ", text, ok, cut, both)
		}
	}
	return ok && s.Done()
}

// texts checks that the texts in yes are s's, and those in no are not.
func texts(t *testing.T, s Spec, yes, no []string) {
	t.Helper()
	g := compile(t, s)
	said, _ := json.Marshal(s)
	for i, text := range slices.Concat(yes, no) {
		if got := takes(t, g, text); got != (i < len(yes)) {
			t.Errorf("%.500s: %.80q: %v", said, text, got)
		}
	}
}

func TestTexts(t *testing.T) {
	blank := schema(`{}`)
	for _, c := range []struct {
		spec    Spec
		yes, no []string
	}{
		{Spec{Text: "abc"}, []string{"abc"}, []string{"", "ab", "abcd", "abd"}},
		{Spec{Choices: []string{"yes", "yesterday", "no", "ä"}}, []string{"yes", "yesterday", "no", "ä"},
			[]string{"", "ye", "yesno", "\xc3"}},
		{Spec{Regex: `(\d{3}-)?\d{4}`}, []string{"1234", "123-4567"}, []string{"", "123", "12345", "123-456"}},
		{Spec{Regex: `[^a]*ü+$`}, []string{"ü", "xyüü", "€𝄞ü"},
			[]string{"", "aü", "x\xc3", "ü\xff", "\xed\xa0\x80ü", "\xc0\x80ü", "\xf4\x90\x80\x80ü"}},
		{Spec{Regex: `(?i)straße|^k$`}, []string{"STRAßE", "k", "K", "\u212a"}, []string{"strasse", "kk"}},
		{Spec{Regex: `a.c`}, []string{"abc", "a\rc", "a\u2028c"}, []string{"a\nc"}},
		{Spec{Seq: []Spec{{Text: "<"}, {Regex: `a*`}, {Text: ">"}}}, []string{"<>", "<aaa>"}, []string{"<", "<b>", "<>>"}},
		{Spec{Any: []Spec{{Text: "ab"}, {Text: "abc"}, {Regex: `a+`}}}, []string{"ab", "abc", "a", "aa"}, []string{"abcd", "aab"}},
		{Spec{Repeat: &Repeat{Of: Spec{Choices: []string{"a", "b"}}, Separator: ", ", Min: 1, Max: 3}}, []string{"a", "a, b", "b, b, b"},
			[]string{"", "a, ", "a, a, a, a", "aa"}},
		{Spec{Repeat: &Repeat{Of: Spec{Text: "ab"}}}, []string{"", "ab", "abababab"}, []string{"a", "aba"}},
		{blank, []string{`0`, `-1.5e-7`, `"a\u00e4\ud834\udd1e\n\/"`, `[]`, `{}`, `{"a": [1, 2,3], "":null}`, `true`, "\"\u007f€\""},
			[]string{``, ` 1`, `01`, `1.`, `+1`, `1e999`, `"`, `"\x"`, `"\ud834"`, `"\udd1e"`, `"\ud834\u0041"`, "\"\n\"", "\"\x80\"",
				`[1,]`,
				`[1,  2]`,
				`{"a" :1}`, `{a:1}`, `{"a":1,}`, `[1 ]`, `nul`, `--1`, `"\u12"`, "\"\xf5\x80\x80\x80\""}},
		{Spec{Object: true}, []string{`{}`, `{"a": {"b": []}}`}, []string{`[]`, `1`, "{\n}"}},
		{Spec{Object: true, Indent: true}, []string{`{}`, "{\n  \"a\": [\n    1,\n    2\n  ]\n}", `{ "a": 1 }`},
			[]string{"{\n\n\n}", "{   }", "{\n\"a\":\n1}",
				"{\n\"a\" : 1}", "{\n" + strings.Repeat(" ", maxIndent+1) + "\"a\": 1}"}},
	} {
		texts(t, c.spec, c.yes, c.no)
	}
}

// TestNoExpressionHasByteZero: byte 0 stands beside the names of control tokens, so only a text or a marker that names it has it.
func TestNoExpressionHasByteZero(t *testing.T) {
	for _, e := range []string{".*", "(?s).*", "[^a]*", `\x00*`, `\W*`} {
		if g := compile(t, Spec{Regex: e}); takes(t, g, "\x00") || !takes(t, g, "") {
			t.Errorf("%s takes a byte 0", e)
		}
	}
	if takes(t, compile(t, Spec{Schema: json.RawMessage(`{}`)}), "\"\x00\"") {
		t.Error("a JSON string has a byte 0")
	}
	g := compile(t, Spec{Seq: []Spec{{Until: &Until{Markers: []string{"\x00<end>\x00"}}}, {Text: "\x00<x>\x00"}}})
	if !takes(t, g, "a\x00<other>\x00\x00<end>\x00\x00<x>\x00") || takes(t, g, "a<end>\x00<x>\x00") {
		t.Error("markers and texts that name it")
	}
}

func TestUntil(t *testing.T) {
	call := Spec{Until: &Until{Markers: []string{"<call>", "<calls>", "ll>x"}, End: true,
		Then: []Spec{{Text: "{1}"}, {Text: "{2}"}, {Text: "never"}}}}
	longer := Spec{Until: &Until{Markers: []string{"<a", "<ab>"}, Then: []Spec{{Text: "!"}, {Text: "?"}}}}
	again := Spec{Until: &Until{Markers: []string{"<a>", "<b>"}, Then: []Spec{{Text: "1"}, {Choices: []string{"", "2"}}}, End: true,
		Again: true}}
	for _, c := range []struct {
		spec    Spec
		yes, no []string
	}{
		{again, []string{"", "x", "x<a>1", "<a>1<a>1x<b><b>2<a>1", "<a>1 <", "<b>x", "<a<a>1"},
			[]string{"<a>", "<a>2", "x<a>1<a>", "<a>1x<a>2", "<b><a>", "<a>1<a>x"}},
		{call, []string{"", "text \xff <cal", "a<<call>{1}", "<calls>{2}", "ll>xnever", "<c<call>{1}"},
			[]string{"<call>", "<call>{2}", "<calls>{1}", "<call>xnever", "<call>{1} ", "<call>{1}<call>{1}", "<call>{{1}"}},
		{longer, []string{"<a!", "<ab>?", "x<<ab>?"}, []string{"", "x", "<a?", "<ab>!", "<ab!", "<ab>", "<a!<a!"}},
	} {
		texts(t, c.spec, c.yes, c.no)
	}
	s, _ := compile(t, longer).Start().Next([]byte("so <a"))
	if got := s.Forced(); got != nil { // the longer marker is still open
		t.Errorf("behind a marker that begins another one %q is forced", got)
	}
	s, _ = compile(t, call).Start().Next([]byte("so <call>"))
	if s.Done() || string(s.Forced()) != "{1}" {
		t.Errorf("behind a marker: done %v, forced %q", s.Done(), s.Forced())
	}
	if s, _ = s.Next([]byte("{")); string(s.Forced()) != "1}" {
		t.Errorf("behind a marker and {: forced %q", s.Forced())
	}
	if s, _ = s.Next([]byte("1}")); !s.Ended() || !s.Done() {
		t.Error("the end is not forced where nothing may follow")
	}
}

func TestForced(t *testing.T) {
	g := compile(t, Spec{Seq: []Spec{{Text: "abc"}, {Any: []Spec{{Text: "defg"}, {Text: "defh"}}}}})
	if got := string(g.Start().Forced()); got != "abcdef" {
		t.Errorf("forced %q", got)
	}
	many, _ := g.Start().Next([]byte("abcd"))
	if got := string(many.Forced()); got != "ef" || len(many.more) != 2 {
		t.Errorf("of %d alternatives %q is forced", len(many.more), got)
	}
	if got := (State{}).Forced(); got != nil {
		t.Errorf("without a constraint %q is forced", got)
	}
	long := compile(t, Spec{Text: strings.Repeat("x", 2*maxForced)})
	if got := long.Start().Forced(); len(got) != maxForced {
		t.Errorf("%d bytes are forced: at most %d may be", len(got), maxForced)
	}
}

func TestRefused(t *testing.T) {
	deep := Spec{Text: "x"}
	for range 100 {
		deep = Spec{Seq: []Spec{deep}}
	}
	for _, c := range []struct {
		name string
		spec Spec
		want error
	}{
		{"nothing", Spec{}, ErrInvalid},
		{"two kinds", Spec{Text: "a", Regex: "b"}, ErrInvalid},
		{"no expression", Spec{Regex: `a(`}, ErrUnsupported},
		{"look-ahead", Spec{Regex: `(?=a)`}, ErrUnsupported},
		{"word boundary", Spec{Regex: `\ba`}, ErrUnsupported},
		{"no text", Spec{Regex: `a$b`}, ErrInvalid},
		{"no choice", Spec{Choices: []string{}}, ErrInvalid},
		{"large count", Spec{Regex: `a{1,100000}`}, ErrTooLarge},
		{"counts", Spec{Regex: strings.Repeat(`a{1000}`, 100)}, ErrTooLarge},
		{"exponential", Spec{Regex: `(a|b)*a(a|b){30}`}, ErrTooLarge},
		{"classes", Spec{Regex: `([\p{L}\p{N}]|[\p{Lu}x]){500}`}, ErrTooLarge},
		{"deep", deep, ErrTooLarge},
		{"long", Spec{Text: strings.Repeat("x", 300<<10)}, ErrTooLarge},
		{"empty item", Spec{Repeat: &Repeat{Of: Spec{Regex: "a*"}}}, ErrUnsupported},
		{"range", Spec{Repeat: &Repeat{Of: Spec{Text: "a"}, Min: 3, Max: 2}}, ErrInvalid},
		{"empty marker", Spec{Until: &Until{Markers: []string{""}}}, ErrInvalid},
		{"no marker", Spec{Until: &Until{}}, ErrInvalid},
		{"no JSON", schema(`{`), ErrInvalid},
		{"deep schema", schema(strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat(`}`, 100)), ErrTooLarge},
	} {
		if _, err := Compile(c.spec, Limits{}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v: want %v", c.name, err, c.want)
		}
	}
}

// TestRegexAgainstLibrary compares random expressions on random texts with Go's regexp.
func TestRegexAgainstLibrary(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var expression func(depth int) string
	expression = func(depth int) string {
		if depth == 0 {
			return []string{"a", "b", "ä", "[ab]", "[^a]", ".", "", "^", "$", "(?i:B)", `\d`, `\S`}[r.IntN(12)]
		}
		x, y := expression(depth-1), expression(depth-1)
		return []string{x + y, "(?:" + x + "|" + y + ")", "(" + x + ")*", "(?:" + x + "){1,3}",
			"(?:" + x + ")?" + y, "(?:" + x + ")+" + y}[r.IntN(6)]
	}
	taken := 0
	for range 2000 {
		e := expression(1 + r.IntN(3))
		forms := []struct {
			want *regexp.Regexp
			how  reading
		}{{regexp.MustCompile(`^(?:` + e + `)$`), whole}, {regexp.MustCompile(e), search}}
		for _, form := range forms {
			b := &budget{limits: Limits{}.withDefaults()}
			a := b.regex(e, form.how)
			for range 20 {
				var text strings.Builder
				for range r.IntN(6) {
					text.WriteString([]string{"a", "b", "B", "ä", "1", "\n"}[r.IntN(6)])
				}
				got := a != nil && a.matches(text.String())
				if want := form.want.MatchString(text.String()); got != want {
					t.Fatalf("%q on %q, read as %d: %v, want %v", e, text.String(), form.how, got, want)
				}
				if got {
					taken++
				}
			}
		}
	}
	if taken < 1000 {
		t.Errorf("only %d texts matched", taken)
	}
}

// TestComposedAgainstLibrary compares random Specs of texts, choices, expressions, sequences, alternatives and repetitions with the
// regular expressions that say the same.
func TestComposedAgainstLibrary(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var random func(depth int) (Spec, string)
	several := func(depth int) (specs []Spec, expressions []string) {
		for range 1 + r.IntN(3) {
			s, e := random(depth)
			specs, expressions = append(specs, s), append(expressions, e)
		}
		return specs, expressions
	}
	random = func(depth int) (Spec, string) {
		kind := r.IntN(6)
		if depth == 0 {
			kind = r.IntN(3)
		}
		switch kind {
		case 0:
			return Spec{Text: "ab"}, "ab"
		case 1:
			return Spec{Choices: []string{"a", "ab", "bä"}}, "(?:a|ab|bä)"
		case 2:
			return Spec{Regex: "[ab]?ä*"}, "(?:[ab]?ä*)"
		case 3:
			specs, es := several(depth - 1)
			return Spec{Seq: specs}, "(?:" + strings.Join(es, "") + ")"
		case 4:
			specs, es := several(depth - 1)
			return Spec{Any: specs}, "(?:" + strings.Join(es, "|") + ")"
		default:
			of, e := random(depth - 1)
			of, e = Spec{Seq: []Spec{of, {Text: "b"}}}, e+"b" // not empty
			least, most, between := r.IntN(2), r.IntN(4), []string{"", "a"}[r.IntN(2)]
			if most > 0 && most < least {
				most = least
			}
			times := "{" + strconv.Itoa(max(0, least-1)) + ","
			if most > 0 {
				times += strconv.Itoa(most - 1)
			}
			whole := e + "(?:" + between + e + ")" + times + "}"
			if least == 0 {
				whole = "(?:" + whole + ")?"
			}
			return Spec{Repeat: &Repeat{Of: of, Separator: between, Min: least, Max: most}}, "(?:" + whole + ")"
		}
	}
	taken := 0
	for range 3000 {
		s, e := random(3)
		g, want := compile(t, s), regexp.MustCompile(`^(?:`+e+`)$`)
		for range 20 {
			var text strings.Builder
			for range r.IntN(8) {
				text.WriteString([]string{"a", "b", "ä", "ab"}[r.IntN(4)])
			}
			got := takes(t, g, text.String())
			if got != want.MatchString(text.String()) {
				t.Fatalf("%s on %q: %v", e, text.String(), got)
			}
			if got {
				taken++
			}
		}
	}
	if taken < 1000 {
		t.Errorf("only %d texts matched", taken)
	}
}
