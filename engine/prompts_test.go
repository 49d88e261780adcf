package engine_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// TestPromptRows: they take cells of the tree, are refused in a path, and are dropped with the tree.
func TestPromptRows(t *testing.T) {
	m := openSides(t, engine.Options{}, "ppd-1")
	s := enginetest.NewSeq(t, m, 12, 6)
	enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: []tandem.Token{1, 2, 3}})
	// 0: token, 1: token below 0, 2 and 3: prompt rows below 0, 4: a prompt row below 1
	tree := engine.Part{Seq: s, Nodes: []tandem.Token{7, 8, -1, -2, -1}, Parents: []int32{-1, 0, 0, 2, 1}, Want: engine.WantTail}
	if out := enginetest.Forward(t, m, 1, tree); out.Len() != 2 {
		t.Fatalf("%d rows with logits, want those of two tokens", out.Len())
	}
	cells, final := engine.PlacesOf(s)
	for i, cell := range cells {
		if prompt := i >= 2; prompt == final[i] {
			t.Errorf("row %d lies in cell %d, that of its position: %v", i, cell, final[i])
		}
	}
	refuse := func(what string, err error) {
		t.Helper()
		if tandem.KindOf(err) != tandem.Invalid || s.Nodes() != 5 || s.Len() != 3 {
			t.Errorf("%s: %v; %d rows after %d positions", what, err, s.Nodes(), s.Len())
		}
	}
	refuse("commit", s.Commit([]int32{0, 2}))
	refuse("commit", s.Commit([]int32{0, 2, 3}))
	refuse("keep", s.Reroot([]int32{0}, []int32{1, 2}))
	for what, p := range map[string]engine.Part{
		"a token below a prompt row of before": {Nodes: []tandem.Token{5}, Parents: []int32{3}},
		"an embedding that is not there":       {Nodes: []tandem.Token{-4}, Parents: []int32{0}},
		"the least number":                     {Nodes: []tandem.Token{math.MinInt32}, Parents: []int32{0}},
		"too many rows":                        {Nodes: []tandem.Token{-1, -1}, Parents: []int32{0, 1}},
		"states":                               {Nodes: []tandem.Token{-1}, Parents: []int32{0}, States: make([]engine.State, 1)},
	} {
		p.Seq = s
		_, err := m.Forward([]engine.Part{p}, 0)
		refuse(what, err)
	}
	if err := s.Commit([]int32{0, 1}); err != nil || s.Nodes() != 0 || s.Len() != 5 {
		t.Errorf("commit: %v; %d rows after %d positions", err, s.Nodes(), s.Len())
	}
	engine.CheckPlaces(t, s)
	for what, p := range map[string]engine.Part{
		"a token below a prompt row": {Nodes: []tandem.Token{-1, 5}, Parents: []int32{-1, 0}},
		"a prompt row in the prefix": {Extend: []tandem.Token{-1}},
	} {
		p.Seq = s
		if _, err := m.Forward([]engine.Part{p}, 0); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	bare := openSides(t, engine.Options{})
	b := enginetest.NewSeq(t, bare, 12, 6)
	enginetest.Forward(t, bare, 0, engine.Part{Seq: b, Extend: []tandem.Token{1}})
	if _, err := bare.Forward([]engine.Part{{Seq: b, Nodes: []tandem.Token{-1}, Parents: []int32{-1}}},
		0); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("a prompt row without a file of them: %v", err)
	}
}

