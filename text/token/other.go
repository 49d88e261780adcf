package token

import (
	"bytes"
	"io"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Extract returns a GGUF file with the tokenizer, architecture and name of the model file at path and nothing else: what Parse needs.
func Extract(path string) ([]byte, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	if err := extract(f, &b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func extract(f *gguf.File, to io.Writer) error {
	w := gguf.KeysOf(f)
	for _, k := range f.Keys() {
		if !strings.HasPrefix(k.Name, "tokenizer.ggml.") && k.Name != architectureKey && k.Name != nameKey {
			w.DropKey(k.Name)
		}
	}
	_, err := w.WriteTo(to)
	return err
}

// Parse is Open for the bytes of a file.
func Parse(file []byte) (*Vocab, error) {
	f, err := gguf.Parse(file)
	if err != nil {
		return nil, err
	}
	return FromGGUF(f)
}

// SpacePrefix reports whether a text begins with an added space.
func (v *Vocab) SpacePrefix() bool { return v.spacePrefix }

// Begin returns the tokens with which v begins a text: that of the beginning, or none.
func (v *Vocab) Begin() []tandem.Token {
	if v.addBOS {
		return []tandem.Token{v.bos}
	}
	return nil
}

// Steers reports whether t is a control or an unknown token, or no token of v.
func (v *Vocab) Steers(t tandem.Token) bool {
	return !v.has(t) || v.kinds[t] == control || v.kinds[t] == unknown
}

// Counterpart returns the token of v that corresponds to t, a control token of another vocabulary: the control token with the same text, or
// v's token for the beginning or end of a text. It returns false if there is none.
func (v *Vocab) Counterpart(other *Vocab, t tandem.Token) (tandem.Token, bool) {
	switch {
	case !other.has(t):
		return 0, false
	case other.bos == t:
		return v.bos, v.bos >= 0
	case other.eos == t:
		return v.eos, v.eos >= 0
	}
	piece := other.pieces[t]
	if v.control == nil || piece == "" {
		return 0, false
	}
	list := v.control.list
	i, found := slices.BinarySearchFunc(list, piece, func(w written, s string) int { return strings.Compare(w.text, s) })
	if !found {
		return 0, false
	}
	return list[i].id, true
}

// TranslationCosts is what users are told about a draft of another vocabulary.
const TranslationCosts = "it drafts in its own tokens, and the texts are translated; the end of each guess that the target could divide " +
	"otherwise is cut, and guesses do not follow the noise of a temperature, so fewer of them are right"
