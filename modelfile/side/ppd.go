package side

import (
	"fmt"

	"github.com/tandem-llm/tandem"
)

// PPD is trained embeddings of prompt tokens, which are rows of the target's own passes (Chen et al., 2024).
const PPD Kind = "ppd"

// MaxTokens bounds the prompt tokens.
const MaxTokens = 16

// PPDEmbeddings names the embeddings of the prompt tokens: number member·Levels + level.
const PPDEmbeddings = "ppd.embd.weight"

// Prompt token k guesses the token k+2 places after its node. An ensemble has several embeddings for each.
var ppd = layout{kind: PPD, selfDraft: tandem.PPD, sort: Prompts, prompts: PPDEmbeddings, read: readSome, set: setIDs,
	numbers: func(s *Spec) []number {
		return []number{{"token_count", &s.Levels, MaxTokens}, {"ensemble_count", &s.Members, tandem.MostPrompts}}
	},
	check: func(s *Spec) error {
		if s.Levels < 1 || s.Levels > MaxTokens || s.Members < 1 || s.Members > tandem.MostPrompts/s.Levels {
			return fmt.Errorf("%d prompt tokens of %d ensemble members: want 1 to %d tokens, and at most %d embeddings in all",
				s.Levels, s.Members, MaxTokens, tandem.MostPrompts)
		}
		return s.checkSome()
	},
	tensors:  func(l *slots, s *Spec) { l.add(PPDEmbeddings, Zeros, s.Dim, s.Levels*s.Members) },
	describe: func(s *Spec) string { return fmt.Sprintf("%d prompt tokens, %d embeddings each", s.Levels, s.Members) },
}
