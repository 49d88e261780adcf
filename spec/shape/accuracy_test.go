package shape

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// source draws samples of a way whose levels depend on each other: places are easy or hard, and stay so for a while.
type source struct {
	draw          *rand.Rand
	levels, ranks int
	easy          float64
}

func newSource(seed uint64, levels, ranks int) *source {
	return &source{rand.New(rand.NewPCG(seed, 1)), levels, ranks, 0.5}
}

func (s *source) sample() Sample {
	if s.draw.Float64() < 0.3 {
		s.easy = 0.2 + 0.7*math.Floor(2*s.draw.Float64())
	}
	out := Sample{Ranks: make([]int8, s.levels), LogProbs: make([][]float32, s.levels)}
	for k := range s.levels {
		top := s.easy * math.Pow(0.8, float64(k)) // the chance of rank 0; each next rank has 0.4 of what is left
		out.Ranks[k] = -1
		u := s.draw.Float64()
		for j := range s.ranks {
			said := float32(math.Log(top)) / 2 // it says the root of the chance: too sure
			out.LogProbs[k] = append(out.LogProbs[k], said)
			if out.Ranks[k] < 0 && u < top {
				out.Ranks[k] = int8(j)
			}
			u -= top
			top = 0.4 * (1 - top) * math.Pow(0.5, float64(j)) * s.easy
		}
	}
	return out
}

func (s *source) text(n int) (list []Sample) {
	for range n {
		list = append(list, s.sample())
	}
	return list
}

// tableOf counts samples.
func tableOf(t testing.TB, levels, ranks int, samples []Sample) *Accuracy {
	t.Helper()
	c, err := NewCounts(levels, ranks)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range samples {
		c.Add(s)
	}
	a := c.Table()
	if err := a.Validate(); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestPrediction: what the table with conditions expects of a tree is what is measured on the samples it was counted from, and on others
// of the same source; the product of accuracies is not.
func TestPrediction(t *testing.T) {
	src := newSource(1, 5, 8)
	samples, others := src.text(20000), src.text(20000)
	a := tableOf(t, 5, 8, samples)
	worst := 0.0
	for _, w := range []int{2, 4, 8, 16, 32, 64, 256} {
		s := Greedy(a.Rate(), w, 5, 8)
		want, product := s.Length(a.Rate()), s.Length(a.Independent())
		same, other := Measured(s, samples), Measured(s, others)
		t.Logf("W %3d: expected %.3f, product of accuracies %.3f, measured %.3f, on other samples %.3f", w, want, product, same, other)
		if math.Abs(want/same-1) > 0.02 || math.Abs(want/other-1) > 0.05 {
			t.Errorf("W %d: expected %v, measured %v and %v", w, want, same, other)
		}
		worst = max(worst, math.Abs(product/same-1))
	}
	if worst < 0.05 {
		t.Errorf("the product of accuracies is at most %v wrong: the samples are too easy a test", worst)
	}
}

// TestOwnProbabilities: lines undo what is wrong with a way's own probabilities.
func TestOwnProbabilities(t *testing.T) {
	src := newSource(2, 3, 4)
	a := tableOf(t, 3, 4, src.text(20000))
	var said, want, got [3]float64
	for range 20000 {
		s := src.sample()
		g := guessOf(s)
		rate, believed := a.Corrected(g), (*Accuracy)(nil).Corrected(g)
		for k := 0; k < 3 && (k == 0 || s.Ranks[k-1] >= 0); k++ {
			for j := range 4 {
				got[k], said[k] = got[k]+rate(k, 0, j), said[k]+believed(k, 0, j)
			}
			if s.Ranks[k] >= 0 {
				want[k]++
			}
		}
	}
	for k := range want {
		t.Logf("level %d: right %.0f, by its own probabilities %.0f, corrected %.0f", k, want[k], said[k], got[k])
		if math.Abs(got[k]/want[k]-1) > 0.1 || math.Abs(got[k]-want[k]) > math.Abs(said[k]-want[k])/3 {
			t.Errorf("level %d: %v right, corrected %v, said %v", k, want[k], got[k], said[k])
		}
	}
}

// guessOf returns a guess with the sample's own probabilities; candidate j of level k is token 100k+j.
func guessOf(s Sample) (g tandem.Guess) {
	for k, level := range s.LogProbs {
		g.Levels = append(g.Levels, nil)
		for j, lp := range level {
			g.Levels[k] = append(g.Levels[k], tandem.TopLogprob{Token: tandem.Token(100*k + j), LogProb: lp})
		}
	}
	return g
}

// TestCountsByTheBook: tables are plain frequencies, once there are many samples, and survive JSON and becoming counts again.
func TestCountsByTheBook(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		levels, ranks := rapid.IntRange(1, 4).Draw(t, "levels"), rapid.IntRange(1, 5).Draw(t, "ranks")
		c, err := NewCounts(levels, ranks)
		if err != nil {
			t.Fatal(err)
		}
		for i := range rapid.IntRange(0, 30).Draw(t, "samples") {
			s := Sample{Ranks: rapid.SliceOfN(rapid.Int8Range(-1, int8(ranks)), 0, levels+1).Draw(t, fmt.Sprint("ranks ", i))}
			for range s.Ranks {
				s.LogProbs = append(s.LogProbs, rapid.SliceOfN(rapid.Float32Range(-20, 0), 0, ranks).Draw(t, "own"))
			}
			c.Add(s)
			if rapid.Bool().Draw(t, "fade") {
				c.Fade(0.9)
			}
		}
		a := c.Table()
		if err := a.Validate(); err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		back := &Accuracy{}
		if err := json.Unmarshal(raw, back); err != nil || !reflect.DeepEqual(a, back) {
			t.Fatalf("%v: %s becomes %+v", err, raw, back)
		}
		again := a.Counts(1e6).Table()
		if err := again.Validate(); err != nil {
			t.Fatal(err)
		}
		s := Greedy(a.Rate(), 40, levels, ranks)
		if got, want := s.Length(again.Rate()), s.Length(a.Rate()); math.Abs(got/want-1) > 0.01 {
			t.Fatalf("as counts and again as a table, %v expects %v: want %v", s, got, want)
		}
	})
	a := tableOf(t, 2, 2, []Sample{{Ranks: []int8{0, 1}}, {Ranks: []int8{0, -1}}, {Ranks: []int8{1, 0}}, {Ranks: []int8{-1, 0}}})
	// by hand: rank 0 of level 0 has 2 of 4, and 2 of prior chance 1/4
	if got, want := a.Right[0][0], 2.5/6; math.Abs(got-want) > 1e-12 {
		t.Errorf("rank 0 of level 0 is right in %v: want %v", got, want)
	}
	// behind rank 0: 1 of 2 was rank 1; all right paths: 1 of 3; any place: 1 of 4, prior 1/12
	wide := (1 + 8*((1+2.0/12)/6)) / (3 + 8)
	if got, want := a.Given[1][0][1], (1+8*wide)/(2+8); math.Abs(got-want) > 1e-12 {
		t.Errorf("rank 1 of level 1 behind rank 0 is right in %v: want %v", got, want)
	}
}

