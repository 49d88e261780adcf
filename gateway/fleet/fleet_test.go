package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a fleet, its clock, and what the gateway was told.
type rig struct {
	*Fleet
	t        *testing.T
	now      time.Time
	counters *tandem.Counters
	mu       sync.Mutex
	told     []string
	boxes    map[string]*box
}

// box is a verifier that does nothing but hold sessions.
type box struct {
	mu       sync.Mutex
	err      error // of Open
	sessions map[tandem.SessionID]bool
	tickets  int
}

func (b *box) Open(_ context.Context, o tandem.Opening) (tandem.Opened, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.sessions[o.Session] = true
	}
	return tandem.Opened{}, b.err
}

func (b *box) Close(_ context.Context, id tandem.SessionID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sessions, id)
	return nil
}

func (b *box) Submit(context.Context, tandem.Ticket) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tickets++
	return nil
}

func (r *rig) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, fmt.Sprintf(format, args...))
}

func (r *rig) VerifierState(up bool) { r.note("up %v", up) }
func (r *rig) VerifierIs(costs []tandem.Cost, kvTokens int64, pageTokens int, longest int64) {
	r.note("%d costs, %d tokens in pages of %d, longest %d", len(costs), kvTokens, pageTokens, longest)
}
func (r *rig) Measured(string, []tandem.Cost)       {}
func (r *rig) SelfDraftsAre(all []tandem.SelfDraft) { r.note("%d self-drafts", len(all)) }
func (r *rig) Moved()                               { r.note("moved") }

const grace = 300 * time.Millisecond

func newRig(t *testing.T) *rig {
	r := &rig{t: t, now: time.Unix(1000, 0), counters: new(tandem.Counters), boxes: map[string]*box{}}
	r.Fleet = New(Config{Gateway: r, CloseTime: time.Second, Grace: grace, Counters: r.counters, Now: func() time.Time { return r.now }})
	t.Cleanup(r.Wait)
	return r
}

// joins makes a member come up whose pass of one row takes so long, of an identity.
func (r *rig) joins(name string, pass time.Duration, identity tandem.Identity, load func() Load) *box {
	b := &box{sessions: map[tandem.SessionID]bool{}}
	r.boxes[name] = b
	r.Join(name, b, load)
	r.State(name, true)
	r.Is(name, tandem.Description{Identity: identity, KVCapacity: 1000, PageTokens: 64,
		Costs: []tandem.Cost{{Rows: 1, Time: pass}, {Rows: 64, Time: 8 * pass}}})
	return b
}

// opens opens a session, and returns where it is.
func (r *rig) opens(id tandem.SessionID, o tandem.Opening) string {
	r.t.Helper()
	if o.Session = id; o.Limit == 0 {
		o.Tokens, o.Limit = make([]tandem.Token, 10), 200
	}
	if _, err := r.Open(r.t.Context(), o); err != nil {
		r.t.Fatal(err)
	}
	name, _ := r.Of(id)
	r.Wait() // what has left it may still be closed
	if !r.boxes[name].sessions[id] {
		r.t.Fatalf("session %d is not open at %s", id, name)
	}
	return name
}

// TestPlaces: sessions go where they are done first, by the costs of passes, by the sessions that are there, and by what is cached.
func TestPlaces(t *testing.T) {
	r := newRig(t)
	if _, err := r.Open(t.Context(), tandem.Opening{Session: 1}); tandem.KindOf(err) != tandem.Unavailable {
		t.Errorf("without a member: %v", err)
	}
	cached := 0
	r.joins("slow", 20*time.Millisecond, "x", func() Load {
		return Load{Cached: func(tenant string, tokens []tandem.Token) int { return map[string]int{"a": cached}[tenant] }}
	})
	r.joins("fast", 10*time.Millisecond, "x", nil)
	count := map[string]int{}
	for id := range tandem.SessionID(12) {
		count[r.opens(id+1, tandem.Opening{})]++
	}
	if count["fast"] <= count["slow"] || count["slow"] == 0 {
		t.Errorf("placed %v: want more where passes are faster, and some at the other", count)
	}
	long := tandem.Opening{Tokens: make([]tandem.Token, 900), Limit: 950, Tenant: "a"}
	if at := r.opens(20, long); at != "fast" {
		t.Errorf("a long prompt is at %s: want where it is read faster", at)
	}
	cached = 896
	for id, want := range map[tandem.SessionID]string{21: "slow", 22: "fast"} {
		o := long
		if id == 22 {
			o.Tenant = "b"
		}
		if at := r.opens(id, o); at != want {
			t.Errorf("session %d of tenant %s is at %s: want %s", id, o.Tenant, at, want)
		}
		_ = r.Close(t.Context(), id)
	}
	if n := len(r.boxes["slow"].sessions) + len(r.boxes["fast"].sessions); n != 13 {
		t.Errorf("%d sessions are held: want 13", n)
	}
}

