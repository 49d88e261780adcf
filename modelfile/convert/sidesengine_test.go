package convert

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// guessed is what the engine computes with a side file: for each asked row and level the likeliest tokens with their log-probabilities,
// or a draft's logits row by row.
func guessed(t *testing.T, target, path string, g *golden) (all [][]float64) {
	t.Helper()
	_, s := readSide(t, path)
	m, err := engine.Open(target, engine.Options{Device: testdevice.CPU(t, 0), KVPages: engine.PagesFor(1, 64, 16), Taps: s.Taps})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	tokens := make([]tandem.Token, len(g.Tokens))
	for i, v := range g.Tokens {
		tokens[i] = tandem.Token(v)
	}
	if s.Kind.IsDraft() {
		return drafted(t, m, target, path, tokens, g.Fed)
	}
	if err := m.OpenSide(path); err != nil {
		t.Fatal(err)
	}
	for _, row := range g.Rows {
		ask := engine.GuessAsk{SelfDraft: tandem.Medusa}
		part := engine.Part{Extend: tokens[:row+1]}
		first, rows := row, 1
		if s.Kind == side.PPD {
			ask.SelfDraft = tandem.PPD
			first, rows = row+1, s.Levels*s.Members
			for i := range rows {
				parent := int32(i - 1)
				if i%s.Levels == 0 {
					parent = -1
				}
				part.Nodes, part.Parents = append(part.Nodes, tandem.Token(-1-i)), append(part.Parents, parent)
			}
		}
		if part.Seq, err = m.NewSequence(64, 16); err != nil {
			t.Fatal(err)
		}
		out, err := m.Forward([]engine.Part{part}, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i := range rows {
			ask.Hidden = append(ask.Hidden, slices.Clone(out.Hidden(0, first+i)))
		}
		part.Seq.Close()
		guesses, err := m.Guess([]engine.GuessAsk{ask}, 5)
		if err != nil {
			t.Fatal(err)
		}
		for _, level := range guesses[0].Levels {
			var flat []float64
			for _, c := range level {
				flat = append(flat, float64(c.Token), float64(c.LogProb))
			}
			all = append(all, flat)
		}
	}
	return all
}

// drafted returns a draft's logits for the tokens from position 1 on: the first fed rows get the target's states, the others its own.
func drafted(t *testing.T, m *engine.Model, target, path string, tokens []tandem.Token, fed int) (all [][]float64) {
	t.Helper()
	_, s := readSide(t, path)
	seq, err := m.NewSequence(64, 16)
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Close()
	out, err := m.Forward([]engine.Part{{Seq: seq, Extend: tokens, Want: engine.WantAll}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	states := make([]engine.State, len(tokens)-1)
	for i := range fed {
		states[i].Target = make([]float32, m.FeatureWidth())
		out.Features(0, i, states[i].Target)
	}
	d, err := engine.OpenDraft(path, target, engine.Options{Device: testdevice.CPU(t, 0), KVPages: engine.PagesFor(1, 64, 16)})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	rows, err := d.NewSequence(64, 16)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for i, token := range tokens[1:] {
		out, err := d.Forward([]engine.Part{{Seq: rows, Extend: []tandem.Token{token}, States: states[i : i+1], Want: engine.WantAll}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		var flat []float64
		logits := out.Logits(0)
		for id, v := range logits {
			if s.Draft.IDs != nil {
				if id == len(s.Draft.IDs) {
					break
				}
				v = logits[s.Draft.IDs[id]]
			}
			flat = append(flat, float64(v))
		}
		all = append(all, flat)
		if i+1 < len(states) && i+1 >= fed {
			states[i+1].Own = slices.Clone(out.Hidden(0, 0))
		}
	}
	return all
}

// The engine, too, guesses with an expanded side file what it guesses with the original: to the bit where √(d/D) is a power of two,
// else up to rounding, which an EAGLE draft, whose first block has no norm before it, carries from step to step.
func TestEngineExpandedSides(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		shape Shape
		most  float64
	}{{Shape{5, 128, 0, 0, 256, 0}, 0}, {Shape{4, 96, 0, 0, 192, 0}, 1e-3}} {
		target := filepath.Join(dir, fmt.Sprintf("target-%d.gguf", c.shape.Dim))
		if _, err := Expand(t.Context(), sides+"target.gguf", target, c.shape, "f32", Options{}); err != nil {
			t.Fatal(err)
		}
		for _, name := range sideNames {
			big, g := filepath.Join(dir, fmt.Sprintf("%s-%d.gguf", name, c.shape.Dim)), readGolden(t, name)
			if _, err := Expand(t.Context(), sides+name+".gguf", big, c.shape, "", Options{}); err != nil {
				t.Fatal(err)
			}
			want, got := guessed(t, sides+"target.gguf", sides+name+".gguf", g), guessed(t, target, big, g)
			if a := apart(want, got); a > c.most {
				t.Errorf("%s to %d: guesses differ by up to %g", name, c.shape.Dim, a)
			} else {
				t.Logf("%s to %d: %d rows, %g apart", name, c.shape.Dim, len(got), a)
			}
		}
	}
}
