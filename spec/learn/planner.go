package learn

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
)

// Arm is one way to spend a round. Its name is its identity.
type Arm struct {
	Name     string
	Drafters []string // nil: plain decoding
	Vote     tandem.Vote
	Ahead    bool
}

// PlannerRule holds the planner's constants.
type PlannerRule struct {
	Decay      float64 // weight of a new round in an arm's running means, once it has had 1/Decay
	Hysteresis float64 // share by which an arm must be better to replace the one in use
	ProbeFirst int     // rounds until an arm that lost may be probed again; doubled with every loss
	ProbeMost  int     // up to this many
	Explore    float64 // share of the time that probes may cost, besides a round at the start
}

// DefaultPlannerRule keeps what probes cost near 1 % of the time: a text that no drafter can guess must
// still be written at 0.97 of the speed of plain decoding.
var DefaultPlannerRule = PlannerRule{Decay: 0.04, Hysteresis: 0.03, ProbeFirst: 3, ProbeMost: 64, Explore: 0.01}

// Validate returns Invalid for a rule that has no meaning.
func (r PlannerRule) Validate() error {
	const op = "planner"
	switch {
	case !(r.Decay > 0 && r.Decay <= 1):
		return tandem.Errorf(op, tandem.Invalid, "decay is %v: want more than 0 and at most 1", r.Decay)
	case !(r.Hysteresis >= 0 && r.Hysteresis < 1):
		return tandem.Errorf(op, tandem.Invalid, "hysteresis is %v: want 0 or more and less than 1", r.Hysteresis)
	case r.ProbeFirst < 1 || r.ProbeMost < r.ProbeFirst:
		return tandem.Errorf(op, tandem.Invalid, "probes after %d to %d rounds: want at least 1, the first at most the second", r.ProbeFirst, r.ProbeMost)
	case !(r.Explore >= 0 && r.Explore <= 1):
		return tandem.Errorf(op, tandem.Invalid, "probes may cost a share of %v: want 0 to 1", r.Explore)
	}
	return nil
}

const (
	// plannerGuess is how many accepted tokens a round of an arm is thought to bring of which nothing is known.
	plannerGuess = 1.0
	// plannerPrior is how many rounds the experience of other sessions counts for, at most.
	plannerPrior = 3
	// plannerPriorTime is the same for times.
	plannerPriorTime = 1
	// plannerLeast is the least that experience may say of accepted tokens, so that it is put to the test.
	plannerLeast = 0.5
	// plannerSlowest is the most that experience may say of the time of a round, in plain rounds, for the same reason: the machine
	// may have been busy with something else when it was gathered.
	plannerSlowest = 2.5
	// plannerStale is the number of rounds in which half of what is known of an arm becomes doubtful.
	plannerStale = 40
	// plannerHope is the share of the shortest known round that a plain one of unknown length might take.
	plannerHope = 0.3
	// plannerStart and plannerSave bound, in rounds of the arm in use, what probes may cost at the start, and at
	// once later on.
	plannerStart, plannerSave = 0.6, 3
	// plannerYoung is within how many rounds a session puts all drafters to the test together.
	plannerYoung = 6
	// plannerAlike is how many rounds the mean time of all arms with a draft counts for in that of each that has one drafter.
	plannerAlike = 6
	// plannerRecall is how many rounds of accepted tokens a hindsight is worth at most, and plannerPaired how much better it tells
	// arms apart than rounds do, because it is of the same text for all.
	plannerRecall, plannerPaired = 24, 50
	// plannerOwn and plannerCommon are the tokens that must have been foretold until what an arm brought against its hindsight
	// counts as much as what all did, and that as much as hindsight alone.
	plannerOwn, plannerCommon = 60, 5
	// plannerLow and plannerHigh bound what all arms bring against hindsight.
	plannerLow, plannerHigh = 0.5, 3
	// plannerGain is how much more may be spent on the choice between arms with a draft: there it pays.
	plannerGain = 2.5
	// plannerJitter is the relative standard error of the time of one round.
	plannerJitter = 0.25
	// plannerDrift is the weight of a round in what all arms' times have in common.
	plannerDrift = 0.05
	// plannerTextFade is what a round counts for in the judgement of the text after the next one.
	plannerTextFade = 0.95
)

