package worth

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// wayLine is how Way.String prints a way.
var wayLine = regexp.MustCompile(`^(?:best )?(.+?): 1\+([\d.]+)±([\d.]+) tokens in ([\d.]+)\+([\d.]+)×\(([\d.]+)\+([\d.]+)\)\+([\d.]+)×([\d.]+) ms, ([\d.]+) rows$`)

// told is a way as its line tells it.
type told struct {
	name                   string
	tokens, doubt, seconds float64
}

// tell reads the line of a choice: the ways in its order.
func tell(t *testing.T, line string) (ways []told) {
	t.Helper()
	for part := range strings.SplitSeq(line, "; ") {
		m := wayLine.FindStringSubmatch(part)
		if m == nil {
			t.Fatalf("%q is no way", part)
		}
		var v [9]float64
		for i, s := range m[2:] {
			v[i], _ = strconv.ParseFloat(s, 64)
		}
		ways = append(ways, told{m[1], 1 + v[0], v[1], (v[2] + v[3]*(v[4]+v[5]) + v[6]*v[7]) / 1000})
	}
	return ways
}

func ways() []Way {
	return []Way{
		{Name: "plain", Expected: Expected{Known: true}, Time: Time{Rest: 0.001, Verify: 0.030, Left: 1, Slow: 1}},
		{Name: "a", Drafters: []string{"a"}, Set: "a", Expected: Expected{Yield{1.5, 2, 3}, 0.4, true},
			Time: Time{Rest: 0.002, Draft: 0.014, Read: 0.001, Verify: 0.038, Left: 1, Slow: 1}},
		{Name: "a ahead", Drafters: []string{"a"}, Set: "a", Ahead: true, Expected: Expected{Yield{1.5, 2, 3}, 0.4, true},
			Time: Time{Rest: 0.002, Draft: 0.014, Read: 0.001, Verify: 0.038, Left: 0.25, Slow: 1.5}},
		{Name: "b", Drafters: []string{"b"}, Set: "b", Expected: Expected{Yield{0.2, 2, 3}, 2, true},
			Time: Time{Rest: 0.002, Draft: 0.014, Verify: 0.038, Left: 1, Slow: 1}},
	}
}

// TestExplainIsTheChoice: by the inputs that Explain prints, and a formula written anew, the best way is the one that was taken, and a look
// is the most hopeful one whose loss the credit pays.
func TestExplainIsTheChoice(t *testing.T) {
	for _, tc := range []struct {
		others, credit float64
		taken          string
		reason         Reason
	}{{0, 0, "a", ReasonBest}, {0, 2, "b", ReasonProbe}, {5, 0, "plain", ReasonBest}} {
		c := Choose(ways(), tc.others, tc.credit)
		if c.Way().Name != tc.taken || c.Reason != tc.reason {
			t.Errorf("others %v, credit %v: %s, %s: want %s, %s", tc.others, tc.credit, c.Way().Name, c.Reason, tc.taken, tc.reason)
		}
		list := tell(t, c.Explain())
		if len(list) != len(c.Ways) || list[0].name != tc.taken {
			t.Fatalf("explained %+v", list)
		}
		best, look := list[0], told{}
		rate := func(w told) float64 { return (tc.others + w.tokens) / w.seconds }
		for _, w := range list {
			if rate(w) > rate(best) {
				best = w
			}
		}
		hope := func(w told) float64 { return (tc.others + w.tokens + w.doubt) / w.seconds }
		for _, w := range list {
			loss := rate(best)*w.seconds - tc.others - w.tokens
			if w.name != best.name && hope(w) > rate(best) && loss <= tc.credit && (look.name == "" || hope(w) > hope(look)) {
				look = w
			}
		}
		if want := best.name; look.name == "" && list[0].name != want || look.name != "" && list[0].name != look.name {
			t.Errorf("by the line %q the best is %s and the look %q", c.Explain(), want, look.name)
		}
	}
}