// TestPromptRowsChangeNothing: random trees with prompt rows give the tokens' logits of the same trees without them, and so do later
// passes; shared pages are the same.
func TestPromptRowsChangeNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	const prompt = 130 // two pages and a part
	o := engine.Options{KVPages: engine.PagesFor(6, 200, 64)}
	path := editSide(t, "target", func(w *gguf.Writer) { w.Set("llama.context_length", uint32(256)) })
	with, without := enginetest.Open(t, path, o), enginetest.Open(t, path, o)
	if err := with.OpenSide(sidePath("ppd-4")); err != nil {
		t.Fatal(err)
	}
	text := enginetest.RandomTokens(r, with, prompt)
	open := func(m *engine.Model) *engine.Sequence {
		s, err := m.NewShared("a", text, 200, 64)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	a, b := open(with), open(without)
	extend := text
	for round := range 12 {
		n := 1 + r.IntN(6)
		p := engine.Part{Extend: extend, Nodes: enginetest.RandomTokens(r, with, n), Want: engine.WantTail}
		for i := range n {
			p.Parents = append(p.Parents, int32(r.IntN(i+1)-1))
		}
		q := p
		q.Seq, p.Seq = b, a
		want := enginetest.Forward(t, without, 0, q)
		for range 1 + r.IntN(9) {
			p.Nodes = append(p.Nodes, tandem.Token(-1-r.IntN(12)))
			p.Parents = append(p.Parents, int32(r.IntN(len(p.Parents)+1)-1))
		}
		got := enginetest.Forward(t, with, 0, p)
		if got.Len() != want.Len() {
			t.Fatalf("round %d: %d rows with logits, want %d", round, got.Len(), want.Len())
		}
		for i := range want.Len() {
			if err := enginetest.SameBits(got.Logits(i), want.Logits(i)); err != nil {
				t.Fatalf("round %d, row %d: %v", round, i, err)
			}
		}
		for i := range n {
			if err := enginetest.SameBits(got.Hidden(0, len(extend)+i), want.Hidden(0, len(extend)+i)); err != nil {
				t.Fatalf("round %d, hidden state %d: %v", round, i, err)
			}
		}
		node := int32(r.IntN(n))
		var path []int32
		for ; node >= 0; node = q.Parents[node] {
			path = append([]int32{node}, path...)
		}
		for _, s := range []*engine.Sequence{a, b} {
			if err := s.Commit(path); err != nil {
				t.Fatal(err)
			}
		}
		extend = enginetest.RandomTokens(r, with, r.IntN(3))
	}
	tokens := append(slices.Clone(engine.TokensOf(a)), 9) // one that is in no page
	a.Close()
	again, err := with.NewShared("a", tokens, 200, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Close)
	if again.Len() < prompt/64*64 {
		t.Fatalf("%d positions found again", again.Len())
	}
	got := enginetest.Forward(t, with, 0, engine.Part{Seq: again, Extend: tokens[again.Len():], Want: engine.WantTail})
	want := enginetest.Forward(t, without, 0, engine.Part{Seq: enginetest.NewSeq(t, without, 200, 0), Extend: tokens,
		Want: engine.WantTail})
	if err := enginetest.SameBits(got.Logits(0), want.Logits(0)); err != nil {
		t.Errorf("after %d shared positions: %v", again.Len(), err)
	}
}

// TestBadAsks: what Guess refuses, and hidden states that are not numbers.
func TestBadAsks(t *testing.T) {
	m := openSides(t, engine.Options{}, "medusa-shared")
	h := make([]float32, 32)
	for what, asks := range map[string][]engine.GuessAsk{
		"a way that is not open": {{SelfDraft: tandem.PPD, Hidden: [][]float32{h, h, h}}}, "no way": {{SelfDraft: "", Hidden: nil}},
		"no row": {{SelfDraft: tandem.Medusa, Hidden: nil}}, "two rows": {{SelfDraft: tandem.Medusa, Hidden: [][]float32{h, h}}},
		"a short row": {{SelfDraft: tandem.Medusa, Hidden: [][]float32{h[1:]}}},
	} {
		if _, err := m.Guess(asks, 3); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, top := range []int{-1, 0, 17} {
		if _, err := m.Guess(nil, top); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("top %d: %v", top, err)
		}
	}
	if all, err := m.Guess(nil, 3); err != nil || len(all) != 0 {
		t.Errorf("no asks: %v, %v", all, err)
	}
	for i, v := range []float64{math.NaN(), math.Inf(1), 0, 1e30} {
		h[3] = float32(v)
		all, err := m.Guess([]engine.GuessAsk{{SelfDraft: tandem.Medusa, Hidden: [][]float32{h}}}, 3)
		if err != nil || len(all) != 1 || all[0].Validate(260) != nil || i < 2 && fmt.Sprint(all[0].Levels) != "[[] [] []]" {
			t.Errorf("from %v: %v, %v", v, all, err)
		}
	}
}

