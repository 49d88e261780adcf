package learn

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// world is a made-up machine and text: for each arm the mean of accepted tokens, for drafts without an end,
// and the time of a round. Arm 0 is plain.
type world struct {
	r      *rand.Rand
	mu     []float64
	ms     []float64
	recall bool // the planner is told what all drafters would have guessed of the last 64 tokens, a fifth more often right than in rounds
	boasts int  // an arm that says that it would have guessed everything; 0: none
	hits   [][64]bool
	seen   int
}

// said makes the drafters report what they would have guessed of the latest n tokens.
func (w *world) said(p *Planner, n int) {
	if w.hits == nil {
		w.hits = make([][64]bool, len(w.mu))
	}
	for range n {
		for i := range w.mu {
			w.hits[i][w.seen%64] = w.r.Float64() < 1.2*w.mu[i]/(1+1.2*w.mu[i])
		}
		w.seen++
	}
	for i, a := range w.arms()[1:] {
		accepted, rounds := 0.0, 0.0
		for k := range min(w.seen, 64) {
			if w.hits[i+1][k] {
				accepted++
			} else {
				rounds++
			}
		}
		if i+1 == w.boasts {
			accepted, rounds = 8, 1
		}
		p.Recall(a, accepted/max(rounds, 1), rounds)
	}
}

const drafted = 7 // depth of the drafts of a world

// round draws a round: tokens are geometric, times log-normal by 5 %.
func (w *world) round(arm int) (tokens int, took time.Duration) {
	tokens = 1
	if p := w.mu[arm] / (1 + w.mu[arm]); arm > 0 {
		for tokens <= drafted && w.r.Float64() < p {
			tokens++
		}
	}
	return tokens, time.Duration(w.ms[arm] * math.Exp(0.05*w.r.NormFloat64()) * float64(time.Millisecond))
}

// tokens is the mean of round.
func (w *world) tokens(arm int) float64 {
	sum, q := 1.0, 1.0
	for range drafted {
		q *= w.mu[arm] / (1 + w.mu[arm])
		sum += q
	}
	return sum
}

func (w *world) best() (rate float64) {
	for i := range w.mu {
		rate = max(rate, w.tokens(i)/w.ms[i])
	}
	return rate
}

func (w *world) arms() []Arm {
	list := []Arm{{Name: "plain"}}
	for i := 1; i < len(w.mu); i++ {
		list = append(list, Arm{Name: fmt.Sprint("arm ", i), Drafters: []string{fmt.Sprint(i)}})
	}
	return list
}

// play lets p choose for n rounds and returns its tokens per millisecond, as a share of the best arm's. The luck of the
// draws changes its choices, but the rates are expected ones.
func (w *world) play(p *Planner, n int) float64 {
	tokens, ms := 0.0, 0.0
	list := w.arms()
	for range n {
		a, _ := p.Choose(list)
		i := 0
		for list[i].Name != a.Name {
			i++
		}
		got, took := w.round(i)
		if w.recall {
			w.said(p, got)
		}
		p.Observe(a, got, took, false)
		tokens, ms = tokens+w.tokens(i), ms+w.ms[i]
	}
	return tokens / ms / w.best()
}

// mean plays with many seeds. before, if not nil, returns the prior of a session.
func (w world) mean(n int, before func(seed uint64) *Planner) float64 {
	const runs = 100
	sum := 0.0
	for seed := range uint64(runs) {
		w.r = rand.New(rand.NewPCG(seed, 7))
		var prior *Planner
		if before != nil {
			prior = before(seed)
		}
		sum += w.play(NewPlanner(PlannerRule{}, tuned.Planner, prior), n) / runs
	}
	return sum
}

// learned returns a prior made from sessions over this world.
func (w world) learned(sessions, n int) func(uint64) *Planner {
	return func(seed uint64) *Planner {
		prior := NewPlanner(PlannerRule{}, tuned.Planner, nil)
		w.r = rand.New(rand.NewPCG(seed, 8))
		for range sessions {
			p := NewPlanner(PlannerRule{}, tuned.Planner, prior)
			w.play(p, n)
			p.Merge(prior)
		}
		return prior
	}
}

