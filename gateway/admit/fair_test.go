package admit

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// guest is a request as the twin sees it.
type guest struct {
	slot   *Slot
	tenant string
	pages  int // that it counts with
	most   int
	passed int
	back   bool
}

// twin is a gate that counts everything anew for each decision.
type twin struct {
	sessions, queue, total int
	inside                 []*guest
	waiting                []*guest // in order of arrival
	parked                 []*guest
	served                 []string // tenants, in order of admission
}

// share returns the larger of the tenant's parts of the slots and of the memory.
func (w *twin) share(tenant string) float64 {
	slots, pages := 0, 0
	for _, g := range w.inside {
		if g.tenant == tenant {
			slots, pages = slots+1, pages+g.pages
		}
	}
	return max(float64(slots)/float64(w.sessions), float64(pages)/float64(w.total))
}

func (w *twin) held() (n int) {
	for _, g := range w.inside {
		n += g.pages
	}
	return n
}

func (w *twin) lastServed(tenant string) int {
	for i := len(w.served) - 1; i >= 0; i-- {
		if w.served[i] == tenant {
			return i
		}
	}
	return -1
}

func (w *twin) of(tenant string) (out []*guest) {
	for _, back := range []bool{true, false} {
		for _, g := range w.waiting {
			if g.tenant == tenant && g.back == back {
				out = append(out, g)
			}
		}
	}
	return out
}

func (w *twin) queued(tenant string) (n int) {
	for _, g := range w.waiting {
		if !g.back && (tenant == "*" || g.tenant == tenant) {
			n++
		}
	}
	return n
}

// settle lets in who may come in.
func (w *twin) settle() {
	for len(w.inside) < w.sessions {
		var tenants []string
		for _, g := range w.waiting {
			if !slices.Contains(tenants, g.tenant) {
				tenants = append(tenants, g.tenant)
			}
		}
		slices.SortStableFunc(tenants, func(a, b string) int {
			return cmp.Or(cmp.Compare(w.share(a), w.share(b)), cmp.Compare(w.lastServed(a), w.lastServed(b)))
		})
		var order, before []*guest
		for _, t := range tenants {
			order = append(order, w.of(t)...)
		}
		var next *guest
		for _, g := range order {
			if w.held()+g.pages <= w.total {
				next = g
				break
			}
			if g.passed == mostPassed {
				break
			}
			before = append(before, g)
		}
		if next == nil {
			break
		}
		for _, g := range before {
			g.passed++
		}
		w.waiting = slices.DeleteFunc(w.waiting, func(g *guest) bool { return g == next })
		w.inside, w.served = append(w.inside, next), append(w.served, next.tenant)
	}
	if len(w.waiting) == 0 { // the gate forgets who is gone once nobody waits
		w.served = slices.DeleteFunc(w.served, func(t string) bool {
			return !slices.ContainsFunc(slices.Concat(w.inside, w.parked), func(g *guest) bool { return g.tenant == t })
		})
	}
}