// TestMeasuredLater: what a member measures after it has come decides where sessions go, and the gateway is told once.
func TestMeasuredLater(t *testing.T) {
	r := newRig(t)
	r.joins("a", 10*time.Millisecond, "x", nil)
	r.joins("b", 20*time.Millisecond, "x", nil)
	if at := r.opens(1, tandem.Opening{}); at != "a" {
		t.Errorf("the first session is at %s: want a, whose passes are faster", at)
	}
	r.told = nil
	for range 2 {
		r.Costs("b", []tandem.Cost{{Rows: 1, Time: time.Millisecond}, {Rows: 8, Time: time.Millisecond}, {Rows: 64, Time: 8e6}})
		r.Costs("b", nil)
		r.Costs("c", []tandem.Cost{{Rows: 1, Time: 1}})
	}
	if at := r.opens(2, tandem.Opening{}); at != "b" {
		t.Errorf("the second session is at %s: want b, whose passes are found to be faster", at)
	}
	if len(r.told) != 2 || !strings.HasPrefix(r.told[0], "2 costs, 2000 tokens") {
		t.Errorf("told %q: want costs and self-drafts, once", r.told)
	}
}

// TestRoundsAreLearned: where trees are wide, sessions are placed as if passes were: not at the member whose wide passes are slow.
func TestRoundsAreLearned(t *testing.T) {
	r := newRig(t)
	r.joins("a", 10*time.Millisecond, "x", nil) // 64 rows take 80 ms
	r.joins("b", 10*time.Millisecond, "x", nil)
	r.Is("b", tandem.Description{Identity: "x", Costs: []tandem.Cost{{Rows: 1, Time: 9 * time.Millisecond}, {Rows: 64, Time: time.Second}}})
	o := tandem.Opening{Session: 1, Tokens: make([]tandem.Token, 1), Limit: 200}
	if at, _ := r.Place(o); at != "b" {
		t.Errorf("at %s without drafts: want where passes of a row are faster", at)
	}
	for range 40 {
		r.Belongs("a", tandem.Verdict{Nodes: 12, Tokens: make([]tandem.Token, 3)})
	}
	if at, _ := r.Place(o); at != "a" {
		t.Errorf("at %s with trees of 12: want where wide passes are faster", at)
	}
}

// TestPlaceKeepsNothing: who asks where a session is to be opened, such as for a drafter, may come after its end, and leaves nothing.
func TestPlaceKeepsNothing(t *testing.T) {
	r := newRig(t)
	r.joins("a", time.Millisecond, "x", nil)
	o := tandem.Opening{Session: 1, Tokens: make([]tandem.Token, 1), Limit: 9}
	if at, v := r.Place(o); at != "a" || v == nil || len(r.At("a")) != 0 {
		t.Errorf("at %q, %v; %d sessions are there", at, v, len(r.At("a")))
	}
	r.opens(1, o)
	r.joins("b", time.Microsecond, "x", nil)
	if at, _ := r.Place(o); at != "a" || len(r.At("a")) != 1 {
		t.Errorf("at %q: want where it is open", at)
	}
	_ = r.Close(t.Context(), 1)
	if r.Place(o); len(r.At("a"))+len(r.At("b")) != 0 {
		t.Error("a session that has ended is kept")
	}
}

