package features

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/half"
)

// shelf is a store of features whose rows say which position they are of, and a twin that forgets nothing.
type shelf struct {
	*Store
	t        testing.TB
	counters *tandem.Counters
}

const shelfWidth = 3

func newShelf(t testing.TB, pages int) *shelf {
	s := &shelf{t: t, counters: new(tandem.Counters)}
	s.Store = New([]int{2}, shelfWidth, pages*2*pageRows*shelfWidth, s.counters)
	s.read = func(_ *engine.Output, part, row int, dst []float32) {
		for i := range dst {
			dst[i] = float32((part+row)%512 + i) // exact in f16
		}
	}
	return s
}

// add keeps n rows from position first on.
func (s *shelf) add(id tandem.SessionID, first, n int) {
	var rows []int
	for i := range n {
		rows = append(rows, i)
	}
	s.Keep(id, first, nil, first, rows)
}

// ask returns the answer to a question, which must not have to wait.
func (s *shelf) ask(id tandem.SessionID, from, until tandem.Position) tandem.Features {
	s.t.Helper()
	q := tandem.FeatureQuery{Session: id, Epoch: 1, From: from, Until: until}
	out, wait, err := s.answer(q)
	if err != nil || wait != nil {
		s.t.Fatalf("%+v: waits %v, %v", q, wait != nil, err)
	}
	if err := out.Validate(q); err != nil {
		s.t.Fatal(err)
	}
	var x [shelfWidth]float32
	for i := range out.Len() {
		if half.Unpack(x[:], out.Rows[i*shelfWidth:][:shelfWidth]); x[0] != float32((int(out.From)+i)%512) || x[2] != x[0]+2 {
			s.t.Fatalf("%+v: row of position %d is %v", q, int(out.From)+i, x)
		}
	}
	return out
}

func opens(id tandem.SessionID, tokens int, wanted bool) tandem.Opening {
	return tandem.Opening{Session: id, Epoch: 1, Tokens: make([]tandem.Token, tokens), Features: wanted}
}

func TestFeaturesOfOneSession(t *testing.T) {
	s := newShelf(t, 100)
	s.Open(opens(1, 101, true), 40) // 40 tokens were found
	if out := s.ask(1, 0, 30); out.From != 30 || out.Len() != 0 {
		t.Errorf("of what was found there are %d rows from %d", out.Len(), out.From)
	}
	if _, wait, err := s.answer(tandem.FeatureQuery{Session: 1, Epoch: 1, From: 40, Until: 100}); wait == nil || err != nil {
		t.Errorf("no wait for the prompt: %v", err)
	}
	s.add(1, 40, 20)
	if out := s.ask(1, 30, 200); out.From != 40 || out.Len() != 20 {
		t.Errorf("%d rows from %d: want 20 from 40", out.Len(), out.From)
	}
	s.add(1, 64, 36) // 4 more were found
	if out := s.ask(1, 50, 100); out.From != 50 || out.Len() != 10 {
		t.Errorf("%d rows from %d: want those before the gap", out.Len(), out.From)
	}
	if out := s.ask(1, 60, 100); out.From != 64 || out.Len() != 36 {
		t.Errorf("%d rows from %d: want those after the gap", out.Len(), out.From)
	}
	if out := s.ask(1, 60, 63); out.From != 63 || out.Len() != 0 {
		t.Errorf("%d rows from %d: want none, and a sign that they will not come", out.Len(), out.From)
	}
	if out := s.ask(1, 100, 101); out.From != 100 || out.Len() != 0 {
		t.Errorf("%d rows from %d of a token that no pass has seen", out.Len(), out.From)
	}
	s.Expect(1, 103)
	_, wait, _ := s.answer(tandem.FeatureQuery{Session: 1, Epoch: 1, From: 100, Until: 103})
	if wait == nil {
		t.Fatal("no wait for rows of a pass that has ended")
	}
	s.add(1, 100, 3)
	<-wait
	if out := s.ask(1, 100, 103); out.Len() != 3 {
		t.Errorf("%d rows of a round: want 3", out.Len())
	}
	for kind, q := range map[tandem.Kind]tandem.FeatureQuery{
		tandem.Stale:          {Session: 1, Epoch: 2, Until: 1},
		tandem.UnknownSession: {Session: 2, Epoch: 1, Until: 1},
	} {
		if _, _, err := s.answer(q); tandem.KindOf(err) != kind {
			t.Errorf("%+v: %v: want %v", q, err, kind)
		}
	}
	s.Forget(1)
	if s.Bytes() != 0 {
		t.Errorf("%d bytes of no session", s.Bytes())
	}
}

// TestFeaturesNobodyWants: they are kept once somebody has asked, and what came before is not to be had.
func TestFeaturesNobodyWants(t *testing.T) {
	s := newShelf(t, 100)
	s.Open(opens(1, 11, false), 0)
	s.add(1, 0, 10)
	if s.Bytes() != 0 {
		t.Errorf("%d bytes that nobody wants", s.Bytes())
	}
	if out := s.ask(1, 0, 10); out.From != 10 || out.Len() != 0 {
		t.Errorf("%d rows from %d", out.Len(), out.From)
	}
	s.add(1, 10, 2)
	if out := s.ask(1, 0, 12); out.From != 10 || out.Len() != 2 {
		t.Errorf("%d rows from %d: want 2 from 10", out.Len(), out.From)
	}
}