// TestNoTables: nonsense is found out.
func TestNoTables(t *testing.T) {
	good := func() *Accuracy { return tableOf(t, 2, 3, nil) }
	for name, spoil := range map[string]func(a *Accuracy){
		"no levels":       func(a *Accuracy) { *a = Accuracy{} },
		"empty level":     func(a *Accuracy) { a.Right = [][]float64{{}, {}} },
		"many candidates": func(a *Accuracy) { a.Right[0] = make([]float64, 17) },
		"ragged":          func(a *Accuracy) { a.Right[1] = a.Right[1][:2] },
		"NaN":             func(a *Accuracy) { a.Right[1][0] = math.NaN() },
		"negative":        func(a *Accuracy) { a.Given[1][3][0] = -0.1 },
		"total":           func(a *Accuracy) { a.Right[0] = []float64{0.5, 0.5, 0.5} },
		"few classes":     func(a *Accuracy) { a.Given[1] = a.Given[1][:2] },
		"conditions":      func(a *Accuracy) { a.Given = a.Given[:1] },
		"lines":           func(a *Accuracy) { a.Own = a.Own[:1] },
		"slope":           func(a *Accuracy) { a.Own[0].Slope = 0 },
		"bias":            func(a *Accuracy) { a.Own[0].Bias = math.Inf(1) },
		"samples":         func(a *Accuracy) { a.Samples = -1 },
	} {
		a := good()
		if spoil(a); tandem.KindOf(a.Validate()) != tandem.Invalid {
			t.Errorf("%s: %v: want Invalid", name, a.Validate())
		}
	}
	for _, size := range [][2]int{{0, 1}, {17, 1}, {1, 0}, {1, 17}} {
		if _, err := NewCounts(size[0], size[1]); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("counts of %v: %v: want Invalid", size, err)
		}
	}
}

// TestLook: ranks are the places of the right tokens among the candidates.
func TestLook(t *testing.T) {
	g := tandem.Guess{Levels: [][]tandem.TopLogprob{{{Token: 5, LogProb: -1}, {Token: 6, LogProb: -2}}, {{Token: 7, LogProb: -3}}, {}}}
	for _, tc := range []struct {
		next []tandem.Token
		want []int8
	}{{[]tandem.Token{6, 7, 1, 2}, []int8{1, 0, -1}}, {[]tandem.Token{7, 6}, []int8{-1, -1}}, {nil, []int8{}}} {
		if got := Look(g, tc.next); !reflect.DeepEqual(got.Ranks, tc.want) || len(got.LogProbs) != len(tc.want) {
			t.Errorf("before %v: %v: want ranks %v", tc.next, got, tc.want)
		}
	}
}