// TestOtherIdentities: a session stays with its identity, and new ones have that of the fleet while it is there.
func TestOtherIdentities(t *testing.T) {
	r := newRig(t)
	r.joins("a", 50*time.Millisecond, "x", nil)
	r.joins("b", time.Millisecond, "y", nil)
	if at := r.opens(1, tandem.Opening{}); at != "a" {
		t.Errorf("a new session is at %s: want at the fleet's identity", at)
	}
	if at := r.opens(2, tandem.Opening{Tokens: make([]tandem.Token, 5), Limit: 9, Identity: "y"}); at != "b" {
		t.Errorf("a session of identity y is at %s", at)
	}
	r.State("a", false)
	r.now = r.now.Add(time.Second)
	r.Balance()
	if at, _ := r.Of(1); at != "a" {
		t.Errorf("session 1 has left for %q although nobody else has its identity", at)
	}
	if at := r.opens(3, tandem.Opening{}); at != "b" {
		t.Errorf("a new session is at %s: want where somebody is up", at)
	}
}

// TestOtherTakes: what one member cannot take goes to another at once; what nobody can take tells the reason of the best.
func TestOtherTakes(t *testing.T) {
	r := newRig(t)
	fast := r.joins("fast", time.Millisecond, "x", nil)
	slow := r.joins("slow", 9*time.Millisecond, "x", nil)
	for i, kind := range []tandem.Kind{tandem.Exhausted, tandem.Unavailable} {
		fast.err = tandem.Errorf("verifier", kind, "no")
		if at := r.opens(tandem.SessionID(i+1), tandem.Opening{}); at != "slow" {
			t.Errorf("%v: at %s", kind, at)
		}
	}
	fast.err = nil
	if at := r.opens(3, tandem.Opening{}); at != "slow" {
		t.Errorf("right after an Open has failed: at %s", at)
	}
	r.now = r.now.Add(2 * avoided)
	if at := r.opens(4, tandem.Opening{}); at != "fast" {
		t.Errorf("later: at %s", at)
	}
	fast.err, slow.err = tandem.Errorf("verifier", tandem.Exhausted, "full"), tandem.Errorf(tandem.OpIdentity, tandem.Unavailable, "other")
	_, err := r.Open(t.Context(), tandem.Opening{Session: 9, Tokens: make([]tandem.Token, 1), Limit: 90})
	if tandem.KindOf(err) != tandem.Exhausted {
		t.Errorf("nobody: %v", err)
	}
	fast.err = tandem.Errorf("verifier", tandem.Invalid, "bad")
	if _, err := r.Open(t.Context(), tandem.Opening{Session: 10, Tokens: make([]tandem.Token, 1), Limit: 90}); tandem.KindOf(err) !=
		tandem.Invalid {
		t.Errorf("a bad request: %v", err)
	}
}

// TestStalled: a session whose Open was given up at one member is opened at another, if one takes it.
func TestStalled(t *testing.T) {
	r := newRig(t)
	fast := r.joins("fast", time.Millisecond, "x", nil)
	o := tandem.Opening{Session: 1, Tokens: make([]tandem.Token, 1), Limit: 90}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	fast.err = tandem.Errorf("verifier", tandem.Canceled, "no progress")
	for range 2 {
		if _, err := r.Open(ctx, o); tandem.KindOf(err) != tandem.Canceled {
			t.Fatal(err)
		}
	}
	if at, _ := r.Of(1); at != "fast" {
		t.Errorf("at %s although there is no other", at)
	}
	r.joins("slow", 9*time.Millisecond, "x", nil)
	if at := r.opens(1, o); at != "slow" {
		t.Errorf("at %s: want at another than where it was given up", at)
	}
	fast.err = nil
	if at := r.opens(2, o); at != "fast" {
		t.Errorf("another session is at %s", at)
	}
}

