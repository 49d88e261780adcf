package token

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// TestStrips: which files have tokens that take white space with them, and on which sides. Spans that others wrote change nothing in it:
// the white space at the beginning of what a user says goes with the marker before, as in the model's own tokenizer.
func TestStrips(t *testing.T) {
	sentences := func(arch, name string) *draft {
		d := newDraft(space, "H", space+"H").add(control, "<|endoftext|>", "<|end|>").add(userDefined, "<|user|>")
		d.keys[architectureKey], d.keys[nameKey] = arch, name
		return d
	}
	bytes := func(pre string) *draft {
		d := newBytes(pre).add(control, "<|endoftext|>", "<|end|>").add(userDefined, "<|user|>")
		d.keys[architectureKey], d.keys[nameKey] = "phi3", "Phi 4"
		return d
	}
	const text = "<|user|> \n\u3000H \t<|end|>\n<|endoftext|>\n"
	for name, c := range map[string]struct {
		d    *draft
		want string
	}{
		"by architecture": {sentences("phi3", "mine"), "<|user|>|▁H|▁|<0x09>|<|end|>|<|endoftext|>|▁|<0x0A>"},
		"by name":         {sentences("llama", "Phi-3.5 mini"), "<|user|>|▁H|▁|<0x09>|<|end|>|<|endoftext|>|▁|<0x0A>"},
		"of another model": {sentences("llama", "mine"),
			"<|user|>|▁|▁|<0x0A>|<0xE3>|<0x80>|<0x80>|H|▁|<0x09>|<|end|>|▁|<0x0A>|<|endoftext|>|▁|<0x0A>"},
		"both sides":            {bytes("dbrx"), "<|user|>|H|<|end|>|<|endoftext|>"},
		"right, those of chats": {bytes("gpt-4o"), "<|user|>|H|Ġ|ĉ|<|end|>|<|endoftext|>|Ċ"},
		"another pre-tokenizer": {bytes("llama3"), "<|user|>|Ġ|Ċ|ã|Ģ|Ģ|H|Ġ|ĉ|<|end|>|Ċ|<|endoftext|>|Ċ"},
	} {
		v := c.d.vocab(t)
		for _, got := range [][]Span{nil, {{8, 14}}, {{8, 16}}} {
			if got := pieces(v, v.EncodeGuarded(text, got)); got != c.want {
				t.Errorf("%s: %s, want %s", name, got, c.want)
			}
		}
		again, err := Parse(extracted(t, c.d))
		if err != nil || again.Fingerprint() != v.Fingerprint() ||
			!slices.Equal(again.EncodeWithControl(text, true), v.EncodeWithControl(text, true)) {
			t.Errorf("%s: what is extracted has other tokens or another fingerprint: %v", name, err)
		}
		if got := v.EncodeNext(text); v.Decode(append(v.EncodeNext("x"), got...)) != "x"+text {
			t.Errorf("%s: text that continues another is not as it was: %s", name, pieces(v, got))
		}
	}
	if a, b := sentences("phi3", "").vocab(t), sentences("llama", "").vocab(t); a.Fingerprint() == b.Fingerprint() {
		t.Error("tokens that take white space with them are not in the fingerprint")
	}
}

// extracted is Extract for a draft.
func extracted(t *testing.T, d *draft) []byte {
	f, err := gguf.Parse(d.file(t))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := extract(f, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestComposed: text between tokens is composed where the model's tokenizer does so, and only there.
func TestComposed(t *testing.T) {
	const text = "e\u0301x e<q>\u0301"
	for _, c := range []struct{ pre, want string }{
		{"qwen2", "é|x|Ġ|e|<q>|Ì|ģ"}, {"qwen35", "é|x|Ġ|e|<q>|Ì|ģ"}, {"deepseek-r1-qwen", "é|x|Ġ|e|<q>|Ì|ģ"},
		{"stablelm2", "é|x|Ġ|e|<q>|Ì|ģ"}, {"command-r", "é|x|Ġ|e|<q>|Ì|ģ"}, {"olmo", "é|x|Ġ|e|<q>|Ì|ģ"}, {"mpt", "é|x|Ġ|e|<q>|Ì|ģ"},
		{"llama-bpe", "e|Ì|ģ|x|Ġ|e|<q>|Ì|ģ"}, {"gpt-2", "e|Ì|ģ|x|Ġ|e|<q>|Ì|ģ"}, {"starcoder", "e|Ì|ģ|x|Ġ|e|<q>|Ì|ģ"},
	} {
		v := newBytes(c.pre, "Ã ©").add(userDefined, "<q>").vocab(t)
		var got []string
		for _, id := range v.Encode(text, false) {
			if p := v.Piece(id); p == "Ã©" {
				got = append(got, "é")
			} else {
				got = append(got, p)
			}
		}
		if !slices.Equal(got, strings.Split(c.want, "|")) {
			t.Errorf("%s: %q, want %s", c.pre, got, c.want)
		}
		if back := v.Decode(v.EncodeNext(text)); back != text {
			t.Errorf("%s: text that continues another becomes %q", c.pre, back)
		}
	}
	if got := compose("\xff\xc3e\u0301\xe2\x96"); got != "\xff\xc3é\xe2\x96" || utf8.ValidString(got) {
		t.Errorf("bytes that are not UTF-8 become %q", got)
	}
}
