package verifier_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/cache/prefixes"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/test/testkit/family"
	"github.com/tandem-llm/tandem/verifier"
	"github.com/tandem-llm/tandem/verifier/disk"
)

// said is a log that tests read.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// stored returns a verifier's configuration that keeps prefixes of m in dir.
func stored(t *testing.T, m *engine.Model, dir string) (verifier.Config, *said) {
	t.Helper()
	s := &said{}
	log := slog.New(slog.NewTextHandler(s, nil))
	files, err := prefixes.Open(prefixes.Config{Dir: dir, Limit: 1 << 30, Model: disk.StoredAs(m), Page: engine.PageTokens, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return verifier.Config{Model: m, Store: disk.KeeperConfig{Files: files, Log: log, Least: 1}}, s
}

// count waits until a counter has reached n.
func (r *rig) count(name string, n int64) {
	r.t.Helper()
	testkit.Eventually(r.t, fmt.Sprintf("%s is at least %d", name, n), func() bool { return r.counters.Snapshot()[name] >= n })
}

func openFamily(t *testing.T, path, kvType string) *engine.Model {
	t.Helper()
	m, err := engine.Open(path, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 160, KVType: kvType,
		KVPages: engine.PagesFor(4, limit, maxNodes)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func recurrent(m *engine.Model) bool {
	c := m.Config()
	return c.Recurrent()
}

func randomText(seed uint64, n, vocab int) (tokens []tandem.Token) {
	r := rand.New(rand.NewPCG(seed, 1))
	for range n {
		tokens = append(tokens, tandem.Token(3+r.IntN(vocab-3)))
	}
	return tokens
}

// TestStoreSurvivesRestart: in every architecture the next verifier finds what the one before had computed, of a prompt and of an output,
// and the text goes on as plain decoding says. A tenant of another name, and a model of another form of keys and values, find nothing.
func TestStoreSurvivesRestart(t *testing.T) {
	dir := t.TempDir()
	for _, f := range family.All(1) {
		t.Run(f.Name, func(t *testing.T) {
			path, folder := f.Write(t, dir), t.TempDir()
			m := openFamily(t, path, "f16")
			a := asked{tenant: "one", sampling: greedy, tokens: 20, prompt: randomText(1, 140, m.Config().Vocab)}
			if len(f.Name)%2 == 0 {
				a.sampling = tandem.Sampling{Temperature: 0.8, TopP: 0.95, Seed: 3}
			}
			a.tree = func(s *stream) tandem.Tree { return tandem.Root(s.text[len(s.text)-1]) }
			want := plain{m}.generate(t, a)
			pages := int64(2)
			if recurrent(m) {
				pages++ // and a state
			}
			run := func(what string, c verifier.Config, a asked, check func(r *rig, s *stream)) {
				t.Run(what, func(t *testing.T) {
					r := newRig(t, rigOptions{alone: true, verifier: c})
					s, err := r.generate(a)
					if err != nil || !slices.Equal(s.text, want) {
						t.Errorf("%v\n got %v\nwant %v", err, s.text, want)
					}
					check(r, s)
				})
			}
			c, _ := stored(t, m, folder)
			run("first", c, a, func(r *rig, s *stream) {
				if r.count("store.written", pages); s.reused != 0 {
					t.Errorf("%d tokens were found", s.reused)
				}
			})
			c, log := stored(t, openFamily(t, path, "f16"), folder)
			run("next", c, a, func(r *rig, s *stream) {
				n := r.counters.Snapshot()
				if s.reused != 128 || n["store.restored_tokens"] != 128 || n["prefix.reused_tokens"] != 128 || n["store.written"] != 0 ||
					!strings.Contains(log.String(), "tokens=128") {
					t.Errorf("%d tokens were found: %v; said %s", s.reused, n, log)
				}
			})
			other := a
			other.tenant = "two"
			c, _ = stored(t, openFamily(t, path, "f16"), folder)
			run("another tenant", c, other, func(r *rig, s *stream) {
				if s.reused != 0 {
					t.Errorf("%d tokens were found", s.reused)
				}
			})
			if m.Config().HeadDim%32 == 0 && f.Name != "gemma4" {
				m := openFamily(t, path, "q8_0")
				c, _ = stored(t, m, folder)
				want = plain{m}.generate(t, a)
				run("another form", c, a, func(r *rig, s *stream) {
					if s.reused != 0 {
						t.Errorf("%d tokens were found", s.reused)
					}
				})
			}
		})
	}
}

// TestStoreIsNotBelieved: with a file that was damaged or is missing, the text is the same, and as much is reused as lies before it.
func TestStoreIsNotBelieved(t *testing.T) {
	for _, name := range []string{"granite", "qwen35"} {
		path := family.Golden(name).Write(t, t.TempDir())
		m := openFamily(t, path, "f16")
		a := asked{sampling: greedy, tokens: 8, prompt: randomText(1, 140, m.Config().Vocab)}
		a.tree = func(s *stream) tandem.Tree { return tandem.Root(s.text[len(s.text)-1]) }
		want := plain{m}.generate(t, a)
		folder := t.TempDir()
		t.Run(name+", first", func(t *testing.T) {
			c, _ := stored(t, m, folder)
			r := newRig(t, rigOptions{alone: true, verifier: c})
			if _, err := r.generate(a); err != nil {
				t.Fatal(err)
			}
			r.count("store.written", 2)
		})
		names := func() (all []string) {
			all, err := filepath.Glob(filepath.Join(folder, prefixes.Everyone, "*.*"))
			if err != nil || len(all) < 2 {
				t.Fatalf("%v, %v", all, err)
			}
			return all
		}
		for i, file := range names() {
			for what, spoil := range map[string]func() error{
				"changed": func() error {
					b, err := os.ReadFile(file)
					if err != nil {
						return err
					}
					b[len(b)/2] ^= 1
					return os.WriteFile(file, b, 0o600)
				},
				"cut":  func() error { return os.Truncate(file, 100) },
				"gone": func() error { return os.Remove(file) },
			} {
				t.Run(fmt.Sprintf("%s, file %d is %s", name, i, what), func(t *testing.T) {
					if err := spoil(); err != nil {
						t.Fatal(err)
					}
					c, _ := stored(t, openFamily(t, path, "f16"), folder)
					r := newRig(t, rigOptions{alone: true, verifier: c})
					s, err := r.generate(a)
					if err != nil || !slices.Equal(s.text, want) || s.reused > 64 {
						t.Errorf("%v, %d tokens reused\n got %v\nwant %v", err, s.reused, s.text, want)
					}
					r.count("store.written", 1) // it is there again
				})
			}
		}
	}
}

// TestStoreTogether: sessions that are opened at once with equal and other beginnings all get their text; each beginning is read once.
// With too little memory for all of them as well.
func TestStoreTogether(t *testing.T) {
	const texts, each = 2, 3
	folder := t.TempDir()
	var jobs [texts]asked
	var wants [texts][]tandem.Token
	m := openModel(t, targetFile, 8)
	for i := range jobs {
		jobs[i] = asked{tenant: "one", sampling: greedy, tokens: 12, prompt: randomText(uint64(i), 140, 4000),
			tree: func(s *stream) tandem.Tree { return tandem.Root(s.text[len(s.text)-1]) }}
		wants[i] = plain{m}.generate(t, jobs[i])
	}
	t.Run("first", func(t *testing.T) {
		c, _ := stored(t, m, folder)
		r := newRig(t, rigOptions{alone: true, verifier: c})
		for _, a := range jobs {
			if _, err := r.generate(a); err != nil {
				t.Fatal(err)
			}
		}
		r.count("store.written", 2*texts)
	})
	for what, pages := range map[string]int{"room": 60, "little room": 9} {
		t.Run(what, func(t *testing.T) {
			c, _ := stored(t, openPool(t, targetFile, pages), folder)
			r := newRig(t, rigOptions{alone: true, verifier: c})
			var all sync.WaitGroup
			for i := range texts * each {
				all.Go(func() {
					a, want := jobs[i%texts], wants[i%texts]
					generate := r.generate
					if pages < 20 {
						generate = r.patiently
					}
					s, err := generate(a)
					if err != nil || !slices.Equal(s.text, want) || pages > 20 && s.reused < 128 {
						t.Errorf("%d: %v, %d tokens reused\n got %v\nwant %v", i, err, s.reused, s.text, want)
					}
				})
			}
			all.Wait()
			n := r.counters.Snapshot()
			if t.Log(n); n["faults"] != 0 || pages > 20 && n["store.restored"] != texts {
				t.Errorf("counters %v", n)
			}
			if n["store.restored"] < 1 {
				t.Error("nothing was restored")
			}
		})
	}
}

// TestStoreEnds: a verifier that ends while it reads, or whose caller gives up, ends well.
func TestStoreEnds(t *testing.T) {
	folder := t.TempDir()
	prompt := randomText(1, 140, 4000)
	t.Run("first", func(t *testing.T) {
		c, _ := stored(t, openModel(t, targetFile, 2), folder)
		r := newRig(t, rigOptions{alone: true, verifier: c})
		if _, err := r.generate(asked{prompt: prompt, sampling: greedy, tokens: 1,
			tree: func(s *stream) tandem.Tree { return tandem.Root(s.text[len(s.text)-1]) }}); err != nil {
			t.Fatal(err)
		}
		r.count("store.written", 2)
	})
	for i := range 20 {
		m := openModel(t, targetFile, 2)
		c, _ := stored(t, m, folder)
		c.Counters = &tandem.Counters{}
		var stages atomic.Int64
		reached := make(chan struct{}) // the i-th thing that the verifier does
		c.Events.BeginFunc = func(ctx context.Context, _ tandem.Stage, _ []tandem.Attr) (context.Context, tandem.End) {
			if stages.Add(1) == int64(1+i/2) {
				close(reached)
			}
			return ctx, func(error, ...tandem.Attr) {}
		}
		v, err := verifier.New(c)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*300*time.Microsecond)
		var all sync.WaitGroup
		for id := range 3 {
			all.Go(func() {
				_, err := v.Open(ctx, tandem.Opening{Session: tandem.SessionID(id + 1), Tokens: prompt, Limit: limit, MaxNodes: maxNodes,
					Sampling: greedy})
				if k := tandem.KindOf(err); err != nil && k != tandem.Deadline && k != tandem.Unavailable && k != tandem.Exhausted {
					t.Errorf("open: %v", err)
				}
			})
		}
		opened := make(chan struct{})
		go func() { all.Wait(); close(opened) }()
		if i%2 == 0 {
			select {
			case <-reached:
			case <-opened:
			}
			if err := v.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
			all.Wait()
		} else {
			all.Wait()
			if err := v.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		}
		cancel()
		if i%2 == 1 && m.FreePages() != m.Pages() {
			t.Errorf("%d of %d pages are free", m.FreePages(), m.Pages())
		}
	}
}

// TestStoreAtTheEnd: a verifier that is shut down writes first what its sessions hold.
func TestStoreAtTheEnd(t *testing.T) {
	const sessions, pages = 3, 8
	for range 5 {
		folder := t.TempDir()
		c, log := stored(t, openPool(t, targetFile, 60), folder)
		c.Counters = &tandem.Counters{}
		v, err := verifier.New(c)
		if err != nil {
			t.Fatal(err)
		}
		for id := range sessions {
			_, err := v.Open(t.Context(), tandem.Opening{Session: tandem.SessionID(id + 1), MaxNodes: maxNodes, Sampling: greedy,
				Tokens: randomText(uint64(id), pages*engine.PageTokens+5, 4000), Limit: 1000})
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := v.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		files, err := filepath.Glob(filepath.Join(folder, prefixes.Everyone, "*.page"))
		if err != nil || len(files) != sessions*pages || log.String() != "" {
			t.Errorf("%d files, %v, said %q: want %d", len(files), err, log, sessions*pages)
		}
		if err := v.Shutdown(t.Context()); err != nil {
			t.Errorf("again: %v", err)
		}
	}
}
