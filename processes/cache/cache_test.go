package cache

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// recipe is a request for a file whose bytes depend on from; it counts how often the file is made.
func recipe(file, from string, size int, made *atomic.Int32) Request {
	return Request{Kind: Models, File: file, From: from, Size: int64(size), Make: func(_ context.Context, path string) error {
		made.Add(1)
		return os.WriteFile(path, content(from, size), 0o644)
	}}
}

func content(from string, size int) []byte {
	return bytes.Repeat([]byte(from+"."), size/len(from)+1)[:size]
}

// get gets r and checks the file.
func get(t *testing.T, c *Cache, r Request) *Entry {
	t.Helper()
	e, err := c.Get(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	b, err := os.ReadFile(e.Path)
	if err != nil || !bytes.Equal(b, content(r.From, int(r.Size))) || filepath.Base(e.Path) != r.File {
		t.Fatalf("%s: %d bytes, %v: want those of %s", e.Path, len(b), err, r.From)
	}
	return e
}

func TestGet(t *testing.T) {
	var made atomic.Int32
	c := New(filepath.Join(t.TempDir(), "a", "b"), 1<<30)
	r := recipe("x.gguf", "one", 5<<20+3, &made) // more than one leaf of the digest
	if e := get(t, c, r); !e.Made || made.Load() != 1 {
		t.Errorf("first: made %v, %d times", e.Made, made.Load())
	}
	if e := get(t, c, r); e.Made || made.Load() != 1 {
		t.Errorf("second, while the first is in use: made %v, %d times", e.Made, made.Load())
	}
	other := r
	other.From, other.Make = "two", recipe("x.gguf", "two", 5<<20+3, &made).Make
	if e := get(t, c, other); !e.Made || made.Load() != 2 {
		t.Error("of something else: not made")
	}
	items, err := c.List()
	if err != nil || len(items) != 2 || items[0].File != "x.gguf" || items[0].Bytes < r.Size || !items[0].InUse {
		t.Errorf("%+v, %v", items, err)
	}
}

// TestDamaged: whatever happened to an entry's files, the next Get returns the right bytes.
func TestDamaged(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"cut":            func(p string) error { return os.Truncate(p, 1000) },
		"longer":         func(p string) error { return os.WriteFile(p, append(content("x", 5000), 'y'), 0o600) },
		"a bit":          func(p string) error { b := content("x", 5000); b[4000] ^= 1; return os.WriteFile(p, b, 0o600) },
		"foreign":        func(p string) error { return os.WriteFile(p, []byte("hello"), 0o600) },
		"gone":           os.Remove,
		"a folder":       func(p string) error { return errors.Join(os.Remove(p), os.MkdirAll(p+"/x", 0o700)) },
		"no description": func(p string) error { return os.Remove(filepath.Join(filepath.Dir(p), infoName)) },
		"a wrong description": func(p string) error {
			return os.WriteFile(filepath.Join(filepath.Dir(p), infoName), []byte("{"), 0o600)
		},
		"description of other": func(p string) error {
			return os.WriteFile(filepath.Join(filepath.Dir(p), infoName), []byte("{}"), 0o600)
		},
		"half made": func(p string) error { // by a process that was killed
			dir := filepath.Dir(p)
			return errors.Join(os.Remove(p), os.Remove(filepath.Join(dir, infoName)),
				os.WriteFile(filepath.Join(dir, partName), []byte("x"), 0o600),
				os.WriteFile(filepath.Join(dir, ".part.123.tmp"), []byte("x"), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var made atomic.Int32
			c := New(t.TempDir(), 1<<30)
			r := recipe("x.gguf", "x", 5000, &made)
			e := get(t, c, r)
			path := e.Path
			e.Close()
			if err := spoil(path); err != nil {
				t.Fatal(err)
			}
			var said []string
			r.Tell = func(what string) { said = append(said, what) }
			if e := get(t, c, r); !e.Made || made.Load() != 2 {
				t.Errorf("made %v, %d times", e.Made, made.Load())
			}
			none := name == "no description" || name == "half made"
			if none != (len(said) == 0) || !none && !strings.Contains(said[0], "made again") {
				t.Errorf("told %q", said)
			}
			files, _ := os.ReadDir(filepath.Dir(path))
			if len(files) != 3 {
				t.Errorf("%d files in the entry: %v", len(files), files)
			}
		})
	}
}

// TestTogether: concurrent Gets of one entry make it once and all get it.
func TestTogether(t *testing.T) {
	var made atomic.Int32
	dir := t.TempDir()
	r := recipe("x.gguf", "x", 100000, &made)
	slow := r.Make
	r.Make = func(ctx context.Context, path string) error {
		time.Sleep(50 * time.Millisecond)
		return slow(ctx, path)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			e, err := New(dir, 1<<30).Get(t.Context(), r)
			if err != nil {
				t.Error(err)
				return
			}
			defer e.Close()
			if b, err := os.ReadFile(e.Path); err != nil || !bytes.Equal(b, content("x", 100000)) {
				t.Errorf("%d bytes, %v", len(b), err)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 {
		t.Errorf("made %d times", made.Load())
	}
}

// TestClearTogether: entries are made and removed while others get them, and nobody ever holds one that is gone.
func TestClearTogether(t *testing.T) {
	var made atomic.Int32
	c := New(t.TempDir(), 1<<30)
	stop := make(chan struct{})
	var clearing, wg sync.WaitGroup
	begun := time.Now()
	clearing.Go(func() {
		for {
			if _, _, err := c.Clear(); err != nil {
				t.Error(err)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for range 4 {
		wg.Go(func() {
			for i := 0; i < 10 || made.Load() < 2 && time.Since(begun) < 30*time.Second; i++ {
				e, err := c.Get(t.Context(), recipe("x.gguf", "x", 1000, &made))
				if err != nil {
					t.Error(err)
					return
				}
				if b, err := os.ReadFile(e.Path); err != nil || len(b) != 1000 {
					t.Errorf("%d bytes, %v", len(b), err)
				}
				e.Close()
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	close(stop)
	clearing.Wait()
	if made.Load() < 2 {
		t.Error("never made again: the test clears nothing")
	}
}

func TestLimit(t *testing.T) {
	var made atomic.Int32
	c := New(t.TempDir(), 12000)
	if err := os.MkdirAll(filepath.Join(c.dir, "models", "mine"), 0o700); err != nil {
		t.Fatal(err)
	}
	mine := filepath.Join(c.dir, "models", "mine", "big.gguf")
	for _, foreign := range []string{filepath.Join(c.dir, "jaeger-v1"), mine} {
		if err := os.WriteFile(foreign, make([]byte, 50000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Now().Add(-time.Hour)
	for i, name := range []string{"a", "b", "c"} {
		e := get(t, c, recipe(name+".gguf", name, 3000, &made))
		e.Close()
		used := at.Add(time.Duration(i) * time.Minute)
		if err := os.Chtimes(filepath.Join(filepath.Dir(e.Path), infoName), used, used); err != nil {
			t.Fatal(err)
		}
	}
	get(t, c, recipe("a.gguf", "a", 3000, &made)).Close() // now b is the oldest
	held := get(t, c, recipe("c.gguf", "c", 3000, &made)) // and c is in use
	if err := os.Chtimes(filepath.Join(filepath.Dir(held.Path), infoName), at, at); err != nil {
		t.Fatal(err)
	}
	var said []string
	r := recipe("d.gguf", "d", 5000, &made)
	r.Tell = func(what string) { said = append(said, what) }
	get(t, c, r).Close()
	if got := names(t, c); got != "a.gguf c.gguf d.gguf" || len(said) != 1 || !strings.Contains(said[0], "removed b-") {
		t.Errorf("left: %s, told %q: want b removed", got, said)
	}
	_, err := c.Get(t.Context(), recipe("e.gguf", "e", 9500, &made))
	if tandem.KindOf(err) != tandem.Exhausted || !strings.Contains(err.Error(), "in use") ||
		!strings.Contains(err.Error(), "--cache-limit") {
		t.Errorf("more than is not in use: %v", err)
	}
	_, err = c.Get(t.Context(), recipe("e.gguf", "e", 12001, &made))
	if tandem.KindOf(err) != tandem.Exhausted || !strings.Contains(err.Error(), "--cache-limit") {
		t.Errorf("more than the limit: %v", err)
	}
	r = recipe("e.gguf", "e", 100, &made)
	r.space = func(string) (int64, bool, error) { return spareDisk + 99, false, nil }
	if _, err = c.Get(t.Context(), r); tandem.KindOf(err) != tandem.Exhausted || !strings.Contains(err.Error(), "--cache DIR") {
		t.Errorf("more than the disk has: %v", err)
	}
	removed, left, err := c.Clear()
	if err != nil || len(left) != 1 || left[0].File != "c.gguf" || len(removed) == 0 {
		t.Errorf("cleared %v, left %v, %v: want c left, which is in use", removed, left, err)
	}
	held.Close()
	if _, left, err = c.Clear(); err != nil || len(left) != 0 || names(t, c) != "" {
		t.Errorf("left %v, %v", left, err)
	}
	for _, foreign := range []string{filepath.Join(c.dir, "jaeger-v1"), mine} {
		if _, err := os.Stat(foreign); err != nil {
			t.Errorf("what is no entry was removed: %v", err)
		}
	}
	if rest, _ := os.ReadDir(filepath.Join(c.dir, "models")); len(rest) != 1 {
		t.Errorf("left behind: %v", rest)
	}
}

// names lists the entries' files.
func names(t *testing.T, c *Cache) string {
	t.Helper()
	items, err := c.List()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, i := range items {
		out[i.File] = true
	}
	var all []string
	for _, name := range []string{"", "a.gguf", "b.gguf", "c.gguf", "d.gguf", "e.gguf"} {
		if out[name] {
			all = append(all, name)
		}
	}
	return strings.Join(all, " ")
}

func TestStopped(t *testing.T) {
	c := New(t.TempDir(), 1<<30)
	ctx, stop := context.WithCancel(t.Context())
	r := Request{Kind: Models, File: "x.gguf", From: "x", Size: 10, Make: func(ctx context.Context, path string) error {
		if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
			return err
		}
		stop()
		return ctx.Err()
	}}
	if _, err := c.Get(ctx, r); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped while it is made: %v", err)
	}
	if rest, _ := os.ReadDir(filepath.Join(c.dir, "models")); len(rest) != 0 {
		t.Errorf("left behind: %v", rest)
	}
	if _, err := c.Get(ctx, r); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped before: %v", err)
	}
	if rest, _ := os.ReadDir(filepath.Join(c.dir, "models")); len(rest) != 0 {
		t.Errorf("left behind: %v", rest)
	}
	making, going := make(chan struct{}), make(chan struct{})
	r.Make = func(ctx context.Context, path string) error {
		close(making)
		<-going
		return os.WriteFile(path, []byte("whole"), 0o600)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		e, err := c.Get(t.Context(), r)
		if err != nil {
			t.Error(err)
			return
		}
		e.Close()
	})
	<-making
	ctx, stop = context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	told := ""
	waits := r
	waits.Tell = func(what string) { told = what; stop() }
	if _, err := c.Get(ctx, waits); !errors.Is(err, context.Canceled) || !strings.Contains(told, "waiting") {
		t.Errorf("stopped while another makes it: %v, told %q", err, told)
	}
	close(going)
	wg.Wait()
}

func TestUnwritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var made atomic.Int32
	r := recipe("x.gguf", "x", 10, &made)
	_, err := New(filepath.Join(file, "cache"), 1<<30).Get(t.Context(), r)
	var unwritable *Unwritable
	if !errors.As(err, &unwritable) || !strings.Contains(err.Error(), "cannot be written: not a directory") {
		t.Errorf("%v: want an Unwritable", err)
	}
	parent := t.TempDir()
	e, err := Temporary(t.Context(), parent, r)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(e.Path); err != nil || len(b) != 10 || !e.Made {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if err := errors.Join(e.Close(), e.Close()); err != nil {
		t.Error(err)
	}
	failing := r
	failing.Make = func(context.Context, string) error { return tandem.Errorf("", tandem.Invalid, "no") }
	if _, err := Temporary(t.Context(), parent, failing); tandem.KindOf(err) != tandem.Invalid {
		t.Error(err)
	}
	failing.space = func(string) (int64, bool, error) { return 1, true, nil }
	if _, err := Temporary(t.Context(), parent, failing); tandem.KindOf(err) != tandem.Exhausted {
		t.Error(err)
	}
	if _, err := Temporary(t.Context(), filepath.Join(file, "x"), r); !errors.As(err, &unwritable) {
		t.Error(err)
	}
	if rest, _ := os.ReadDir(parent); len(rest) != 0 {
		t.Errorf("left behind: %v", rest)
	}
	if _, err := Temporary(t.Context(), parent, Request{File: "y", Size: 1 << 62, Make: r.Make}); tandem.KindOf(err) != tandem.Exhausted {
		t.Errorf("more than any disk has: %v", err)
	}
}

// A process that may not write to a cache still uses what is in it.
func TestReadOnly(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may write everywhere")
	}
	var made atomic.Int32
	c := New(t.TempDir(), 1<<30)
	e := get(t, c, recipe("x.gguf", "x", 10, &made))
	dir := filepath.Dir(e.Path)
	e.Close()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir, 0o700)
	get(t, c, recipe("x.gguf", "x", 10, &made))
	if err := os.Truncate(e.Path, 3); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), recipe("x.gguf", "x", 10, &made)); !errors.As(err, new(*Unwritable)) {
		t.Errorf("%v: want an Unwritable", err)
	}
}

func TestDir(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/x")
	if dir, err := Dir(); err != nil || dir != "/x/tandem" {
		t.Errorf("%s, %v", dir, err)
	}
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	if _, err := Dir(); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "--cache DIR") {
		t.Error(err)
	}
}

func BenchmarkDigest(b *testing.B) {
	path := filepath.Join(b.TempDir(), "x")
	if err := os.WriteFile(path, make([]byte, 256<<20), 0o600); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(256 << 20)
	for range b.N {
		if _, _, err := digest(b.Context(), path, func(int64, int64) {}); err != nil {
			b.Fatal(err)
		}
	}
}
