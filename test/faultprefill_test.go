package test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem/client"
)

// TestPrefillsAreDisturbed stops the verifier for a while, and then kills it, while it reads the prompts of several requests, which the
// gateway tells meanwhile. Each says the text that it says undisturbed, and counts nothing that it has computed itself as cached.
func TestPrefillsAreDisturbed(t *testing.T) {
	t.Parallel()
	const requests = 6
	c := newCluster(t, clusterConfig{sessions: requests})
	describe, err := c.client.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := make([]client.Request, requests)
	for i := range all {
		var b strings.Builder
		for line := 0; b.Len() < int(describe.Context)-300; line++ {
			fmt.Fprintf(&b, "func f%d_%d(x int) int { return x*%d + %d }\n", i, line, 7*i+line, line)
		}
		all[i] = setting{0.8, uint64(i)}.request(b.String(), 10)
	}
	run := func(disturb func()) (out []result) {
		out = make([]result, requests)
		var group sync.WaitGroup
		for i, r := range all {
			group.Go(func() {
				var err error
				if out[i], err = c.try(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
		}
		defer group.Wait()
		disturb()
		return out
	}
	first := run(func() {
		testkit.Eventually(t, "prompts to be read", func() bool {
			return c.gatewayCounter(t, "prefill.sessions") > 0 && c.gatewayCounter(t, "prefill.tokens") > 0
		})
		_ = c.verifier.cmd.Process.Signal(syscall.SIGSTOP)
		time.Sleep(time.Second)
		_ = c.verifier.cmd.Process.Signal(syscall.SIGCONT)
		c.verifier.kill()
		c.verifier.start()
	})
	if n := c.gatewayCounter(t, "prefill.sessions"); n != 0 {
		t.Errorf("%d sessions are being read after all have ended", n)
	}
	again := run(func() {})
	for i := range all {
		if n := first[i].finished.CachedPromptTokens; n >= 16 { // fewer: the words with which all begin
			t.Errorf("request %d, read for the first time: %d of %d tokens cached", i, n, first[i].finished.PromptTokens)
		}
		if !slices.Equal(first[i].tokens, again[i].tokens) || again[i].finished.CachedPromptTokens == 0 {
			t.Errorf("request %d: tokens %v, disturbed %v; %d of %d tokens cached", i, again[i].tokens, first[i].tokens,
				again[i].finished.CachedPromptTokens, again[i].finished.PromptTokens)
		}
	}
}
