package engine_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// sidePath is a file of testdata/sides, which README.md there describes.
func sidePath(name string) string { return "testdata/sides/" + name + ".gguf" }

// sideGolden is what PyTorch computed with a side file or with the target.
type sideGolden struct {
	Tokens []tandem.Token
	Rows   []int
	Fed    int
	States [][]float32
	Taps   map[string][][]float32
	Logits json.RawMessage
}

func readGolden(t *testing.T, name string) (g sideGolden) {
	t.Helper()
	b, err := os.ReadFile("testdata/sides/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(name, err)
	}
	return g
}

func (g *sideGolden) logits(t *testing.T, into any) {
	t.Helper()
	if err := json.Unmarshal(g.Logits, into); err != nil {
		t.Fatal(err)
	}
}

// goldenTolerance bounds |ours - PyTorch's| / (1 + |PyTorch's|): the cache of the engine is f16.
const goldenTolerance = 0.004

func wantClose(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
	}
	for i := range want {
		if d := math.Abs(float64(got[i] - want[i])); !(d <= goldenTolerance*(1+math.Abs(float64(want[i])))) {
			t.Fatalf("%s: number %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// wantLevel compares a level of a guess with the logits that it was made of.
func wantLevel(t *testing.T, what string, level []tandem.TopLogprob, logits []float32, top int) {
	t.Helper()
	if len(level) != top {
		t.Fatalf("%s: %d candidates, want %d", what, len(level), top)
	}
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v))
	}
	order := slices.Clone(logits)
	slices.Sort(order)
	for i, c := range level {
		want := float64(logits[c.Token]) - math.Log(sum)
		nth := float64(order[len(order)-1-i]) - math.Log(sum) // ranks may swap when logits are nearly equal
		if math.Abs(float64(c.LogProb)-want) > 0.01 || math.Abs(want-nth) > 0.01 {
			t.Fatalf("%s: candidate %d is token %d with log-probability %v: want %v, and the best but %d has %v", what, i, c.Token,
				c.LogProb, want, i, nth)
		}
	}
}

