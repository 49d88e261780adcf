package kv

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

const testPages = 24

// held is a sequence as its user knows it.
type held struct {
	*Pages
	tenant string
	prompt []tandem.Token
	tokens []tandem.Token // that its cells hold, and those that it has left
	first  int            // tokens before those
	gap    int            // how many it has left
}

// place returns the position in the cells of token i.
func (h *held) place(i int) int {
	if i < h.first {
		return i
	}
	return i - h.gap
}

// rig is a cache whose cells hold a number that identifies the tenant and its tokens up to their position.
type rig struct {
	*rapid.T
	cache *Cache
	open  []*held
}

func newCache(pages int) *Cache {
	return New(&memory{cells: make([]uint64, pages*kernels.PageRows)}, 0)
}

// memory is a device's cache that keeps one number in each cell.
type memory struct {
	kernels.Cache
	cells []uint64
	slots map[int32][]byte
}

func (m *memory) Pages() int { return len(m.cells) / kernels.PageRows }

func (m *memory) CopyStates(_, _ []int32) {}

func (m *memory) Copy(dst, src []kernels.Cell) {
	for i := range dst {
		m.cells[dst[i]] = m.cells[src[i]]
	}
}

// code is what the cell of a prefix's last position holds.
func code(tenant string, tokens []tandem.Token) uint64 {
	h := tandem.EmptyPrefix.Add(tandem.Token(len(tenant)))
	for _, b := range []byte(tenant) {
		h = h.Add(tandem.Token(b))
	}
	return uint64(h.Add(tokens...))
}

// at returns what a cell holds.
func (c *Cache) at(cell kernels.Cell) *uint64 { return &c.mem.(*memory).cells[cell] }

// write is a pass that appends tokens.
func (h *held) write(tokens ...tandem.Token) {
	for _, t := range tokens {
		h.tokens = append(h.tokens, t)
		*h.cache.at(h.At(h.place(len(h.tokens) - 1))) = code(h.tenant, h.tokens)
	}
	h.Publish(h.tokens)
}

// check reads all cells of h.
func (h *held) check() error {
	for i := range h.tokens {
		if i >= h.first && i < h.first+h.gap {
			continue
		}
		x, want := *h.cache.at(h.At(h.place(i))), code(h.tenant, h.tokens[:i+1])
		if x != want {
			return fmt.Errorf("position %d of %d holds %x, want %x", i, len(h.tokens), x, want)
		}
	}
	return nil
}

// text returns tokens that begin as others do, for a while.
func text(r *rapid.T) []tandem.Token {
	rng := rand.New(rand.NewPCG(rapid.Uint64Range(0, 2).Draw(r, "begin"), 0))
	tokens := make([]tandem.Token, rapid.IntRange(1, 400).Draw(r, "length"))
	part := rapid.IntRange(0, len(tokens)).Draw(r, "part")
	for i := range tokens {
		if i == part {
			rng = rand.New(rand.NewPCG(rapid.Uint64Range(3, 6).Draw(r, "end"), 0))
		}
		tokens[i] = tandem.Token(rng.IntN(50))
	}
	return tokens
}

