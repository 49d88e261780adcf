package test

import (
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// TestFamilyWithExperts: the whole program, with a target of MXFP4 experts, sinks and windows, of random weights in two files, keys in
// Q8_0, and a draft that is the target with noise: eight texts at a time are those of plain decoding, also while the verifier is killed.
func TestFamilyWithExperts(t *testing.T) {
	t.Parallel()
	m := family.Make("gpt-oss-mxfp4", family.Shape{Layers: 3, Dim: 96, Heads: 6, KV: 2, HeadDim: 32, RopeDim: 32, FFN: 64, Experts: 7,
		Used: 3, Width: 64, Window: 9, Words: 20}, 8)
	dir := t.TempDir()
	target := m.Split(t, dir, 2)
	draft := m.Noisy(1, 0.1)
	draft.Name = "draft"
	g := up(t, "--target", target, "--draft", draft.Write(t, dir), "--sessions", "8", "--kv-type", "q8_0", "--no-measure")
	var requests, plainly [8]client.Request
	var want [len(requests)][]uint32
	for i := range requests {
		r := setting{0.8 * float64(i%2), uint64(i)}.request("", 200)
		r.Tokens, r.IgnoreEOS = []uint32{1, uint32(40 + i), 99, uint32(7 + 3*i)}, true
		plainly[i], requests[i] = plain(r), withTree(r, client.Tree{Nodes: 16, Depth: 7, Width: 10})
		want[i] = g.run(t, plainly[i]).tokens
	}
	accepted := 0
	for _, kill := range []bool{false, true} {
		victim := g.w.one(t, "verifier")
		var all sync.WaitGroup
		var mu sync.Mutex
		for i, r := range requests {
			all.Go(func() {
				got, err := g.try(t.Context(), r)
				if err != nil || !slices.Equal(got.tokens, want[i]) {
					t.Errorf("killed %v, request %d: %v: tokens\n%v, plain\n%v", kill, i, err, got.tokens, want[i])
				}
				mu.Lock()
				defer mu.Unlock()
				accepted += got.finished.Statistics.Accepted
			})
		}
		if kill {
			time.Sleep(50 * time.Millisecond)
			_ = syscall.Kill(victim, syscall.SIGKILL)
		}
		if all.Wait(); kill {
			g.back(t, "verifier", victim)
		}
	}
	if accepted == 0 {
		t.Error("nothing that was drafted was accepted: did speculation run at all?")
	}
}
