package spec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// occurs reports whether part stands in text.
func occurs(text, part []tandem.Token) bool {
	for i := 0; i+len(part) <= len(text); i++ {
		if slices.Equal(text[i:i+len(part)], part) {
			return true
		}
	}
	return false
}

// longest returns the length of the longest suffix of text that also ends somewhere before.
func longest(text []tandem.Token) int {
	n := len(text)
	for m := n - 1; m > 0; m-- {
		if occurs(text[:n-1], text[n-m:]) {
			return m
		}
	}
	return 0
}

func TestAutomatonAgainstSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		alphabet := rapid.IntRange(1, 20).Draw(t, "alphabet")
		a := NewAutomaton()
		var text []tandem.Token
		for range rapid.IntRange(1, 80).Draw(t, "tokens") {
			x := tandem.Token(rapid.IntRange(0, alphabet-1).Draw(t, "token"))
			text = append(text, x)
			a.Append(x)
			if got := int(a.states[max(a.states[a.last].link, 0)].length); got != longest(text) {
				t.Fatalf("%v: longest suffix of %d, want %d", text, got, longest(text))
			}
		}
		p := tandem.Bounds{Nodes: rapid.IntRange(1, 20).Draw(t, "nodes"), Depth: rapid.IntRange(1, 6).Draw(t, "depth"),
			Width: rapid.IntRange(1, 4).Draw(t, "width")}
		tree := a.Continue(p)
		if err := tree.Validate(max(p.Nodes, 1), alphabet); err != nil {
			t.Fatal(err)
		}
		if _, depth := tree.Depths(); depth > p.Depth {
			t.Fatalf("depth %d, bounds %v", depth, p)
		}
		children := map[int32]int{}
		mass := map[int32]float64{}
		for i := 1; i < tree.Len(); i++ {
			// After some suffix of the text, its last token at least, the path stands in it.
			if path := pathOf(tree, int32(i)); !occurs(text, path) {
				t.Fatalf("%v: %v never stood there", text, path)
			}
			if tree.LogProbs[i] > tree.LogProbs[i-1] {
				t.Fatalf("node %d with %v comes after one with %v", i, tree.LogProbs[i], tree.LogProbs[i-1])
			}
			parent := tree.Parents[i]
			children[parent]++
			mass[parent] += math.Exp(float64(tree.LogProbs[i]))
		}
		for parent, n := range children {
			if n > p.Width || mass[parent] > math.Exp(float64(tree.LogProbs[parent]))+1e-5 {
				t.Fatalf("node %d has %d children with a probability of %v in all", parent, n, mass[parent])
			}
		}
		// The likeliest children are those of the longest suffix: with room for all of them, each is there.
		if m := longest(text); m > 0 && p.Nodes > 1 {
			all := a.Continue(tandem.Bounds{Nodes: 1000, Depth: 1, Width: 100})
			for x := range tandem.Token(alphabet) {
				if occurs(text, append(slices.Clone(text[len(text)-m:]), x)) && child(all, 0, x) < 0 {
					t.Fatalf("%v: %d followed the longest suffix but is no guess", text, x)
				}
			}
		} else if tree.Len() > 1 {
			t.Fatalf("%v: nothing came before, guessed %v", text, tree)
		}
	})
}

func TestAutomatonContinues(t *testing.T) {
	text := func(s string) (out []tandem.Token) {
		for _, c := range s {
			out = append(out, tandem.Token(c))
		}
		return out
	}
	a := NewAutomaton()
	if a.Continue(tandem.Bounds{Nodes: 9, Depth: 9, Width: 9}).Len() != 0 {
		t.Error("a tree without tokens")
	}
	a.Append(text("if err != nil { return err }; x := f(); if err !")...)
	tree := a.Continue(tandem.Bounds{Nodes: 11, Depth: 10, Width: 1})
	var got []rune
	for _, x := range pathOf(tree, int32(tree.Len()-1)) {
		got = append(got, rune(x))
	}
	if string(got) != "!= nil { re" {
		t.Errorf("continued with %q", string(got))
	}
	if a.Continue(tandem.Bounds{}).Len() != 1 {
		t.Error("plain bounds gave more than the root")
	}
	// What followed more often is likelier, of equals what followed later.
	a = NewAutomaton()
	a.Append(text("ab ab ac ad a")...)
	tree = a.Continue(tandem.Bounds{Nodes: 4, Depth: 1, Width: 3})
	if want := text("abdc"); !slices.Equal(tree.Tokens, want) {
		t.Errorf("guesses %v, want %v", tree.Tokens, want)
	}
}

// TestAutomatonIsLinear bounds states, edges and memory for the texts that are worst for it, and for likely ones.
func TestAutomatonIsLinear(t *testing.T) {
	const n = 20000
	r := rand.New(rand.NewPCG(1, 1))
	for name, next := range map[string]func(i int) int{
		"equal": func(int) int { return 1 }, "pairs": func(i int) int { return i % 2 }, "random bits": func(int) int { return r.IntN(2) },
		"random tokens": func(int) int { return r.IntN(4096) }, "few tokens": func(int) int { return r.IntN(40) },
		"a^n b^n": func(i int) int { return i / (n / 2) },
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		a := NewAutomaton()
		for i := range n {
			a.Append(tandem.Token(next(i)))
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		bytes := float64(after.HeapAlloc-before.HeapAlloc) / n
		t.Logf("%-14s %.2f states, %.2f edges, %.0f bytes a token", name, float64(len(a.states))/n, float64(len(a.edges))/n, bytes)
		if len(a.states) > 2*n || len(a.edges) > 4*n || bytes > 300 {
			t.Errorf("%s: %d states, %d edges, %.0f bytes a token for %d tokens", name, len(a.states), len(a.edges), bytes, n)
		}
		runtime.KeepAlive(a)
	}
}

func BenchmarkAutomatonAppend(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	a := NewAutomaton()
	for b.Loop() {
		if a.Append(tandem.Token(r.IntN(200))); a.tokens == 100000 {
			a = NewAutomaton()
		}
	}
}

func BenchmarkAutomatonContinue(b *testing.B) {
	for _, nodes := range []int{8, 32} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			a := NewAutomaton()
			for range 2000 {
				a.Append(tandem.Token(r.IntN(50)))
			}
			for b.Loop() {
				a.Continue(tandem.Bounds{Nodes: nodes, Depth: 7, Width: 4})
			}
		})
	}
}
