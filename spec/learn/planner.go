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
	// Price is what its drafting adds to a round, as far as that is known without it: of an arm that was timed little, and of the mean of
	// all arms. 0: unknown.
	Price time.Duration
}

// PlannerRule holds the planner's constants.
type PlannerRule struct {
	Decay      float64 // weight of a new round in an arm's running means, once the arm has had 1/Decay rounds
	Hysteresis float64 // share by which an arm must be better to replace the one in use
	ProbeFirst int     // rounds until an arm that lost may be probed again; doubled with every loss
	ProbeMost  int     // up to this many
	Explore    float64 // share of the time that probes may cost, beside a credit at the start
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
		return tandem.Errorf(op, tandem.Invalid, "probes after %d to %d rounds: want at least 1, the first at most the second",
			r.ProbeFirst, r.ProbeMost)
	case !(r.Explore >= 0 && r.Explore <= 1):
		return tandem.Errorf(op, tandem.Invalid, "probes may cost a share of %v: want 0 to 1", r.Explore)
	}
	return nil
}

// Planner chooses, round by round, the arm with the most expected tokens per time. Plain decoding is an arm
// like any other, so speculation never loses more than the cost of its probes. Not safe for
// concurrent use.
//
// The expected rate of an arm is the running mean of its tokens over the running mean of its times: the mean of
// their ratios would favour arms that vary. Besides:
//
//  1. Tokens accepted in a round are about geometrically distributed: their variance is μ(1+μ). So the
//     standard error of an arm's mean is known from its mean and the number of its rounds; rounds long past
//     count less. An arm is worth a probe if its mean plus one standard error beats the best mean.
//  2. A probe must be affordable. Its expected loss against the best arm is paid from a credit that grows by
//     Explore of the time; and after each lost probe an arm waits twice as long. An arm that looks as good as the best
//     costs nothing and is tried at once, and when the best arm becomes much worse all waiting ends.
//  3. Arms have the text in common: the accepted tokens so far, relative to what was expected of the arms that were
//     tried, scale what is expected of the others. A text that one drafter cannot guess is hard for the others too.
//  4. Rounds have the machine in common: when rounds of one arm become longer (another session shares the pass,
//     memory is slower, the context grew), those of the others are expected to.
//     What is foreseen of an arm by its parts (Foresee) shows sooner that it may have become better.
//  5. The experience of other sessions counts for a few rounds, no more: a text that differs overrules it.
//  6. If drafters report what they would have guessed of the text so far (Recall), that decides between them, scaled by the
//     ratio of accepted to foretold tokens: mostly that of all arms, a little each arm's own. Otherwise a young session
//     tests all of them together once, which shows the worth of each.
type Planner struct {
	rule  PlannerRule
	t     PlannerTuning
	arms  map[string]*armState
	inUse string // the best arm when last chosen

	rounds, drafted    int // rounds so far, and the latest with a draft
	surveyed           bool
	choice             choice  // the latest
	common             pool    // of the latest choice
	credit             float64 // what probes may still cost, in rounds of the arm in use
	level              float64 // of all times, relative to those kept in the arms
	accepted, expected float64 // decayed sums over rounds with a draft
	all                scale   // of all arms
}

type armState struct {
	plain, several bool // no drafter, more than one

	n, accepted     float64 // rounds that count, mean accepted tokens of a round
	lately          float64 // mean accepted tokens of the latest few rounds
	timed, seconds  float64 // rounds that count for the time, mean time of a round, divided by level
	foreseen        float64 // time of a round by its parts; 0: not known
	guessN, guess   float64 // as n and accepted, from experience before the session
	recalled        float64 // rounds behind the hindsight, and their accepted tokens
	hindsight       float64
	own             scale   // of this arm
	last            int     // round in which it was observed last; rounds are counted from 1
	wait, due       int     // back-off: rounds to wait after the next lost probe, first round of another one
	against         float64 // the best arm's rate when this arm lost
	rounds          int     // since the session began or was merged, and their sums
	tokens, elapsed float64
}