var (
	flat     = []float64{39, 46, 46, 46, 46}
	hostile  = world{mu: []float64{0, 0.02, 0.02, 0.02, 0.02}, ms: flat}
	friendly = world{mu: []float64{0, 0.8, 1.2, 1, 2.2}, ms: flat}
)

func TestPlannerComesNearTheBestArm(t *testing.T) {
	two := world{mu: []float64{0, 1.5}, ms: []float64{39, 46}}
	recalled, vain := friendly, hostile
	recalled.recall, vain.recall = true, true
	boaster := recalled
	boaster.mu, boaster.boasts = []float64{0, 0, 1.2, 1, 2.2}, 1
	for _, c := range []struct {
		name   string
		w      world
		rounds int
		before func(uint64) *Planner
		want   float64
	}{
		{"hostile", hostile, 128, nil, 0.975},
		{"hostile, with hindsight", vain, 128, nil, 0.965},
		{"hostile, one drafter", world{mu: []float64{0, 0.02}, ms: []float64{39, 46}}, 128, nil, 0.98},
		{"hostile, drafts cost much", world{mu: []float64{0, 0, 0}, ms: []float64{39, 66, 80}}, 128, nil, 0.975},
		{"hostile after friendly sessions", hostile, 128, friendly.learned(8, 100), 0.97},
		{"a tiny target", world{mu: []float64{0, 1, 1.2}, ms: []float64{1, 3, 3}}, 200, nil, 0.96},
		{"one drafter", two, 200, nil, 0.98},
		{"one drafter, other sessions", two, 200, two.learned(8, 100), 0.99},
		{"an expert among four", friendly, 200, nil, 0.90},
		{"an expert among four, with hindsight", recalled, 200, nil, 0.96},
		{"an expert among four, with hindsight, short", recalled, 40, nil, 0.9},
		{"one that boasts", boaster, 200, nil, 0.9},
		{"the same after others", recalled, 40, world{mu: []float64{0, 2.5, 0.8, 0.8, 0.8}, ms: flat}.learned(4, 100), 0.9},
		{"an expert among four, other sessions", friendly, 200, friendly.learned(8, 100), 0.97},
		{"friendly after hostile sessions", friendly, 200, hostile.learned(8, 100), 0.88},
	} {
		got := c.w.mean(c.rounds, c.before)
		t.Logf("%-40s %.3f of the best arm", c.name, got)
		if got < c.want {
			t.Errorf("%s: %.3f of the best arm in %d rounds, want %.3f", c.name, got, c.rounds, c.want)
		}
	}
}

// TestPlannerFindsASwitch changes which arm is best in the middle of a session.
func TestPlannerFindsASwitch(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to []float64
		want     float64 // of the best arm, over the 100 rounds from 50 after the switch on
	}{
		{"other expert", []float64{0, 2, 1, 0.8}, []float64{0, 0.8, 1, 2}, 0.85},
		{"becomes hostile", []float64{0, 2, 1, 0.8}, []float64{0, 0.02, 0.02, 0.02}, 0.96},
		{"ends being hostile", []float64{0, 0.02, 0.02, 0.02}, []float64{0, 2, 1, 0.8}, 0.8},
	} {
		const runs = 100
		sum := 0.0
		for seed := range uint64(runs) {
			w := world{r: rand.New(rand.NewPCG(seed, 9)), mu: c.from, ms: flat[:4]}
			p := NewPlanner(PlannerRule{}, tuned.Planner, nil)
			w.play(p, 120)
			w.mu = c.to
			w.play(p, 50)
			sum += w.play(p, 100) / runs
		}
		t.Logf("%-20s %.3f of the best arm", c.name, sum)
		if sum < c.want {
			t.Errorf("%s: %.3f of the best arm, want %.3f", c.name, sum, c.want)
		}
	}
}