// TestPrefixes opens, fills, rolls back, distrusts and closes sequences at random, and checks after each step that
// every page is in one place and every sequence's cells hold what it put there.
func TestPrefixes(t *testing.T) {
	for _, most := range []int{0, 3} {
		rapid.Check(t, func(t2 *rapid.T) {
			c := newCache(testPages)
			c.Bound(most)
			r := &rig{T: t2, cache: c}
			some := func() *held { return rapid.SampledFrom(r.open).Draw(t2, "which") }
			t2.Repeat(map[string]func(*rapid.T){
				"": func(*rapid.T) { r.consistent() },
				"open": func(*rapid.T) {
					h := &held{tenant: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t2, "tenant"), prompt: text(t2)}
					capacity, nodes := len(h.prompt)+rapid.IntRange(0, 100).Draw(t2, "more"), rapid.IntRange(0, 70).Draw(t2, "nodes")
					need, free := PagesFor(capacity)+PagesFor(nodes), c.FreePages()
					p, found, err := c.ReserveShared(h.tenant, h.prompt, capacity, nodes)
					if err != nil {
						if tandem.KindOf(err) != tandem.Exhausted || need <= free || c.FreePages() != free {
							t2.Fatalf("%d of %d pages: %v", need, free, err)
						}
						return
					}
					if free-c.FreePages() > need || len(p.Table) != PagesFor(capacity) || len(p.nodes) != PagesFor(nodes) {
						t2.Fatalf("took %d of %d pages, %d in the table, for %d", free-c.FreePages(), free, len(p.Table), need)
					}
					h.Pages, h.tokens = p, slices.Clone(h.prompt[:found])
					r.open = append(r.open, h)
				},
				"write": func(*rapid.T) {
					if len(r.open) == 0 {
						return
					}
					h := some()
					n := rapid.IntRange(0, 150).Draw(t2, "rows")
					for len(h.tokens) < len(h.prompt) && n > 0 {
						h.write(h.prompt[len(h.tokens)])
						n--
					}
					for room, _ := h.Capacity(); n > 0 && len(h.tokens) < room+h.gap; n-- {
						h.write(tandem.Token(rapid.IntRange(0, 1).Draw(t2, "token")))
					}
				},
				"grow": func(*rapid.T) {
					if len(r.open) == 0 {
						return
					}
					h := some()
					table, nodes, free := len(h.Table), len(h.nodes), c.FreePages()
					rows, nodeRows := rapid.IntRange(0, 700).Draw(t2, "positions"), rapid.IntRange(0, 200).Draw(t2, "nodes")
					more := max(0, PagesFor(rows)-table) + max(0, PagesFor(nodeRows)-nodes)
					switch err := h.Grow(rows, nodeRows); {
					case err == nil && (len(h.Table) < PagesFor(rows) || len(h.nodes) < PagesFor(nodeRows) || c.FreePages() != free-more ||
						h.Count() != table+nodes+more):
						t2.Fatalf("%d and %d pages became %d and %d, of %d free ones %d are left: want room for %d and %d rows", table,
							nodes, len(h.Table), len(h.nodes), free, c.FreePages(), rows, nodeRows)
					case err != nil && (tandem.KindOf(err) != tandem.Exhausted || more <= free || c.FreePages() != free ||
						h.Count() != table+nodes):
						t2.Fatalf("%d more pages with %d free: %v, then %d free", more, free, err, c.FreePages())
					}
				},
				"resume": func(*rapid.T) {
					if len(r.open) == 0 {
						return
					}
					if h := some(); len(h.tokens) <= len(h.prompt) && slices.Equal(h.tokens, h.prompt[:len(h.tokens)]) {
						h.tokens = slices.Clone(h.prompt[:h.Resume(h.prompt, len(h.tokens))])
					}
				},
				"truncate": func(*rapid.T) {
					if len(r.open) == 0 {
						return
					}
					h := some()
					n := rapid.IntRange(h.first+h.gap, len(h.tokens)).Draw(t2, "to")
					if err := h.Truncate(h.place(n)); err == nil {
						h.tokens = h.tokens[:n]
					} else if tandem.KindOf(err) != tandem.Exhausted || c.FreePages() > PagesFor(len(h.tokens)) {
						t2.Fatalf("with %d pages free: %v", c.FreePages(), err)
					}
				},
				"leave": func(*rapid.T) {
					if len(r.open) == 0 {
						return
					}
					h := some()
					full := (len(h.tokens) - h.gap) / kernels.PageRows
					first := rapid.IntRange(0, full).Draw(t2, "first")
					n := rapid.IntRange(0, full-first).Draw(t2, "pages")
					if h.gap > 0 && first*kernels.PageRows != h.first || n == 0 {
						return
					}
					free, count, shared := c.FreePages(), h.Count(), max(0, len(h.chain)-first-n)
					if err := h.Leave(first, n); err == nil {
						h.first, h.gap = first*kernels.PageRows, h.gap+n*kernels.PageRows
					} else if tandem.KindOf(err) != tandem.Exhausted || shared <= free || c.FreePages() != free || h.Count() != count {
						t2.Fatalf("%d shared pages to be copied, with %d pages free: %v, then %d free", shared, free, err, c.FreePages())
					}
					if h.gap > 0 && h.Shares() {
						t2.Fatal("a sequence with a gap is one that others find")
					}
				},
				"distrust": func(*rapid.T) {
					if len(r.open) == 0 {
						return
					}
					some().Distrust()
				},
				"reserve": func(*rapid.T) {
					n := rapid.IntRange(0, c.FreePages()).Draw(t2, "pages")
					want := left(c, n-len(c.free))
					p, err := c.Reserve(n*kernels.PageRows, 0)
					if err != nil {
						t2.Fatal(err)
					}
					if got := left(c, 0); !maps.Equal(got, want) {
						t2.Fatalf("after %d pages were needed, the pages kept are %v: want %v", n, got, want)
					}
					p.Release()
				},
				"import": func(*rapid.T) { r.imports() },
				"export": func(*rapid.T) { r.exports() },
				"close": func(*rapid.T) {
					if len(r.open) == 0 {
						return
					}
					h := some()
					r.open = slices.DeleteFunc(r.open, func(x *held) bool { return x == h })
					h.Keep(h.tokens)
					h.Keep(nil)
				},
			})
			for _, h := range r.open {
				h.Keep(h.tokens)
			}
			r.open = nil
			r.consistent()
			if c.FreePages() != testPages {
				t2.Fatalf("%d of %d pages are free at the end", c.FreePages(), testPages)
			}
			c.Drop()
			r.consistent()
			if len(c.free) != testPages || len(c.roots) != 0 {
				t2.Fatalf("%d of %d pages are empty, %d tenants left", len(c.free), testPages, len(c.roots))
			}
		})
	}
}