// NewPlanner returns a planner that starts from what prior has learned; prior may be nil and is not kept. A
// zero rule means DefaultPlannerRule; r must be valid. The prior of a whole gateway is a Planner into which each
// session is merged when it ends; Observe can tell it a measured time of a plain round.
func NewPlanner(r PlannerRule, t PlannerTuning, prior *Planner) *Planner {
	if r == (PlannerRule{}) {
		r = DefaultPlannerRule
	}
	p := &Planner{rule: r, t: t, arms: map[string]*armState{}, credit: t.Start, level: 1}
	if prior != nil {
		most := math.Inf(1)
		for _, s := range prior.arms {
			if s.plain && s.timed > 0 {
				most = t.Slowest * s.seconds
			}
		}
		for name, s := range prior.arms {
			a := &armState{plain: s.plain, several: s.several, guessN: 1, guess: t.Guess, timed: min(s.timed, t.PriorTime),
				seconds: min(s.seconds, most) * prior.level}
			if s.n > 0 {
				a.guessN, a.guess = min(s.n, t.Prior), max(s.accepted, t.Least)
			}
			p.arms[name] = a
		}
		p.all = prior.all.atMost(t.Prior)
	}
	return p
}

// Reason names the kind of a choice.
type Reason string

const (
	ReasonBest       Reason = "best"       // the most expected tokens per time
	ReasonHysteresis Reason = "hysteresis" // the one in use: another is better, but by too little to change
	ReasonProbe      Reason = "probe"      // one that may have become better than the best
	ReasonLearning   Reason = "learning"   // one that no session has tried
)

// choice is a decision of Choose and the figures behind it.
type choice struct {
	arms      []Arm
	estimates []estimate // of arms, in their order
	taken     int
	best      int // the arm in use; taken differs if it is a probe
	first     int // the arm with the best rate
	reason    Reason
}

