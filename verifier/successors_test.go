package verifier_test

import (
	"context"
	"reflect"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/verifier"
)

// TestSuccessorsAreOfEveryNode: a verdict carries the target's likeliest tokens after every node, accepted or not, as many as its ticket
// asks for: those that the target alone finds after the node's path. The text does not depend on them, and nobody gets what was not
// asked for.
func TestSuccessorsAreOfEveryNode(t *testing.T) {
	twin := openGuesser(t)
	prompt := []tandem.Token{5, 9, 7, 30, 12}
	want := tinySample(t, twin, prompt, 20)
	d := newDesk(t, verifier.Config{Model: openGuesser(t)})
	d.open(1, prompt)
	text := slices.Clone(prompt)
	for round := 0; len(text) < len(want)-4; round++ {
		next := want[len(text):]
		tree := tandem.Tree{Tokens: []tandem.Token{text[len(text)-1], next[0], (next[0] + 1) % 250, next[1], (next[1] + 3) % 250, 8},
			Parents: []int32{-1, 0, 0, 1, 1, 4}}
		ticket := ticketOn(1, text, tree)
		ticket.Successors = []int{0, 3, tandem.MostSuccessors, 1000}[round%4]
		if err := d.v.Submit(context.Background(), ticket); err != nil {
			t.Fatal(err)
		}
		v := d.verdict()
		if v.Kind != tandem.OK || !slices.Equal(v.Tokens, next[:3]) {
			t.Fatalf("round %d: %+v, want %v", round, v, next[:3])
		}
		n := min(ticket.Successors, tandem.MostSuccessors)
		if n == 0 {
			if v.Successors != nil {
				t.Errorf("successors nobody asked for: %v", v.Successors)
			}
		} else {
			for node := range tree.Tokens {
				if got, right := v.SuccessorsOf(node, n), likeliest(t, twin, text, tree, int32(node), n); !slices.Equal(got, right) {
					t.Errorf("round %d, node %d: %v, want %v", round, node, got, right)
				}
			}
			if extra := v.SuccessorsOf(tree.Len(), n); extra != nil {
				t.Errorf("round %d: %v after a node that is not there", round, extra)
			}
		}
		if err := d.v.Submit(context.Background(), ticket); err != nil {
			t.Fatal(err)
		}
		if again := d.verdict(); !reflect.DeepEqual(again, v) {
			t.Errorf("round %d: repeated %+v, want %+v", round, again, v)
		}
		text = append(text, v.Tokens...)
	}
}

// likeliest returns the n tokens that the target finds likeliest after a text and the path to a node below it.
func likeliest(t *testing.T, m *engine.Model, text []tandem.Token, tree tandem.Tree, node int32, n int) (out []tandem.Token) {
	t.Helper()
	var path []tandem.Token
	for ; node > 0; node = tree.Parents[node] {
		path = append(path, tree.Tokens[node])
	}
	slices.Reverse(path)
	seq, err := m.NewSequence(tiny, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Close()
	all, err := m.Forward([]engine.Part{{Seq: seq, Extend: slices.Concat(text, path), Want: engine.WantTail}}, n)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range all.Top(0).IDs {
		out = append(out, tandem.Token(id))
	}
	return out
}
