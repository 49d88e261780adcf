package admit

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

func running(g *Gate) int { n, _ := g.Load(); return n }

func (p *Slot) admitted() bool {
	select {
	case <-p.turn:
		return true
	default:
		return false
	}
}

// TestTurnComesAsItsOwnerGivesUp: the slot goes to the next in the queue, and is not lost.
func TestTurnComesAsItsOwnerGivesUp(t *testing.T) {
	g := New(1, 2)
	first, err := g.join(Need{})
	if err != nil || !first.admitted() {
		t.Fatalf("first request waits: %v", err)
	}
	second, _ := g.join(Need{})
	third, _ := g.join(Need{})
	if _, err := g.join(Need{}); tandem.KindOf(err) != tandem.Exhausted {
		t.Errorf("fourth request: %v, want exhausted", err)
	}
	g.Leave(first)
	if !second.admitted() || third.admitted() {
		t.Errorf("second admitted: %v, third: %v", second.admitted(), third.admitted())
	}
	g.giveUp(second)
	if !third.admitted() {
		t.Error("slot lost")
	}
	g.Leave(third)
	if running(g) != 0 {
		t.Errorf("%d slots taken after all have left", running(g))
	}
}

// TestGate drives a gate by random arrivals, ends, withdrawals and capacities.
func TestGate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const page = 16
		sessions, queue := rapid.IntRange(1, 6).Draw(t, "sessions"), rapid.IntRange(0, 12).Draw(t, "queue")
		g := New(sessions, queue)
		total := rapid.IntRange(1, 20).Draw(t, "pages")
		tokens := int64(total*page + rapid.IntRange(0, page-1).Draw(t, "rest"))
		g.Capacity(tokens, page, tokens)
		var waiting, inside []*Slot // as the test sees them, in order of arrival
		overtaken := map[*Slot]int{}
		settle := func() {
			held := 0
			for i := 0; i < len(waiting); i++ {
				p := waiting[i]
				switch {
				case !p.admitted():
					continue
				case p.err == nil:
					inside = append(inside, p)
					for _, q := range waiting[:i] {
						overtaken[q]++
					}
				case p.need.pages(page) <= total:
					t.Fatalf("%d of %d pages refused: %v", p.need.pages(page), total, p.err)
				}
				waiting = slices.Delete(waiting, i, i+1)
				i--
			}
			for _, p := range inside {
				held += p.need.pages(page)
			}
			if held > total || len(inside) > sessions || len(waiting) > queue || running(g) != len(inside) || g.held != held {
				t.Fatalf("%d inside of %d, %d wait of %d; the gate says %d inside; they hold %d pages, it says %d, of %d", len(inside),
					sessions, len(waiting), queue, running(g), held, g.held, total)
			}
			for i, p := range waiting {
				if overtaken[p] > mostPassed {
					t.Fatalf("a request of %d pages was passed %d times", p.need.pages(page), overtaken[p])
				}
				if i == 0 && len(inside) < sessions && held+p.need.pages(page) <= total {
					t.Fatalf("the first waits for %d pages with %d of %d in use and %d of %d inside", p.need.pages(page), held, total,
						len(inside), sessions)
				}
			}
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch pick := rapid.IntRange(0, 20).Draw(t, "what"); {
			case pick < 10:
				n := Need{Tokens: rapid.IntRange(1, 12*page).Draw(t, "tokens"), Rows: rapid.IntRange(0, 2*page).Draw(t, "rows")}
				room := len(waiting) < queue
				p, err := g.join(n)
				switch kind := tandem.KindOf(err); {
				case n.pages(page) > total:
					if kind != tandem.Invalid {
						t.Fatalf("%d of %d pages: %v, want invalid", n.pages(page), total, err)
					}
				case err == nil:
					waiting = append(waiting, p)
				case kind != tandem.Exhausted || room:
					t.Fatalf("with %d of %d waiting: %v", len(waiting), queue, err)
				}
			case pick < 17 && len(inside) > 0:
				i := rapid.IntRange(0, len(inside)-1).Draw(t, "leaves")
				g.Leave(inside[i])
				inside = slices.Delete(inside, i, i+1)
			case pick < 20 && len(waiting) > 0:
				i := rapid.IntRange(0, len(waiting)-1).Draw(t, "gives up")
				g.giveUp(waiting[i])
				waiting = slices.Delete(waiting, i, i+1)
			case pick == 20: // a verifier with more memory, or as much as is in use
				total = max(g.held, rapid.IntRange(1, 25).Draw(t, "pages"))
				g.Capacity(int64(total)*page, page, int64(total)*page)
			}
			settle()
		}
		for len(inside) > 0 { // nobody starves: as those inside end, all others get their turn
			g.Leave(inside[0])
			inside = inside[1:]
			settle()
		}
		if len(waiting) > 0 || g.held != 0 {
			t.Fatalf("%d wait for ever, %d pages held by nobody", len(waiting), g.held)
		}
	})
}

