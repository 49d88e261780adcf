package learn

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

func TestWeights(t *testing.T) {
	w := NewWeights(WeightRule{})
	for _, v := range []float64{0, -1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		if err := w.Set("go", v); !errors.Is(err, tandem.Invalid) {
			t.Errorf("weight %v: %v, want Invalid", v, err)
		}
	}
	for _, name := range []string{"go", "py", "prose"} {
		if w.Of(name) != 1 {
			t.Errorf("%s starts with %v", name, w.Of(name))
		}
	}
	for range 100 {
		w.Record("go", 4, 6)
		w.Record("py", 0, 6)
		w.Record("prose", 2, 6) // between the thresholds
		w.Record("py", 1, 0)    // nothing was proposed
	}
	if s := w.Snapshot(); !(s["go"] > 2.5 && math.Abs(s["py"]-DefaultWeightRule.Least) < 1e-9 && s["prose"] >= s["py"]) {
		t.Errorf("weights %v", s)
	}
	for range 40 { // the text turns to Python
		w.Record("go", 0, 6)
		w.Record("py", 5, 6)
	}
	if s := w.Snapshot(); !(s["py"] > s["go"]) {
		t.Errorf("weights %v after a change", s)
	}
	if got := w.Of("new"); math.Abs(got-1) > 1e-9 {
		t.Errorf("a new drafter weighs %v", got)
	}

	w = NewWeights(WeightRule{})
	for name, v := range map[string]float64{"a": 2, "b": 1, "c": 1e-300, "d": 1e308} {
		if err := w.Set(name, v); err != nil {
			t.Error(err)
		}
	}
	for name, want := range map[string]float64{"a": 0.1, "b": 0.1, "c": 0.1, "d": 3.7} {
		if got := w.Of(name); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s weighs %v, want %v", name, got, want)
		}
	}
}

func TestWeightsStayNormal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := NewWeights(WeightRule{})
		for i := range rapid.IntRange(1, 200).Draw(t, "records") {
			w.Record(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, fmt.Sprint(i)), rapid.IntRange(-1, 9).Draw(t, fmt.Sprint("ok ", i)),
				rapid.IntRange(0, 8).Draw(t, fmt.Sprint("of ", i)))
		}
		s := w.Snapshot()
		sum := 0.0
		for name, v := range s {
			if sum += v; !(v >= DefaultWeightRule.Least-1e-9) {
				t.Fatalf("%s weighs %v", name, v)
			}
		}
		if math.Abs(sum-float64(len(s))) > 1e-6 {
			t.Fatalf("weights %v have the sum %v", s, sum)
		}
	})
}

func TestRules(t *testing.T) {
	if err := DefaultWeightRule.Validate(); err != nil {
		t.Error(err)
	}
	if err := DefaultLengthRule.Validate(); err != nil {
		t.Error(err)
	}
	for i, change := range []func(*WeightRule){
		func(r *WeightRule) { r.Window = 0 }, func(r *WeightRule) { r.RewardAbove = math.NaN() },
		func(r *WeightRule) { r.PunishBelow = 0.9 },
		func(r *WeightRule) { r.Reward = 0.5 }, func(r *WeightRule) { r.Punish = 0 }, func(r *WeightRule) { r.Punish = math.NaN() },
		func(r *WeightRule) { r.Least = 1 },
	} {
		r := DefaultWeightRule
		if change(&r); !errors.Is(r.Validate(), tandem.Invalid) {
			t.Errorf("%d: %+v was accepted", i, r)
		}
	}
	for i, change := range []func(*LengthRule){
		func(r *LengthRule) { r.Start = 0 }, func(r *LengthRule) { r.Most = 3 }, func(r *LengthRule) { r.Punish = 0 },
		func(r *LengthRule) { r.Reward = -1 }, func(r *LengthRule) { r.Records = 0 },
		func(r *LengthRule) { r.Rule = "" }, func(r *LengthRule) { r.Rule = "Paper" },
		func(r *LengthRule) { r.Rule, r.Records = LengthPaper, 1 },
	} {
		r := DefaultLengthRule
		if change(&r); !errors.Is(r.Validate(), tandem.Invalid) {
			t.Errorf("%d: %+v was accepted", i, r)
		}
	}
}

func TestAlpha(t *testing.T) {
	a := NewAlpha(0)
	if a.Now() != 0.01 {
		t.Errorf("starts at %v, the paper at 0.01", a.Now())
	}
	a.Record(4, 4, 0.008)
	if a.Now() != 0.005 {
		t.Errorf("all right: %v, want half", a.Now())
	}
	a.Record(4, 1, 0.0625) // formula 3: 0.005 / 0.0625^(3/4)
	if want := 0.005 / 0.125; math.Abs(a.Now()-want) > 1e-12 {
		t.Errorf("one of four right: %v, want %v", a.Now(), want)
	}
	for range 9 {
		a.Record(4, 0, 0.01)
	}
	if a.Now() != 0.1 {
		t.Errorf("nothing right for long: %v, want the root of the start", a.Now())
	}
	for cost, want := range map[float64]float64{0.05: 0.05, 0.001: 0.01, 3: worth.MostCertain, math.NaN(): 0.1} {
		a := NewAlpha(0)
		for range 30 {
			a.Bound(cost)
			a.Record(4, 0, 0.01)
		}
		if a.Now() != want {
			t.Errorf("nothing right for long, a draft pass worth %v tokens: %v, want %v", cost, a.Now(), want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a := NewAlpha(rapid.Float64().Draw(t, "start"))
		for i := range rapid.IntRange(0, 50).Draw(t, "records") {
			c := rapid.SampledFrom([]float64{0, -1, 2, 1, 1e-300, 0.3, math.NaN(), math.Inf(1)}).Draw(t, fmt.Sprint(i))
			a.Bound(c)
			a.Record(rapid.IntRange(-1, 9).Draw(t, fmt.Sprint("all ", i)), rapid.IntRange(-1, 9).Draw(t, fmt.Sprint("ok ", i)), c)
			if !(a.Now() > 0 && a.Now() < 1) {
				t.Fatalf("α = %v", a.Now())
			}
		}
	})
}

// TestCompareFindsTheExpert lets three drafters know texts of three kinds to different depths, and the text
// change its kind: within a dozen rounds the one that knows most has most of the weight.
func TestCompareFindsTheExpert(t *testing.T) {
	w := NewWeights(WeightRule{})
	r := rand.New(rand.NewPCG(1, 2))
	names := []string{"go", "py", "prose"}
	for _, expert := range []string{"go", "prose", "py", "go"} {
		for range 14 {
			held := map[string]int{}
			for _, n := range names {
				if held[n] = r.IntN(4); n == expert {
					held[n] += 1 + r.IntN(2)
				}
			}
			w.Compare(held)
		}
		s := w.Snapshot()
		for _, n := range names {
			if n != expert && s[n] >= s[expert] {
				t.Errorf("expert %s: weights %v", expert, s)
			}
			if s[n] < DefaultWeightRule.Least-1e-12 {
				t.Errorf("weight %v of %s is below the least", s[n], n)
			}
		}
	}
	before := w.Snapshot()
	w.Compare(map[string]int{"go": 2, "py": 2, "prose": 2})
	for n, v := range w.Snapshot() {
		if math.Abs(v-before[n]) > 1e-9 {
			t.Errorf("equals changed the weight of %s from %v to %v", n, before[n], v)
		}
	}
}