// Planner chooses, round by round, the arm with the most expected tokens per time. Plain decoding is an arm
// like any other, so that speculation is never worse than that by more than its probes. Not safe for
// concurrent use.
//
// What is expected of an arm is the running mean of its tokens over the running mean of its times: the mean of
// their ratios would favour arms that vary. Besides:
//
//  1. Tokens accepted in a round are about geometrically distributed: their variance is μ(1+μ). So the
//     standard error of an arm's mean is known from its mean and the number of its rounds; rounds long past
//     count less. An arm is worth a probe if its mean plus one standard error beats the best mean.
//  2. A probe must be affordable. Its expected loss against the best arm is paid from a credit that grows by
//     Explore of the time; and after each lost probe an arm waits twice as long. What looks as good as the best
//     costs nothing and is tried at once, and when the best arm falls far behind what it was all waiting ends.
//  3. Arms have the text in common: what was accepted so far, against what was expected of the arms that were
//     tried, scales what is expected of the others. Where one drafter knows nothing, the next will hardly.
//  4. Rounds have the machine in common: when rounds of one arm become longer (another session shares the pass,
//     memory is slower, the context grew), those of the others are expected to.
//  5. The experience of other sessions counts for a few rounds, no more: a text that differs overrules it.
//  6. Where drafters say what they would have guessed of the text so far (Recall), that decides between them, scaled by what rounds
//     brought against it: all arms' for the most part, a little each arm's own. Where they do not, a young session
//     puts all to the test together once, which shows what each of them is worth.
type Planner struct {
	rule  PlannerRule
	arms  map[string]*armState
	inUse string // the best arm when last chosen

	rounds, drafted    int // and the latest with a draft
	surveyed           bool
	choice             choice  // the latest
	common             pool    // of it
	credit             float64 // what probes may still cost, in rounds of the arm in use
	level              float64 // of all times, relative to those kept in the arms
	accepted, expected float64 // decayed sums over rounds with a draft
	all                scale   // of all arms
}

type armState struct {
	plain, several bool // no drafter, more than one

	n, accepted     float64 // rounds that count, mean accepted tokens of a round
	lately          float64 // the same of the latest few
	timed, seconds  float64 // the same for its time, divided by level
	guessN, guess   float64 // what was known of accepted tokens before
	recalled        float64 // rounds that hindsight is of, and their accepted tokens
	hindsight       float64
	own             scale   // of this arm
	last            int     // round in which it was observed last; rounds are counted from 1
	wait, due       int     // back-off: rounds to wait after the next lost probe, first round of another one
	against         float64 // best rate when it lost
	rounds          int     // since the session began or was merged, and their sums
	tokens, elapsed float64
}

// NewPlanner returns a planner that starts from what prior has learned; prior may be nil and is not kept. A
// zero rule means DefaultPlannerRule; r must be valid. The prior of a whole gateway is a Planner that sessions
// are merged into at their ends; it can be told the time of a plain round, once measured, by Observe.
func NewPlanner(r PlannerRule, prior *Planner) *Planner {
	if r == (PlannerRule{}) {
		r = DefaultPlannerRule
	}
	p := &Planner{rule: r, arms: map[string]*armState{}, credit: plannerStart, level: 1}
	if prior != nil {
		most := math.Inf(1)
		for _, s := range prior.arms {
			if s.plain && s.timed > 0 {
				most = plannerSlowest * s.seconds
			}
		}
		for name, s := range prior.arms {
			a := &armState{plain: s.plain, several: s.several, guessN: 1, guess: plannerGuess, timed: min(s.timed, plannerPriorTime), seconds: min(s.seconds, most) * prior.level}
			if s.n > 0 {
				a.guessN, a.guess = min(s.n, plannerPrior), max(s.accepted, plannerLeast)
			}
			p.arms[name] = a
		}
		p.all = prior.all.atMost(plannerPrior)
	}
	return p
}

// Reason says what kind of choice was made.
type Reason string

const (
	ReasonBest       Reason = "best"       // the most expected tokens per time
	ReasonHysteresis Reason = "hysteresis" // the one in use: another is better, but by too little to change
	ReasonProbe      Reason = "probe"      // one that may have become better than the best
	ReasonLearning   Reason = "learning"   // one that no session has tried
)

// choice is what Choose decided by.
type choice struct {
	arms      []Arm
	estimates []estimate // of arms, in their order
	taken     int
	best      int // the arm in use; taken is another if it is put to the test
	first     int // the one with the best rate
	reason    Reason
}