// TestMoves: sessions leave members that are gone for longer than a moment, silent or draining, if others can take them, and the gateway
// is told; the former member forgets them.
func TestMoves(t *testing.T) {
	for name, change := range map[string]func(*rig){
		"fleet.gone":    func(r *rig) { r.State("a", false); r.now = r.now.Add(2 * grace) },
		"fleet.silent":  func(r *rig) { r.Announced("a", false, true) },
		"fleet.drained": func(r *rig) { r.Announced("a", true, false) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a := r.joins("a", time.Millisecond, "x", nil)
			for id := range tandem.SessionID(5) {
				r.opens(id+1, tandem.Opening{})
			}
			change(r)
			r.Balance()
			if len(r.At("a")) != 5 {
				t.Fatalf("%d sessions are left although nobody can take them", len(r.At("a")))
			}
			r.joins("b", 9*time.Millisecond, "x", nil)
			r.told = nil
			for range 5 {
				r.Balance()
			}
			r.Wait()
			if len(r.At("a")) != 0 || len(a.sessions) != 0 || !slices.Contains(r.told, "moved") || r.counters.Snapshot()[name] != 5 {
				t.Errorf("%d sessions are left, %d open there, told %v, %v", len(r.At("a")), len(a.sessions), r.told, r.counters.Snapshot())
			}
			if err := r.Submit(t.Context(), tandem.Ticket{Session: 1}); tandem.KindOf(err) != tandem.UnknownSession {
				t.Errorf("a ticket of a session that moves: %v", err)
			}
			belongs := func(name string, id tandem.SessionID) bool { return r.Belongs(name, tandem.Verdict{Session: id}) }
			if at := r.opens(1, tandem.Opening{}); at != "b" || belongs("a", 1) || !belongs("b", 1) || !belongs("a", 2) {
				t.Errorf("at %s", at)
			}
		})
	}
}

// TestMomentAway: a member that is away for a moment keeps its sessions.
func TestMomentAway(t *testing.T) {
	r := newRig(t)
	r.joins("a", time.Millisecond, "x", nil)
	r.opens(1, tandem.Opening{})
	r.joins("b", 9*time.Millisecond, "x", nil)
	r.State("a", false)
	r.now = r.now.Add(grace / 2)
	r.Balance()
	r.told = nil
	r.State("a", true)
	if at, _ := r.Of(1); at != "a" || !slices.Contains(r.told, "moved") {
		t.Errorf("at %q, told %v: want it where it was, and woken to look whether it is still known", at, r.told)
	}
}

// TestLevels: a member that comes gets sessions, one at a time, until rounds are about as long everywhere; then nothing moves to and fro.
func TestLevels(t *testing.T) {
	r := newRig(t)
	r.joins("a", 10*time.Millisecond, "x", nil)
	for id := range tandem.SessionID(16) {
		r.opens(id+1, tandem.Opening{})
	}
	r.joins("b", 10*time.Millisecond, "x", nil)
	moves := 0
	for range 60 {
		r.now = r.now.Add(moveEvery)
		r.Balance()
		r.Balance()
		for id := range tandem.SessionID(16) {
			if at, _ := r.Of(id + 1); at == "" {
				moves++
				r.opens(id+1, tandem.Opening{})
			}
		}
	}
	if n := len(r.At("b")); moves != n || n < 4 || n > 8 {
		t.Errorf("%d moves, %d of 16 sessions at the new member", moves, n)
	}
}

// TestTold: the gateway learns what the members are together, and only when that changes.
func TestTold(t *testing.T) {
	r := newRig(t)
	r.joins("a", time.Millisecond, "x", nil)
	r.joins("b", time.Millisecond, "x", nil)
	r.State("b", true)
	r.State("a", false)
	r.Leave("b")
	got := strings.Join(r.told, "; ")
	want := "up true; moved; 2 costs, 1000 tokens in pages of 64, longest 1000; 0 self-drafts; moved; " +
		"2 costs, 2000 tokens in pages of 64, longest 1000; 0 self-drafts; 2 costs, 1000 tokens in pages of 64, longest 1000; " +
		"0 self-drafts; up false"
	if got != want {
		t.Errorf("told\n%s\nwant\n%s", got, want)
	}
}

// BenchmarkPlace measures what placing a session costs, in a fleet of eight with a thousand sessions.
func BenchmarkPlace(b *testing.B) {
	f := New(Config{Gateway: &rig{}})
	for i := range 8 {
		name := fmt.Sprint(i)
		f.Join(name, &box{sessions: map[tandem.SessionID]bool{}}, nil)
		f.State(name, true)
		f.Is(name, tandem.Description{Identity: "x", Costs: []tandem.Cost{{Rows: 1, Time: 1e7}, {Rows: 64, Time: 1e8}}})
	}
	id := tandem.SessionID(0)
	place := func() {
		id++
		_, _ = f.Open(context.Background(), tandem.Opening{Session: id, Tokens: make([]tandem.Token, 100), Limit: 300})
	}
	for range 1000 {
		place()
	}
	for b.Loop() {
		place()
		_ = f.Close(context.Background(), id)
	}
}
