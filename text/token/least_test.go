package token

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestAtLeast compares with the tokens of texts: the bound never exceeds them, and is close enough to refuse far too long texts.
func TestAtLeast(t *testing.T) {
	v := shipped(t)
	for _, one := range []string{"x", " ", "\n", "word ", "\u2581", "é", "\U0001F600", "func main() {", "\x00"} {
		text := strings.Repeat(one, 1<<18/len(one))
		n := len(v.Encode(text, false))
		least := v.AtLeast(text)
		t.Logf("%q: %d tokens, at least %d", one, n, least)
		if least > n || least < len(text)/64 {
			t.Errorf("%q makes %d tokens of %d bytes, at least %d were said", one, n, len(text), least)
		}
	}
	if n := v.AtLeast(""); n != 0 {
		t.Errorf("nothing has %d tokens", n)
	}
}

func TestAtLeastOfAnyText(t *testing.T) {
	vocabs := map[string]*Vocab{"shipped": shipped(t),
		"spaces": newDraft(space, space+space, space+"a", "a"+space+"b", "ab", "é").add(userDefined, "<a>", "x y").add(control,
			"<s> ").vocab(t),
		"bytes": newBytes("gpt-2", "a b", "Ġ Ġ", "ĠĠ a", "Ã ©").add(userDefined, "<a>", "x y").vocab(t),
		"none":  newDraft("a").set("add_space_prefix", false).vocab(t)}
	for name, v := range vocabs {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				part := rapid.SampledFrom([]string{" ", "  ", space, "a", "b", "ab", "a b", "é", "<a>", "x y", "<s> ", "<s>", "\xff",
					"\xe2", "\x96", "\n", "\U0001F600", "word"})
				text := strings.Join(rapid.SliceOf(part).Draw(t, "parts"), "") + rapid.String().Draw(t, "text")
				least := v.AtLeast(text)
				for _, n := range []int{len(v.Encode(text, false)), len(v.EncodeWithControl(text, false)),
					len(v.EncodeGuarded(text, nil))} {
					if least > n {
						t.Fatalf("%q makes %d tokens, at least %d were said", text, n, least)
					}
				}
			})
		})
	}
}