func TestPlannerEdges(t *testing.T) {
	p := NewPlanner(PlannerRule{}, tuned.Planner, nil)
	if a, _ := p.Choose(nil); a.Drafters != nil {
		t.Errorf("without arms: %+v, want plain decoding", a)
	}
	plain, draft := Arm{Name: "plain"}, Arm{Name: "d", Drafters: []string{"d"}}
	if a, why := p.Choose([]Arm{plain, draft}); a.Name != "d" || why != ReasonLearning {
		t.Errorf("first choice is %q, %q", a.Name, why)
	}
	for _, took := range []time.Duration{-1, 0, time.Nanosecond, 10 * time.Millisecond, time.Hour} {
		p.Observe(draft, 0, took, false)
		p.Observe(draft, 1000, took, true)
		p.Observe(plain, 1, took, false)
		p.Recall(draft, 1e9, 1e9)
	}
	for _, e := range []estimate{p.estimate(plain, p.common), p.estimate(draft, p.common)} {
		if !(e.rate > 0) || math.IsInf(e.rate, 1) || math.IsNaN(e.hope) {
			t.Errorf("estimate %+v", e)
		}
	}
	p = NewPlanner(PlannerRule{}, tuned.Planner, nil)
	for range 20 {
		p.Observe(plain, 1, 10*time.Millisecond, false)
		p.Observe(draft, 2, 10*time.Millisecond, false)
	}
	p.Observe(draft, 1, 10*time.Millisecond, true) // cut off: says nothing about the drafter
	if a, why := p.Choose([]Arm{plain, draft}); a.Name != "d" || why != "best" {
		t.Errorf("chose %q, %q", a.Name, why)
	}
	if s := p.arms["d"]; s.accepted != 1 {
		t.Errorf("%v tokens accepted on average, want 1", s.accepted)
	}
	for range 20 {
		p.Witness(draft, 4)
	}
	if s := p.arms["d"]; s.accepted < 1.9 {
		t.Errorf("%v tokens accepted on average, want more after what was witnessed", s.accepted)
	}
	into := NewPlanner(PlannerRule{}, tuned.Planner, nil)
	p.Merge(into)
	p.Merge(into)
	if s := into.arms["d"]; s.n != 20 || s.accepted != 1 || math.Abs(s.seconds-0.01) > 1e-9 {
		t.Errorf("merged twice: %+v", s)
	}
}

func TestPlannerRule(t *testing.T) {
	if err := DefaultPlannerRule.Validate(); err != nil {
		t.Error(err)
	}
	for i, change := range []func(*PlannerRule){
		func(r *PlannerRule) { r.Decay = 0 }, func(r *PlannerRule) { r.Decay = math.NaN() }, func(r *PlannerRule) { r.Hysteresis = -1 },
		func(r *PlannerRule) { r.ProbeFirst = 0 }, func(r *PlannerRule) { r.ProbeMost = 1 }, func(r *PlannerRule) { r.Explore = 2 },
	} {
		r := DefaultPlannerRule
		if change(&r); !errors.Is(r.Validate(), tandem.Invalid) {
			t.Errorf("%d: %+v was accepted", i, r)
		}
	}
}

func BenchmarkPlanner(b *testing.B) {
	w := world{r: rand.New(rand.NewPCG(1, 1)), mu: []float64{0, 1, 1, 1, 1, 1, 1, 1, 1, 1}, ms: make([]float64, 10)}
	p, list := NewPlanner(PlannerRule{}, tuned.Planner, nil), w.arms()
	for b.Loop() {
		a, _ := p.Choose(list)
		p.Observe(a, 2, 10*time.Millisecond, false)
	}
}

