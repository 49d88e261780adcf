package test

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/test/testkit"
)

// talks are conversations of two turns over texts that are long enough for the prefix store: the second turn's prompt is the first's, its
// answer and something new.
type talks struct {
	requests []client.Request // a conversation's turns follow each other
	want     []result         // undisturbed
}

// undisturbed has g answer everything, one after the other.
func undisturbed(t *testing.T, g *group) (all talks) {
	t.Helper()
	text := longPrompt(t)
	var body []uint32 // in pieces, each of which is too short to be kept
	for _, piece := range []string{text[:1000], text[1000:], text[:1000]} {
		body = append(body, g.ids(t, piece)[1:]...)
	}
	more := g.ids(t, "\n// And now for something else:\n")[1:]
	for i := range 2 {
		r := setting{0.8 * float64(i), uint64(i)}.request("", 40)
		r.Tokens, r.IgnoreEOS = slices.Concat(g.ids(t, fmt.Sprintf("// Chapter %d\n", i)), body)[:600+40*i], true
		for range 2 {
			got := g.run(t, r)
			all.requests, all.want = append(all.requests, r), append(all.want, got)
			r.Tokens = slices.Concat(r.Tokens, got.tokens, more)
		}
	}
	return all
}

// check compares an answer, or as much of it as came before an error, with that of the undisturbed run.
func (x talks) check(t *testing.T, i int, got result, err error) {
	t.Helper()
	want := x.want[i]
	if err != nil {
		want.tokens = want.tokens[:min(len(got.tokens), len(want.tokens))]
		want.text = want.text[:min(len(got.text), len(want.text))]
	}
	if !slices.Equal(got.tokens, want.tokens) || got.text != want.text {
		t.Errorf("request %d (%v): tokens\n%v, undisturbed\n%v", i, err, got.tokens, want.tokens)
	}
}

// killAll kills all processes of a group at once, in any order, and waits until none is left.
func (g *group) killAll(t *testing.T, r *rand.Rand) {
	t.Helper()
	pids := g.w.processes()
	r.Shuffle(len(pids), func(i, k int) { pids[i], pids[k] = pids[k], pids[i] })
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = g.cmd.Wait()
	testkit.Eventually(t, "all processes to be dead", func() bool { return len(g.w.processes()) == 0 })
	if g.client != nil {
		_ = g.client.Close()
	}
}

// underLoad has some clients ask for x until all processes are killed after a while.
func (g *group) underLoad(t *testing.T, x talks, r *rand.Rand, after time.Duration) (answered int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	var killed atomic.Bool
	var done atomic.Int64
	for c := range 3 {
		next := r.IntN(len(x.requests))
		all.Go(func() {
			for ; !killed.Load(); next++ {
				i := (next + c) % len(x.requests)
				got, err := g.try(ctx, x.requests[i])
				if x.check(t, i, got, err); err != nil {
					if !killed.Load() {
						t.Errorf("request %d before anything was killed: %v", i, err)
					}
					return
				}
				done.Add(1)
			}
		})
	}
	time.Sleep(after)
	killed.Store(true)
	g.killAll(t, r)
	cancel()
	all.Wait()
	return done.Load()
}