// Choose returns the arm for the next round and why; Explain gives the figures. Of equal arms it takes the earliest; with
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
		if e := estimates[i]; e.known != estimates[best].known && e.known || e.known == estimates[best].known &&
			e.rate > estimates[best].rate {
			best = i
		}
		if a.Name == p.inUse {
			inUse = i
		}
	}
	first := best
	plain := arms[best].Drafters == nil // its tokens do not vary, so it needs no hysteresis
	if inUse >= 0 && estimates[inUse].known && !plain && estimates[best].rate <= estimates[inUse].rate*(1+p.rule.Hysteresis) {
		best = inUse
	}
	p.inUse = arms[best].Name
	top := estimates[best]
	probe := -1
	for i, a := range arms {
		if e := estimates[i]; top.known && i != best && e.hope > top.rate*(1+p.rule.Hysteresis) &&
			(probe < 0 || e.hope > estimates[probe].hope) &&
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

// survey returns an arm of several drafters, to test them together, if the session is young and the round is affordable;
// else -1. Other sessions do not replace the test: their texts may have differed.
func (p *Planner) survey(arms []Arm, estimates []estimate, top estimate) int {
	if p.surveyed || p.rounds >= p.t.Young || !top.known {
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

// Gain returns by how much, as a share, the best known way with a drafter promised more tokens per time in the latest choice than the best
// one without it: less than 0 if it promised less. known: there was one of each.
func (p *Planner) Gain(drafter string) (share float64, known bool) {
	with, without := 0.0, 0.0
	for i, a := range p.choice.arms {
		if e := p.choice.estimates[i]; !e.known {
			continue
		} else if slices.Contains(a.Drafters, drafter) {
			with = max(with, e.rate)
		} else {
			without = max(without, e.rate)
		}
	}
	if with == 0 || without == 0 {
		return 0, false
	}
	return with/without - 1, true
}

// Explain describes the latest choice with the figures that decided it: tokens, time and rate of the arm that was
// taken, and the rates of the others.
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
			math.Floor(1000*(c.estimates[c.first].rate/best-1))/10, 100*p.rule.Hysteresis) // never rounded up to the threshold
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

// millis formats a time with three digits.
func millis(seconds float64) string { return fmt.Sprintf("%.3g ms", 1000*seconds) }

// due reports whether an arm's waiting is over.
func (p *Planner) due(a Arm, bestRate float64) bool {
	s := p.arms[a.Name]
	return s == nil || p.rounds >= s.due || bestRate < 0.75*s.against
}

// Observe takes a round of that arm: tokens committed, the target's own included, and its time from one commit
// to the next. atEnd: the text or its budget ended within the round, so only the time says something about the
// arm.
func (p *Planner) Observe(arm Arm, tokens int, round time.Duration, atEnd bool) {
	s := p.state(arm)
	fresh := math.Exp2(-float64(p.rounds-s.last) / p.t.Stale)
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
		p.accepted, p.expected = p.accepted*p.t.TextFade+max(x, 0), p.expected*p.t.TextFade+s.guess
		if s.recalled > 0 {
			s.own.take(max(x, 0), s.hindsight, p.t.TextFade)
			p.all.take(max(x, 0), s.hindsight, p.t.TextFade)
		}
		s.n *= fresh
		s.take(x, p.rule.Decay)
	}
	if !atEnd && round > 0 {
		s.rounds, s.tokens, s.elapsed = s.rounds+1, s.tokens+float64(tokens), s.elapsed+round.Seconds()
	}
	p.settle(arm, float64(tokens)/max(round.Seconds(), 1e-9))
}

// Recall takes the mean number of tokens that rounds of chains by the arm's drafters would have had accepted on the latest text
// (spec.Foretold), whether or not the arm was used. It says far more than the tokens of single rounds, which are mostly luck.
// Rounds correct it, since trees may bring more or less than chains. It must be about the same text for all arms.
func (p *Planner) Recall(arm Arm, accepted, rounds float64) {
	s := p.state(arm)
	s.hindsight, s.recalled = accepted, min(rounds, p.t.Recall)
	p.surveyed = p.surveyed || rounds > 0 // this tests all drafters
}

// Witness takes the tokens that an arm would have brought in the last round, in which another arm was used: its
// drafter had drafted too, for a vote perhaps, and its tree held all of them but the last (see spec.Held).
func (p *Planner) Witness(arm Arm, tokens int) {
	if s := p.state(arm); !s.plain {
		s.last = max(p.rounds, 1)
		s.take(float64(tokens-1), p.rule.Decay)
	}
}

// Foresee takes how long a round of an arm would take now by its parts, which rounds of other arms show too: one that was timed under
// other conditions may have become better. 0: not known. This decides what is probed; what is expected of the arm still comes from its own
// rounds.
func (p *Planner) Foresee(arm Arm, round time.Duration) {
	p.state(arm).foreseen = max(round.Seconds(), 0)
}

// newArm returns the state of an unknown arm.
func (p *Planner) newArm(arm Arm) *armState {
	return &armState{plain: arm.Drafters == nil, several: len(arm.Drafters) > 1, guessN: 1, guess: p.t.Guess}
}

func (p *Planner) state(arm Arm) *armState {
	s := p.arms[arm.Name]
	if s == nil {
		s = p.newArm(arm)
		p.arms[arm.Name] = s
	}
	return s
}

// take adds a round's accepted tokens to the running mean. If the latest rounds differ from the mean by two standard
// errors, the text has changed: earlier rounds then hardly count any more.
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

// time adds the time of a round to the arm's mean and to the level of all times.
func (p *Planner) time(s *armState, seconds float64) {
	const outlier = 3
	if s.foreseen > 0 && seconds < p.t.Cold*s.seconds*p.level && seconds < s.foreseen/p.t.Cold {
		s.timed = 0 // it took so long under other conditions, which say nothing of now
	}
	if s.timed >= 2 {
		off := min(max(seconds/(s.seconds*p.level), 1.0/outlier), outlier)
		seconds = off * s.seconds * p.level
		p.level *= math.Pow(off, p.t.Drift)
	}
	s.timed = min(s.timed+1, 1/p.rule.Decay)
	s.seconds += (seconds/p.level - s.seconds) / s.timed
}

// settle pays for a round of an arm that is not the best and sets when it may be probed again.
func (p *Planner) settle(arm Arm, rate float64) {
	explore := p.rule.Explore
	if best := p.arms[p.inUse]; best != nil && !best.plain {
		explore *= p.t.Gain
	}
	p.credit = min(p.credit+explore, p.t.Save)
	s := p.arms[arm.Name]
	if arm.Name == p.inUse || p.arms[p.inUse] == nil || p.arms[p.inUse].timed == 0 {
		s.wait, s.due = 0, 0
		return
	}
	top, e := p.estimate(Arm{Name: p.inUse}, p.common), p.estimate(arm, p.common)
	e.probed = 0 // it has been
	p.credit -= e.loss(top)
	if rate > top.rate || e.rate > top.rate { // promising: look again
		s.wait, s.due = 0, 0
		return
	}
	s.wait = min(max(2*s.wait, p.rule.ProbeFirst), p.rule.ProbeMost)
	s.due, s.against = p.rounds+s.wait, top.rate
}

// Merge adds what this planner's session has shown to another planner, such as the prior of later ones; a
// second call adds only what is new.
func (p *Planner) Merge(into *Planner) {
	const most, recent = 100, 30 // rounds that the past counts for: tokens, and times, which vary little and change with the machine's load
	into.all.take(p.all.came, p.all.foretold, p.t.TextFade)
	into.all = into.all.atMost(most)
	for name, s := range p.arms {
		if s.rounds == 0 {
			continue
		}
		to := into.arms[name]
		if to == nil {
			to = &armState{plain: s.plain, several: s.several, guessN: 1, guess: p.t.Guess}
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
