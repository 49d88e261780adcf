package schedule

import (
	"context"
	"errors"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
)

// tight makes a bench's model one with memory for so many rows: each row of a pass takes one until its session is dropped.
func (b *bench) tight(rows int) {
	b.model.reserve = func(part *engine.Part) error {
		id := append(append([]tandem.Token(nil), part.Extend...), part.Nodes...)[0]
		used, n := 0, len(part.Extend)+len(part.Nodes)
		for _, x := range b.sessions {
			used += x.entry().Seq.Pages()
		}
		if used+n > rows {
			return tandem.Errorf("test", tandem.Exhausted, "%d of %d rows are in use", used, rows)
		}
		b.sessions[tandem.SessionID(id)].(*player).pages += n
		return nil
	}
}

// of makes p one of a tenant's.
func (p *player) of(tenant string) *player { p.tenant = tenant; return p }

// TestYoungestMakesRoom: when memory is missing the youngest sessions are dropped, whatever they do, until there is room for the part of an
// older one, and whoever waits for them is told that memory is exhausted. The oldest is dropped only when it is alone.
func TestYoungestMakesRoom(t *testing.T) {
	b := newBench(t, nil)
	b.tight(40)
	oldest, second, idle := b.opened(9), b.opened(5), b.opened(7)
	idle.pages = 10
	opening := b.player(3, 30)
	coming := NewCall(context.Background())
	b.Enter(opening, coming)
	opening.pages = 20
	first := b.queue(oldest, 8)
	if rows := b.step(oldest); rows[0] != 8 || !opening.gone || idle.gone || second.gone || first.Wait() != nil {
		t.Fatalf("%d rows; the one that is opened, the idle one and the second are gone: %v %v %v; want 8 rows, and the first of them gone",
			rows[0], opening.gone, idle.gone, second.gone)
	}
	if err := coming.Wait(); !errors.Is(err, tandem.Exhausted) || !errors.Is(opening.left, tandem.Exhausted) {
		t.Errorf("whoever opens the dropped one is told %v, and it left with %v", err, opening.left)
	}
	wants, more := b.queue(second, 30), b.queue(oldest, 30)
	for range 4 { // large parts sit out passes
		b.step()
	}
	if !second.gone || !idle.gone || !errors.Is(wants.Wait(), tandem.Exhausted) || more.Wait() != nil {
		t.Errorf("the second and the idle one are gone: %v %v, want both", second.gone, idle.gone)
	}
	last := b.queue(oldest, 41)
	for range 4 {
		b.step()
	}
	if !oldest.gone || !errors.Is(last.Wait(), tandem.Exhausted) {
		t.Errorf("a session that cannot have what it wants, alone, is gone: %v", oldest.gone)
	}
	if n := b.counter("sessions.crowded_out"); n != 4 || b.counter("faults") != 0 {
		t.Errorf("%d sessions are counted as crowded out, %d faults; want 4 and none", n, b.counter("faults"))
	}
}

// TestModestTenantKeepsRoom: the tenant with most memory loses its youngest; one that has less loses nothing, however young its session.
func TestModestTenantKeepsRoom(t *testing.T) {
	b := newBench(t, nil)
	b.tight(40)
	oldest, greedy, modest := b.opened(1).of("greedy"), b.opened(2).of("greedy"), b.opened(3).of("modest")
	oldest.pages, greedy.pages, modest.pages = 15, 15, 5
	call := b.queue(modest, 10)
	if b.step(); !greedy.gone || oldest.gone || modest.gone || call.Wait() != nil {
		t.Errorf("gone are the oldest: %v, the greedy tenant's youngest: %v, the modest tenant's: %v; want the second", oldest.gone,
			greedy.gone, modest.gone)
	}
}

// TestSpareMakesNoRoom: for rows that nobody waits for no session is dropped.
func TestSpareMakesNoRoom(t *testing.T) {
	b := newBench(t, nil)
	b.tight(10)
	ahead, other := b.opened(1), b.opened(2)
	ahead.pages, other.pages, ahead.ahead = 4, 4, 8
	b.Spare(ahead)
	if b.step(); ahead.gone || other.gone || ahead.ahead != 8 || len(b.spare) > 0 {
		t.Errorf("gone %v and %v, %d rows to spare, %d sessions would be asked again", ahead.gone, other.gone, ahead.ahead, len(b.spare))
	}
}

// TestAllEnd: sessions of which each wants all of the memory in the end all end, if those that are dropped are opened
// again: the oldest always gets further.
func TestAllEnd(t *testing.T) {
	const room, sessions, step = 60, 5, 6
	b := newBench(t, nil)
	b.tight(room)
	done := map[tandem.SessionID]bool{}
	playing := map[tandem.SessionID]*player{}
	steps := 0
	for ; len(done) < sessions; steps++ {
		if steps > sessions*room {
			t.Fatalf("%d of %d sessions have ended after %d passes", len(done), sessions, steps)
		}
		for id := tandem.SessionID(1); id <= sessions; id++ {
			p := playing[id]
			switch {
			case done[id]:
			case p == nil || p.gone:
				playing[id] = b.opened(id)
			case p.pages+step > room:
				done[id] = true
				b.Drop(p, nil)
			case !p.Busy():
				b.queue(p, step)
			}
		}
		b.step()
	}
	t.Logf("%d passes, %d sessions dropped", steps, b.counter("sessions.crowded_out"))
	if b.counter("sessions.crowded_out") == 0 {
		t.Error("nobody was dropped")
	}
}
