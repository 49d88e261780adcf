package grammar

import (
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// TestDeadEnds: tokens after which no token leads to an end are not allowed.
func TestDeadEnds(t *testing.T) {
	v := tokens("a", "b", "ab", "ba", "x", "\"", "\x04y", "cd") // no c, d, y, \x04 alone
	for _, c := range []struct {
		spec    Spec
		so      string
		allowed []tandem.Token
		ends    bool // the start can be finished
	}{
		{Spec{Choices: []string{"abc", "abx"}}, "", []tandem.Token{0, 2}, true},
		{Spec{Choices: []string{"abc", "abx"}}, "ab", []tandem.Token{4}, true},
		{Spec{Choices: []string{"ac", "bx"}}, "", []tandem.Token{1}, true},
		{Spec{Text: "ac"}, "", nil, false},
		{Spec{Text: "acd"}, "", []tandem.Token{0}, true},
		{Spec{Regex: "a*[c\x04]y?"}, "", []tandem.Token{0, 6}, true},
		{Spec{Regex: "(a|b)*"}, "a", []tandem.Token{0, 1, 2, 3, 8}, true},
		{Spec{Seq: []Spec{{Regex: "a?"}, {Any: []Spec{{Text: "bc"}, {Text: "x"}}}}}, "", []tandem.Token{0, 4}, true},
	} {
		g := compile(t, c.spec)
		s, ok := g.Start().Next([]byte(c.so))
		if !ok {
			t.Fatalf("%+v: %q is refused", c.spec, c.so)
		}
		m := check(t, v, s, []byte(c.so))
		want := make(Mask, len(m))
		want.allow(c.allowed)
		for id := range tandem.Token(v.size) {
			if m.Has(id) != want.Has(id) {
				t.Errorf("%+v after %q: token %q: %v", c.spec, c.so, v.bytes(id), m.Has(id))
			}
		}
		if got := v.Finishes(g.Start()); got != c.ends {
			t.Errorf("%+v: it can be finished: %v", c.spec, got)
		}
	}
	if v := small(); !v.isSure(compile(t, Spec{Text: "\x04"})) || !v.isSure(compile(t, schema(`{}`))) {
		t.Error("a vocabulary of all bytes has dead ends")
	}
}

// TestDeadEndsBounded: a grammar of many states that needs a byte which is missing costs a bounded search.
func TestDeadEndsBounded(t *testing.T) {
	var texts []string
	for c := ' '; c <= '~'; c++ {
		for d := ' '; d <= '~'; d++ {
			texts = append(texts, string(c)+string(d), string(c))
		}
	}
	v := tokens(append(texts, "\x7f!")...)
	g := compile(t, Spec{Seq: []Spec{schema(`{"type": "array", "items": {"type": "string", "maxLength": 500}}`), {Choices: []string{"\x7f", "\x7f!"}}}})
	start := time.Now()
	for _, so := range []string{"", `["x`, `["x", "`, `["x"]`} {
		s, ok := g.Start().Next([]byte(so))
		if !ok || !v.Finishes(s) {
			t.Fatalf("%q is refused", so)
		}
		check(t, v, s, []byte(so))
	}
	s, _ := g.Start().Next([]byte("[]"))
	if id, ok := v.Single(s); !ok || string(v.bytes(id)) != "\x7f!" {
		t.Error("the only token that leads to an end is not found")
	}
	t.Log(time.Since(start))
}