// TestExplain: the reason and the figures of every kind of choice, in one line.
func TestExplain(t *testing.T) {
	arms := []Arm{{Name: "plain"}, {Name: "go", Drafters: []string{"go"}}, {Name: "py", Drafters: []string{"py"}}}
	shapes := map[Reason]*regexp.Regexp{
		ReasonLearning:   regexp.MustCompile(`^(plain|go|py): never tried(, perhaps [\d.]+/s; best is \S+ [\d.]+/s)?(; \S+ (never tried|[\d.]+/s))*$`),
		ReasonProbe:      regexp.MustCompile(`^(plain|go|py): [\d.]+ tokens in [\d.]+ ms = [\d.]+/s, perhaps [\d.]+/s; best is \S+ [\d.]+/s; \S+ ([\d.]+/s|never tried)$`),
		ReasonBest:       regexp.MustCompile(`^(plain|go|py): [\d.]+ tokens in [\d.]+ ms = [\d.]+/s; \S+ (never tried|[\d.]+/s); \S+ (never tried|[\d.]+/s)$`),
		ReasonHysteresis: regexp.MustCompile(`^(go|py): [\d.]+ tokens in [\d.]+ ms = [\d.]+/s; (go|py) [\d.]+/s is \+[0-2]\.\d %, less than 3 %; plain [\d.]+/s$`),
	}
	p := NewPlanner(PlannerRule{}, tuned.Planner, nil)
	if got := p.Explain(); got != "nothing to choose from" {
		t.Errorf("before the first choice: %q", got)
	}
	w := world{r: rand.New(rand.NewPCG(3, 9)), mu: []float64{0, 1.2, 1.2}, ms: []float64{40, 44, 44}}
	seen := map[Reason]string{}
	for range 2000 {
		arm, why := p.Choose(arms)
		line := p.Explain()
		if seen[why] = line; !shapes[why].MatchString(line) || !strings.HasPrefix(line, arm.Name+": ") {
			t.Fatalf("%s of %s: %q", why, arm.Name, line)
		}
		i := slices.IndexFunc(arms, func(a Arm) bool { return a.Name == arm.Name })
		tokens, took := w.round(i)
		p.Observe(arm, tokens, took, false)
	}
	for why := range shapes {
		if seen[why] == "" {
			t.Errorf("no round was chosen by %s", why)
		}
		t.Logf("%s: %s", why, seen[why])
	}
}

// voting is a world with one more arm, the last: a vote of all drafters. It takes a little longer, and shows what each
// of them would have brought.
func (w *world) voting() []Arm {
	vote := Arm{Name: "vote", Vote: tandem.VoteTree}
	list := w.arms()
	for _, a := range list[1:] {
		vote.Drafters = append(vote.Drafters, a.Drafters...)
	}
	return append(list, vote)
}

// playVoting is play with that arm.
func (w *world) playVoting(p *Planner, n int) float64 {
	const longer = 1.15
	tokens, ms := 0.0, 0.0
	list := w.voting()
	best, slowest := 0, slices.Max(w.ms)
	for i := range w.mu {
		if w.mu[i] > w.mu[best] {
			best = i
		}
	}
	for range n {
		a, _ := p.Choose(list)
		i := slices.IndexFunc(list, func(b Arm) bool { return b.Name == a.Name })
		if len(a.Drafters) < 2 {
			got, took := w.round(i)
			p.Observe(a, got, took, false)
			tokens, ms = tokens+w.tokens(i), ms+w.ms[i]
			continue
		}
		most := 0
		for d := 1; d < len(w.mu); d++ {
			got, _ := w.round(d)
			most = max(most, got)
			p.Witness(list[d], got)
		}
		p.Observe(a, most-most/4, time.Duration(longer*slowest*float64(time.Millisecond)), false) // a merged tree is cut
		tokens, ms = tokens+w.tokens(best), ms+longer*slowest
	}
	return tokens / ms / w.best()
}

// TestPlannerChangesDomain: in other sessions one drafter was the best by far; in this text another one is.
func TestPlannerChangesDomain(t *testing.T) {
	const runs = 200
	for _, c := range []struct {
		name        string
		before, now []float64
		want        float64
	}{
		{"another expert", []float64{0, 3, 0.8, 0.8}, []float64{0, 1.2, 2.2, 1}, 0.875},
		{"an expert by little", []float64{0, 3, 0.8, 0.8}, []float64{0, 1.2, 1.8, 1}, 0.875},
		{"the same expert", []float64{0, 3, 0.8, 0.8}, []float64{0, 3, 0.8, 0.8}, 0.96},
		{"hostile", []float64{0, 3, 0.8, 0.8}, []float64{0, 0.02, 0.02, 0.02}, 0.96},
	} {
		sum := 0.0
		for seed := range uint64(runs) {
			prior := NewPlanner(PlannerRule{}, tuned.Planner, nil)
			before := world{r: rand.New(rand.NewPCG(seed, 8)), mu: c.before, ms: flat[:4]}
			for range 4 {
				p := NewPlanner(PlannerRule{}, tuned.Planner, prior)
				before.playVoting(p, 40)
				p.Merge(prior)
			}
			now := world{r: rand.New(rand.NewPCG(seed, 11)), mu: c.now, ms: flat[:4]}
			sum += now.playVoting(NewPlanner(PlannerRule{}, tuned.Planner, prior), 60) / runs
		}
		t.Logf("%-20s %.3f of the best arm", c.name, sum)
		if sum < c.want {
			t.Errorf("%s: %.3f of the best arm, want %.3f", c.name, sum, c.want)
		}
	}
}

