package bench

import (
	"context"
	"math"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
)

// Logits are the best logits at each position of a prompt, and a greedy continuation.
type Logits struct {
	Tokens    []tandem.Token `json:"tokens"`
	PromptTop [][][2]float64 `json:"prompt_top"` // (positions, top) pairs of id and logit
	Greedy    []tandem.Token `json:"greedy"`
}

// LogitsOf runs tokens through a model and notes the top best logits after each. Then it decodes n more tokens, each the likeliest, without
// speculation. Errors: the model's, and ctx's.
func LogitsOf(ctx context.Context, m *engine.Model, tokens []tandem.Token, top, n int) (*Logits, error) {
	seq, err := m.NewSequence(len(tokens)+n, 0)
	if err != nil {
		return nil, err
	}
	defer seq.Close()
	r := &Logits{Tokens: tokens, Greedy: []tandem.Token{}}
	for rest := tokens; len(rest) > 0; {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		chunk := rest[:min(len(rest), m.MaxRows())]
		rest = rest[len(chunk):]
		out, err := m.Forward([]engine.Part{{Seq: seq, Extend: chunk, Want: engine.WantAll}}, top)
		if err != nil {
			return nil, err
		}
		for i := range chunk {
			if err := out.Sound(out.First(0) + i); err != nil {
				return nil, err
			}
			best := out.Top(out.First(0) + i)
			pairs := make([][2]float64, len(best.IDs))
			for j, id := range best.IDs {
				pairs[j] = [2]float64{float64(id), max(float64(best.Logits[j]), -math.MaxFloat32)} // JSON has no infinity
			}
			r.PromptTop = append(r.PromptTop, pairs)
		}
	}
	if n == 0 {
		return r, nil
	}
	next := tandem.Token(r.PromptTop[len(tokens)-1][0][0])
	for {
		r.Greedy = append(r.Greedy, next)
		if len(r.Greedy) == n {
			return r, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		out, err := m.Forward([]engine.Part{{Seq: seq, Extend: []tandem.Token{next}, Want: engine.WantTail}}, 1)
		if err != nil {
			return nil, err
		}
		if err := out.Sound(0); err != nil {
			return nil, err
		}
		next = tandem.Token(out.Top(0).IDs[0])
	}
}
