package measure

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// TestGrid: every point has a time, wider passes take no less, and nothing is left in the cache.
func TestGrid(t *testing.T) {
	grid := GridPoints([]int{1, 4, 16}, []int{8, 64})
	m, err := engine.Open(draftPath, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 32, KVPages: Pages(grid)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	passes := 0
	costs, spread, err := Grid(t.Context(), m, grid, 3, func() { passes++ })
	if err != nil || !(spread >= 0) || len(costs) != 6 || passes != 18 || m.FreePages() != m.Pages() {
		t.Fatalf("%v: %v after %d passes", err, costs, passes)
	}
	for i, c := range costs {
		if c.Time <= 0 || c.Context != []int{8, 64}[i/3] || c.Rows != []int{1, 4, 16}[i%3] || i%3 > 0 && c.Time < costs[i-1].Time {
			t.Errorf("point %d: %+v", i, c)
		}
	}
}

// TestRanks: a model's own text at temperature 0 is its first choice everywhere, whatever the pieces; a token that it would not say
// has another rank.
func TestRanks(t *testing.T) {
	m, err := engine.Open(draftPath, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 7, KVPages: engine.PagesFor(1, 64, 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	prompt := m.Vocab().Encode("func (r *Reader) Read(p []byte) (n int, err error) {\n", true)
	text, err := Continue(t.Context(), m, prompt, 20, tandem.Sampling{TopP: 1})
	if err != nil || len(text) != len(prompt)+20 || !slices.Equal(text[:len(prompt)], prompt) {
		t.Fatalf("%v: %v", err, text)
	}
	ranks, err := Ranks(t.Context(), m, text, len(prompt)-1, 4)
	if err != nil || len(ranks) != 20 || slices.Max(ranks) != 0 || slices.Min(ranks) != 0 {
		t.Fatalf("%v: ranks %v: want 20 zeros", err, ranks)
	}
	text[len(prompt)+5]++
	if other, err := Ranks(t.Context(), m, text, len(prompt)-1, 4); err != nil || other[4] != 0 || other[5] == 0 {
		t.Errorf("%v: ranks %v: want a zero in place 4, and another in place 5", err, other)
	}
	text[3] = tandem.Token(m.Vocab().Size())
	if _, err := Ranks(t.Context(), m, text, 0, 4); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("a token that is not in the vocabulary: %v", err)
	}
	drawn, err := Continue(t.Context(), m, prompt, 20, tandem.Sampling{Temperature: 1, TopP: 1, Seed: 3, RepeatPenalty: 1.2})
	if err != nil || slices.Equal(drawn, text) {
		t.Errorf("%v: %v", err, drawn)
	}
}

// TestTell: the text is Continue's, up to its end; features are those of one pass over the text; guesses are there for every root, made
// behind the token before it.
func TestTell(t *testing.T) {
	const sides = "../../engine/testdata/sides/"
	dev := testdevice.CPU(t, 1)
	for _, tc := range []struct {
		head   string
		rows   int // of a pass
		levels int
	}{{"medusa-shared", 7, 3}, {"ppd-4", 19, 3}} {
		for _, p := range []tandem.Sampling{{TopP: 1}, {TopP: 1, Temperature: 1, Seed: 5}} {
			taps := []int{2, -1}
			m, err := engine.Open(sides+"target.gguf", engine.Options{Device: dev, MaxRows: tc.rows, Taps: taps,
				KVPages: 2 * engine.PagesFor(1, 64, 12)})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if err := m.OpenSide(sides + tc.head + ".gguf"); err != nil {
				t.Fatal(err)
			}
			prompt := []tandem.Token{70, 71, 200, 90, 91, 92, 93, 94, 70, 71, 80}
			told, err := Tell(t.Context(), m, prompt, 30, p, 4)
			if err != nil {
				t.Fatal(err)
			}
			text, err := Continue(t.Context(), m, prompt, 30, p)
			if err != nil || told.Prompt != len(prompt) || !slices.Equal(told.Text, text[:len(told.Text)]) ||
				len(told.Text) < len(text) && !m.Vocab().IsEnd(told.Text[len(told.Text)-1]) {
				t.Fatalf("%v: %v, Continue says %v", err, told.Text, text)
			}
			n, places := len(told.Text), told.Guesses[m.SelfDrafts()[0].Name]
			if len(told.Features) != (n-1)*m.FeatureWidth() || len(places) != n-len(prompt)+1 {
				t.Fatalf("%d features, %d guesses for %d tokens", len(told.Features), len(places), n)
			}
			seq, err := m.NewSequence(n, 0)
			if err != nil {
				t.Fatal(err)
			}
			x, want := make([]float32, m.FeatureWidth()), make([]uint16, m.FeatureWidth())
			for i, token := range told.Text[:n-1] {
				out, err := m.Forward([]engine.Part{{Seq: seq, Extend: []tandem.Token{token}}}, 0)
				if err != nil {
					t.Fatal(err)
				}
				out.Features(0, 0, x)
				half.Pack(want, x)
				if !slices.Equal(want, told.Features[i*len(x):(i+1)*len(x)]) {
					t.Fatalf("features of position %d are others", i)
				}
				if i < len(prompt)-2 || tc.head != "medusa-shared" {
					continue
				}
				want, err := m.Guess([]engine.GuessAsk{{SelfDraft: tandem.Medusa, Hidden: [][]float32{out.Hidden(0, 0)}}}, 4)
				if err != nil {
					t.Fatal(err)
				}
				g := places[i-len(prompt)+2] // of the root behind token i
				for k, level := range g.Levels {
					if p.Temperature == 0 && !slices.Equal(level, want[0].Levels[k]) {
						t.Errorf("root %d, level %d: %v, want %v", i+1, k, level, want[0].Levels[k])
					}
				}
			}
			seq.Close()
			for i, g := range places {
				for k, level := range g.Levels {
					if len(g.Levels) != tc.levels || len(level) != 4 || math.IsNaN(float64(level[0].LogProb)) ||
						level[0].LogProb < level[1].LogProb {
						t.Errorf("%s, place %d, level %d of %d: %v", tc.head, i, k, len(g.Levels), level)
					}
				}
			}
			one, err := Tell(t.Context(), m, prompt[:1], 3, p, 4)
			if err != nil || len(one.Guesses[m.SelfDrafts()[0].Name]) != 4 || len(one.Guesses[m.SelfDrafts()[0].Name][0].Levels) != 0 {
				t.Errorf("a prompt of one token: %v, %+v", err, one)
			}
		}
	}
}

// TestCostsOfExperts: of a model with experts the costs say how many of them passes use and what one more costs.
func TestCostsOfExperts(t *testing.T) {
	file := family.Golden("qwen3moe").Write(t, t.TempDir())
	m, err := engine.Open(file, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 64, KVPages: engine.PagesFor(1, 128, 64)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	one := m.Passes().Work().Experts
	check := func(costs []tandem.Cost, err error) {
		t.Helper()
		if err != nil || len(costs) < 2 {
			t.Fatalf("%v: %v", costs, err)
		}
		for i, c := range costs {
			least := costs[max(0, i-1)].Experts // fewer rows use no more, but which tokens they are differs
			if !c.Valid() || c.Experts > one*c.Rows || c.Experts < one || c.Rows > 4*costs[max(0, i-1)].Rows && c.Experts <= least {
				t.Errorf("%+v behind %+v, %d experts of one row", c, costs[max(0, i-1)], one)
			}
			if c.Rows == 1 && c.Experts != one || c.Expert != 0 && !slices.Contains(alikeWidths, c.Rows) {
				t.Errorf("%+v, want %d experts of one row, and prices at %v rows alone", c, one, alikeWidths)
			}
		}
	}
	check(Costs(t.Context(), m, time.Second, nil))
	grid, _, err := Grid(t.Context(), m, GridPoints([]int{1, 8, 16}, []int{5}), 4, nil)
	check(grid, err)
}

// TestPriceOfExperts: what an expert costs is the difference of rows that differ and rows that are all the same.
func TestPriceOfExperts(t *testing.T) {
	at := func(rows int, alike bool, ms, experts int) Timing {
		return Timing{Point: Point{Rows: rows, Context: 9, Alike: alike}, Times: []time.Duration{time.Duration(ms) * 1e6}, Experts: experts}
	}
	got := costsOf([]Timing{at(8, false, 50, 300), at(8, true, 20, 50), at(1, false, 12, 50), at(16, false, 80, 400), at(16, true, 90, 50)})
	want := []tandem.Cost{{Rows: 1, Context: 9, Time: 12e6, Experts: 50}, {Rows: 8, Context: 9, Time: 50e6, Experts: 300, Expert: 120e3},
		{Rows: 16, Context: 9, Time: 80e6, Experts: 400}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
