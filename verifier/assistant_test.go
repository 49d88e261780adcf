package verifier_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/testkit/family"
	"github.com/tandem-llm/tandem/verifier"
)

// openAssisted opens a small Gemma 4 with its assistant.
func openAssisted(t testing.TB) *engine.Model {
	t.Helper()
	dir := t.TempDir()
	m, err := engine.Open(family.Golden("gemma4").Write(t, dir), engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 192,
		KVPages: engine.PagesFor(4, tiny, tiny)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	if err := m.OpenSide(family.Golden("gemma4-assistant").Write(t, dir)); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestAssistantBesideTrees: what an assistant guesses in a verdict, while the accepted nodes still lie in the tree's cells, is what it
// guesses behind the same text computed alone; a chain of its guesses is verified as any tree is, and the text is that of plain decoding.
func TestAssistantBesideTrees(t *testing.T) {
	twin := openAssisted(t)
	prompt := make([]tandem.Token, 20)
	for i := range prompt {
		prompt[i] = tandem.Token(i*i%1200 + 5)
	}
	want := tinySample(t, twin, prompt, 36)
	alone := func(text []tandem.Token) []tandem.Guess {
		t.Helper()
		seq, err := twin.NewSequence(tiny, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer seq.Close()
		n := len(text) - 1
		out, err := twin.Forward([]engine.Part{{Seq: seq, Extend: text[:n]}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		guesses, err := twin.Guess([]engine.GuessAsk{{SelfDraft: tandem.Assistant, Hidden: [][]float32{out.Hidden(0, n-1)}, Seq: seq,
			Token: text[n]}}, 10)
		if err != nil {
			t.Fatal(err)
		}
		return guesses
	}
	d := newDesk(t, verifier.Config{Model: openAssisted(t), FirstShare: 1e9})
	opened := d.open(1, prompt, tandem.Assistant)
	if first := alone(prompt); !reflect.DeepEqual(opened.Guesses, first) || len(first[0].Levels) != 4 {
		t.Errorf("opened with %v, want %v", opened.Guesses, first)
	}
	text, latest := slices.Clone(prompt), opened.Guesses[0]
	for round := 0; len(text) < 48; round++ {
		tree, n := tandem.Root(text[len(text)-1]), round%4
		for i := range n { // the right path, between wrong guesses
			parent := int32(max(2*i-1, 0))
			right := want[len(text)+i]
			tree.Tokens, tree.Parents = append(tree.Tokens, right, (right+1)%1200), append(tree.Parents, parent, parent)
		}
		if n == 0 { // the assistant's chain
			for i, level := range latest.Levels {
				tree.Tokens, tree.Parents = append(tree.Tokens, level[0].Token), append(tree.Parents, int32(i))
			}
		}
		d.put(1, text, tree, tandem.Assistant)
		v := d.verdict()
		if v.Kind != tandem.OK || len(v.Path) < n || !slices.Equal(v.Tokens, want[len(text):len(text)+len(v.Tokens)]) {
			t.Fatalf("round %d: %+v, want %v", round, v, want[len(text):])
		}
		text = append(text, v.Tokens...)
		if guesses := alone(text); !reflect.DeepEqual(v.Guesses, guesses) || v.Guessing <= 0 {
			t.Fatalf("round %d: guesses %v, want %v", round, v.Guesses, guesses)
		}
		latest = v.Guesses[0]
	}
}
