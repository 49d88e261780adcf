package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// TestUselessDraft: a draft that tandem has found itself, and with which three answers were no faster, is closed while sessions go on, and
// its memory given back. The next start remembers it, says so, and tries it again when its file has changed, or what is remembered is torn.
// One that was named stays.
func TestUselessDraft(t *testing.T) {
	dir, cache, w := t.TempDir(), t.TempDir(), newWorld(t)
	f := family.Golden("qwen2")
	target := f.Write(t, dir)
	names, err := engine.Identify(t.Context(), target, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	made := family.Draft(family.DraftShape{Kind: "eagle3", Taps: []int{-1}, Bare: -1, Tokens: f.Vocab - 10, Output: true}, f, names.Lineage,
		names.Vocabulary, 1).Write(t, t.TempDir()) // its weights are random
	draft := filepath.Join(dir, "eagle3-"+filepath.Base(target))
	if err := os.Rename(made, draft); err != nil {
		t.Fatal(err)
	}
	begin := func(flags ...string) *group {
		t.Helper()
		g := w.begin(nil, append([]string{"--target", target, "--set", "cache=" + cache, "--no-recycling"}, flags...)...)
		g.ready(t)
		return g
	}
	said := func(g *group, all ...string) {
		t.Helper()
		g.stop(t)
		for _, words := range all {
			if !strings.Contains(g.stderr.String(), words) {
				t.Errorf("said %q: want %q", g.stderr, words)
			}
		}
	}
	text := func(g *group, seed uint64, n int) string {
		t.Helper()
		return g.run(t, client.Request{Prompt: "ab", MaxTokens: new(n), Temperature: new(1.0), Seed: new(seed), IgnoreEOS: true}).text
	}
	const tokens, answers = 100, 3
	g := begin("--no-draft")
	plain := text(g, answers, 4*tokens)
	g.stop(t)

	drafts := func(g *group) {
		t.Helper()
		testkit.Eventually(t, "the draft to be loaded", func() bool { return g.up(t, "drafter", 0) })
	}
	g = begin()
	drafts(g)
	_, now := peak(t, w.one(t, "drafter"))
	t.Logf("the drafter has %d MiB", now>>20)
	for range answers { // say nothing of the draft
		g.run(t, client.Request{Prompt: "ab", MaxTokens: new(tokens), IgnoreEOS: true, NoDraft: true})
	}
	for i := range answers {
		if len(w.role("drafter")) != 1 {
			t.Errorf("after %d answers the drafter is gone", i)
		}
		text(g, uint64(i), tokens)
	}
	if got := text(g, answers, 4*tokens); got != plain { // the draft goes meanwhile
		t.Errorf("while the draft was closed: %q, want %q", got, plain)
	}
	testkit.Eventually(t, "the drafter ends", func() bool { return len(w.role("drafter")) == 0 })
	if got := text(g, answers, 4*tokens); got != plain {
		t.Errorf("afterwards: %q, want %q", got, plain)
	}
	said(g, "draft "+draft+" is closed, and its memory given back: 0.", "to 3 answers here; lookup and recycling go on, and --draft")

	starts := func(draws int, words ...string) {
		t.Helper()
		g := begin()
		if draws > 0 {
			drafts(g)
		}
		if n := len(w.role("drafter")); n != draws {
			t.Errorf("%d drafters: want %d", n, draws)
		}
		said(g, words...)
	}
	starts(0, "draft "+draft+" is left: 0.", "no draft is known to pay")
	g = begin("--draft", draft)
	text(g, 0, tokens)
	text(g, 1, tokens)
	if n := len(w.role("drafter")); n != 1 {
		t.Errorf("%d drafters of a draft that was named: want one", n)
	}
	said(g, "draft "+draft+" does not pay: 0.", "it stays")
	kept, err := filepath.Glob(filepath.Join(cache, "costs", "*.earned.json"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("remembered in %q, %v: want one file", kept, err)
	}
	whole, err := os.ReadFile(kept[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, torn := range []string{string(whole[:len(whole)/2]), "{}", strings.Replace(string(whole), `"took_ns": `, `"took_ns": -`, 1)} {
		if err := os.WriteFile(kept[0], []byte(torn), 0o600); err != nil {
			t.Fatal(err)
		}
		starts(1, "draft "+draft+": it lies beside the target")
	}
	if err := os.WriteFile(kept[0], whole, 0o600); err != nil {
		t.Fatal(err)
	}
	starts(0, "draft "+draft+" is left: 0.")
	if err := os.Chtimes(draft, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	starts(1, "draft "+draft+": it lies beside the target")
}
