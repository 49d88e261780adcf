package measure

import (
	"context"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/kernels/half"
)

// Told is a text that a model has said without speculation, with all that its ways guessed along it. As every round says the same text,
// rounds with any trees can be replayed from it, without the model.
type Told struct {
	Text   []tandem.Token // the prompt and what the model said, up to the end of the text at most
	Prompt int            // tokens of the prompt
	// Guesses holds, by way, one guess for each root Prompt−1, Prompt, … of the text: on what follows the root, made by the pass that drew
	// it. A prompt of one token has an empty first guess.
	Guesses map[string][]tandem.Guess
	// Features are the states of all tokens but the last that Options.Taps names: (tokens − 1, FeatureWidth), f16 as drafts get them.
	Features []uint16
}

// Tell decodes prompt by at most n tokens, as Continue does, and has all ways of m guess behind each token, with at most top candidates
// in a level. Where the model samples, candidates lean to what it will draw, as those of a verifier do. The model needs free pages for
// len(prompt) + n positions and PromptRows tree rows, and passes of more rows than PromptRows. Errors: Continue's and Guess's.
func Tell(ctx context.Context, m *engine.Model, prompt []tandem.Token, n int, p tandem.Sampling, top int) (*Told, error) {
	l := &listener{model: m, prompt: len(prompt), nodes: PromptRows(m), guesses: map[string][]tandem.Guess{}}
	for _, w := range m.SelfDrafts() {
		if len(prompt) == 1 {
			l.guesses[w.Name] = []tandem.Guess{{SelfDraft: w.Name}}
		}
	}
	text, err := say(ctx, m, prompt, n, p, l)
	if err != nil {
		return nil, err
	}
	guesses, err := m.Guess(l.asks, tandem.MostCandidates)
	if err != nil {
		return nil, err
	}
	for _, g := range append(guesses, l.chains...) {
		root := len(prompt) - 1 + len(l.guesses[g.SelfDraft])
		for k := range g.Levels {
			level := sample.Lean(g.Levels[k], p, tandem.Position(root+1+k))
			g.Levels[k] = level[:min(len(level), top)]
		}
		l.guesses[g.SelfDraft] = append(l.guesses[g.SelfDraft], g)
	}
	return &Told{Text: text, Prompt: len(prompt), Guesses: l.guesses, Features: l.features}, nil
}

// PromptRows returns the most tree rows that a way of m needs behind a token: those of its prompt tokens.
func PromptRows(m *engine.Model) (rows int) {
	for _, w := range m.SelfDrafts() {
		rows = max(rows, w.Levels*w.Members)
	}
	return rows
}

// listener collects what a model guesses while it decodes a text.
type listener struct {
	model    *engine.Model
	prompt   int
	nodes    int               // prompt rows behind a token
	asks     []engine.GuessAsk // for the end
	last     []float32         // for an assistant: the state of the pass behind which it guesses; nil: it does not
	chains   []tandem.Guess    // an assistant's, made as soon as the next token is known, because they read the cache
	guesses  map[string][]tandem.Guess
	features []uint16
}

// before adds to a part the prompt rows behind its last token, if a guess is wanted there. The guess for the last token of the prompt is
// made behind the token before it, so a pass ends there.
func (l *listener) before(part *engine.Part) {
	from := part.Seq.Len()
	if left := l.prompt - 1 - from; left > 0 {
		part.Extend = part.Extend[:min(len(part.Extend), left)]
	}
	part.Extend = part.Extend[:min(len(part.Extend), l.model.MaxRows()-l.nodes)]
	if !l.guessed(from + len(part.Extend)) {
		return
	}
	for _, w := range l.model.SelfDrafts() {
		for e := range w.Levels * w.Members {
			parent := int32(e - 1)
			if e%w.Levels == 0 {
				parent = -1
			}
			part.Nodes, part.Parents = append(part.Nodes, tandem.Token(-1-e)), append(part.Parents, parent)
		}
	}
}

// guessed reports whether a guess is made by a pass after which the sequence holds that many tokens.
func (l *listener) guessed(held int) bool { return held >= max(l.prompt-1, 1) }

// after keeps what a pass has shown, and drops its prompt rows.
func (l *listener) after(part *engine.Part, out *engine.Output) error {
	rows := len(part.Extend)
	if n := l.model.FeatureWidth(); n > 0 {
		x := make([]float32, n)
		for i := range rows {
			out.Features(0, i, x)
			l.features = append(l.features, make([]uint16, n)...)
			half.Pack(l.features[len(l.features)-n:], x)
		}
	}
	if l.guessed(part.Seq.Len()) {
		for _, w := range l.model.SelfDrafts() {
			if w.Name == tandem.Assistant {
				l.last = slices.Clone(out.Hidden(0, rows-1))
				continue
			}
			ask := engine.GuessAsk{SelfDraft: w.Name}
			for e := range w.Levels * w.Members {
				ask.Hidden = append(ask.Hidden, slices.Clone(out.Hidden(0, rows+e)))
			}
			if w.Members == 0 {
				ask.Hidden = [][]float32{slices.Clone(out.Hidden(0, rows-1))}
			}
			l.asks = append(l.asks, ask)
		}
	}
	return part.Seq.Truncate(part.Seq.Len())
}

// next has an assistant guess behind token, which follows what seq holds.
func (l *listener) next(seq *engine.Sequence, token tandem.Token) error {
	if l.last == nil {
		return nil
	}
	ask := engine.GuessAsk{SelfDraft: tandem.Assistant, Hidden: [][]float32{l.last}, Seq: seq, Token: token}
	guesses, err := l.model.Guess([]engine.GuessAsk{ask}, tandem.MostCandidates)
	l.chains, l.last = append(l.chains, guesses...), nil
	return err
}