// Choose returns the arm for the next round and why; Explain has the figures. Of equals it takes the earliest; with
// no arms it returns the zero Arm, which is plain decoding.
func (p *Planner) Choose(arms []Arm) (arm Arm, why Reason) {
	if len(arms) == 0 {
		p.choice = choice{reason: ReasonBest}
		return Arm{}, ReasonBest
	}
	p.common = p.pool(arms)
	estimates := slices.Grow(p.choice.estimates[:0], len(arms))[:len(arms)]
	best, inUse := 0, -1
	for i, a := range arms {
		estimates[i] = p.estimate(a, p.common)
		if e := estimates[i]; e.known != estimates[best].known && e.known || e.known == estimates[best].known && e.rate > estimates[best].rate {
			best = i
		}
		if a.Name == p.inUse {
			inUse = i
		}
	}
	first := best
	plain := arms[best].Drafters == nil // has no luck to be mistaken about
	if inUse >= 0 && estimates[inUse].known && !plain && estimates[best].rate <= estimates[inUse].rate*(1+p.rule.Hysteresis) {
		best = inUse
	}
	p.inUse = arms[best].Name
	top := estimates[best]
	probe := -1
	for i, a := range arms {
		if e := estimates[i]; top.known && i != best && e.hope > top.rate*(1+p.rule.Hysteresis) && (probe < 0 || e.hope > estimates[probe].hope) &&
			p.due(a, top.rate) && (e.loss(top) <= p.credit || a.Drafters == nil) {
			if probe = i; a.Drafters == nil {
				break
			}
		}
	}
	taken := best
	if s := p.survey(arms, estimates, top); s >= 0 {
		probe = s
	}
	if probe >= 0 {
		taken = probe
	}
	switch s := p.arms[arms[taken].Name]; {
	case s == nil || s.timed == 0:
		why = ReasonLearning
	case probe >= 0:
		why = ReasonProbe
	case best != first:
		why = ReasonHysteresis
	default:
		why = ReasonBest
	}
	p.choice = choice{arms: arms, estimates: estimates, taken: taken, best: best, first: first, reason: why}
	return arms[taken], why
}

// survey returns the arm that shows what all drafters are worth, if a session is so young that it should know and the
// round is affordable; else -1. Other sessions may have been about something else.
func (p *Planner) survey(arms []Arm, estimates []estimate, top estimate) int {
	if p.surveyed || p.rounds >= plannerYoung || !top.known {
		return -1
	}
	for i, a := range arms {
		if len(a.Drafters) > 1 && a.Name != p.inUse && estimates[i].loss(top) <= p.credit {
			p.surveyed = true
			return i
		}
	}
	return -1
}

// Explain words the latest choice with the figures that decided: tokens, time and rate of the arm that was taken,
// and the rates of the others.
func (p *Planner) Explain() string {
	c := p.choice
	if len(c.arms) == 0 {
		return "nothing to choose from"
	}
	var out strings.Builder
	name, e, best := c.arms[c.taken].Name, c.estimates[c.taken], c.estimates[c.best].rate
	switch {
	case !e.known:
		fmt.Fprintf(&out, "%s: never tried", name)
	default:
		fmt.Fprintf(&out, "%s: %.2f tokens in %s = %.3g/s", name, e.tokens, millis(e.seconds), e.rate)
	}
	told := c.taken
	switch {
	case c.taken != c.best:
		fmt.Fprintf(&out, ", perhaps %.3g/s; best is %s %.3g/s", e.hope, c.arms[c.best].Name, best)
		told = c.best
	case c.reason == ReasonHysteresis:
		fmt.Fprintf(&out, "; %s %.3g/s is +%.1f %%, less than %.3g %%", c.arms[c.first].Name, c.estimates[c.first].rate,
			math.Floor(1000*(c.estimates[c.first].rate/best-1))/10, 100*p.rule.Hysteresis) // not rounded up to what it is less than
		told = c.first
	}
	for i, a := range c.arms {
		switch o := c.estimates[i]; {
		case i == c.taken || i == told:
		case o.known:
			fmt.Fprintf(&out, "; %s %.3g/s", a.Name, o.rate)
		default:
			fmt.Fprintf(&out, "; %s never tried", a.Name)
		}
	}
	return out.String()
}

// millis words a time with three digits.
func millis(seconds float64) string { return fmt.Sprintf("%.3g ms", 1000*seconds) }

// due reports whether an arm's waiting is over.
func (p *Planner) due(a Arm, bestRate float64) bool {
	s := p.arms[a.Name]
	return s == nil || p.rounds >= s.due || bestRate < 0.75*s.against
}

// Observe takes a round of that arm: tokens committed, the target's own included, and its time from one commit
// to the next. atEnd: the text or its budget ended within the round, so that the tokens say nothing about the
// arm; its time does.
func (p *Planner) Observe(arm Arm, tokens int, round time.Duration, atEnd bool) {
	s := p.state(arm)
	fresh := math.Exp2(-float64(p.rounds-s.last) / plannerStale)
	if s.last == 0 {
		fresh = 1
	}
	p.rounds++
	s.last = p.rounds
	if round > 0 {
		p.time(s, round.Seconds())
	}
	if !atEnd && !s.plain {
		x := float64(tokens - 1)
		p.drafted = p.rounds
		p.accepted, p.expected = p.accepted*plannerTextFade+max(x, 0), p.expected*plannerTextFade+s.guess
		if s.recalled > 0 {
			s.own.take(max(x, 0), s.hindsight)
			p.all.take(max(x, 0), s.hindsight)
		}
		s.n *= fresh
		s.take(x, p.rule.Decay)
	}
	if !atEnd && round > 0 {
		s.rounds, s.tokens, s.elapsed = s.rounds+1, s.tokens+float64(tokens), s.elapsed+round.Seconds()
	}
	p.settle(arm, float64(tokens)/max(round.Seconds(), 1e-9))
}