// prefix returns n tokens whose beginning is different for every number.
func prefix(number, n int) []tandem.Token {
	tokens := make([]tandem.Token, n)
	for i := range tokens {
		tokens[i] = tandem.Token(1000*number + i)
	}
	return tokens
}

// put runs one sequence to its end and returns how many of its tokens were found.
func put(t *testing.T, c *Cache, tenant string, tokens []tandem.Token) int {
	t.Helper()
	h, found := begin(t, c, tenant, tokens)
	h.write(tokens[found:]...)
	if err := h.check(); err != nil {
		t.Error(err)
	}
	h.Keep(h.tokens)
	return found
}

func begin(t *testing.T, c *Cache, tenant string, tokens []tandem.Token) (*held, int) {
	t.Helper()
	p, found, err := c.ReserveShared(tenant, tokens, len(tokens), 1)
	if err != nil {
		t.Fatal(err)
	}
	return &held{Pages: p, tenant: tenant, prompt: tokens, tokens: slices.Clone(tokens[:found])}, found
}

func TestWhatIsFound(t *testing.T) {
	c := newCache(16)
	long := prefix(1, 300)
	other := append(slices.Clone(long[:150]), prefix(2, 40)...)
	for _, s := range []struct {
		name, tenant string
		tokens       []tandem.Token
		found, kept  int
	}{
		{"an empty cache", "a", long[:100], 0, 2},
		{"the same", "a", long[:100], 100, 2},
		{"less", "a", long[:30], 30, 2},
		{"more, which takes the place of the page begun", "a", long[:130], 100, 3},
		{"another tenant", "b", long[:130], 0, 6},
		{"a page's first rows", "a", other, 130, 6}, // 128 shared, 2 copied from the page begun, whose place is taken
		{"more of a page's first rows", "a", long[:200], 150, 8},
		{"the other branch", "a", other, 190, 8},
		{"nothing alike", "a", prefix(3, 1), 0, 9},
	} {
		if got := put(t, c, s.tenant, s.tokens); got != s.found || c.Kept() != s.kept || c.FreePages() != 16 {
			t.Errorf("%s: %d found, then %d pages kept and %d free: want %d, %d and 16", s.name, got, c.Kept(), c.FreePages(), s.found,
				s.kept)
		}
	}
	if c.Evicted() != 0 {
		t.Errorf("%d pages evicted with room for all", c.Evicted())
	}
}

