package demo

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// script is a decoder that says the words of a text: with speculation two of three are drafted. It notes how it was called.
func script(called *[]string, texts map[Way]string) Decoder {
	return func(_ context.Context, way Way, tokens int, show func(Piece) error) (Generation, error) {
		*called = append(*called, fmt.Sprint(way, " ", tokens))
		g := Generation{TokensPerSecond: 10, TokensPerRound: 1}
		if way == Speculative {
			g.TokensPerSecond, g.TokensPerRound, g.Accepted = 25, 3, 2
		}
		for i, word := range strings.SplitAfter(texts[way], " ") {
			from := FromTarget
			if way == Speculative && i%3 != 2 {
				from = FromDraft
			}
			if err := show(Piece{word, from}); err != nil {
				return g, err
			}
			g.Tokens = append(g.Tokens, tandem.Token(len(word)))
			g.Text += word
		}
		return g, nil
	}
}

const words = "r *Reader) (r Reader, err error) {\n\treturn }"

func TestRun(t *testing.T) {
	var called []string
	var out strings.Builder
	r := &Result{Prompt: "func Read("}
	if err := r.Run(t.Context(), script(&called, map[Way]string{Plain: words, Speculative: words}), 64, &Text{To: &out}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"plain decoding 4", "plain decoding 64", "with speculation 64"}; !slices.Equal(called, want) {
		t.Errorf("decoded %v: want %v", called, want)
	}
	if r.Speedup != 2.5 || !r.Equal || r.Plain.Text != words || r.Speculative.Accepted != 2 {
		t.Errorf("%+v", r)
	}
	want := `--- plain decoding
func Read(r *Reader) (r Reader, err error) {
	return }
--- with speculation
func Read(r *Reader) (r Reader, err error) {
	return }
---
plain decoding      10.0 tokens/s   1.00 tokens per round
with speculation    25.0 tokens/s   3.00 tokens per round   2.50 times as fast
ids equal: all 8 tokens, of which 2 were guessed by a draft model
`
	if out.String() != want {
		t.Errorf("shown:\n%s\nwant:\n%s", &out, want)
	}
}

// A difference is shown, and is an error.
func TestNotEqual(t *testing.T) {
	for name, spec := range map[string]string{"another token": "r *Writers) x", "fewer": "r *Reader) "} {
		var called []string
		var out strings.Builder
		r := &Result{}
		err := r.Run(t.Context(), script(&called, map[Way]string{Plain: words, Speculative: spec}), 64, &Text{To: &out})
		said := strings.Contains(out.String(), "ids NOT EQUAL: "+r.Difference) && !strings.Contains(out.String(), "ids equal")
		if tandem.KindOf(err) != tandem.Internal || r.Equal || r.Difference == "" || !said {
			t.Errorf("%s: %v, %+v\n%s", name, err, r, &out)
		}
	}
	a := Generation{Text: "ab", Tokens: []tandem.Token{1, 2}}
	for want, b := range map[string]Generation{
		"": a,
		"token 2 is 2 by plain decoding and 3 with speculation": {Text: "ab", Tokens: []tandem.Token{1, 3}},
		"plain decoding gave 2 tokens, speculation 1":           {Text: "ab", Tokens: []tandem.Token{1}},
		"the token ids are equal, but the text is not":          {Text: "ac", Tokens: []tandem.Token{1, 2}},
	} {
		if got := difference(a, b); got != want {
			t.Errorf("difference is %q: want %q", got, want)
		}
	}
}

func TestStops(t *testing.T) {
	gone := errors.New("gone")
	fail := func(at Way) Decoder {
		return func(_ context.Context, way Way, tokens int, _ func(Piece) error) (Generation, error) {
			if tokens > warmUp && way == at {
				return Generation{}, gone
			}
			return Generation{}, nil
		}
	}
	for _, at := range []Way{Plain, Speculative} {
		if err := new(Result).Run(t.Context(), fail(at), 10, Quiet{}); !errors.Is(err, gone) {
			t.Errorf("%v: %v", at, err)
		}
	}
}