// openSides opens the tiny target with side files.
func openSides(t testing.TB, o engine.Options, names ...string) *engine.Model {
	t.Helper()
	if o.KVPages == 0 {
		o.KVPages = engine.PagesFor(2, 64, 64)
	}
	m := enginetest.Open(t, sidePath("target"), o)
	for _, name := range names {
		if err := m.OpenSide(sidePath(name)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// promptTree returns the prompt rows of a way below a tree row (-1: the prefix), the next of whose rows is `first`.
func promptTree(w tandem.SelfDraft, parent, first int32) (nodes []tandem.Token, parents []int32) {
	for range w.Members {
		for i := range w.Levels {
			if i == 0 {
				parents = append(parents, parent)
			} else {
				parents = append(parents, first+int32(len(nodes))-1)
			}
			nodes = append(nodes, tandem.Token(-1-len(nodes)))
		}
	}
	return nodes, parents
}

// askPrompts collects the hidden states of prompt rows that begin with row `from` of a part.
func askPrompts(o *engine.Output, w tandem.SelfDraft, part, from int) engine.GuessAsk {
	a := engine.GuessAsk{SelfDraft: tandem.PPD}
	for i := range w.Members * w.Levels {
		a.Hidden = append(a.Hidden, slices.Clone(o.Hidden(part, from+i)))
	}
	return a
}

// someTokens are what a side file of the tests knows that does not know all.
var someTokens = []int32{3, 250, 7, 31, 100, 101, 0, 259}

// openSome opens the tiny target with a side file, or with one that knows someTokens alone: then others get no probability in want.
func openSome(t *testing.T, name string, some bool, want [][][]float32) *engine.Model {
	if !some {
		return openSides(t, engine.Options{}, name)
	}
	arch, _, _ := strings.Cut(name, "-")
	m := openSides(t, engine.Options{})
	err := m.OpenSide(editSide(t, name, func(w *gguf.Writer) {
		w.Set(arch+".d2t", someTokens)
		w.Set(arch+".draft_vocab_size", uint32(len(someTokens)))
	}))
	if err != nil {
		t.Fatal(err)
	}
	for _, logits := range slices.Concat(want...) {
		for token := range logits {
			if !slices.Contains(someTokens, int32(token)) {
				logits[token] = float32(math.Inf(-1))
			}
		}
	}
	return m
}

// TestMedusaGolden: heads give PyTorch's logits, with the target's output matrix, with some of its rows, and with their own.
func TestMedusaGolden(t *testing.T) {
	for i, name := range []string{"medusa-shared", "medusa-own", "medusa-shared"} {
		g := readGolden(t, name)
		var want [][][]float32 // row, head, token
		g.logits(t, &want)
		m := openSome(t, name, i == 2, want)
		s := enginetest.NewSeq(t, m, 40, 4)
		out := enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: g.Tokens})
		var asks []engine.GuessAsk
		for _, row := range g.Rows {
			asks = append(asks, engine.GuessAsk{SelfDraft: tandem.Medusa, Hidden: [][]float32{slices.Clone(out.Hidden(0, row))}})
		}
		guesses, err := m.Guess(asks, 7)
		if err != nil {
			t.Fatal(err)
		}
		for i, guess := range guesses {
			if len(guess.Levels) != len(want[i]) || guess.Validate(m.Config().Vocab) != nil {
				t.Fatalf("%s: %d levels, want %d; %v", name, len(guess.Levels), len(want[i]), guess.Validate(m.Config().Vocab))
			}
			for k, level := range guess.Levels {
				wantLevel(t, fmt.Sprint(name, ", row ", g.Rows[i], ", head ", k), level, want[i][k], 7)
			}
		}
	}
}

// TestPPDGolden: prompt rows below the prefix and below tree rows give PyTorch's logits.
func TestPPDGolden(t *testing.T) {
	for i, name := range []string{"ppd-1", "ppd-4", "ppd-4"} {
		g := readGolden(t, name)
		var want [][][]float32
		g.logits(t, &want)
		m := openSome(t, name, i == 2, want)
		way := m.SelfDrafts()[0]
		for i, row := range g.Rows {
			for inTree := range 2 {
				s := enginetest.NewSeq(t, m, 40, 40)
				p := engine.Part{Seq: s, Extend: g.Tokens[:row+1-inTree], Want: engine.WantTail}
				if inTree == 1 {
					p.Nodes, p.Parents = []tandem.Token{g.Tokens[row], 7}, []int32{-1, -1}
				}
				at := len(p.Nodes)
				nodes, parents := promptTree(way, int32(inTree)-1, int32(at))
				p.Nodes, p.Parents = append(p.Nodes, nodes...), append(p.Parents, parents...)
				out := enginetest.Forward(t, m, 0, p)
				if out.Len() != 1+2*inTree {
					t.Fatalf("%d rows with logits, want 1 and those with tokens", out.Len())
				}
				guesses, err := m.Guess([]engine.GuessAsk{askPrompts(out, way, 0, len(p.Extend)+at)}, 5)
				if err != nil {
					t.Fatal(err)
				}
				for k, level := range guesses[0].Levels {
					wantLevel(t, fmt.Sprint(name, ", row ", row, ", token ", k), level, want[i][k], 5)
				}
				s.Close()
			}
		}
	}
}

// TestSidesChangeNothing: with side files open and prompt rows in its trees, a dialogue has the same logits, on every device; and all
// devices guess the same, to the bit.
func TestSidesChangeNothing(t *testing.T) {
	want := enginetest.Dialogue(t, openSides(t, engine.Options{}), 20)
	first := map[string]string{} // by heads: what the first device guessed
	for name, d := range enginetest.SideDevices(t) {
		for _, heads := range []string{"medusa-shared", "medusa-own"} {
			m := openSides(t, engine.Options{Device: d}, heads, "ppd-4")
			if err := enginetest.SameBits(enginetest.Dialogue(t, m, 20), want); err != nil {
				t.Errorf("%s, %s: %v", name, heads, err)
			}
			guesses := fmt.Sprint(guessAll(t, m))
			if want, ok := first[heads]; ok && guesses != want {
				t.Errorf("%s, %s: guesses %v, want %v", name, heads, guesses, want)
			}
			first[heads] = guesses
		}
	}
}

func same(a, b []tandem.Guess) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// guessAll guesses in all ways after a prompt and in a tree: alone and together, which must be the same.
func guessAll(t *testing.T, m *engine.Model) (all []tandem.Guess) {
	t.Helper()
	s := enginetest.NewSeq(t, m, 40, 40)
	defer s.Close()
	way := m.SelfDrafts()[1]
	p := engine.Part{Seq: s, Extend: []tandem.Token{1, 50, 60, 70}, Nodes: []tandem.Token{5, 6}, Parents: []int32{-1, 0}}
	nodes, parents := promptTree(way, 1, 2)
	p.Nodes, p.Parents = append(p.Nodes, nodes...), append(p.Parents, parents...)
	out := enginetest.Forward(t, m, 0, p)
	asks := []engine.GuessAsk{askPrompts(out, way, 0, 6)}
	for row := range 6 {
		asks = append(asks, engine.GuessAsk{SelfDraft: tandem.Medusa, Hidden: [][]float32{slices.Clone(out.Hidden(0, row))}})
	}
	for i := range asks {
		guesses, err := m.Guess(asks[i:i+1], 3)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, guesses...)
	}
	for len(asks) < 200 { // more rows than a run has
		asks = append(asks, asks[len(asks)-7])
	}
	together, err := m.Guess(asks, 3)
	if err != nil {
		t.Fatal(err)
	}
	for i := range together {
		if !same(together[i:i+1], all[i%7:i%7+1]) {
			t.Fatalf("guess %d of %d is %v, alone %v", i, len(asks), together[i], all[i%7])
		}
	}
	return all
}