// TestDraftRows: rows of drafts with states have the same bits on every device, in one pass or in several, in a tree or in the prefix.
func TestDraftRows(t *testing.T) {
	tokens := []tandem.Token{4, 9, 100, 7, 31, 31, 5, 200}
	for name, path := range draftFiles(t) {
		var first []float32
		for on, d := range enginetest.SideDevices(t) {
			m := openDraftFile(t, path, engine.Options{Device: d})
			features, own := m.StateWidth()
			r := rand.New(rand.NewPCG(3, 3))
			states := make([]engine.State, len(tokens))
			for i := range states {
				switch i % 3 {
				case 1:
					states[i].Target = randomState(r, features)
				case 2:
					states[i].Own = randomState(r, own)
				}
			}
			var runs [][]float32
			keep := func(o *engine.Output, part, from, to, wanted int) {
				n := len(runs) - 1
				for i := from; i < to; i++ {
					runs[n] = append(append(runs[n], o.Hidden(part, i)...), o.Logits(o.First(part)+i-from+wanted)...)
				}
			}
			s, other := enginetest.NewSeq(t, m, 20, 8), enginetest.NewSeq(t, m, 20, 8)
			runs = append(runs, nil)
			keep(enginetest.Forward(t, m, 2, engine.Part{Seq: s, Extend: tokens, States: states, Want: engine.WantAll}), 0, 0, 8, 0)
			s.Close()
			s = enginetest.NewSeq(t, m, 20, 8)
			runs = append(runs, nil)
			keep(enginetest.Forward(t, m, 0, engine.Part{Seq: other, Extend: tokens[3:5], States: states[2:4], Want: engine.WantAll},
				engine.Part{Seq: s, Extend: tokens[:3], States: states[:3], Want: engine.WantAll}), 1, 0, 3, 0)
			tree := engine.Part{Seq: s, Extend: tokens[3:4], Nodes: []tandem.Token{tokens[4], 77, tokens[5], tokens[6], tokens[7]},
				Parents: []int32{-1, -1, 0, 2, 3}, Want: engine.WantAll}
			tree.States = append([]engine.State{states[3], states[4], states[1]}, states[5:]...)
			out := enginetest.Forward(t, m, 0, tree)
			keep(out, 0, 0, 2, 0)
			keep(out, 0, 3, 6, 3)
			if err := enginetest.SameBits(runs[0], runs[1]); err != nil || len(runs[0]) != len(runs[1]) {
				t.Errorf("%s on %s: %d and %d numbers, %v", name, on, len(runs[0]), len(runs[1]), err)
			}
			if first == nil {
				first = runs[0]
			}
			if err := enginetest.SameBits(runs[0], first); err != nil {
				t.Errorf("%s on %s: %v", name, on, err)
			}
		}
	}
}

func randomState(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// TestBadStates: states of another number or width are refused, and nothing has happened.
func TestBadStates(t *testing.T) {
	for _, name := range []string{"eagle", "eagle3"} {
		m := openDraftTest(t, name, engine.Options{})
		features, own := m.StateWidth()
		s := enginetest.NewSeq(t, m, 10, 2)
		x := make([]float32, features+1)
		for what, states := range map[string][]engine.State{
			"none": nil, "one": {{}}, "three": {{}, {}, {}}, "short": {{}, {Target: x[:features-1]}}, "long": {{}, {Target: x}},
			"both": {{}, {Target: x[:features], Own: x[:own]}}, "own short": {{Own: x[:own-1]}, {}}, "own long": {{Own: x[:own+1]}, {}},
		} {
			_, err := m.Forward([]engine.Part{{Seq: s, Extend: []tandem.Token{1, 2}, States: states}}, 0)
			if tandem.KindOf(err) != tandem.Invalid || s.Len() != 0 {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
		x[0] = float32(math.NaN())
		enginetest.Forward(t, m, 1, engine.Part{Seq: s, Extend: []tandem.Token{1, 2}, States: []engine.State{{}, {Target: x[:features]}},
			Want: engine.WantAll})
	}
}

// TestDraftNames: the identity of a draft covers what it borrows from its target.
func TestDraftNames(t *testing.T) {
	seen := map[string]string{}
	for name, path := range draftFiles(t) {
		n := openDraftFile(t, path, engine.Options{}).Names()
		if again := openDraftFile(t, path, engine.Options{}).Names(); again != n || n.Vocabulary != "934910ae626e7b3f" {
			t.Errorf("%s: %v, opened again %v", name, n, again)
		}
		if other, ok := seen[string(n.Identity)]; ok {
			t.Errorf("%s and %s are one", name, other)
		}
		seen[string(n.Identity)] = name
	}
}