// TestShares drives a gate of several tenants by random arrivals, ends, withdrawals, growth, yielding, parking and returns, and
// compares it with its twin: who is inside, who waits, who is refused. Beyond that: a tenant that has no more than an
// equal share of the queue waiting is never refused, and nobody waits for ever.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const page = 16
		w := &twin{sessions: rapid.IntRange(1, 5).Draw(t, "sessions"), queue: rapid.IntRange(0, 8).Draw(t, "queue"),
			total: rapid.IntRange(4, 20).Draw(t, "pages")}
		g := New(w.sessions, w.queue)
		g.Capacity(int64(w.total*page), page, int64(w.total*page))
		tenants := []string{"a", "b", "c", ""}[:rapid.IntRange(1, 4).Draw(t, "tenants")]
		compare := func() {
			w.settle()
			for _, x := range w.inside {
				if !x.slot.admitted() || x.slot.err != nil {
					t.Fatalf("a request of tenant %q and %d pages is not inside: %v", x.tenant, x.pages, x.slot.err)
				}
			}
			for _, x := range w.waiting {
				if x.slot.admitted() {
					t.Fatalf("a request of tenant %q and %d pages does not wait: %v", x.tenant, x.pages, x.slot.err)
				}
			}
			if in, out := g.Load(); in != len(w.inside) || out != len(w.waiting) || g.held != w.held() {
				t.Fatalf("%d inside, %d wait, %d pages held: want %d, %d and %d", in, out, g.held, len(w.inside), len(w.waiting), w.held())
			}
			if len(w.waiting) == 0 && len(g.tenants) > len(w.inside)+len(w.parked) {
				t.Fatalf("%d tenants are remembered, %d requests are inside, %d parked, none waits", len(g.tenants), len(w.inside),
					len(w.parked))
			}
		}
		pick := func(from *[]*guest, label string) *guest {
			i := rapid.IntRange(0, len(*from)-1).Draw(t, label)
			x := (*from)[i]
			*from = slices.Delete(*from, i, i+1)
			return x
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch do := rapid.IntRange(0, 22).Draw(t, "what"); {
			case do < 9:
				x := &guest{tenant: rapid.SampledFrom(tenants).Draw(t, "tenant"), pages: rapid.IntRange(1, w.total).Draw(t, "need")}
				x.most = rapid.IntRange(x.pages, w.total).Draw(t, "most")
				var err error
				x.slot, err = g.join(Need{Tenant: x.tenant, Tokens: x.most * page, First: x.pages * page})
				w.waiting = append(w.waiting, x)
				w.settle()
				if w.queued("*") <= w.queue || !slices.Contains(w.waiting, x) {
					if err != nil {
						t.Fatalf("refused with %d of %d waiting: %v", w.queued("*"), w.queue, err)
					}
					break
				}
				out := x
				for _, o := range w.waiting {
					if !o.back && w.queued(o.tenant) > w.queued(out.tenant) {
						out = o
					}
				}
				if w.queued(x.tenant) <= w.queue/len(tenants) && out == x {
					t.Fatalf("tenant %q is refused with %d of its requests in a queue of %d for %d tenants", x.tenant, w.queued(x.tenant),
						w.queue, len(tenants))
				}
				if out == x {
					if tandem.KindOf(err) != tandem.Exhausted {
						t.Fatalf("with a queue of %d that is full: %v", w.queue, err)
					}
					w.waiting = slices.DeleteFunc(w.waiting, func(o *guest) bool { return o == x })
					break
				}
				if err != nil {
					t.Fatalf("refused for another tenant's requests: %v", err)
				}
				i := slices.IndexFunc(w.waiting, func(o *guest) bool { return errors.Is(o.slot.err, tandem.Exhausted) })
				if i < 0 || w.queued(w.waiting[i].tenant) != w.queued(out.tenant) ||
					w.of(w.waiting[i].tenant)[len(w.of(w.waiting[i].tenant))-1] != w.waiting[i] {
					t.Fatalf("number %d of those waiting was refused: want the youngest of the tenant with the most", i)
				}
				w.waiting = slices.Delete(w.waiting, i, i+1)
			case do < 13 && len(w.inside) > 0:
				g.Leave(pick(&w.inside, "leaves").slot)
			case do < 15 && len(w.inside) > 0:
				x := pick(&w.inside, "parks")
				have := 0
				for _, o := range w.parked {
					if o.tenant == x.tenant {
						have++
					}
				}
				if err := g.Park(x.slot); (err != nil) != (have >= max(w.queue, w.sessions)) ||
					err != nil && tandem.KindOf(err) != tandem.Exhausted {
					t.Fatalf("parking one more with %d of tenant %q parked: %v", have, x.tenant, err)
				} else if err != nil {
					g.Leave(x.slot)
					break
				}
				w.parked = append(w.parked, x)
			case do < 18 && len(w.parked) > 0:
				x := pick(&w.parked, "returns")
				if err := g.rejoin(x.slot); err != nil {
					t.Fatal(err)
				}
				x.back, x.passed = true, 0
				w.waiting = append(w.waiting, x)
			case do < 19 && len(w.waiting) > 0:
				x := pick(&w.waiting, "gives up")
				g.giveUp(x.slot)
				g.Leave(x.slot) // harmless
			case do == 20 && len(w.inside) > 0:
				x := w.inside[rapid.IntRange(0, len(w.inside)-1).Draw(t, "grows")]
				x.pages = rapid.IntRange(x.pages, x.most).Draw(t, "to")
				g.Grow(x.slot, x.pages*page)
			case do > 20 && len(w.inside) > 0:
				x := pick(&w.inside, "yields")
				x.pages = rapid.IntRange(x.pages, x.most).Draw(t, "to")
				g.yield(x.slot, Want{Tokens: x.pages * page})
				x.back, x.passed = true, 0
				w.waiting = append(w.waiting, x)
			}
			compare()
		}
		for len(w.parked) > 0 {
			g.Leave(pick(&w.parked, "never returns").slot)
			compare()
		}
		for len(w.inside) > 0 {
			g.Leave(pick(&w.inside, "ends").slot)
			compare()
		}
		if len(w.waiting) > 0 || len(g.tenants) != 0 {
			t.Fatalf("%d wait for ever, %d tenants are remembered", len(w.waiting), len(g.tenants))
		}
	})
}

