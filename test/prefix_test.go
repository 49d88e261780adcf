package test

import (
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem/client"
)

const pageTokens = 64

// idle waits until no session is open: a request's end is told before its sessions are closed.
func (g *group) idle(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "no session to be open",
		func() bool { return g.counters(t, "verifier")["kv.pages"]+g.counters(t, "drafter")["kv.pages"] == 0 })
}

// turns are the requests of a chat: each prompt is the one before, its answer, and something new.
func (g *group) turns(t *testing.T, first client.Request, more []uint32, n int) (out []result) {
	t.Helper()
	r := first
	for range n {
		got := g.run(t, r)
		out = append(out, got)
		g.idle(t)
		r.Tokens = slices.Concat(r.Tokens, got.tokens, more)
	}
	return out
}

// TestSecondTurnIsShort: of a chat's later turns only what is new is computed, in verifier and drafter, whichever process was
// killed in between; the text is that of a system that keeps nothing.
func TestSecondTurnIsShort(t *testing.T) {
	mayBeSlow(t)
	g, off := up(t, "--sessions", "2"), up(t, "--sessions", "2", "--prefix-cache", "off")
	begin, more := g.ids(t, longPrompt(t))[:300], g.ids(t, "\n// And now for something else:\n")[1:]
	for _, s := range []setting{{0, 0}, {0.8, 3}} {
		first := withTree(s.request("", 40), trees[0])
		first.Tokens, first.IgnoreEOS = begin, true
		want := off.turns(t, first, more, 3)
		for _, killed := range []string{"", "drafter", "verifier"} {
			before := g.counters(t, "drafter")
			got := g.turns(t, first, more, 2)
			if killed != "" {
				victim := g.w.role(killed)[0]
				_ = syscall.Kill(victim, syscall.SIGKILL)
				g.back(t, killed, victim)
			}
			last := first
			last.Tokens = slices.Concat(first.Tokens, want[0].tokens, more, want[1].tokens, more)
			got = append(got, g.run(t, last))
			g.idle(t)
			for i, w := range want {
				if !slices.Equal(got[i].tokens, w.tokens) || got[i].text != w.text || w.finished.CachedPromptTokens != 0 {
					t.Errorf("%v, turn %d: tokens\n%v, with nothing kept\n%v (%d cached)", s, i, got[i].tokens, w.tokens,
						w.finished.CachedPromptTokens)
				}
				f := got[i].finished
				known := 0
				if i > 0 && (i < 2 || killed != "verifier") {
					known = len(last.Tokens) - len(more) // the turn before, but for its last token
					if i == 1 {
						known -= len(want[1].tokens) + len(more)
					}
				}
				if f.CachedPromptTokens < known-1 || f.CachedPromptTokens >= f.PromptTokens || i == 2 && killed == "verifier" &&
					f.CachedPromptTokens > 0 {
					t.Errorf("%v, turn %d of %d tokens, %q killed: %d found, want about %d", s, i, f.PromptTokens, killed,
						f.CachedPromptTokens, known)
				}
				if i > 0 && known > 0 && f.CachedPromptTokens < f.PromptTokens-pageTokens {
					t.Errorf("%v, turn %d: %d of %d found: want all but a page", s, i, f.CachedPromptTokens, f.PromptTokens)
				}
			}
			if now := g.counters(t, "drafter"); killed == "" && now["prefix.reused_tokens"] < before["prefix.reused_tokens"]+2*300 {
				t.Errorf("the drafter found %d tokens, before that %d", now["prefix.reused_tokens"], before["prefix.reused_tokens"])
			}
		}
	}
	if n := g.counters(t, "verifier"); n["prefix.pages"] < 6 {
		t.Errorf("counters of the verifier: %v", n)
	}
	if n := off.counters(t, "verifier"); n["prefix.pages"] != 0 || n["prefix.hits"] != 0 {
		t.Errorf("counters of a verifier that keeps nothing: %v", n)
	}
}

// longPrompt returns text of some hundred tokens.
func longPrompt(t *testing.T) string {
	var text strings.Builder
	for _, p := range prompts(t) {
		text.WriteString(p.Prompt)
	}
	return text.String()[:2000]
}

// ids returns the tokens of a prompt.
func (g *group) ids(t *testing.T, text string) (ids []uint32) {
	t.Helper()
	for event, err := range g.client.Generate(t.Context(), setting{}.request(text, 1)) {
		if err != nil {
			t.Fatal(err)
		}
		if event.Started != nil {
			ids = event.Started.PromptTokens
		}
	}
	return ids
}

// TestOnePromptManyTimes asks for several answers to one prompt at once, with memory for as many sessions and little more: one
// prefill serves all, and each text is as if it had been asked for alone.
func TestOnePromptManyTimes(t *testing.T) {
	const n = 6
	g, off := up(t, "--sessions", "6", "--ctx", "640"), up(t, "--sessions", "6", "--ctx", "640", "--prefix-cache", "off")
	text := longPrompt(t)
	request := func(i int) client.Request {
		r := withTree(setting{0.9, uint64(i)}.request(text, 24), trees[i%len(trees)])
		r.IgnoreEOS = true
		return r
	}
	var want [n]result
	for i := range want {
		want[i] = off.run(t, request(i))
	}
	prompt := want[0].finished.PromptTokens
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			got, err := g.try(t.Context(), request(i))
			if err != nil || !slices.Equal(got.tokens, want[i].tokens) {
				t.Errorf("answer %d: %v: tokens\n%v, alone\n%v", i, err, got.tokens, want[i].tokens)
			}
		})
	}
	all.Wait()
	c := g.counters(t, "verifier")
	t.Logf("prompt of %d tokens: %d found by %d of %d sessions", prompt, c["prefix.reused_tokens"], c["prefix.hits"], n)
	if least := int64((n - 1) * (prompt - 2*pageTokens)); c["prefix.reused_tokens"] < least || c["prefix.hits"] != n-1 {
		t.Errorf("%d tokens found by %d sessions, want at least %d by %d", c["prefix.reused_tokens"], c["prefix.hits"], least, n-1)
	}
}

func TestPrefixCacheFlag(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, bad := range []string{"on", "-1", "0", "63", "1e9", "99999999999"} {
		for _, command := range []string{"generate", "up"} {
			e := w.feed("package main", command, "--prefix-cache="+bad)
			if e.code != 2 || !strings.Contains(e.stderr, "--prefix-cache "+bad+": want auto, off, or a number of tokens, at least 64") {
				t.Errorf("%s --prefix-cache=%s: code %d, %q", command, bad, e.code, e.stderr)
			}
		}
	}
	if got := w.generate("--prompt", "package main", "--max-tokens", "4", "--prefix-cache", "128"); len(got.Tokens) != 4 {
		t.Errorf("%d tokens", len(got.Tokens))
	}
}
