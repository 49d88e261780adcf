package rolestest

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem/client"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// TestRecurrentInAllRoles: a target and a draft with delta nets say together what plain decoding says, greedy and drawn, eight requests at
// a time, while their verifier dies, and in a second turn. The draft is the target with other low bits in half of its weights.
func TestRecurrentInAllRoles(t *testing.T) {
	target := "../../../shared/golden/arch2026/arch-qwen35.gguf"
	b, err := os.ReadFile(target)
	if err != nil {
		t.Skipf("%v: the model of another engine is not here", err)
	}
	for i := len(b)/2&^3 + 2; i < len(b); i += 4 {
		b[i] ^= 0x10
	}
	draft := filepath.Join(t.TempDir(), "draft.gguf")
	if err := os.WriteFile(draft, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s := Start(t, target)
	var first, second [8][]uint32
	ask := func(i int, plain bool, prompt []uint32, n int) ([]uint32, client.Finished) {
		tokens, _, done, err := s.Generate(client.Request{Tokens: prompt, Temperature: new(0.8 * float64(i%2)), Seed: new(uint64(i)),
			IgnoreEOS: true, NoDraft: plain, MaxTokens: &n, Tree: &client.Tree{Nodes: 16, Depth: 7, Width: 10}})
		if err != nil || len(tokens) != n {
			t.Errorf("request %d: %d tokens of %d, %v", i, len(tokens), n, err)
		}
		return tokens, done
	}
	prompt := func(i int) (tokens []uint32) {
		for j := range 5 + 20*i {
			tokens = append(tokens, uint32(300+(i/4*37+j*11)%1000)) // four begin alike, and four
		}
		return tokens
	}
	next := func(i int) []uint32 { return slices.Concat(prompt(i), first[i], []uint32{340, 341}) }
	for i := range first {
		first[i], _ = ask(i, true, prompt(i), 50)
		second[i], _ = ask(i, true, next(i), 20)
	}
	s.Drafter("drafter", draft)
	s.Await("the drafter", func(p *tandemv1.Process) bool {
		return p.GetRole() == "drafter" && p.GetModel() != "lookup" && p.GetUp()
	})
	accepted, drafted := 0, 0
	turn := func(what string, want [8][]uint32, prompt func(i int) []uint32, during func()) {
		var all sync.WaitGroup
		var mu sync.Mutex
		for i := range want {
			all.Go(func() {
				got, done := ask(i, false, prompt(i), len(want[i]))
				if !slices.Equal(got, want[i]) {
					t.Errorf("%s, request %d: tokens\n%v, plain\n%v", what, i, got, want[i])
				}
				mu.Lock()
				defer mu.Unlock()
				accepted, drafted = accepted+done.Statistics.Accepted, drafted+done.Statistics.Drafted
			})
		}
		during()
		all.Wait()
	}
	turn("with a draft", first, prompt, func() {})
	turn("while the verifier dies", first, prompt, s.RestartVerifier)
	turn("second turn", second, next, func() {})
	t.Logf("%d tokens of %d that were drafted were accepted, of %d in all", accepted, drafted, 8*(50+50+20))
	if accepted < 8*120/20 || accepted == drafted {
		t.Errorf("%d of %d drafted tokens accepted: want a draft that is often right and often not", accepted, drafted)
	}
}