// TestPrices: an arm that was never timed is expected to take as long as the others and what its drafting costs beyond theirs; a small
// difference does not count.
func TestPrices(t *testing.T) {
	for _, tc := range []struct {
		price time.Duration
		want  float64 // ms
	}{{0, 40}, {3 * time.Millisecond, 40}, {2*time.Millisecond + 62*time.Millisecond, 100}} {
		p := NewPlanner(PlannerRule{}, tuned.Planner, nil)
		plain, cheap := Arm{Name: "plain"}, Arm{Name: "cheap", Drafters: []string{"cheap"}, Price: 2 * time.Millisecond}
		other := Arm{Name: "other", Drafters: []string{"other"}, Price: tc.price}
		for range 20 {
			p.Observe(cheap, 3, 40*time.Millisecond, false)
			p.Observe(plain, 1, 30*time.Millisecond, false)
		}
		p.Recall(cheap, 2, 20)
		p.Recall(other, 3, 20) // it knows more
		arms := []Arm{plain, cheap, other}
		got := p.estimate(other, p.pool(arms))
		if math.Abs(1000*got.seconds-tc.want) > 0.2 || !got.known {
			t.Errorf("with price %v it takes %.2f ms: want %v", tc.price, 1000*got.seconds, tc.want)
		}
		arm, _ := p.Choose(arms)
		if dear := tc.want > 50; (arm.Name == "other") == dear {
			t.Errorf("with price %v the choice is %s", tc.price, arm.Name)
		}
	}
}

// TestGain: what a drafter brings is the best way with it against the best without. Plain decoding counts; what nobody has tried does not.
func TestGain(t *testing.T) {
	p := NewPlanner(PlannerRule{}, tuned.Planner, nil)
	plain, a, ab, c := Arm{Name: "plain"}, Arm{Name: "a", Drafters: []string{"a"}}, Arm{Name: "ab", Drafters: []string{"a", "b"}},
		Arm{Name: "c", Drafters: []string{"c"}}
	for range 200 {
		p.Observe(plain, 1, 40*time.Millisecond, false)
		p.Observe(a, 3, 60*time.Millisecond, false)  // 50/s
		p.Observe(ab, 4, 64*time.Millisecond, false) // 62.5/s
	}
	p.Choose([]Arm{plain, a, ab, c})
	for drafter, want := range map[string]float64{"a": 62.5/25 - 1, "b": 62.5/50 - 1} {
		if got, known := p.Gain(drafter); !known || math.Abs(got-want) > 0.1 {
			t.Errorf("%s brings %.2f, %v: want %.2f", drafter, got, known, want)
		}
	}
	if got, known := p.Gain("c"); known {
		t.Errorf("c, which was never tried, brings %v", got)
	}
	p.Choose([]Arm{ab})
	if got, known := p.Gain("a"); known {
		t.Errorf("a brings %v beside nothing else", got)
	}
	p.Choose([]Arm{plain, a, ab})
	p.Observe(ab, 1, 400*time.Millisecond, false)
	for range 100 {
		p.Observe(ab, 1, 80*time.Millisecond, false)
	}
	p.Choose([]Arm{a, ab})
	if got, known := p.Gain("b"); !known || got > -0.3 {
		t.Errorf("b, which has become worse than nothing, brings %v, %v", got, known)
	}
}