// TestSecondStep: models are asked beside free drafts if both bring more in their time than the free drafts alone, by the printed inputs.
func TestSecondStep(t *testing.T) {
	verify := func(rows float64) float64 { return 0.026 + 0.004*rows }
	for _, free := range [][]float64{nil, {0.3}, {0.95, 0.9, 0.85, 0.8}} {
		s := &Second{Chances: free, Alone: Way{Name: "free", Time: Time{Rest: 0.002, Left: 1, Slow: 1}}}
		for _, p := range free {
			s.Alone.Accepted += p
		}
		s.Alone.Rows = float64(len(free) + 1)
		s.Alone.Verify = verify(s.Alone.Rows)
		s.Both = ways()[1].Beside(s.Alone.Accepted, len(free)+1, verify)
		got := s.Decide(60)
		parts := strings.SplitN(s.Explain(), "; ", 2)
		line, at, _ := strings.Cut(parts[1], "; at ")
		two := tell(t, line)
		rate, err := strconv.ParseFloat(strings.TrimSuffix(at, " tokens/s"), 64)
		if err != nil || len(two) != 2 {
			t.Fatalf("%q", s.Explain())
		}
		latest := min(60, max(two[0].tokens/two[0].seconds, two[1].tokens/two[1].seconds))
		if math.Abs(rate-latest) > 0.1 {
			t.Errorf("at %v tokens/s: want %v", rate, latest)
		}
		if want := two[1].tokens-rate*two[1].seconds > two[0].tokens-rate*two[0].seconds; got != want || want != (len(free) < 4) {
			t.Errorf("free %v: asked %v, by the line %q %v", free, got, s.Explain(), want)
		}
	}
}

// TestCommon: the mean of the shorter of two runs, by adding up.
func TestCommon(t *testing.T) {
	for _, x := range [][2]float64{{0, 3}, {1, 1}, {0.5, 4}, {3, 2}} {
		p, q := x[0]/(1+x[0]), x[1]/(1+x[1])
		want := 0.0
		for n := 1; n < 500; n++ {
			want += math.Pow(p*q, float64(n))
		}
		if got := Common(x[0], x[1]); math.Abs(got-want) > 1e-9 {
			t.Errorf("runs of %v and %v tokens have %v in common: want %v", x[0], x[1], got, want)
		}
	}
}

// TestLooksAreBounded: whatever a way brings that seems hopeful and is not, looks at it lose no more than the credit and its share.
func TestLooksAreBounded(t *testing.T) {
	y, credit, lost, tokens := Yields{}, Credit(Tuned.Credit), 0.0, 0.0
	plain := Way{Name: "plain", Time: Time{Verify: 0.030, Left: 1, Slow: 1}}
	for range 2000 {
		w := Way{Name: "bad", Set: "bad", Drafters: []string{"bad"}, Expected: y.Of("bad"),
			Time: Time{Draft: 0.01, Verify: 0.032, Left: 1, Slow: 1}}
		c := Choose([]Way{plain, w}, 0, float64(credit))
		y.Fade()
		if c.Way().Name == "bad" {
			y.Observe("bad", Yield{Rows: 2, Passes: 1})
			w.Expected = y.Of("bad")
			credit.Pay(w.Loss(c.Rate(), 0))
			lost += c.Rate()*w.Seconds() - 1
		}
		tokens++
		credit.Earn(Tuned.Explore)
	}
	if most := Tuned.Credit + Tuned.Explore*tokens + 1; lost > most {
		t.Errorf("looks lost %.1f of %.0f tokens: want at most %.1f", lost, tokens, most)
	}
}

// TestYields: means follow the rounds, other sessions' count for a few, and what was not looked at for long is in doubt again.
func TestYields(t *testing.T) {
	y := Yields{}
	if e := y.Of("a"); e.Known || e.Accepted != 1 {
		t.Errorf("unknown: %+v", e)
	}
	for range 40 {
		y.Observe("a", Yield{Accepted: 3, Passes: 2, Rows: 4})
	}
	e := y.Of("a")
	if !e.Known || math.Abs(e.Accepted-3) > 1e-9 || e.Passes != 2 || e.Rows != 4 {
		t.Errorf("after 40 rounds: %+v", e)
	}
	for range 200 {
		y.Fade()
	}
	if later := y.Of("a"); later.Doubt < 2*e.Doubt || math.Abs(later.Accepted-3) > 1e-9 {
		t.Errorf("200 rounds later: %+v after %+v", later, e)
	}
	all := Yields{}
	y.HandOn(all)
	next := all.Inherit()
	if e := next.Of("a"); math.Abs(e.Accepted-3) > 1e-9 || e.Doubt < 3 {
		t.Errorf("in a new session: %+v", e)
	}
	for range 20 {
		next.Observe("a", Yield{})
	}
	if e := next.Of("a"); e.Accepted > 0.6 {
		t.Errorf("after 20 rounds of another text: %+v", e)
	}
	next.Recall("a", 5, 40, 1)
	if e := next.Of("a"); e.Accepted < 2.5 {
		t.Errorf("with hindsight of 40 rounds with 5 tokens: %+v", e)
	}
}