// TestColumns: what a terminal shows at the end, whatever was drawn before.
func TestColumns(t *testing.T) {
	var called []string
	var out strings.Builder
	v := NewColumns(&out, 70, 12, false)
	r := &Result{Prompt: "func Read("}
	text := strings.Repeat(words+"\n", 12) // more than the window
	if err := r.Run(t.Context(), script(&called, map[Way]string{Plain: text, Speculative: text}), 64, v); err != nil {
		t.Fatal(err)
	}
	screen := strings.Split(emulate(t, out.String(), 12), "\n")
	if got, want := screen[0], "plain decoding: 10.0 tokens/s     │ with speculation: 25.0 tokens/s"; got != want {
		t.Errorf("head %q: want %q", got, want)
	}
	for i, want := range []string{
		"func Read(r *Reader) (r Reader, e │ func Read(r *Reader) (r Reader, e",
		"rr error) {                       │ rr error) {",
		"    return }                      │     return }",
		"r *Reader) (r Reader, err error)  │ r *Reader) (r Reader, err error)",
		"{                                 │ {",
	} {
		if got := strings.TrimRight(screen[i+1], " "); got != want {
			t.Errorf("line %d: %q, want %q", i+1, got, want)
		}
	}
	if n := len(screen); n != 1+3*12+1+3+1 || !strings.HasPrefix(screen[n-2], "ids equal: all ") {
		t.Errorf("%d lines:\n%s", n, strings.Join(screen, "\n"))
	}
	if regexp.MustCompile(`\x1b\[[0-9]*m`).MatchString(out.String()) {
		t.Error("colours, though none are wanted")
	}
	for _, size := range [][2]int{{66, 24}, {40, 24}, {200, 7}, {0, 0}} {
		if NewColumns(&out, size[0], size[1], true) != nil {
			t.Errorf("two columns on a terminal of %v", size)
		}
	}
	if v := NewColumns(&out, 500, 500, true); v.width != maxColumn || v.height != maxWindow {
		t.Errorf("%d cells, %d lines", v.width, v.height)
	}
}

// TestColours: each piece has the look of its origin, also across lines.
func TestColours(t *testing.T) {
	var out strings.Builder
	v := NewColumns(&out, 70, 24, true)
	for _, way := range []Way{Plain, Speculative} {
		if err := errors.Join(v.Begin(way), v.Show(Piece{"p\n", FromPrompt}), v.Show(Piece{"a\nb", FromDraft}),
			v.Show(Piece{"c", FromTarget}), v.End(Generation{})); err != nil {
			t.Fatal(err)
		}
	}
	out.Reset()
	if err := v.Finish(&Result{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"│ \x1b[2mp\x1b[0m\n", "│ \x1b[36ma\x1b[0m\n", "│ \x1b[36mb\x1b[0mc\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
}

func TestCells(t *testing.T) {
	var c column
	c.add(Piece{"日本e\u0301", FromTarget}, 4)
	if len(c.lines) != 2 || c.cells != 1 || c.lines[1][0].text != "e\u0301" {
		t.Errorf("%+v", c)
	}
	c = column{}
	c.add(Piece{"a\tb\t", FromTarget}, 8)
	var b strings.Builder
	if n := c.write(&b, 0, false); n != 8 || b.String() != "a   b   " {
		t.Errorf("%d cells: %q", n, b.String())
	}
}

// emulate returns what a terminal of so many lines shows, and has scrolled away, after out. It knows what Columns uses.
func emulate(t *testing.T, out string, height int) string {
	t.Helper()
	lines, row := []string{""}, 0
	for out != "" {
		var up int
		switch {
		case strings.HasPrefix(out, "\x1b[J"):
			lines, out = append(lines[:row], ""), out[3:]
		case strings.HasPrefix(out, "\x1b["):
			if _, err := fmt.Sscanf(out, "\x1b[%dA\r", &up); err != nil {
				t.Fatalf("unknown sequence: %q", out[:min(len(out), 10)])
			}
			if up >= height {
				t.Fatalf("goes %d lines up on a terminal of %d", up, height)
			}
			row -= up
			out = out[strings.IndexByte(out, '\r')+1:]
		case out[0] == '\n':
			if row++; row == len(lines) {
				lines = append(lines, "")
			}
			out = out[1:]
		default:
			n := strings.IndexAny(out, "\x1b\n")
			if n < 0 {
				n = len(out)
			}
			lines[row] += out[:n]
			out = out[n:]
		}
	}
	return strings.Join(lines, "\n")
}
