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

// tokensOf is a round that brought so many tokens.
func tokensOf(n int) Shape { return Shape{Accepted: float64(n - 1)} }

const drafted = 7 // depth of the drafts of a world

// round draws the tokens of a round, which are geometric.
func (w *world) round(arm int) (tokens int) {
	tokens = 1
	if p := w.mu[arm] / (1 + w.mu[arm]); arm > 0 {
		for tokens <= drafted && w.r.Float64() < p {
			tokens++
		}
	}
	return tokens
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
	list := []Arm{{Name: "plain", Time: w.time(0)}}
	for i := 1; i < len(w.mu); i++ {
		list = append(list, Arm{Name: fmt.Sprint("arm ", i), Drafters: []string{fmt.Sprint(i)}, Time: w.time(i)})
	}
	return list
}

func (w *world) time(arm int) time.Duration {
	return time.Duration(w.ms[arm] * float64(time.Millisecond))
}

// play lets p choose for n rounds and returns its tokens per millisecond, as a share of the best arm's. The luck of the
// draws changes its choices, but the rates are expected ones.
func (w *world) play(p *Planner, n int) float64 {
	tokens, ms := 0.0, 0.0
	list := w.arms()
	for range n {
		a, _ := p.Choose(list, 0)
		i := 0
		for list[i].Name != a.Name {
			i++
		}
		got := w.round(i)
		if w.recall {
			w.said(p, got)
		}
		p.Observe(a, tokensOf(got), false)
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
		{"hostile", hostile, 128, nil, 0.97},
		{"hostile, with hindsight", vain, 128, nil, 0.965},
		{"hostile, one drafter", world{mu: []float64{0, 0.02}, ms: []float64{39, 46}}, 128, nil, 0.975},
		{"hostile, drafts cost much", world{mu: []float64{0, 0, 0}, ms: []float64{39, 66, 80}}, 128, nil, 0.965},
		{"hostile after friendly sessions", hostile, 128, friendly.learned(8, 100), 0.96},
		{"a tiny target", world{mu: []float64{0, 1, 1.2}, ms: []float64{1, 3, 3}}, 200, nil, 0.96},
		{"one drafter", two, 200, nil, 0.98},
		{"one drafter, other sessions", two, 200, two.learned(8, 100), 0.99},
		{"an expert among four", friendly, 200, nil, 0.89},
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
		{"becomes hostile", []float64{0, 2, 1, 0.8}, []float64{0, 0.02, 0.02, 0.02}, 0.955},
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
	if a, _ := p.Choose(nil, 0); a.Drafters != nil {
		t.Errorf("without arms: %+v, want plain decoding", a)
	}
	if e := p.Best(); e != (Estimate{}) {
		t.Errorf("without arms %+v is expected", e)
	}
	plain, draft := Arm{Name: "plain"}, Arm{Name: "d", Drafters: []string{"d"}}
	if a, why := p.Choose([]Arm{plain, draft}, 0); a.Name != "d" || why != ReasonLearning {
		t.Errorf("first choice is %q, %q", a.Name, why)
	}
	for _, took := range []time.Duration{-1, 0, time.Nanosecond, 10 * time.Millisecond, time.Hour} {
		plain.Time, draft.Time, draft.Least, draft.Once = took, took, took, took
		p.Choose([]Arm{plain, draft}, 0)
		p.Observe(draft, tokensOf(0), false)
		p.Observe(draft, tokensOf(1000), true)
		p.Observe(plain, tokensOf(1), false)
		p.Recall(draft, 1e9, 1e9)
		for _, e := range []Estimate{p.Estimate(plain), p.Estimate(draft)} {
			if !(e.Rate > 0) || math.IsInf(e.Rate, 1) || math.IsNaN(e.Hope) {
				t.Errorf("rounds of %v: estimate %+v", took, e)
			}
		}
	}
	p = NewPlanner(PlannerRule{}, tuned.Planner, nil)
	for range 20 {
		p.Observe(plain, tokensOf(1), false)
		p.Observe(draft, tokensOf(2), false)
	}
	p.Observe(draft, tokensOf(1), true) // cut off: says nothing about the drafter
	if a, why := p.Choose([]Arm{plain, draft}, 0); a.Name != "d" || why != "best" {
		t.Errorf("chose %q, %q", a.Name, why)
	}
	if s := p.sets["d"]; s.mean.Accepted != 1 {
		t.Errorf("%v tokens accepted on average, want 1", s.mean.Accepted)
	}
	for range 20 {
		p.Witness(draft, tokensOf(4))
	}
	if s := p.sets["d"]; s.mean.Accepted < 1.9 {
		t.Errorf("%v tokens accepted on average, want more after what was witnessed", s.mean.Accepted)
	}
	into := NewPlanner(PlannerRule{}, tuned.Planner, nil)
	p.Merge(into)
	p.Merge(into)
	if s := into.sets["d"]; s.n != 20 || s.mean.Accepted != 1 {
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
	w := world{r: rand.New(rand.NewPCG(1, 1)), mu: []float64{0, 1, 1, 1, 1, 1, 1, 1, 1, 1},
		ms: []float64{9, 10, 10, 10, 10, 10, 10, 10, 10, 10}}
	p, list := NewPlanner(PlannerRule{}, tuned.Planner, nil), w.arms()
	for b.Loop() {
		a, _ := p.Choose(list, 0)
		p.Observe(a, tokensOf(2), false)
	}
}

// TestExplain: the reason and the figures of every kind of choice, in one line.
func TestExplain(t *testing.T) {
	arms := []Arm{{Name: "plain", Time: 40 * time.Millisecond}, {Name: "go", Drafters: []string{"go"}, Time: 44 * time.Millisecond},
		{Name: "py", Drafters: []string{"py"}, Time: 44 * time.Millisecond}}
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
		arm, why := p.Choose(arms, 0)
		line := p.Explain()
		if seen[why] = line; !shapes[why].MatchString(line) || !strings.HasPrefix(line, arm.Name+": ") {
			t.Fatalf("%s of %s: %q", why, arm.Name, line)
		}
		i := slices.IndexFunc(arms, func(a Arm) bool { return a.Name == arm.Name })
		p.Observe(arm, tokensOf(w.round(i)), false)
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
	vote := Arm{Name: "vote", Vote: tandem.VoteTree, Time: time.Duration(longer * slices.Max(w.ms) * float64(time.Millisecond))}
	list := w.arms()
	for _, a := range list[1:] {
		vote.Drafters = append(vote.Drafters, a.Drafters...)
	}
	return append(list, vote)
}

// longer is how much longer a round of that arm takes than the slowest other.
const longer = 1.15

// playVoting is play with that arm.
func (w *world) playVoting(p *Planner, n int) float64 {
	tokens, ms := 0.0, 0.0
	list := w.voting()
	best, slowest := 0, slices.Max(w.ms)
	for i := range w.mu {
		if w.mu[i] > w.mu[best] {
			best = i
		}
	}
	for range n {
		a, _ := p.Choose(list, 0)
		i := slices.IndexFunc(list, func(b Arm) bool { return b.Name == a.Name })
		if len(a.Drafters) < 2 {
			p.Observe(a, tokensOf(w.round(i)), false)
			tokens, ms = tokens+w.tokens(i), ms+w.ms[i]
			continue
		}
		most := 0
		for d := 1; d < len(w.mu); d++ {
			got := w.round(d)
			most = max(most, got)
			p.Witness(list[d], tokensOf(got))
		}
		p.Observe(a, tokensOf(most-most/4), false) // a merged tree is cut
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
		{"another expert", []float64{0, 3, 0.8, 0.8}, []float64{0, 1.2, 2.2, 1}, 0.83},
		{"an expert by little", []float64{0, 3, 0.8, 0.8}, []float64{0, 1.2, 1.8, 1}, 0.85},
		{"the same expert", []float64{0, 3, 0.8, 0.8}, []float64{0, 3, 0.8, 0.8}, 0.96},
		{"hostile", []float64{0, 3, 0.8, 0.8}, []float64{0, 0.02, 0.02, 0.02}, 0.945},
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

// TestOthers: what a longer round costs others counts. A draft that pays alone does not where the same pass serves seven more texts.
func TestOthers(t *testing.T) {
	plain, draft := Arm{Name: "plain", Time: 40 * time.Millisecond}, Arm{Name: "d", Drafters: []string{"d"}, Time: 60 * time.Millisecond}
	for others, want := range map[float64]string{0: "d", 7: "plain"} {
		p := NewPlanner(PlannerRule{}, tuned.Planner, nil)
		for range 30 {
			p.Observe(draft, tokensOf(3), false)
		}
		arms := []Arm{plain, draft}
		p.Choose(arms, others)
		if got, _ := p.Choose(arms, others); got.Name != want {
			t.Errorf("beside %v tokens of others the choice is %s: want %s", others, got.Name, want)
		}
	}
}

// TestOnce: what a drafter must read first is paid from the credit for probes.
func TestOnce(t *testing.T) {
	for once, want := range map[time.Duration]Reason{0: ReasonProbe, 200 * time.Millisecond: ReasonBest} {
		p := NewPlanner(PlannerRule{}, tuned.Planner, nil)
		arms := []Arm{{Name: "plain", Time: 40 * time.Millisecond},
			{Name: "d", Drafters: []string{"d"}, Time: 70 * time.Millisecond, Once: once}}
		p.Observe(arms[1], tokensOf(2), false)
		p.Observe(arms[1], tokensOf(1), false)
		if got, why := p.Choose(arms, 0); why != want {
			t.Errorf("with %v to read first the choice is %s, %s: want %s", once, got.Name, why, want)
		}
	}
}

// TestAheadIsProbedForSeveralRounds: what was drafted ahead is of use in the round after.
func TestAheadIsProbedForSeveralRounds(t *testing.T) {
	p := NewPlanner(PlannerRule{}, tuned.Planner, nil)
	arms := []Arm{{Name: "plain", Time: 40 * time.Millisecond}, {Name: "d", Drafters: []string{"d"}, Set: "d", Time: 60 * time.Millisecond},
		{Name: "d ahead", Drafters: []string{"d"}, Set: "d", Ahead: true, Time: 60 * time.Millisecond, Least: 42 * time.Millisecond}}
	for range 20 {
		p.Observe(arms[1], tokensOf(3), false)
	}
	for i := range tuned.Planner.AheadProbe {
		got, why := p.Choose(arms, 0)
		if got.Name != "d ahead" || why != ReasonProbe {
			t.Errorf("round %d is %s, %s: want a probe of d ahead", i, got.Name, why)
		}
		p.Observe(got, tokensOf(3), false)
	}
	if s := p.sets["d"]; s.n != float64(20+tuned.Planner.AheadProbe) {
		t.Errorf("%v rounds are known of d: both ways have the same tokens", s.n)
	}
}
