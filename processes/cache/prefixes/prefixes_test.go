package prefixes

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

const pageTokens = 64

// log keeps what a store says.
type log struct{ bytes.Buffer }

func (l *log) lines() int { return strings.Count(l.String(), "\n") }

func config(dir string) (Config, *log) {
	l := &log{}
	return Config{Dir: dir, Limit: 1 << 30, Model: "a model", Page: pageTokens, Log: slog.New(slog.NewTextHandler(l, nil))}, l
}

func open(t testing.TB, c Config) *Store {
	t.Helper()
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// text returns n tokens that begin with a number of their own.
func text(first, n int) []tandem.Token {
	tokens := make([]tandem.Token, n)
	for i := range tokens {
		tokens[i] = tandem.Token(first*1000 + i)
	}
	return tokens
}

func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
	return b
}

func write(t testing.TB, to *Tenant, n Name, k Kind, data []byte) {
	t.Helper()
	if err := to.Write(n, k, bytes.Clone(data), 0, time.Now()); err != nil {
		t.Fatal(err)
	}
}

var tenants = map[string]string{"without keys": "", "with keys": "0123456789abcdef0123456789abcdef"}

// TestRoundTrip: what was written is read, also by the next process, and lies in files of the promised kind.
func TestRoundTrip(t *testing.T) {
	for what, tenant := range tenants {
		for _, size := range []int{1, 100, segmentBytes, 3*segmentBytes + 5} {
			dir := filepath.Join(t.TempDir(), "prefixes")
			c, said := config(dir)
			first := open(t, c).Tenant(tenant)
			names := first.Names(text(1, 200))
			if len(names) != 3 {
				t.Fatalf("%d names for 200 tokens", len(names))
			}
			page, state := random(1, size), random(2, size)
			write(t, first, names[1], Page, page)
			write(t, first, names[1], State, state)
			next := open(t, c).Tenant(tenant)
			got := make([]byte, size)
			if err := next.Read(names[1], Page, got); err != nil || !bytes.Equal(got, page) {
				t.Errorf("%s, %d bytes: %v", what, size, err)
			}
			if err := next.Read(names[1], State, got); err != nil || !bytes.Equal(got, state) {
				t.Errorf("%s, state of %d bytes: %v", what, size, err)
			}
			if err := next.Read(names[0], Page, got); !errors.Is(err, fs.ErrNotExist) || next.Has(names[0], Page) {
				t.Errorf("%s: read what nobody wrote: %v", what, err)
			}
			if !next.Has(names[1], Page) || said.Len() > 0 {
				t.Errorf("%s: has the page: %v; said %q", what, next.Has(names[1], Page), said)
			}
			err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				st, err := d.Info()
				if want := map[bool]fs.FileMode{true: 0o700, false: 0o600}[d.IsDir()]; err == nil && st.Mode().Perm() != want {
					t.Errorf("%s has mode %v, want %v", path, st.Mode().Perm(), want)
				}
				b, _ := os.ReadFile(path)
				if tenant != "" && size >= 100 && (bytes.Contains(b, page[:16]) || bytes.Contains(b, state[:16])) {
					t.Errorf("%s can be read without the key", path)
				}
				if tenant != "" && strings.Contains(path, tenant) {
					t.Errorf("%s names the tenant", path)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestNames: a name depends on the tenant, the model and all tokens up to the page's end, and on nothing behind it.
func TestNames(t *testing.T) {
	c, _ := config(t.TempDir())
	s := open(t, c)
	c.Model = "another"
	other := open(t, c)
	base := s.Tenant("t").Names(text(1, 200))
	if same := s.Tenant("t").Names(append(text(1, 192), 7)); !slices.Equal(base, same) {
		t.Error("names depend on what is behind the last whole page")
	}
	changed := text(1, 200)
	changed[63]++
	all := slices.Concat(base, s.Tenant("t").Names(changed), s.Tenant("u").Names(text(1, 200)), other.Tenant("t").Names(text(1, 200)),
		s.Tenant("").Names(text(1, 200)))
	seen := map[Name]bool{}
	for _, n := range all {
		seen[n] = true
	}
	if len(seen) != len(all) {
		t.Errorf("%d different names of %d", len(seen), len(all))
	}
	if changed[63]--; s.Tenant("t").Names(changed[:63]) == nil || len(s.Tenant("t").Names(changed[:63])) != 0 {
		t.Error("a page begun has a name")
	}
}

// TestLimit: below the limit stays what was used last; of a text its end goes first; a tenant with less loses nothing.
func TestLimit(t *testing.T) {
	const size = 1000
	c, _ := config(t.TempDir())
	c.Limit = 20 * sizeOf(size)
	s := open(t, c)
	small, big := s.Tenant("small"), s.Tenant("big")
	begun := time.Now().Add(-time.Hour)
	few := small.Names(text(1, 5*pageTokens))
	for i, n := range few {
		if err := small.Write(n, Page, random(1, size), i, begun); err != nil {
			t.Fatal(err)
		}
	}
	put := func(first int, at time.Time) (names []Name) {
		names = big.Names(text(first, 10*pageTokens))
		for i, n := range names {
			if err := big.Write(n, Page, random(1, size), i, at); err != nil {
				t.Fatal(err)
			}
		}
		return names
	}
	count := func(of *Tenant, names []Name) (n int) {
		for i, x := range names {
			if of.Has(x, Page) {
				if n++; n != i+1 {
					t.Errorf("page %d is there without those before it", i)
				}
			}
		}
		return n
	}
	older := put(2, begun.Add(time.Minute))
	newer := put(3, begun.Add(2*time.Minute))
	if a, b, c := count(small, few), count(big, older), count(big, newer); a != 5 || b < 3 || b > 5 || c != 10 {
		t.Errorf("%d, %d and %d pages are left: want 5, about 4, 10", a, b, c)
	}
	for i, n := range older {
		big.Used(n, i, time.Now())
	}
	put(4, time.Now())
	if b, c := count(big, older), count(big, newer); b < 3 || c > 2 || count(small, few) != 5 {
		t.Errorf("%d of the text just used and %d of the other are left", b, c)
	}
	if uses, err := List(c.Dir); err != nil || len(uses) != 2 || uses[0].Bytes+uses[1].Bytes > c.Limit {
		t.Errorf("%+v, %v", uses, err)
	}
	if n := s.Holds(size); n != 15 {
		t.Errorf("a text may have %d pages, want three quarters of 20", n)
	}
	c.Limit = 4 * sizeOf(size) // a smaller limit at the next start
	open(t, c)
	if uses, err := List(c.Dir); err != nil || len(uses) == 0 || uses[0].Bytes > c.Limit {
		t.Errorf("after a start with a smaller limit: %+v, %v", uses, err)
	}
}

// TestAge: what was not used for too long is not used any more, and is removed.
func TestAge(t *testing.T) {
	c, _ := config(t.TempDir())
	c.Age = time.Hour
	of := open(t, c).Tenant("")
	names := of.Names(text(1, 128))
	for i, at := range []time.Time{time.Now().Add(-30 * time.Minute), time.Now().Add(-2 * time.Hour)} {
		if err := of.Write(names[i], Page, random(1, 100), 0, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := of.Read(names[1], Page, make([]byte, 100)); !errors.Is(err, fs.ErrNotExist) || of.Has(names[1], Page) ||
		!of.Has(names[0], Page) {
		t.Errorf("old: %v, has it: %v; young: %v", err, of.Has(names[1], Page), of.Has(names[0], Page))
	}
	open(t, c)
	if uses, _ := List(c.Dir); len(uses) != 1 || uses[0].Files != 1 {
		t.Errorf("left: %+v", uses)
	}
}

// TestFullDisk: a disk that is full, or a folder that cannot be written to, is told once, and writing is tried again later.
func TestFullDisk(t *testing.T) {
	c, said := config(t.TempDir())
	free := int64(spareDisk)
	c.space = func(string) (int64, bool, error) { return free, false, nil }
	s := open(t, c)
	of := s.Tenant("")
	n := of.Names(text(1, 64))[0]
	for i := range 3 {
		err := of.Write(n, Page, random(1, 100), 0, time.Now())
		if want := []tandem.Kind{tandem.Exhausted, tandem.Unavailable}[min(i, 1)]; tandem.KindOf(err) != want || said.lines() != 1 {
			t.Errorf("write %d: %v; said %q", i, err, said)
		}
	}
	free, s.resumes = 1<<40, time.Time{}
	if err := of.Write(n, Page, random(1, 100), 0, time.Now()); err != nil || !of.Has(n, Page) {
		t.Errorf("with room again: %v", err)
	}
	blocked := s.Tenant("x")
	if err := os.WriteFile(blocked.dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := blocked.Write(n, Page, random(1, 100), 0, time.Now()); err == nil || said.lines() != 2 {
		t.Errorf("a file in place of a folder: %v; said %q", err, said)
	}
}

// TestFolder: a folder that others could look into is closed, and what is no folder is refused.
func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c, _ := config(dir)
	open(t, c)
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	c.Dir = link
	if _, err := Open(c); !errors.Is(err, tandem.Invalid) {
		t.Errorf("a link: %v", err)
	}
	c.Dir = filepath.Join(link, "file", "below")
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(c); err == nil {
		t.Error("below a file: opened")
	}
}

// TestClear: a tenant's prefixes are removed, or all; other files stay.
func TestClear(t *testing.T) {
	c, _ := config(t.TempDir())
	s := open(t, c)
	n := s.Tenant("").Names(text(1, 64))[0]
	for _, tenant := range []string{"", "a", "b"} {
		write(t, s.Tenant(tenant), n, Page, random(1, 100))
	}
	foreign := filepath.Join(c.Dir, folder(s.secret, "a"), "notes.txt")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	removed, err := Clear(c.Dir, folder(s.secret, "a"), "../x")
	if err != nil || len(removed) != 1 || removed[0].Tenant != folder(s.secret, "a") || removed[0].Files != 1 ||
		s.Tenant("a").Has(n, Page) ||
		!s.Tenant("b").Has(n, Page) {
		t.Errorf("%+v, %v", removed, err)
	}
	if removed, err = Clear(c.Dir); err != nil || len(removed) != 2 || s.Tenant("b").Has(n, Page) || s.Tenant("").Has(n, Page) {
		t.Errorf("%+v, %v", removed, err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Error(err)
	}
	if removed, err = Clear(filepath.Join(c.Dir, "none")); err != nil || removed != nil {
		t.Errorf("a folder that is not there: %+v, %v", removed, err)
	}
	of := s.Tenant("b")
	write(t, of, n, Page, random(1, 100))
	if of.Forget([]Name{n}); of.Has(n, Page) {
		t.Error("forgotten, but there")
	}
}

// TestTogether: two processes write, read and remove in one folder; what is read is always what was written.
func TestTogether(t *testing.T) {
	const size, each = 3000, 40
	c, said := config(t.TempDir())
	c.Limit = each * sizeOf(size)
	var all sync.WaitGroup
	var mu sync.Mutex
	read := 0
	for i := range 2 {
		s := open(t, c)
		all.Go(func() {
			for round := range 6 {
				of := s.Tenant(fmt.Sprint(round % 2))
				for j, n := range of.Names(text(round%3, each/2*pageTokens)) {
					want := random(uint64(j), size)
					if err := of.Write(n, Page, bytes.Clone(want), j, time.Now()); err != nil {
						t.Errorf("process %d: %v", i, err)
					}
					got := make([]byte, size)
					err := of.Read(n, Page, got)
					if err == nil && !bytes.Equal(got, want) || err != nil && !errors.Is(err, fs.ErrNotExist) {
						t.Errorf("process %d: wrong bytes, %v", i, err)
					}
					if mu.Lock(); err == nil {
						read++
					}
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	if read < 2*6*each/2*3/4 || said.Len() > 0 {
		t.Errorf("%d pages were read; said %q", read, said)
	}
}

func BenchmarkRead(b *testing.B) {
	for what, tenant := range tenants {
		b.Run(what, func(b *testing.B) {
			const size = 1835008
			c, _ := config(b.TempDir())
			of := open(b, c).Tenant(tenant)
			names := of.Names(text(1, 20*pageTokens))
			for _, n := range names {
				write(b, of, n, Page, random(1, size))
			}
			dst := make([]byte, size)
			b.SetBytes(size)
			for i := 0; b.Loop(); i++ {
				if err := of.Read(names[i%len(names)], Page, dst); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
