package published

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// pardTokens is how many mask tokens a pass gets: PARD's own program guesses 12 tokens a pass (draft_k), the first of them at the last
// token itself.
const pardTokens = 11

// pard takes a draft of PARD (pard_infer.py of AMD-AIG-AIMA/PARD; An et al., "PARD", 2025): an ordinary model, trained to guess at rows
// of one mask token behind its text, each of which sees the text and the mask tokens before it. Those are prompt tokens that share one
// embedding, so the side file holds the mask token's row of the embedding matrix, once for each. It belongs to the GGUF file that was made
// of the same checkpoint, which is the target here, and which a drafter runs. All other weights are in that file.
func (t *taker) pard() error {
	s, mask := t.c.Spec, *t.config.MaskToken
	const embeddings = "embed_tokens.weight"
	switch {
	case t.has("fc.weight"):
		return t.fail(tandem.Unsupported, "pard_token %d in a draft that reads states (P-EAGLE): tandem imports plain models with it", mask)
	case !t.has(embeddings):
		return t.fail(tandem.Invalid, "tensor %q is missing: want the whole checkpoint of the draft", embeddings)
	case mask < 0 || mask >= s.Vocab:
		return t.fail(tandem.Invalid, "%s has pard_token %d: want a token of the draft, 0 to %d", t.config.path, mask, s.Vocab-1)
	}
	if err := t.copies(embeddings, "token_embd.weight", s.Dim, s.Vocab, false); err != nil {
		return err
	}
	s.Levels, s.Members = pardTokens, 1
	t.c.Tensors = append(t.c.Tensors, Tensor{Name: side.PPDEmbeddings, Shape: []int{s.Dim, s.Levels}, From: t.from[embeddings],
		RowsOf: func(int) int { return mask }})
	for name := range t.from {
		t.used[name] = true
	}
	t.note("PARD: %d rows of mask token %d; the other weights are those of the draft's own file", s.Levels, mask)
	return nil
}
