package gateway

import (
	"strings"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// The fake model: tokens 0 (end of text) and 1 (begin of text), then one for each byte.
const (
	eos       = tandem.Token(0)
	bos       = tandem.Token(1)
	vocabSize = 258
)

type fakeVocab struct{}

func (fakeVocab) Size() int                 { return vocabSize }
func (fakeVocab) IsEnd(t tandem.Token) bool { return t == eos }
func (fakeVocab) Encode(s string, special bool) (out []tandem.Token) {
	if special {
		out = append(out, bos)
	}
	for _, b := range []byte(s) {
		out = append(out, tandem.Token(b)+2)
	}
	return out
}
func (fakeVocab) NewDecoder(bool, ...tandem.Token) Decoder { return new(fakeDecoder) }

type fakeDecoder struct{ pending []byte }

func (d *fakeDecoder) Next(t tandem.Token) string {
	d.pending = append(d.pending, byte(t-2))
	var out strings.Builder
	for len(d.pending) > 0 && utf8.FullRune(d.pending) {
		r, n := utf8.DecodeRune(d.pending)
		out.WriteRune(r)
		d.pending = d.pending[n:]
	}
	return out.String()
}

func (d *fakeDecoder) Flush() string {
	s := strings.ToValidUTF8(string(d.pending), string(utf8.RuneError))
	d.pending = nil
	return s
}