// TestFeaturesAreBounded: whatever sessions do, the store holds its bound, takes memory from the largest, oldest positions first, and
// answers with what it should still have.
func TestFeaturesAreBounded(t *testing.T) {
	const pages = 8
	random := rand.New(rand.NewPCG(1, 2))
	s := newShelf(t, pages)
	ends := map[tandem.SessionID]int{}
	for range 3000 {
		id := tandem.SessionID(1 + random.IntN(4))
		end, open := ends[id]
		switch n := 1 + random.IntN(40); {
		case !open:
			s.Open(opens(id, 10, true), 0)
			ends[id] = 0
		case random.IntN(40) == 0:
			s.Forget(id)
			delete(ends, id)
		default:
			if random.IntN(4) == 0 {
				end += n // found elsewhere
			}
			s.add(id, end, n)
			ends[id] = end + n
		}
		if got := s.Bytes(); got > 2*pages*pageRows*shelfWidth {
			t.Fatalf("%d bytes: want at most %d", got, 2*pages*pageRows*shelfWidth)
		}
		if end := ends[id]; end > 0 {
			if out := s.ask(id, tandem.Position(end-1), tandem.Position(end)); out.Len() != 1 {
				t.Fatalf("session %v has lost its latest position %d", id, end-1)
			}
		}
		for from, rows := 0, 0; from < ends[id]; {
			out := s.ask(id, tandem.Position(from), tandem.Position(ends[id]))
			if rows += out.Len(); out.Len() == 0 {
				break
			}
			from = int(out.From) + out.Len()
		}
	}
	if n := s.counters.Snapshot(); n["features.dropped"] == 0 || n["features.kept"] == 0 {
		t.Errorf("counted %v", n)
	}
	for id := range ends {
		s.Forget(id)
	}
	if s.Bytes() != 0 || len(s.spare) > pages {
		t.Errorf("%d bytes and %d pages at the end", s.Bytes(), len(s.spare))
	}
}

// TestTheLargestSessionGivesUp its oldest positions, not one that has less.
func TestTheLargestSessionGivesUp(t *testing.T) {
	s := newShelf(t, 5)
	for id, n := range map[tandem.SessionID]int{1: 1, 2: 4} {
		s.Open(opens(id, 200, true), 0)
		s.add(id, 0, n*pageRows)
	}
	s.add(1, pageRows, 1)
	if out := s.ask(1, 0, 33); out.From != 0 || out.Len() != 33 {
		t.Errorf("the small session has %d rows from %d", out.Len(), out.From)
	}
	if out := s.ask(2, 0, 128); out.From != pageRows || out.Len() != 3*pageRows {
		t.Errorf("the large session has %d rows from %d", out.Len(), out.From)
	}
}

// TestAnswersAreBounded: a long prompt comes in pieces.
func TestAnswersAreBounded(t *testing.T) {
	s := &shelf{t: t, counters: new(tandem.Counters)}
	const width = 8192
	s.Store = New([]int{1, -1}, width, 64<<20, s.counters)
	s.read = func(_ *engine.Output, _, _ int, dst []float32) { clear(dst) }
	s.Open(opens(1, 101, true), 0)
	s.add(1, 0, 100)
	var lengths []int
	for from := 0; from < 100; {
		q := tandem.FeatureQuery{Session: 1, Epoch: 1, From: tandem.Position(from), Until: 100}
		out, _, err := s.answer(q)
		if err != nil || out.Validate(q) != nil || int(out.From) != from || !slices.Equal(out.Taps, []int{1, -1}) {
			t.Fatalf("%d rows from %d, %v", out.Len(), out.From, err)
		}
		lengths = append(lengths, out.Len())
		from += out.Len()
	}
	if len(lengths) != 7 || slices.Max(lengths) != mostAnswered/(2*width) {
		t.Errorf("pieces of %v rows: want at most %d", lengths, mostAnswered/(2*width))
	}
}

func TestFeaturesWait(t *testing.T) { synctest.Test(t, featuresWait) }

func featuresWait(t *testing.T) {
	s := newShelf(t, 10)
	s.Open(opens(1, 11, true), 0)
	q := tandem.FeatureQuery{Session: 1, Epoch: 1, Until: 10}
	soon, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := s.Features(soon, q); tandem.KindOf(err) != tandem.Deadline {
		t.Errorf("a wait without an end: %v", err)
	}
	for _, c := range []struct {
		what string
		do   func()
		rows int
		kind tandem.Kind
	}{
		{"a piece", func() { s.add(1, 0, 4) }, 4, tandem.OK},
		{"closed", func() { s.Forget(1) }, 0, tandem.UnknownSession},
	} {
		type result struct {
			out tandem.Features
			err error
		}
		done := make(chan result)
		go func() {
			out, err := s.Features(t.Context(), q)
			done <- result{out, err}
		}()
		synctest.Wait()
		c.do()
		got := <-done
		if got.out.Len() != c.rows || tandem.KindOf(got.err) != c.kind {
			t.Errorf("%s: %d rows, %v", c.what, got.out.Len(), got.err)
		}
		q.From = 4
	}
	if _, err := (*Store)(nil).Features(t.Context(), q); tandem.KindOf(err) != tandem.Unsupported {
		t.Errorf("without taps: %v", err)
	}
	if _, err := s.Features(t.Context(), tandem.FeatureQuery{Session: 1}); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("nothing asked for: %v", err)
	}
}
