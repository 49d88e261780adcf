package verifier_test

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/cache/prefixes"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/test/testkit/family"
	"github.com/tandem-llm/tandem/verifier"
)

// TestHybridHistories: of a model with recurrent layers, a turn whose history differs from earlier texts at the end only computes no more
// than the last page of what is there and what is new; of one that differs in its middle, what lies before the last kept state before is
// found, and the next that differs there finds all whole pages up to there. The same after a restart, from files.
func TestHybridHistories(t *testing.T) {
	const long = 2048
	shape := family.Golden("qwen35")
	shape.Set("context_length", uint32(long))
	path := shape.Write(t, t.TempDir())
	open := func(t *testing.T) *engine.Model {
		m, err := engine.Open(path, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: long,
			KVPages: engine.PagesFor(8, long, maxNodes)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	alone := open(t)
	vocab := alone.Config().Vocab
	a := asked{tenant: "one", sampling: greedy, tokens: 8, limit: long,
		tree: func(s *stream) tandem.Tree { return tandem.Root(s.text[len(s.text)-1]) }}
	prompt := randomText(1, 1500, vocab)
	changed := func(at int) []tandem.Token {
		out := slices.Clone(prompt)
		out[at] = 3 + (out[at]+1)%tandem.Token(vocab-3)
		return out
	}
	other := slices.Concat(prompt, randomText(2, 100, vocab)) // an answer without what the model had thought
	for _, disk := range []bool{false, true} {
		name := map[bool]string{false: "in memory", true: "on disk"}[disk]
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			start := func(t *testing.T) (*rig, verifier.Config) {
				c, _ := stored(t, open(t), folder)
				if !disk {
					c.Store.Files = nil
				}
				return newRig(t, rigOptions{alone: true, verifier: c}), c
			}
			var r *rig
			var c verifier.Config
			if !disk {
				r, c = start(t)
			}
			var last []tandem.Token
			for _, turn := range []struct {
				name   string
				prompt func() []tandem.Token
				least  int // tokens that are found
			}{
				{"first", func() []tandem.Token { return prompt }, 0},
				{"another answer in the history", func() []tandem.Token { return other }, 1500 / 64 * 64},
				{"all of the history", func() []tandem.Token { return slices.Concat(last, randomText(3, 70, vocab)) }, 1599 / 64 * 64},
				{"changed in the middle", func() []tandem.Token { return changed(800) }, 512},
				{"changed there again", func() []tandem.Token {
					out := changed(800)
					out[800]++
					return out
				}, 800 / 64 * 64},
				{"changed before", func() []tandem.Token { return changed(600) }, 512},
				{"as at first", func() []tandem.Token { return prompt }, 1500 / 64 * 64},
			} {
				t.Run(turn.name, func(t *testing.T) {
					if a.prompt = turn.prompt(); disk { // each turn is asked of another process
						r, c = start(t)
					}
					want := plain{alone}.generate(t, a)
					s, err := r.generate(a)
					if err != nil || !slices.Equal(s.text, want) {
						t.Errorf("%v\n got %v\nwant %v", err, s.text[len(a.prompt):], want[len(a.prompt):])
					}
					if s.reused < turn.least {
						t.Errorf("%d of %d tokens were found: want at least %d", s.reused, len(a.prompt), turn.least)
					}
					if last = s.text; disk {
						of := c.Store.Files.Tenant(a.tenant)
						names := of.Names(a.prompt[:len(a.prompt)-1]) // the last token is computed with what follows
						end := names[len(names)-1]
						testkit.Eventually(t, "the prompt's last page to be written",
							func() bool { return of.Has(end, prefixes.Page) && of.Has(end, prefixes.State) })
					}
				})
			}
		})
	}
}
