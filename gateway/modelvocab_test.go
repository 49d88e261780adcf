package gateway

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/text/token"
)

// FromToken returns a model's vocabulary as a Vocab.
func FromToken(v *token.Vocab) Vocab { return modelVocab{v} }

type modelVocab struct{ *token.Vocab }

func (v modelVocab) NewDecoder(written bool, prev ...tandem.Token) Decoder {
	return token.NewDecoder(v.Vocab, written, prev...)
}