// Recall takes how many tokens would have been accepted in the mean of rounds of chains by the arm's drafters on the latest text
// (spec.Foretold), whether or not the arm was used: that says far more than the tokens of single rounds, which are mostly luck.
// What trees bring beyond chains, or less, corrects it. It must be of the same text for all arms.
func (p *Planner) Recall(arm Arm, accepted, rounds float64) {
	s := p.state(arm)
	s.hindsight, s.recalled = accepted, min(rounds, plannerRecall)
	p.surveyed = p.surveyed || rounds > 0 // all drafters have been put to the test by this
}

// Witness takes the tokens that an arm would have brought in the last round although another was used: its
// drafter had drafted, for a vote perhaps, and its tree held all of them but the last (see spec.Held).
func (p *Planner) Witness(arm Arm, tokens int) {
	if s := p.state(arm); !s.plain {
		s.last = max(p.rounds, 1)
		s.take(float64(tokens-1), p.rule.Decay)
	}
}

// newArm returns what is known of an arm of which nothing is known.
func newArm(arm Arm) *armState {
	return &armState{plain: arm.Drafters == nil, several: len(arm.Drafters) > 1, guessN: 1, guess: plannerGuess}
}

func (p *Planner) state(arm Arm) *armState {
	s := p.arms[arm.Name]
	if s == nil {
		s = newArm(arm)
		p.arms[arm.Name] = s
	}
	return s
}

// take takes accepted tokens into the running mean. If the latest rounds differ from it by two standard errors
// the text has changed: then what came before hardly counts any more.
func (s *armState) take(x, decay float64) {
	const quick = 0.2 // weight of a round among the latest
	s.n = min(s.n+1, 1/decay)
	s.accepted += (x - s.accepted) / s.n
	s.lately += (x - s.lately) * max(quick, 1/s.n)
	mu := max(s.accepted, 0.05)
	if math.Abs(s.lately-mu) > 2*math.Sqrt(mu*(1+mu)*quick/(2-quick)) {
		s.n, s.accepted = min(s.n, 1/quick), s.lately
	}
}

// time takes the time of a round into the arm's mean and into what all have in common.
func (p *Planner) time(s *armState, seconds float64) {
	const outlier = 3
	if s.timed >= 2 {
		off := min(max(seconds/(s.seconds*p.level), 1.0/outlier), outlier)
		seconds = off * s.seconds * p.level
		p.level *= math.Pow(off, plannerDrift)
	}
	s.timed = min(s.timed+1, 1/p.rule.Decay)
	s.seconds += (seconds/p.level - s.seconds) / s.timed
}

// settle pays for the round of an arm that is not the best and sets when it may be probed again.
func (p *Planner) settle(arm Arm, rate float64) {
	explore := p.rule.Explore
	if best := p.arms[p.inUse]; best != nil && !best.plain {
		explore *= plannerGain
	}
	p.credit = min(p.credit+explore, plannerSave)
	s := p.arms[arm.Name]
	if arm.Name == p.inUse || p.arms[p.inUse] == nil || p.arms[p.inUse].timed == 0 {
		s.wait, s.due = 0, 0
		return
	}
	top, e := p.estimate(Arm{Name: p.inUse}, p.common), p.estimate(arm, p.common)
	p.credit -= e.loss(top)
	if rate > top.rate || e.rate > top.rate { // promising: look again
		s.wait, s.due = 0, 0
		return
	}
	s.wait = min(max(2*s.wait, p.rule.ProbeFirst), p.rule.ProbeMost)
	s.due, s.against = p.rounds+s.wait, top.rate
}

// Merge folds what this planner's own session has shown into another, such as the prior of later ones; a
// second call adds only what has come since.
func (p *Planner) Merge(into *Planner) {
	const most, recent = 100, 30 // rounds that the past counts for; for times, which vary little and change with the machine's load
	into.all.take(p.all.came, p.all.foretold)
	into.all = into.all.atMost(most)
	for name, s := range p.arms {
		if s.rounds == 0 {
			continue
		}
		to := into.arms[name]
		if to == nil {
			to = &armState{plain: s.plain, several: s.several, guessN: 1, guess: plannerGuess}
			into.arms[name] = to
		}
		n := float64(s.rounds)
		to.timed = min(to.timed+n, recent)
		to.seconds += (s.elapsed/n/into.level - to.seconds) * min(n/to.timed, 1)
		to.n = min(to.n+n, most)
		to.accepted += (s.tokens/n - 1 - to.accepted) * min(n/to.n, 1)
		s.rounds, s.tokens, s.elapsed = 0, 0, 0
	}
}
