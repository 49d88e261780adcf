package token

import (
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// normalize brings a part of a text, between two written tokens, into the form that the model knows.
func (v *Vocab) normalize(text string) string {
	switch {
	case v.composes():
		return compose(text)
	case v.byteLevel():
		return text
	}
	var b strings.Builder
	b.Grow(len(text) + (len(space)-1)*strings.Count(text, " ") + len(space))
	if v.spacePrefix {
		b.WriteString(space)
	}
	for {
		i := strings.IndexByte(text, ' ')
		if i < 0 {
			b.WriteString(text)
			return b.String()
		}
		b.WriteString(text[:i])
		b.WriteString(space)
		text = text[i+1:]
	}
}

// composes reports whether texts are brought into normal form C.
func (v *Vocab) composes() bool { return v.byteLevel() && v.bpe.pre.composed }

// compose returns text in Unicode's normal form C. Bytes that are not UTF-8 stay as they are.
func compose(text string) string {
	if norm.NFC.IsNormalString(text) {
		return text
	}
	return norm.NFC.String(text)
}

// sides are the sides of a token in a text on which white space belongs to it.
type sides uint8

const (
	left sides = 1 << iota
	right
)

// stripping says which tokens of a model family take the white space beside them with them: lstrip and rstrip of the added tokens in
// tokenizer.json, which GGUF does not have.
type stripping struct {
	name      []string // in lower case; general.name contains one of them, or
	model     string   // the tokenizer is this one, of general.architecture phi3 and
	pre       string   // with this pre-tokenizer, "" for none
	sides     sides
	only, but []string // the tokens with these texts; without only all control, unknown and user-defined ones but these
}

var strippings = []stripping{
	{name: []string{"phi-3", "phi3"}, model: "llama", sides: right, but: []string{"<unk>", "<s>", "<|endoftext|>"}},
	{model: modelBytes, pre: "dbrx", sides: left | right}, // Phi-4
	{model: modelBytes, pre: "gpt-4o", sides: right, // Phi-4-mini
		only: []string{"<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|tag|>"}},
}

// The keys that say which model family a vocabulary is of.
const architectureKey, nameKey = "general.architecture", "general.name"

// readStrips finds out which tokens strip. It needs written and the pre-tokenizer.
func (v *Vocab) readStrips(f *gguf.File) error {
	arch, err := f.StringOr(architectureKey, "")
	if err != nil {
		return err
	}
	name, err := f.StringOr(nameKey, "")
	if err != nil {
		return err
	}
	name = strings.ToLower(name)
	pre := ""
	if v.byteLevel() {
		pre = v.bpe.pre.names[0]
	}
	for _, s := range strippings {
		named := slices.ContainsFunc(s.name, func(part string) bool { return strings.Contains(name, part) })
		if named || arch == "phi3" && v.model == s.model && pre == s.pre {
			v.setStrips(s)
			break
		}
	}
	return nil
}

func (v *Vocab) setStrips(s stripping) {
	if v.written == nil {
		return
	}
	v.strips = map[tandem.Token]sides{}
	for _, w := range v.written.list {
		if s.only == nil && !slices.Contains(s.but, w.text) || slices.Contains(s.only, w.text) {
			v.strips[w.id] = s.sides
		}
	}
}

// strip returns what is left of the text before a written token, and where the text behind it goes on: at end, or later. The tokens are
// found before that: one that begins with white space is found behind one that takes it.
func (v *Vocab) strip(t tandem.Token, before, text string, end int) (string, int) {
	s := v.strips[t]
	if s&left != 0 {
		before = strings.TrimRightFunc(before, unicode.IsSpace)
	}
	if s&right != 0 {
		end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
	}
	return before, end
}
