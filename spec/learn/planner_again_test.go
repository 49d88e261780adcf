package learn

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestPlannerAfterADisturbance: a machine that was busy while sessions drafted must not make the later ones plain for ever.
func TestPlannerAfterADisturbance(t *testing.T) {
	const runs = 100
	for _, slower := range []float64{1, 3, 10, 100} {
		sum := 0.0
		for seed := range uint64(runs) {
			prior := NewPlanner(PlannerRule{}, tuned.Planner, nil)
			busy := world{r: rand.New(rand.NewPCG(seed, 8)), mu: []float64{0, 2}, ms: []float64{39, 46 * slower}}
			for range 4 {
				p := NewPlanner(PlannerRule{}, tuned.Planner, prior)
				busy.play(p, 60)
				p.Merge(prior)
			}
			quiet := world{r: rand.New(rand.NewPCG(seed, 12)), mu: busy.mu, ms: []float64{39, 46}}
			for range 2 {
				p := NewPlanner(PlannerRule{}, tuned.Planner, prior)
				quiet.play(p, 60)
				p.Merge(prior)
			}
			sum += quiet.play(NewPlanner(PlannerRule{}, tuned.Planner, prior), 60) / runs
		}
		t.Logf("drafting took %3v times as long: %.3f of the best arm", slower, sum)
		if sum < 0.86 {
			t.Errorf("drafting took %v times as long: %.3f of the best arm, want 0.86", slower, sum)
		}
	}
}

// TestPlannerAfterAColdStart: the first rounds of a streamed target take long whatever is drafted. That says nothing of the later ones.
func TestPlannerAfterAColdStart(t *testing.T) {
	const rounds = 120
	plain, drafts := Arm{Name: "plain"}, Arm{Name: "a", Drafters: []string{"a"}}
	for _, tc := range []struct {
		name      string
		cold      []Arm // in the first rounds
		tokens    int   // of a round with a draft
		low, high float64
	}{
		{"plain was cold, drafts bring nothing", []Arm{plain, plain, plain}, 1, 0.8, 1},
		{"plain was cold, drafts bring two tokens", []Arm{plain, plain, plain}, 3, 0, 0.05},
		{"a draft was cold, drafts bring nothing", []Arm{drafts}, 1, 0.8, 1},
		{"a draft was cold, drafts bring two tokens", []Arm{drafts}, 3, 0, 0.2},
		{"all were cold, drafts bring two tokens", []Arm{plain, drafts, plain}, 3, 0, 0.2},
	} {
		p, used := NewPlanner(PlannerRule{}, tuned.Planner, nil), 0
		for i := range rounds {
			pass := 10 * time.Millisecond
			if i < len(tc.cold) {
				pass = 250 * time.Millisecond
			}
			plain.Time, drafts.Time = pass, pass+2*time.Millisecond
			arm, _ := p.Choose([]Arm{plain, drafts}, 0)
			if i < len(tc.cold) {
				arm = tc.cold[i]
			}
			if arm.Drafters == nil {
				used++
				p.Observe(plain, tokensOf(1), false)
			} else {
				p.Observe(drafts, tokensOf(tc.tokens), false)
			}
		}
		if got := float64(used) / rounds; got < tc.low || got > tc.high {
			t.Errorf("%s: %.2f of the rounds were plain, want %v to %v", tc.name, got, tc.low, tc.high)
		}
	}
}
