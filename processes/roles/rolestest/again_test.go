package rolestest

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem/client"
)

// long is how many tokens the prompts of these tests have.
const long = 900

// longPrompt is a request with a long prompt of its own.
func longPrompt(seed uint64) client.Request {
	r := rand.New(rand.NewPCG(seed, 7))
	q := client.Request{Temperature: new(0.0), MaxTokens: new(4), IgnoreEOS: true, NoDraft: true}
	for range long {
		q.Tokens = append(q.Tokens, uint32(5+r.IntN(4000)))
	}
	return q
}

// counted returns a counter of the verifier.
func (s *System) counted(name string) int {
	s.t.Helper()
	d, err := s.Client.Describe(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range d.GetProcesses() {
		if p.GetRole() == "verifier" {
			return int(p.GetCounters()[name])
		}
	}
	s.t.Fatal("no verifier")
	return 0
}

// cut sends a request and gives it up in the middle of its prompt, as soon as the verifier has computed some of it; meanwhile runs before
// that. It returns how many rows the verifier had computed when all was quiet.
func (s *System) cut(q client.Request, meanwhile func()) (rows int) {
	s.t.Helper()
	before := s.counted("passes.rows")
	ctx, giveUp := context.WithCancel(s.t.Context())
	defer giveUp()
	var asked sync.WaitGroup
	asked.Go(func() {
		for range s.Client.Generate(ctx, q) {
		}
	})
	s.await("the prompt's first rows", func() bool { return s.counted("passes.rows") > before })
	meanwhile()
	giveUp()
	asked.Wait()
	s.await("no session", func() bool { return s.counted("kv.pages") == 0 })
	return s.counted("passes.rows") - before
}

// TestAskedAgain: who gave up in the middle of a long prompt and asks again goes on where it stood.
func TestAskedAgain(t *testing.T) {
	s := Start(t, target)
	for seed := range uint64(20) {
		q := longPrompt(seed)
		rows := s.cut(q, func() {})
		if rows >= long {
			continue // too fast
		}
		_, _, done, err := s.Generate(q)
		if err != nil {
			t.Fatal(err)
		}
		if t.Logf("%d rows, then %d tokens found", rows, done.CachedPromptTokens); done.CachedPromptTokens < rows*9/10 {
			t.Errorf("%d tokens were found of %d that were computed before the request was given up", done.CachedPromptTokens, rows)
		}
		return
	}
	t.Error("no request could be given up in the middle of its prompt")
}

// TestAskedTwice: of requests with the same long prompt at once it is computed once: also if the second comes while the first is computed,
// and the first is then given up. A short request beside them gets its answer too.
func TestAskedTwice(t *testing.T) {
	s := Start(t, target)
	short := client.Request{Prompt: "package main\n", Temperature: new(0.0), MaxTokens: new(4), NoDraft: true}
	var mu sync.Mutex
	want := map[string][]uint32{} // guarded by mu
	run := func(what string, q client.Request) {
		got, _, _, err := s.Generate(q)
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if want[what] == nil {
			want[what] = got
		}
		if !slices.Equal(got, want[what]) {
			t.Errorf("%s: tokens %v, before %v", what, got, want[what])
		}
	}
	rowsOf := func(do func()) int {
		before := s.counted("passes.rows")
		do()
		return s.counted("passes.rows") - before
	}
	const most = long * 12 / 10
	together := func(all ...func()) {
		var asked sync.WaitGroup
		for _, f := range all {
			asked.Go(f)
		}
		asked.Wait()
	}
	q := longPrompt(100)
	if n := rowsOf(func() {
		together(func() { run("twice", q) }, func() { run("short", short) })
		together(func() { run("twice", q) })
	}); n > most {
		t.Errorf("one after the other: %d rows for a prompt of %d", n, long)
	}
	q = longPrompt(101)
	if n := rowsOf(func() {
		var got [2][]uint32
		ask := func(i int) func() {
			return func() {
				var err error
				if got[i], _, _, err = s.Generate(q); err != nil {
					t.Error(err)
				}
			}
		}
		if together(ask(0), ask(1)); !slices.Equal(got[0], got[1]) {
			t.Errorf("tokens %v and %v", got[0], got[1])
		}
	}); n > most {
		t.Errorf("two at once: %d rows for a prompt of %d", n, long)
	}
	q = longPrompt(102)
	var second sync.WaitGroup
	if n := rowsOf(func() {
		s.cut(q, func() {
			held := s.counted("kv.pages")
			second.Go(func() { run("second", q) })
			s.await("the second", func() bool { n := s.counted("kv.pages"); return n > held || n == 0 })
		})
	}); n > most {
		t.Errorf("the first given up: %d rows for a prompt of %d", n, long)
	}
	second.Wait()
}