// TestFeatures: hidden states are PyTorch's, in any order, on every device to the bit; and the logits are those without them.
func TestFeatures(t *testing.T) {
	g := readGolden(t, "target")
	var want [][]float32
	g.logits(t, &want)
	prompt := func(m *engine.Model) *engine.Output {
		s := enginetest.NewSeq(t, m, 40, 4)
		return enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: g.Tokens[:9], Nodes: g.Tokens[9:10], Parents: []int32{-1},
			Want: engine.WantAll})
	}
	plain := openSides(t, engine.Options{})
	bare := prompt(plain)
	if plain.FeatureWidth() != 0 {
		t.Errorf("%d features without taps", plain.FeatureWidth())
	}
	taps := []int{2, -1, 3, 1, 2}
	var first []float32
	for name, d := range enginetest.SideDevices(t) {
		m := openSides(t, engine.Options{Device: d, Taps: taps})
		out := prompt(m)
		var all []float32
		for row := range 10 {
			if err := enginetest.SameBits(out.Logits(row), bare.Logits(row)); err != nil {
				t.Fatalf("%s: row %d: %v", name, row, err)
			}
			features := make([]float32, m.FeatureWidth())
			out.Features(0, row, features)
			for i, n := range taps {
				wantClose(t, fmt.Sprintf("%s: tap %d of row %d", name, n, row), features[i*32:(i+1)*32], g.Taps[fmt.Sprint(n)][row])
			}
			all = append(all, features...)
		}
		wantClose(t, name+": logits", out.Logits(9), want[9])
		if first == nil {
			first = all
		}
		if err := enginetest.SameBits(all, first); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, taps := range [][]int{{0}, {4}, {-2}, {1, 99}, make([]int, 17)} {
		if _, err := engine.Open(sidePath("target"), engine.Options{Device: testdevice.Ref(),
			Taps: taps}); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("taps %v: %v", taps, err)
		}
	}
}

// openDraftTest opens a draft with states of the tiny target.
func openDraftTest(t testing.TB, name string, o engine.Options) *engine.Model {
	t.Helper()
	return openDraftFile(t, sidePath(name), o)
}

func openDraftFile(t testing.TB, path string, o engine.Options) *engine.Model {
	t.Helper()
	if o.Device == nil {
		o.Device = testdevice.CPU(t, 0)
	}
	o.KVPages = engine.PagesFor(2, 64, 64)
	m, err := engine.OpenDraft(path, sidePath("target"), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

var draftNames = []string{"dovetail", "dovetail-bare", "eagle", "eagle3"}

// targetStates returns the target's features of every position as PyTorch has them, as a draft wants them.
func targetStates(t *testing.T, m *engine.Model) []engine.State { return goldenStates(t, m, "target") }

func goldenStates(t *testing.T, m *engine.Model, target string) (states []engine.State) {
	g := readGolden(t, target)
	for row := range g.Tokens {
		var s engine.State
		for _, n := range engine.DraftOf(m).Spec.Taps {
			s.Target = append(s.Target, g.Taps[fmt.Sprint(n)][row]...)
		}
		states = append(states, s)
	}
	return states
}

// TestDraftGolden: drafts give PyTorch's states and logits, first from the target's states and then from their own.
func TestDraftGolden(t *testing.T) {
	for _, name := range draftNames {
		m := openDraftTest(t, name, engine.Options{})
		draftGolden(t, name, m, targetStates(t, m))
	}
}

// draftGolden compares a draft with what PyTorch computed with the file of that name.
func draftGolden(t *testing.T, name string, m *engine.Model, states []engine.State) {
	t.Helper()
	g := readGolden(t, name)
	var want [][]float32
	g.logits(t, &want)
	s := enginetest.NewSeq(t, m, 40, 8)
	out := enginetest.Forward(t, m, 4, engine.Part{Seq: s, Extend: g.Tokens[1 : 1+g.Fed], States: states[:g.Fed], Want: engine.WantAll})
	var own []float32
	check := func(row, i int) {
		what := fmt.Sprint(name, ", row ", row)
		own = slices.Clone(out.Hidden(0, i))
		wantClose(t, what, own, g.States[row])
		logits, top := out.Logits(i), out.Top(i)
		for k, id := range top.IDs {
			if logits[id] != top.Logits[k] {
				t.Fatalf("%s: candidate %d is token %d, whose logit is %v and not %v", what, k, id, logits[id], top.Logits[k])
			}
		}
		if ids := engine.DraftOf(m).Spec.Draft.IDs; ids != nil {
			var drafts []float32
			for _, id := range ids {
				drafts = append(drafts, logits[id])
			}
			if n := len(logits); n != m.Config().Vocab {
				t.Fatalf("%s: %d logits, want %d", what, n, m.Config().Vocab)
			}
			logits = drafts
		}
		wantClose(t, what, logits, want[row])
	}
	for row := range g.Fed {
		check(row, row)
	}
	for i, row := range []int{g.Fed, g.Fed + 1} {
		out = enginetest.Forward(t, m, 4, engine.Part{Seq: s, Nodes: g.Tokens[row+1 : row+2], Parents: []int32{int32(i) - 1},
			States: []engine.State{{Own: own}},
			Want:   engine.WantTail})
		check(row, 0)
	}
}
