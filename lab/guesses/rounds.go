package guesses

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/spec"
)

// plan says which trees the rounds of a way have.
type plan struct {
	way  *tandem.SelfDraft                                     // nil: no guesses
	tree func(said []tandem.Token, g tandem.Guess) tandem.Tree // below the last token said
}

// plain is decoding without speculation.
var plain = plan{tree: func(said []tandem.Token, _ tandem.Guess) tandem.Tree { return tandem.Root(said[len(said)-1]) }}

// decode says a text again with real rounds: the target verifies a tree, the text goes on by what is accepted, and the way guesses behind
// its end. It returns how many tokens each round decided and how long all took, from the first pass behind the prompt on. Errors: the
// model's, ctx's, and Internal if the text is another one.
func (b *bench) decode(x *text, p tandem.Sampling, pl plan) (rounds []int, took time.Duration, err error) {
	m := b.target
	seq, err := m.NewSequence(min(len(x.Text)+tandem.MostLevels+1, m.Config().Context), m.MaxRows()-1)
	if err != nil {
		return nil, 0, err
	}
	defer seq.Close()
	for prompt := x.Text[:x.Prompt-1]; seq.Len() < len(prompt); {
		rest := prompt[seq.Len():]
		part := engine.Part{Seq: seq, Extend: rest[:min(len(rest), m.MaxRows())]}
		if _, err := m.Forward([]engine.Part{part}, 0); err != nil {
			return nil, 0, err
		}
	}
	said := slices.Clone(x.Text[:x.Prompt])
	var guess tandem.Guess
	if pl.way != nil {
		guess = x.Guesses[pl.way.Name][0]
	}
	var s sample.Sampler
	begun := time.Now()
	for len(said) < len(x.Text) {
		if err := b.ctx.Err(); err != nil {
			return nil, 0, err
		}
		t := pl.tree(said, guess)
		part := engine.Part{Seq: seq, Extend: t.Tokens[:1], Want: engine.WantTail}
		for i := 1; i < t.Len(); i++ {
			token := t.Tokens[i]
			if i >= t.Guesses() {
				token = -1 - token // a prompt row
			}
			part.Nodes, part.Parents = append(part.Nodes, token), append(part.Parents, t.Parents[i]-1)
		}
		o, err := m.Forward([]engine.Part{part}, 1)
		if err != nil {
			return nil, 0, err
		}
		at := tandem.Position(len(said))
		path, tokens := spec.Accept(t, func(node int32) tandem.Token {
			x := s.Draw(s.Shape(o.Logits(o.First(0)+int(node)), p, nil), p, at)
			at++
			return x
		})
		node := int32(0)
		if len(path) > 0 {
			node = path[len(path)-1]
		}
		said = append(said, tokens...)
		for i := range path {
			path[i]--
		}
		if pl.way != nil {
			ask, levels := behind(*pl.way, t, node, o)
			ask.Seq, ask.Path, ask.Token = seq, path, said[len(said)-1]
			if guess, err = b.guess(ask, levels, p, len(said)); err != nil {
				return nil, 0, err
			}
		}
		if err := seq.Commit(path); err != nil {
			return nil, 0, err
		}
		rounds = append(rounds, len(tokens))
	}
	took = time.Since(begun)
	if !slices.Equal(said[:len(x.Text)], x.Text) {
		return nil, 0, tandem.Errorf("guesses", tandem.Internal, "rounds with trees have said another text than plain decoding")
	}
	return rounds, took, nil
}

// behind asks a way for what follows a node of a tree that the pass of o has computed, and returns how many levels it can guess.
func behind(w tandem.SelfDraft, t tandem.Tree, node int32, o *engine.Output) (ask engine.GuessAsk, levels int) {
	ask, levels = engine.GuessAsk{SelfDraft: w.Name, Hidden: [][]float32{o.Hidden(0, int(node))}}, w.Levels
	if w.Members > 0 {
		ask.Hidden, levels = promptStates(w, t, node, o)
	}
	return ask, levels
}

// guess returns at most so many levels of what a way guesses behind a text of so many tokens.
func (b *bench) guess(ask engine.GuessAsk, levels int, p tandem.Sampling, tokens int) (tandem.Guess, error) {
	if levels == 0 {
		return tandem.Guess{SelfDraft: ask.SelfDraft}, nil
	}
	list, err := b.target.Guess([]engine.GuessAsk{ask}, tandem.MostCandidates)
	if err != nil {
		return tandem.Guess{}, err
	}
	g := list[0]
	g.Levels = g.Levels[:levels]
	for k := range g.Levels {
		level := sample.Lean(g.Levels[k], p, tandem.Position(tokens+k))
		g.Levels[k] = level[:min(len(level), candidates)]
	}
	return g, nil
}

// promptStates returns the states of a node's prompt nodes, and how many levels have those of all members. Levels without get any others.
func promptStates(w tandem.SelfDraft, t tandem.Tree, node int32, o *engine.Output) (states [][]float32, levels int) {
	levels = promptsBehind(t, node)
	rows := make([]int32, w.Members*w.Levels)
	for i := t.Guesses(); i < t.Len(); i++ {
		e := int(t.Tokens[i])
		above := node
		if e%w.Levels > 0 {
			above = rows[e-1]
		}
		if above == t.Parents[i] && (e%w.Levels == 0 || above > 0) {
			rows[e] = int32(i)
		}
	}
	for _, row := range rows {
		states = append(states, o.Hidden(0, int(max(row, node))))
	}
	return states, levels
}
