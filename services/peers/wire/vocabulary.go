package wire

import (
	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

// Vocabulary is the list of a model's tokens, or a part of it.
type Vocabulary struct {
	Tokenizer string       // its name in the model's file; "" from a drafter too old for Opening.Vocab
	EOS       tandem.Token // -1 for none
	Pieces    [][]byte     // by token: its raw bytes
	Kinds     []byte       // by token, as in the model's file; as many as Pieces, but none from such a drafter
}

// FromVocabulary encodes v.
func FromVocabulary(v Vocabulary) *peerv1.VocabularyResponse {
	out := &peerv1.VocabularyResponse{Pieces: v.Pieces, Kinds: v.Kinds, Tokenizer: v.Tokenizer}
	if v.EOS >= 0 {
		eos := uint32(v.EOS)
		out.Eos = &eos
	}
	return out
}

// ToVocabulary decodes v, whose lists it keeps. Errors: Corrupt if there is not one kind for each piece.
func ToVocabulary(v *peerv1.VocabularyResponse) (Vocabulary, error) {
	out := Vocabulary{Tokenizer: v.GetTokenizer(), EOS: -1, Pieces: v.GetPieces(), Kinds: v.GetKinds()}
	if v.Eos != nil {
		out.EOS = tandem.Token(v.GetEos())
	}
	if n := len(out.Kinds); n != len(out.Pieces) && (n > 0 || out.Tokenizer != "") {
		return out, tandem.Errorf(op, tandem.Corrupt, "vocabulary has %d types of %d tokens: want as many", n, len(out.Pieces))
	}
	return out, nil
}