// TestGreedyTenant: a thousand requests of one tenant, and one of another comes in with the next slot.
func TestGreedyTenant(t *testing.T) {
	for _, sessions := range []int{1, 4} {
		g := New(sessions, 32)
		var greedy []*Slot
		refused := 0
		for range 1000 {
			p, err := g.join(Need{Tenant: "greedy", Tokens: 1})
			if err != nil {
				refused++
				continue
			}
			greedy = append(greedy, p)
		}
		if running(g) != sessions || refused != 1000-sessions-32 {
			t.Fatalf("%d run and %d were refused: a tenant alone may have all %d slots and the queue", running(g), refused, sessions)
		}
		for turn := range 3 {
			modest, err := g.join(Need{Tenant: "modest", Tokens: 1})
			if err != nil {
				t.Fatalf("the queue is full of another tenant's requests, and the modest one's is refused: %v", err)
			}
			last := greedy[len(greedy)-1]
			if turn == 0 && (!last.admitted() || tandem.KindOf(last.err) != tandem.Exhausted) {
				t.Errorf("the greedy tenant's youngest still waits: %v", last.err)
			}
			if modest.admitted() {
				t.Fatal("admitted beyond the slots that there are")
			}
			g.Leave(greedy[0])
			if greedy = greedy[1:]; !modest.admitted() || modest.err != nil {
				t.Fatalf("with %d slots the one that became free went to the greedy tenant", sessions)
			}
			g.Leave(modest) // and the next is the greedy tenant's again
			if running(g) != sessions {
				t.Errorf("%d of %d slots are in use", running(g), sessions)
			}
		}
	}
}

// TestTurns: with one slot tenants that always want take turns, however many requests each has waiting.
func TestTurns(t *testing.T) {
	g := New(1, 100)
	names := map[*Slot]string{}
	for _, want := range []struct {
		tenant string
		n      int
	}{{"a", 20}, {"b", 6}, {"c", 6}} {
		for range want.n {
			p, err := g.join(Need{Tenant: want.tenant, Tokens: 1})
			if err != nil {
				t.Fatal(err)
			}
			names[p] = want.tenant
		}
	}
	order := ""
	for running(g) > 0 {
		for p := range g.inside {
			order += names[p]
			g.Leave(p)
		}
	}
	if want := "abcabcabcabcabcabc" + "aaaaaaaaaaaaaa"; order != want {
		t.Errorf("served in the order %s: want %s", order, want)
	}
}

// TestGreedyForMemory: a tenant that holds most of the memory and asks for more than is free does not stop others.
func TestGreedyForMemory(t *testing.T) {
	g := New(100, 100)
	g.Capacity(1000, 10, 1000)
	join := func(tenant string, tokens int) *Slot {
		t.Helper()
		p, err := g.join(Need{Tenant: tenant, Tokens: tokens})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := join("greedy", 600)
	more := join("greedy", 500)
	var modest []*Slot
	for range 20 {
		modest = append(modest, join("modest", 10))
	}
	for i, p := range modest {
		if !p.admitted() {
			t.Fatalf("small request %d waits for one of another tenant that holds more", i+1)
		}
	}
	for _, p := range modest[:5] {
		g.Leave(p)
	}
	g.Leave(first) // now the greedy tenant holds least, and is next
	if !more.admitted() {
		t.Error("the large request waits with 850 tokens free")
	}
	third := join("greedy", 900) // cannot come in beside its own
	for range mostPassed + 3 {
		if p := join("modest", 10); !p.admitted() {
			t.Error("a request that fits waits for another tenant's large one")
		}
	}
	g.Leave(more)
	var late []*Slot
	for range mostPassed + 3 { // those that hold more than the tenant that waits may pass it so often, and no more
		late = append(late, join("modest", 10))
	}
	for i, p := range late {
		if p.admitted() != (i < mostPassed) {
			t.Errorf("request %d behind one that waits for memory is admitted: %v", i+1, p.admitted())
		}
	}
	for p := range g.inside {
		g.Leave(p)
	}
	if !third.admitted() {
		t.Error("the large request never gets its turn")
	}
}

// TestReturn: a request that comes back is the next of its tenant, is never refused, and does not take the turn of others.
func TestReturn(t *testing.T) {
	g := New(1, 2)
	p, _ := g.join(Need{Tenant: "a"})
	second, _ := g.join(Need{Tenant: "a"})
	if err := g.Park(p); err != nil {
		t.Fatal(err)
	}
	if !second.admitted() {
		t.Fatal("the slot of a parked request is not given to the next")
	}
	third, _ := g.join(Need{Tenant: "a"})
	fourth, _ := g.join(Need{Tenant: "a"})
	if err := g.rejoin(p); err != nil || p.admitted() {
		t.Fatalf("with a full queue a request that comes back: %v, admitted %v", err, p.admitted())
	}
	other, err := g.join(Need{Tenant: "b"})
	if err != nil || !errors.Is(fourth.err, tandem.Exhausted) {
		t.Fatalf("another tenant's request: %v, the youngest one of the first: %v", err, fourth.err)
	}
	order := fmt.Sprint(other.admitted(), p.admitted())
	g.Leave(second)
	order += fmt.Sprint(" ", other.admitted(), p.admitted())
	g.Leave(other)
	order += fmt.Sprint(" ", other.admitted(), p.admitted())
	if want := "false false true false true true"; order != want {
		t.Errorf("the other and the one that comes back are admitted %s: want %s", order, want)
	}
	g.Leave(p)
	g.Leave(p)
	g.Leave(third)
	if running(g) != 0 || g.held != 0 {
		t.Errorf("%d inside after all have left", running(g))
	}
}