// The least recently used pages are evicted first, the ends of texts before their beginnings.
func TestEviction(t *testing.T) {
	texts := [3][]tandem.Token{prefix(1, 192), prefix(2, 100), prefix(3, 64)}
	for _, s := range []struct {
		name    string
		most    int
		needs   int // pages of a sequence that shares nothing
		want    [3]int
		evicted int64
	}{
		{"room for all", 0, 4, [3]int{192, 100, 64}, 0},
		{"one page needed", 0, 5, [3]int{192, 64, 64}, 1},
		{"three needed", 0, 7, [3]int{192, 0, 0}, 3},
		{"four needed", 0, 8, [3]int{128, 0, 0}, 4},
		{"all needed", 0, 10, [3]int{0, 0, 0}, 6},
		{"two may stay", 2, 0, [3]int{128, 0, 0}, 4},
		{"none may stay", -1, 0, [3]int{0, 0, 0}, 0},
	} {
		c := newCache(10)
		c.Bound(s.most)
		for _, i := range []int{1, 2, 0} {
			put(t, c, "", texts[i])
		}
		p, err := c.Reserve(s.needs*kernels.PageRows, 0)
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		p.Release()
		if got := c.Evicted(); got != s.evicted {
			t.Errorf("%s: %d pages evicted, want %d", s.name, got, s.evicted)
		}
		for i, want := range s.want {
			h, found := begin(t, c, "", texts[i])
			if found != want {
				t.Errorf("%s: %d found of text %d, want %d", s.name, found, i, want)
			}
			h.Release()
		}
		if c.FreePages() != 10 {
			t.Errorf("%s: %d of 10 pages free", s.name, c.FreePages())
		}
	}
}

// Sequences that run at the same time share: a page that one has filled serves another, which needs none of its own. A page
// in use is not evicted, and only a sequence that shares it with nobody can always write to it again.
func TestSharingWhileRunning(t *testing.T) {
	c := newCache(6)
	text := prefix(1, 130)
	a, _ := begin(t, c, "", text) // 3 pages and 1 for tree rows
	a.write(text[:128]...)
	if len(a.chain) != 1 {
		t.Errorf("%d of 2 full pages are shared: want all but the last, whose end may be taken back", len(a.chain))
	}
	a.write(text[128])
	if _, _, err := c.ReserveShared("x", text, len(text), 1); tandem.KindOf(err) != tandem.Exhausted || c.FreePages() != 2 {
		t.Fatalf("another tenant: %v, %d pages free: want Exhausted and 2", err, c.FreePages())
	}
	b, found := begin(t, c, "", text)
	if found != 128 || c.FreePages() != 0 || b.Table[0] != a.Table[0] || b.Table[1] != a.Table[1] || b.Table[2] == a.Table[2] {
		t.Fatalf("%d found, tables %v and %v, %d pages free", found, a.Table, b.Table, c.FreePages())
	}
	b.write(7)
	if err := a.Truncate(128); err != nil {
		t.Error(err)
	}
	if err := b.Truncate(100); tandem.KindOf(err) != tandem.Exhausted {
		t.Errorf("no page is free to write to, but: %v", err)
	}
	b.Distrust() // a shares with nobody any more
	if _, found, err := c.ReserveShared("", text[:1], 1, 0); found != 0 || tandem.KindOf(err) != tandem.Exhausted {
		t.Errorf("after a failure %d found, %v", found, err)
	}
	if err := a.check(); err != nil {
		t.Error(err)
	}
	a.Keep(a.tokens)
	if c.FreePages() != 2 || c.Kept() != 0 {
		t.Errorf("%d pages free and %d kept, want 2 and none", c.FreePages(), c.Kept())
	}
	if err := b.check(); err != nil {
		t.Error(err)
	}
	if err := b.Truncate(100); err != nil { // it is the last that uses the page
		t.Error(err)
	}
	b.tokens = b.tokens[:100]
	if err := b.check(); err != nil {
		t.Error(err)
	}
	b.Keep(b.tokens)
	if len(c.free) != 6 || len(c.roots) != 0 {
		t.Errorf("%d of 6 pages empty, %d tenants", len(c.free), len(c.roots))
	}
}

func BenchmarkLookup(b *testing.B) {
	const entries, length = 200, 10_000
	c := newCache(entries*3 + length/kernels.PageRows + 2)
	system := prefix(0, length-100)
	open := func(n int) (*Pages, int) {
		p, found, err := c.ReserveShared("", append(slices.Clone(system), prefix(n, 100)...), length, 1)
		if err != nil {
			b.Fatal(err)
		}
		return p, found
	}
	for n := range entries {
		p, _ := open(n)
		p.Keep(append(slices.Clone(system), prefix(n, 100)...))
	}
	for n := 0; b.Loop(); n++ {
		p, found := open(n % entries)
		if found != length {
			b.Fatalf("%d tokens found", found)
		}
		p.Release()
	}
	b.ReportMetric(float64(c.Kept()), "pages")
}