// TestLargeRequestIsPassedFourTimes: then it waits for memory alone.
func TestLargeRequestIsPassedFourTimes(t *testing.T) {
	g := New(100, 100)
	g.Capacity(1000, 10, 1000)
	half, _ := g.join(Need{Tokens: 500})
	large, _ := g.join(Need{Tokens: 990, Rows: 10})
	var small []*Slot
	for range 6 {
		p, err := g.join(Need{Tokens: 9})
		if err != nil {
			t.Fatal(err)
		}
		small = append(small, p)
	}
	for i, p := range small {
		if p.admitted() != (i < mostPassed) {
			t.Errorf("small request %d admitted: %v", i+1, p.admitted())
		}
	}
	g.Leave(half)
	for _, p := range small[:mostPassed] {
		if large.admitted() {
			t.Error("admitted into memory that others hold")
		}
		g.Leave(p)
	}
	if !large.admitted() || small[4].admitted() {
		t.Errorf("with all memory free: large %v, small %v", large.admitted(), small[4].admitted())
	}
	g.Leave(large)
	if !small[4].admitted() || !small[5].admitted() {
		t.Error("the others never got their turn")
	}
}

func TestCapacity(t *testing.T) {
	g := New(2, 4)
	huge := Need{Tokens: 1 << 20, Rows: 255}
	unknown, err := g.join(huge)
	if err != nil || !unknown.admitted() {
		t.Fatalf("before the capacity is known: %v", err)
	}
	g.Capacity(64*64, 64, 64*64)
	waits, _ := g.join(Need{Tokens: 64 * 60, Rows: 255})
	if waits.admitted() {
		t.Error("admitted beside one that takes all memory and more")
	}
	if _, err = g.join(huge); !errors.Is(err, tandem.Invalid) ||
		!strings.Contains(err.Error(),
			"1048576 tokens, with 255 rows for trees 16388 pages of 64 Tokens: the verifier's memory holds 64 pages") {
		t.Errorf("a request beyond all memory: %v", err)
	}
	g.Capacity(63*64, 64, 63*64)
	if !waits.admitted() || !errors.Is(waits.err, tandem.Invalid) {
		t.Errorf("a request that waits for more than a smaller verifier has: %v", waits.err)
	}
	g.Capacity(0, 0, 0) // a verifier that says nothing
	if p, err := g.join(huge); err != nil || !p.admitted() {
		t.Errorf("with an unknown capacity: %v", err)
	}
}

// TestThousandRequests: with memory for eight, all that try again when they are told to are served, and
// the memory is in use nearly all the time; those that wait are served in order.
func TestThousandRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests, queue, each = 1000, 32, time.Second
		g := New(64, queue)
		g.Capacity(8*512, 64, 8*512)
		rng := rand.New(rand.NewPCG(1, 2))
		begun := time.Now()
		var all sync.WaitGroup
		var mu sync.Mutex
		refused, most := 0, time.Duration(0)
		for range requests {
			n := Need{Tokens: 1 + rng.IntN(448), Rows: rng.IntN(64)}
			all.Go(func() {
				for {
					p, err := g.Enter(context.Background(), n)
					var e *tandem.Error
					if errors.As(err, &e) {
						mu.Lock()
						refused, most = refused+1, max(most, e.RetryAfter)
						mu.Unlock()
						if e.Kind != tandem.Exhausted || e.RetryAfter <= 0 {
							t.Errorf("%v, retry after %v", err, e.RetryAfter)
							return
						}
						testkit.Sleep(e.RetryAfter)
						continue
					}
					testkit.Sleep(each)
					g.Leave(p)
					return
				}
			})
		}
		all.Wait()
		took, least := time.Since(begun), requests*each/13 // 13 requests of the mean need fit
		t.Logf("%v for all, at least %v; %d refusals, longest retry time %v", took, least, refused, most)
		if took > 2*least || most > time.Minute || g.held != 0 || running(g) != 0 {
			t.Errorf("%v for all, want at most %v; longest retry time %v; %d pages held", took, 2*least, most, g.held)
		}
	})
}
