package learn

import (
	"fmt"
	"math"
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
	Idle     bool // its drafters have no good draft: unless rounds have shown more, no token is expected of them
	// Set names whose drafts they are: ways that differ only in their time have the same, and share what is known of their tokens.
	// "": Name.
	Set string
	// Time is how long a round takes by its parts, each measured apart; Least is how long it takes at least, where a part is in doubt. 0:
	// unknown.
	Time, Least time.Duration
	Once        time.Duration // what the next round would take besides, and those after it not
}

// several reports whether its drafts are of several drafters, beside those that are free.
func (a Arm) several() bool {
	return a.Set == "" && len(a.Drafters) > 1 || strings.Contains(a.Set, ", ")
}

// Shape is what rounds with the drafts of a set of drafters are like, in the mean. A text that is easy to guess has deeper trees and takes
// longer drafts than another one: so tokens and what they cost have the same memory.
type Shape struct {
	Accepted float64 // tokens
	Draft    float64 // drafting, in passes of the drafter whose take longest
	Rows     float64 // of the trees, root included
	Depth    float64
}

// add moves a mean towards x by that share.
func (s *Shape) add(x Shape, share float64) {
	s.Accepted += (x.Accepted - s.Accepted) * share
	s.Draft += (x.Draft - s.Draft) * share
	s.Rows += (x.Rows - s.Rows) * share
	s.Depth += (x.Depth - s.Depth) * share
}

func (a Arm) set() string {
	if a.Set != "" {
		return a.Set
	}
	return a.Name
}

// PlannerRule holds the planner's constants.
type PlannerRule struct {
	Decay      float64 // weight of a new round in a running mean, once there were 1/Decay rounds
	Hysteresis float64 // share by which an arm must be better to replace the one in use
	ProbeFirst int     // rounds until an arm that lost may be probed again; doubled with every loss
	ProbeMost  int     // up to this many
	Explore    float64 // share of the time that probes may cost, beside a credit at the start
}

// DefaultPlannerRule keeps what probes cost between 1 and 2 % of the time: a text that no drafter can guess must
// still be written at 0.97 of the speed of plain decoding.
var DefaultPlannerRule = PlannerRule{Decay: 0.04, Hysteresis: 0.03, ProbeFirst: 3, ProbeMost: 64, Explore: 0.015}

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
// What is expected of an arm is made of two parts that are known apart: how long a round takes, which its caller says by the time of
// each part of the round (Arm.Time), and how many tokens it brings, which is learned here:
//
//  1. Tokens accepted in a round are about geometrically distributed: their variance is μ(1+μ), and less if the drafts are short. So the
//     standard error of a mean is known from the mean and the number of rounds; rounds long past count less. An arm is worth a probe if
//     its mean plus one standard error, in the shortest time that it may take, beats the best mean.
//  2. A probe must be affordable. Its expected loss against the best arm is paid from a credit that grows by
//     Explore of the time; and after each lost probe an arm waits twice as long. An arm that looks as good as the best
//     costs nothing and is tried at once, and when the best arm becomes much worse all waiting ends.
//  3. Arms have the text in common: the accepted tokens so far, relative to what was expected of the arms that were
//     tried, scale what is expected of the others. A text that one drafter cannot guess is hard for the others too.
//  4. The experience of other sessions counts for a few rounds, no more: a text that differs overrules it.
//  5. What drafters report that they would have guessed of the text so far (Recall) counts as rounds do. It comes without a round, and is
//     about the same text for all arms. Since trees may bring more or less than chains, it is scaled by the ratio of accepted to foretold
//     tokens: mostly that of all arms, a little each arm's own. Without such reports a young session tests all drafters together once,
//     which shows the worth of each.
type Planner struct {
	rule  PlannerRule
	t     PlannerTuning
	sets  map[string]*setState
	waits map[string]*waiting // by arm
	inUse Arm                 // the best arm when last chosen

	rounds, drafted int // rounds so far, and the latest with a draft
	held            int // rounds for which a probe goes on
	surveyed        bool
	choice          choice  // the latest
	others          float64 // tokens of others in a round
	credit          float64 // what probes may still cost, in rounds of the arm in use
	text            scale   // of rounds with a draft, to what was expected before the session
	texts           int     // rounds in it
	all             scale   // of all arms, to hindsight
}

