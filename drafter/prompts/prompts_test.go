package prompts_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/drafter/prompts"
	"github.com/tandem-llm/tandem/spec"
)

// promptsFile holds prompt tokens that training/train ppd made for draftertest.ModelFile; see testdata/README.md.
const promptsFile = "testdata/ppd.gguf"

// newPrompted returns a rig whose draft has prompt tokens.
func newPrompted(t testing.TB, c drafter.Config) *draftertest.Rig {
	c.Model = draftertest.OpenDraft(t, draftertest.ModelFile, promptsFile)
	return draftertest.New(t, c)
}

// lists returns the candidates of all explored nodes of a session, by path; and checks that the cache holds those nodes and nothing else.
func lists(r *draftertest.Rig, id tandem.SessionID) map[string][]spec.Candidate {
	r.T.Helper()
	out := map[string][]spec.Candidate{}
	err := r.Draft().Sched.Do(context.Background(), func() error {
		s := r.Draft().Session(id)
		e := &s.Explored
		if e.Len() > 0 && (s.Cache.Len() != len(s.Text.Tokens) || s.Cache.Nodes() != e.Len()-1) {
			r.T.Errorf("%d tokens and %d nodes explored: the cache has %d and %d", len(s.Text.Tokens), e.Len()-1, s.Cache.Len(),
				s.Cache.Nodes())
		}
		var walk func(node int32, path []tandem.Token)
		walk = func(node int32, path []tandem.Token) {
			out[fmt.Sprint(path)] = slices.Clone(e.Candidates(node))
			for _, c := range e.Candidates(node) {
				if child := e.Child(node, c.Token); child >= 0 {
					walk(child, append(slices.Clone(path), c.Token))
				}
			}
		}
		if e.Len() > 0 {
			walk(0, nil)
		}
		if len(out) != e.Len() {
			r.T.Errorf("%d nodes reached of %d", len(out), e.Len())
		}
		return nil
	})
	if err != nil {
		r.T.Fatal(err)
	}
	return out
}

// TestPromptsExploreTheSame drafts random walks with a draft that has prompt tokens, beside one without. What both have explored is
// equal to the last bit: no prompt row, and no row of a guess that was wrong, is left where a later row sees it. The trees are valid and
// have tokens alone.
func TestPromptsExploreTheSame(t *testing.T) {
	for name, c := range map[string]struct {
		drafter.Config
		tandem.Sampling
		change func(*tandem.Proposal)
	}{
		"levels":     {},
		"best-first": {change: func(p *tandem.Proposal) { p.Growth = tandem.GrowBest }},
		"pacer":      {change: func(p *tandem.Proposal) { p.Growth, p.Branch, p.Stop = tandem.GrowPacer, 0.1, 0.02 }},
		"chain":      {change: func(p *tandem.Proposal) { p.Bounds = tandem.Bounds{Nodes: 9, Depth: 8, Width: 1} }},
		"drawn":      {Sampling: tandem.Sampling{Temperature: 1, Seed: 5}},
		"tempered": {Sampling: tandem.Sampling{Temperature: 0.6, TopP: 0.9, Bias: []tandem.Bias{{Token: 90, Add: 4}}},
			change: func(p *tandem.Proposal) { p.Temper = 0.7 }},
		"ahead":        {change: func(p *tandem.Proposal) { p.Ahead = true }},
		"few rows":     {Config: drafter.Config{TreeRows: 12}},
		"hardly any":   {Config: drafter.Config{TreeRows: 2}},
		"short pieces": {Config: drafter.Config{Chunk: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			few := c.Config
			with := newPrompted(t, c.Config)
			few.Model = draftertest.OpenDraft(t, draftertest.ModelFile)
			without := draftertest.Twin(t, few)
			draw, text, told := rand.New(rand.NewPCG(1, 2)), slices.Clone(with.Text), len(with.Text)
			for _, r := range []*draftertest.Rig{with, without} {
				o := tandem.Opening{Session: 1, Epoch: 1, Tokens: text, Limit: draftertest.Limit, MaxNodes: 64, Sampling: c.Sampling}
				if _, err := r.Open(context.Background(), o); err != nil {
					t.Fatal(err)
				}
			}
			shared := 0
			for len(text) < draftertest.Limit-20 {
				p := draftertest.Proposal(1, text, told)
				if c.change != nil {
					c.change(&p)
				}
				k := with.Drafted(p)
				if k.Tree.Prompts != 0 || k.Tree.Tokens[0] != text[len(text)-1] {
					t.Fatalf("a tree with %d prompt nodes below token %d", k.Tree.Prompts, k.Tree.Tokens[0])
				}
				other := without.Drafted(p).Tree
				want := lists(without, 1)
				for path, list := range lists(with, 1) {
					if w := want[path]; w != nil {
						shared++
						if n := min(len(w), len(list)); !reflect.DeepEqual(list[:n], w[:n]) {
							t.Fatalf("after %d tokens and %s: candidates %v, want %v", len(text), path, list, w)
						}
					}
				}
				told = len(text)
				switch path := draftertest.Leaf([]tandem.Tree{k.Tree, other}[draw.IntN(2)]); draw.IntN(6) {
				case 0: // the text is taken back
					text, told = text[:len(text)-1:len(text)-1], len(text)-1
					text = append(text, tandem.Token(draw.IntN(4000)))
				case 1:
					text = append(text, tandem.Token(draw.IntN(4000)))
				default:
					text = append(append(text, path[:draw.IntN(len(path)+1)]...), tandem.Token(draw.IntN(4000)))
				}
				text = text[:min(len(text), draftertest.Limit-10)]
			}
			if shared < 20 {
				t.Errorf("only %d nodes compared", shared)
			}
		})
	}
}

