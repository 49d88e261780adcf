package test

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem/client"
)

// TestTreesByHandle: on one host trees of all sizes, and merged ones, lie in shared memory and tickets name them, without a fetch; after a
// drafter or verifier was killed with leases out, those of the next are mapped again. The text is that of plain decoding.
func TestTreesByHandle(t *testing.T) {
	t.Parallel()
	g := up(t, "--draft", draftModel, "--draft", "../models/gopher-draft-py-f16.gguf")
	r := setting{0.8, 5}.request(prompts(t)[0].Prompt, 64)
	r.IgnoreEOS = true
	want := g.run(t, plain(r))
	run := func(what string, r client.Request) (written map[string]int64, mapped int64) {
		t.Helper()
		before := g.allCounters(t)
		got, err := g.try(t.Context(), r)
		if err != nil || !slices.Equal(got.tokens, want.tokens) {
			t.Errorf("%s: %v: tokens\n%v, plain\n%v", what, err, got.tokens, want.tokens)
		}
		after := g.allCounters(t)
		for _, name := range []string{"verifier tickets.claimed", "verifier tickets.claim_failed", "verifier tickets.garbage",
			"gateway drafter.garbage"} {
			if n := after[name] - before[name]; n != 0 {
				t.Errorf("%s: %s is %d", what, name, n)
			}
		}
		written = map[string]int64{}
		for _, role := range []string{"drafter", "gateway"} {
			written[role] = after[role+" trees.shared"] - before[role+" trees.shared"]
		}
		return written, after["verifier tickets.mapped"] - before["verifier tickets.mapped"]
	}
	// Without lookup and recycling, which would write trees of their own until the drafters have read the prompt.
	r.Strategy, r.Drafters = "fixed", []string{"gopher-draft-all-f16", "gopher-draft-py-f16"}
	for what, tree := range map[string]client.Tree{"default tree": {Nodes: 16, Depth: 7, Width: 10},
		"largest tree": {Nodes: 256, Depth: 16, Width: 32}} {
		// Some draft may come too late; then the gateway writes a tree.
		if written, mapped := run(what, withTree(r, tree)); written["gateway"] > written["drafter"]/4 || mapped == 0 {
			t.Errorf("%s: %v trees written, the verifier read %d", what, written, mapped)
		}
	}
	merged := withTree(r, client.Tree{Nodes: 16, Depth: 5, Width: 4})
	merged.Strategy, merged.Vote = "minions", "tree"
	if written, mapped := run("merged trees", merged); written["drafter"] == 0 || written["gateway"] == 0 || mapped == 0 {
		t.Errorf("merged trees: %v written, the verifier read %d", written, mapped)
	}
	r.Tree = &client.Tree{Nodes: 64, Depth: 8, Width: 16}
	for _, role := range []string{"drafter", "verifier"} {
		victim := g.w.one(t, role)
		timer := time.AfterFunc(30*time.Millisecond, func() { _ = syscall.Kill(victim, syscall.SIGKILL) })
		if got, err := g.try(t.Context(), r); err != nil || !slices.Equal(got.tokens, want.tokens) {
			t.Errorf("%s killed: %v: tokens\n%v, plain\n%v", role, err, got.tokens, want.tokens)
		}
		timer.Stop()
		_ = syscall.Kill(victim, syscall.SIGKILL) // in case the request was faster
		g.back(t, role, victim)
		testkit.Eventually(t, "trees of the next "+role+" by handle", func() bool {
			_, mapped := run("after a "+role, r)
			return mapped > 0
		})
	}
}