// lying returns the files below a folder by their names, with their sizes; it checks that this user alone can read them.
func lying(t *testing.T, folder string) map[string]int64 {
	t.Helper()
	files := map[string]int64{}
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		} else {
			files[strings.TrimPrefix(path, folder)] = st.Size()
		}
		if st.Mode().Perm() != want {
			t.Errorf("%s has mode %v: want %v", path, st.Mode(), want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// sameSecret gives a new store the secret of another one.
func sameSecret(t *testing.T, from, to string) {
	t.Helper()
	to = filepath.Join(to, "prefixes")
	secret, err := os.ReadFile(filepath.Join(from, "prefixes", "secret"))
	if err == nil {
		err = os.Mkdir(to, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(to, "secret"), secret, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestPrefixStoreKilled kills all processes at random moments under requests, and starts them again over the same folder: each start
// succeeds, all answers are those of an undisturbed run, what was computed before a kill is found after it, and the folder holds in the
// end what an undisturbed run leaves.
func TestPrefixStoreKilled(t *testing.T) {
	mayBeSlow(t)
	t.Parallel()
	r := newRandom(t)
	kills := 8
	if *long {
		kills = 100
	}
	w, cache, clean := newWorld(t), t.TempDir(), t.TempDir()
	begin := func(cache string) *group {
		return w.begin([]string{"TANDEM_CACHE=" + cache}, "--prefix-store", "64MiB", "--http", "127.0.0.1:0", "--sessions", "4")
	}
	g := begin(clean)
	g.ready(t)
	x := undisturbed(t, g)
	written(t, g)
	g.stop(t)
	want := lying(t, filepath.Join(clean, "prefixes"))
	sameSecret(t, clean, cache) // so that the same texts have the same names
	if len(want) < 2*9 {
		t.Fatalf("an undisturbed run leaves %d files: want those of two texts", len(want))
	}

	var answered, found int64
	for n := range kills {
		g := begin(cache)
		if n%4 == 3 { // while they start
			time.Sleep(between(r, 0, 300*time.Millisecond))
			g.killAll(t, r)
			continue
		}
		if g.ready(t); n > 0 {
			found += g.reuses(t, x, r.IntN(len(x.requests)))
		}
		answered += g.underLoad(t, x, r, between(r, 0, 800*time.Millisecond))
		if t.Failed() {
			t.Fatalf("kill %d: stderr of up:\n%s", n, g.stderr)
		}
	}
	g = begin(cache)
	g.ready(t)
	for i, request := range x.requests {
		x.check(t, i, g.run(t, request), nil)
	}
	written(t, g)
	g.stop(t)
	t.Logf("%d kills, %d answers before them; %d prompt tokens of requests after a start came from the disk", kills, answered, found)
	if found == 0 {
		t.Error("no request after a start found anything on the disk")
	}
	parts := 0
	got := lying(t, filepath.Join(cache, "prefixes"))
	for name, size := range got {
		if strings.HasPrefix(filepath.Base(name), ".part-") {
			parts++
		} else if want[name] != size {
			t.Errorf("%s of %d bytes lies there: an undisturbed run leaves %d", name, size, want[name])
		}
	}
	if len(got)-parts != len(want) || parts > 1 {
		t.Errorf("%d files and %d parts lie there: want %d files, and at most the part that was written at the last kill", len(got)-parts,
			parts, len(want))
	}
	entries, err := os.ReadDir(cache)
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return slices.Contains([]string{"digests.json", "costs"}, e.Name()) })
	if err != nil || len(entries) != 1 {
		t.Errorf("the cache's folder holds %v, %v: want the prefixes, digests and costs alone", entries, err)
	}
}

// TestPrefixStoreIdle: what a verifier without work has answered is on disk a second later, whatever kills it then.
func TestPrefixStoreIdle(t *testing.T) {
	t.Parallel()
	w, env := newWorld(t), []string{"TANDEM_CACHE=" + t.TempDir()}
	g := w.begin(env, "--prefix-store", "64MiB")
	g.ready(t)
	x := undisturbed(t, g)
	time.Sleep(time.Second)
	g.killAll(t, newRandom(t))

	g = w.begin(env, "--prefix-store", "64MiB")
	g.ready(t)
	next := x.requests[len(x.requests)-1]
	next.Tokens = slices.Concat(next.Tokens, x.want[len(x.want)-1].tokens)
	got := g.run(t, next).finished
	if least := (got.PromptTokens - 1) / pageTokens * pageTokens; got.CachedPromptTokens < least {
		t.Errorf("%d of %d prompt tokens were on disk: want all whole pages, %d", got.CachedPromptTokens, got.PromptTokens, least)
	}
	g.stop(t)
}

// reuses sends a request over HTTP and returns how much of its prompt came from the cache, which nothing but the disk has filled.
func (g *group) reuses(t *testing.T, x talks, i int) int64 {
	t.Helper()
	r := x.requests[i]
	web := &webGroup{group: g, url: g.http}
	c := web.complete(t, map[string]any{"prompt": r.Tokens, "max_tokens": *r.MaxTokens, "temperature": *r.Temperature, "seed": *r.Seed,
		"top_k": *r.TopK, "top_p": *r.TopP, "min_p": 0, "ignore_eos": true})
	if got := c.Choices[0].Text; got != x.want[i].text {
		t.Errorf("request %d after a start: %q, undisturbed %q", i, got, x.want[i].text)
	}
	cached, prompt := c.Usage.Details.Cached, c.Usage.Prompt
	if n := g.counters(t, "verifier"); int64(cached) != n["store.restored_tokens"] || cached >= prompt {
		t.Errorf("%d of %d prompt tokens are said to come from the cache, %d were read from the disk", cached, prompt,
			n["store.restored_tokens"])
	}
	return int64(cached)
}

// written waits until the verifier has written all it means to: no session is open, and the number of files has not changed for a while.
func written(t *testing.T, g *group) {
	t.Helper()
	g.idle(t)
	last, since := int64(-1), time.Now()
	testkit.Eventually(t, "the verifier to have written everything", func() bool {
		if n := g.counters(t, "verifier")["store.written"]; n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > 300*time.Millisecond
	})
}