// TestPromptsSavePasses: trees of the same size in two thirds of the passes or less, and nearly as good.
func TestPromptsSavePasses(t *testing.T) {
	with := newPrompted(t, drafter.Config{})
	without := draftertest.Twin(t, drafter.Config{})
	var got, want replayed
	for _, prompt := range []string{"func (r *Reader) Read(p []byte) (n int, err error) {\n", "// Copyright 2009 The Go Authors."} {
		text := draftertest.Truth(t, with.Draft().Config.Model.Vocab().Encode(prompt, true), draftertest.Limit)
		got.add(replay(t, with, text, 20, tandem.Proposal{Bounds: draftertest.Bounds}))
		want.add(replay(t, without, text, 20, tandem.Proposal{Bounds: draftertest.Bounds}))
	}
	if got.per(got.nodes) != want.per(want.nodes) || 3*got.per(got.passes) > 2*want.per(want.passes) ||
		got.per(got.tokens) < 0.9*want.per(want.tokens) {
		t.Errorf("trees of %.2f nodes in %.2f passes, %.2f tokens a round; without prompt tokens %.2f nodes, %.2f passes, %.2f tokens",
			got.per(got.nodes), got.per(got.passes), got.per(got.tokens), want.per(want.nodes), want.per(want.passes),
			want.per(want.tokens))
	}
	if n := with.Counters.Snapshot(); n["prompts.rows"] == 0 || n["prompts.failed"] != 0 {
		t.Errorf("%d prompt rows, %d failed guesses: want some, and none", n["prompts.rows"], n["prompts.failed"])
	}
}

// TestPromptsTogether: sessions that share passes, one of them opened late, explore what each would alone.
func TestPromptsTogether(t *testing.T) {
	with := newPrompted(t, drafter.Config{})
	without := draftertest.Twin(t, drafter.Config{})
	all := draftertest.Truth(t, with.Text, 120)
	var wait sync.WaitGroup
	for i := range 5 {
		wait.Go(func() {
			id, text := tandem.SessionID(i+1), all[:len(with.Text)+5*i*i]
			with.Begin(id, text)
			p := draftertest.Proposal(id, text, len(text))
			p.Return = true
			for range 3 {
				if _, err := with.Propose(context.Background(), p); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	for i := range 5 {
		id := tandem.SessionID(i + 1)
		var text []tandem.Token
		err := with.Draft().Sched.Do(context.Background(),
			func() error { text = slices.Clone(with.Draft().Session(id).Text.Tokens); return nil })
		if err != nil {
			t.Fatal(err)
		}
		without.Begin(id, text)
		without.Drafted(draftertest.Proposal(id, text, len(text)))
		want, shared := lists(without, id), 0
		for path, list := range lists(with, id) {
			if w := want[path]; w != nil {
				shared++
				if !reflect.DeepEqual(list, w) {
					t.Fatalf("session %d, %s: candidates %v, want %v", i, path, list, w)
				}
			}
		}
		if shared < 3 {
			t.Errorf("session %d: only %d nodes compared", i, shared)
		}
	}
}

// TestOtherSidesAreNoPrompts: only a side file of the draft itself gives it prompt tokens.
func TestOtherSidesAreNoPrompts(t *testing.T) {
	m := draftertest.OpenDraft(t, draftertest.ModelFile)
	defer m.Close()
	if w := prompts.WayOf(m); w.Levels != 0 {
		t.Errorf("way %+v of a draft without side files: want none", w)
	}
	if err := m.OpenSide(draftertest.FromRoot("engine/testdata/sides/ppd-1.gguf")); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("prompt tokens of another model: %v, want Invalid", err)
	}
	if err := m.OpenSide(promptsFile); err != nil {
		t.Fatal(err)
	}
	if w := prompts.WayOf(m); w.Levels != 3 || w.Members != 1 {
		t.Errorf("way %+v: want 3 levels of 1", w)
	}
}