// setState is what is known of the tokens that a set of drafters brings.
type setState struct {
	n         float64 // rounds that count, and
	mean      Shape   // their mean
	lately    float64 // mean accepted tokens of the latest few rounds
	guessN    float64 // as n and mean, from experience before the session
	guess     Shape
	idle      bool    // Arm.Idle
	told      bool    // guess is what other sessions have seen
	recalled  float64 // rounds behind the hindsight, and their accepted tokens
	hindsight float64
	own       scale   // of this set, to hindsight
	text      scale   // its share of the planner's
	texts     int     // the planner's when that was last added to
	last      int     // round in which it was observed last; rounds are counted from 1
	rounds    float64 // since the session began or was merged, and
	all       Shape   // their mean
}

// waiting is an arm's back-off.
type waiting struct {
	rounds, due int     // to wait after the next lost probe, first round of another one
	against     float64 // the best arm's rate when this arm lost
}

// NewPlanner returns a planner that starts from what prior has learned; prior may be nil and is not kept. A
// zero rule means DefaultPlannerRule; r must be valid. The prior of a whole gateway is a Planner into which each
// session is merged when it ends.
func NewPlanner(r PlannerRule, t PlannerTuning, prior *Planner) *Planner {
	if r == (PlannerRule{}) {
		r = DefaultPlannerRule
	}
	p := &Planner{rule: r, t: t, sets: map[string]*setState{}, waits: map[string]*waiting{}, credit: t.Start}
	if prior != nil {
		for name, s := range prior.sets {
			if least := t.Least; s.n > 0 {
				if s.idle {
					least = 0
				}
				p.sets[name] = &setState{idle: s.idle, guessN: min(s.n, t.Prior), guess: s.mean, told: true}
				p.sets[name].guess.Accepted = max(s.mean.Accepted, least)
			}
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
	estimates []Estimate // of arms, in their order
	taken     int
	best      int // the arm in use; taken differs if it is a probe
	first     int // the arm with the best rate
	reason    Reason
}

// Beside says before the first choice how many tokens a pass is expected to bring others.
func (p *Planner) Beside(others float64) { p.others = others }

// Choose returns the arm for the next round and why; Explain gives the figures. others is how many tokens the same pass brings others. Of
// equal arms it takes the earliest; with no arms it returns the zero Arm, which is plain decoding.
func (p *Planner) Choose(arms []Arm, others float64) (arm Arm, why Reason) {
	if len(arms) == 0 {
		p.choice = choice{reason: ReasonBest}
		return Arm{}, ReasonBest
	}
	p.others = others
	estimates := make([]Estimate, len(arms))
	best, inUse, before := 0, -1, -1
	for i, a := range arms {
		estimates[i] = p.Estimate(a)
		if e := estimates[i]; e.Known != estimates[best].Known && e.Known || e.Known == estimates[best].Known &&
			e.Rate > estimates[best].Rate {
			best = i
		}
		if a.Name == p.inUse.Name {
			inUse = i
		}
		if len(p.choice.arms) > 0 && a.Name == p.choice.arms[p.choice.taken].Name {
			before = i
		}
	}
	first := best
	plain := arms[best].Drafters == nil // its tokens do not vary, so it needs no hysteresis
	if inUse >= 0 && estimates[inUse].Known && !plain && estimates[best].Rate <= estimates[inUse].Rate*(1+p.rule.Hysteresis) {
		best = inUse
	}
	p.inUse = arms[best]
	taken := best
	probe := p.probe(arms, estimates, best)
	if s := p.survey(arms, estimates, estimates[best]); s >= 0 {
		probe = s
	}
	if p.held > 0 && before >= 0 {
		taken, p.held = before, p.held-1
	} else if probe >= 0 {
		if taken = probe; arms[probe].Ahead {
			p.held = p.t.AheadProbe - 1 // what was drafted ahead is of use only in the round after
		}
	}
	switch {
	case !estimates[taken].Known:
		why = ReasonLearning
	case taken != best:
		why = ReasonProbe
	case best != first:
		why = ReasonHysteresis
	default:
		why = ReasonBest
	}
	p.choice = choice{arms: arms, estimates: estimates, taken: taken, best: best, first: first, reason: why}
	return arms[taken], why
}

// probe returns an arm that may be better than the best, is due and affordable; −1: there is none.
func (p *Planner) probe(arms []Arm, estimates []Estimate, best int) int {
	top, probe := estimates[best], -1
	if !top.Known {
		return -1
	}
	for i, a := range arms {
		if e := estimates[i]; i != best && e.Hope > top.Rate*(1+p.rule.Hysteresis) &&
			(probe < 0 || e.Hope > estimates[probe].Hope) && p.due(a, top.Rate) && e.loss(top) <= p.credit {
			probe = i
		}
	}
	return probe
}

// survey returns an arm of several drafters, to test them together, if the session is young and the round is affordable;
// else -1. Other sessions do not replace the test: their texts may have differed.
func (p *Planner) survey(arms []Arm, estimates []Estimate, top Estimate) int {
	if p.surveyed || p.rounds >= p.t.Young || !top.Known {
		return -1
	}
	for i, a := range arms {
		if len(a.Drafters) > 1 && a.Name != p.inUse.Name && estimates[i].loss(top) <= p.credit {
			p.surveyed = true
			return i
		}
	}
	return -1
}

// Best returns what was expected of the best arm when Choose was called last.
func (p *Planner) Best() Estimate {
	if len(p.choice.arms) == 0 {
		return Estimate{}
	}
	return p.choice.estimates[p.choice.best]
}

// Explain describes the latest choice with the figures that decided it: tokens, time and rate of the arm that was
// taken, and the rates of the others.
func (p *Planner) Explain() string {
	c := p.choice
	if len(c.arms) == 0 {
		return "nothing to choose from"
	}
	var out strings.Builder
	name, e, best := c.arms[c.taken].Name, c.estimates[c.taken], c.estimates[c.best].Rate
	switch {
	case !e.Known:
		fmt.Fprintf(&out, "%s: never tried", name)
	default:
		fmt.Fprintf(&out, "%s: %.2f tokens in %s = %.3g/s", name, e.Tokens, millis(e.Seconds), e.Rate)
	}
	told := c.taken
	switch {
	case c.taken != c.best:
		fmt.Fprintf(&out, ", perhaps %.3g/s; best is %s %.3g/s", e.Hope, c.arms[c.best].Name, best)
		told = c.best
	case c.reason == ReasonHysteresis:
		fmt.Fprintf(&out, "; %s %.3g/s is +%.1f %%, less than %.3g %%", c.arms[c.first].Name, c.estimates[c.first].Rate,
			math.Floor(1000*(c.estimates[c.first].Rate/best-1))/10, 100*p.rule.Hysteresis) // never rounded up to the threshold
		told = c.first
	}
	for i, a := range c.arms {
		switch o := c.estimates[i]; {
		case i == c.taken || i == told:
		case o.Known:
			fmt.Fprintf(&out, "; %s %.3g/s", a.Name, o.Rate)
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
	w := p.waits[a.Name]
	return w == nil || p.rounds >= w.due || bestRate < 0.75*w.against
}

// Observe takes a round of that arm. atEnd: the text or its budget ended within the round, or it says nothing about the arm for another
// reason.
func (p *Planner) Observe(arm Arm, x Shape, atEnd bool) {
	p.rounds++
	if arm.Drafters != nil {
		s := p.state(arm)
		fresh := 1.0
		if s.last > 0 {
			fresh = math.Exp2(-float64(p.rounds-1-s.last) / p.t.Stale)
		}
		if s.last = p.rounds; !atEnd {
			x.Accepted = max(x.Accepted, 0)
			if !arm.Idle {
				p.drafted = p.rounds
				p.text.take(x.Accepted, s.guess.Accepted, p.t.TextFade)
				p.texts++
				if !arm.several() {
					s.text.take(x.Accepted, s.guess.Accepted, math.Pow(p.t.TextFade, float64(p.texts-s.texts)))
					s.texts = p.texts
				}
			}
			if s.recalled > 0 {
				s.own.take(x.Accepted, s.hindsight, p.t.TextFade)
				p.all.take(x.Accepted, s.hindsight, p.t.TextFade)
			}
			s.n *= fresh
			s.take(x, p.rule.Decay)
			s.rounds++
			s.all.add(x, 1/s.rounds)
		}
	}
	p.settle(arm)
}

// Recall takes the mean number of tokens that rounds of chains by the arm's drafters would have had accepted on the latest text
// (spec.Foretold), whether or not the arm was used, and for how many rounds that counts; 0: nothing is known of the latest text.
// It must be about the same text for all arms.
func (p *Planner) Recall(arm Arm, accepted, rounds float64) {
	s := p.state(arm)
	s.hindsight, s.recalled = accepted, rounds
	p.surveyed = p.surveyed || rounds > 0 // this tests all drafters
}

// Witness takes what a round of an arm would have been like in place of the last one, in which another arm was used: its
// drafter had drafted too, for a vote perhaps, and its tree held so many of the tokens (see spec.Held).
func (p *Planner) Witness(arm Arm, x Shape) {
	if arm.Drafters != nil {
		s := p.state(arm)
		s.last = max(p.rounds, 1)
		s.take(x, p.rule.Decay)
	}
}

// Shape returns what rounds of an arm are expected to be like; zero: nothing is known.
func (p *Planner) Shape(arm Arm) (x Shape) {
	s := p.sets[arm.set()]
	if s == nil {
		return x
	}
	if fresh := p.fresh(s); s.told && s.guess.Rows > 0 {
		x = s.guess
		x.add(s.mean, fresh/(fresh+s.guessN))
	} else if s.n > 0 {
		x = s.mean
	}
	return x
}

// fresh returns the rounds that count of those of this session.
func (p *Planner) fresh(s *setState) float64 {
	return s.n * math.Exp2(-float64(p.rounds-s.last)/p.t.Stale)
}

// state returns what is known of the arm's tokens.
func (p *Planner) state(arm Arm) *setState {
	s := p.sets[arm.set()]
	if s == nil {
		s = p.unknown(arm)
		p.sets[arm.set()] = s
	}
	return s
}

// unknown returns what is expected of an arm of which nothing is known.
func (p *Planner) unknown(arm Arm) *setState {
	if arm.Idle {
		return &setState{guessN: 1, idle: true, told: true}
	}
	return &setState{guessN: 1, guess: Shape{Accepted: p.t.Guess}}
}

// take adds a round to the running means. If the latest rounds differ from the mean by two standard
// errors, the text has changed: earlier rounds then hardly count any more.
func (s *setState) take(x Shape, decay float64) {
	const quick = 0.2 // weight of a round among the latest
	s.n = min(s.n+1, 1/decay)
	s.mean.add(x, 1/s.n)
	s.lately += (x.Accepted - s.lately) * max(quick, 1/s.n)
	mu := max(s.mean.Accepted, 0.05)
	if math.Abs(s.lately-mu) > 2*math.Sqrt(mu*(1+mu)*quick/(2-quick)) {
		s.n, s.mean.Accepted = min(s.n, 1/quick), s.lately
	}
}

// settle pays for a round of an arm that is not the best and sets when it may be probed again.
func (p *Planner) settle(arm Arm) {
	p.credit = min(p.credit+p.rule.Explore, p.t.Save)
	if arm.Name == p.inUse.Name || p.inUse.Time == 0 {
		delete(p.waits, arm.Name)
		return
	}
	top, e := p.Estimate(p.inUse), p.Estimate(arm)
	p.credit -= e.loss(top)
	if e.Rate > top.Rate { // promising: look again
		delete(p.waits, arm.Name)
		return
	}
	w := p.waits[arm.Name]
	if w == nil {
		w = &waiting{}
		p.waits[arm.Name] = w
	}
	w.rounds = min(max(2*w.rounds, p.rule.ProbeFirst), p.rule.ProbeMost)
	w.due, w.against = p.rounds+w.rounds, top.Rate
}

// Merge adds what this planner's session has shown to another planner, such as the prior of later ones; a
// second call adds only what is new.
func (p *Planner) Merge(into *Planner) {
	const most = 100 // rounds that the past counts for
	into.all.take(p.all.came, p.all.foretold, p.t.TextFade)
	into.all = into.all.atMost(most)
	for name, s := range p.sets {
		if s.rounds == 0 {
			continue
		}
		to := into.state(Arm{Name: name, Idle: s.idle})
		to.n = min(to.n+s.rounds, most)
		to.mean.add(s.all, min(s.rounds/to.n, 1))
		s.rounds, s.all = 0, Shape{}
	}
}
