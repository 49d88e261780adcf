package worth

import (
	"fmt"
	"strings"
	"time"
)

// The choice. A way to spend a round has a rate: the tokens that the round is expected to bring, those of other sessions in the same pass
// included, over its seconds.
//
//	rate = (others + 1 + accepted) / seconds
//
// The way with the highest rate is taken. To look at another way teaches something if that may be the better one,
//
//	hope = (others + 1 + accepted + doubt) / least seconds > rate of the best
//
// and loses rate·seconds − (others + 1 + accepted) tokens. Looks are paid from a credit in tokens, which begins with Tuned.Credit and earns
// Tuned.Explore of the tokens that rounds bring. So looks cost a text of n tokens at most Tuned.Credit + Tuned.Explore·n.

// Way is one way to spend a round. Its name is its identity.
type Way struct {
	Name     string
	Drafters []string // asked besides the free ones; none: those alone are asked, or nobody (plain decoding)
	Set      string   // names its set of drafters. Ways of one set share what is known of their tokens; their times differ
	Ahead    bool     // its drafters go on drafting while the target computes
	Expected
	Time
}

// Rate returns the expected tokens per second of the pass; others is how many tokens a pass brings to other sessions.
func (w Way) Rate(others float64) float64 { return (others + 1 + w.Accepted) / w.Seconds() }

// Hope returns the tokens per second that are still plausible: Rate with one standard error more tokens, in the Least time.
func (w Way) Hope(others float64) float64 { return (others + 1 + w.Accepted + w.Doubt) / w.Least() }

// Gain returns how many more tokens a round of the way is expected to bring than the same time at rate, in tokens per second. It is
// negative if the round brings fewer.
func (w Way) Gain(rate, others float64) float64 { return others + 1 + w.Accepted - rate*w.Seconds() }

// Loss returns how many fewer tokens a round of the way is expected to bring than the same time at rate; never less than 0.
func (w Way) Loss(rate, others float64) float64 { return max(-w.Gain(rate, others), 0) }

// Beside returns the way with free drafts merged into its own. The free drafts have rows rows, root included, and free is how many of their
// tokens are expected to be accepted. Tokens that both have count once. verify returns the seconds of a pass by its rows.
func (w Way) Beside(free float64, rows int, verify func(rows float64) float64) Way {
	common := Common(free, w.Accepted)
	w.Accepted += free - common
	w.Rows += float64(rows) - 1 - common
	w.Verify = verify(w.Rows)
	return w
}

// Saves returns the seconds per token that the way saves against a way of the given rate. It is a mean over three cases: the expected
// accepted tokens, which count twice, and one standard error less and more. A case in which the way is slower saves nothing.
func (w Way) Saves(rate, others float64) (mean float64) {
	for _, off := range []float64{-1, 0, 0, 1} {
		x := w
		x.Accepted = max(x.Accepted+off*w.Doubt, 0)
		mean += max(1/rate-1/x.Rate(others), 0) / 2 / 2
	}
	return mean
}

// Common returns how many accepted tokens two drafts are expected to have in common, if a tokens of one and b of the other are expected to
// be accepted. It is the mean of the shorter of two independent runs, whose lengths are distributed geometrically with these means.
func Common(a, b float64) float64 {
	both := a / (1 + a) * b / (1 + b)
	return both / (1 - both)
}

// Second is the second step of a choice: whether models are asked beside free drafts that are known.
type Second struct {
	Chances     []float64 // of the free drafts' nodes below the root, likeliest first
	Alone, Both Way       // the free nodes that pay: without the models, and with them
	Others      float64   // tokens that a pass brings to other sessions
	Rate        float64   // tokens per second that the time of a round is worth: set by Decide
}

// Decide reports whether the models are asked: whether a round with them has the greater Gain. latest is the rate of the latest rounds, in
// tokens per second. Gains are measured at that rate, or at the better of both rounds' rates if that is lower: at a rate that neither
// reaches, the shorter of two poor rounds would win. Decide sets s.Rate.
func (s *Second) Decide(latest float64) (ask bool) {
	s.Rate = min(latest, max(s.Alone.Rate(s.Others), s.Both.Rate(s.Others)))
	return s.Both.Gain(s.Rate, s.Others) > s.Alone.Gain(s.Rate, s.Others)
}

// Reason names the kind of a choice.
type Reason string

const (
	ReasonBest     Reason = "best"     // the highest rate
	ReasonProbe    Reason = "probe"    // a look at a way that may be better than the best
	ReasonLearning Reason = "learning" // a look at a way that nobody has tried
)

// Choice is a decision and the figures behind it.
type Choice struct {
	Ways   []Way
	Others float64 // tokens of others in the pass
	Taken  int     // index in Ways
	Best   int     // index in Ways of the highest rate
	Reason Reason
}

// Choose takes the way with the highest rate, or looks at one that may be better if its Loss is within credit, in tokens. There must be at
// least one way; of equal ways it takes the first. The result keeps ways.
func Choose(ways []Way, others, credit float64) Choice {
	c := Choice{Ways: ways, Others: others, Reason: ReasonBest}
	for i, w := range ways {
		if w.Rate(others) > ways[c.Best].Rate(others) {
			c.Best = i
		}
	}
	rate, hope := ways[c.Best].Rate(others), 0.0
	c.Taken = c.Best
	for i, w := range ways {
		known := w.Set == ways[c.Best].Set && !w.Free // of the same drafts, at times that are known
		if h := w.Hope(others); i != c.Best && !known && h > max(rate, hope) && w.Loss(rate, others) <= credit {
			c.Taken, hope, c.Reason = i, h, ReasonProbe
			if !w.Known {
				c.Reason = ReasonLearning
			}
		}
	}
	return c
}

// Way returns the way that was taken.
func (c *Choice) Way() Way { return c.Ways[c.Taken] }

// Rate returns the rate of the best way.
func (c *Choice) Rate() float64 { return c.Ways[c.Best].Rate(c.Others) }

// Explain prints the inputs of the choice: the way taken, the best, and the others.
func (c *Choice) Explain() string {
	list := []string{c.Ways[c.Taken].String()}
	if c.Taken != c.Best {
		list = append(list, "best "+c.Ways[c.Best].String())
	}
	for i, w := range c.Ways {
		if i != c.Taken && i != c.Best {
			list = append(list, w.String())
		}
	}
	return strings.Join(list, "; ")
}

// milli are the milliseconds of a second.
const milli = float64(time.Second / time.Millisecond)

// String prints the way's tokens, and its time by parts in ms: rest + left × (drafting + reading) + slow × pass over so many rows.
func (w Way) String() string {
	t := w.Time
	return fmt.Sprintf("%s: 1+%.3f±%.2f tokens in %.2f+%.2f×(%.2f+%.2f)+%.2f×%.2f ms, %.1f rows", w.Name, w.Accepted, w.Doubt, milli*t.Rest,
		t.Left, milli*t.Draft, milli*t.Read, t.Slow, milli*t.Verify, max(w.Rows, 1))
}

// Explain prints the inputs of the step.
func (s *Second) Explain() string {
	return fmt.Sprintf("free p %.3f; %s; %s; at %.2f tokens/s", s.Chances, s.Alone, s.Both, s.Rate)
}

// Credit is what looks may still cost, in tokens.
type Credit float64

// Earn adds what a round has earned, in tokens. The credit never exceeds Tuned.Credit.
func (c *Credit) Earn(tokens float64) { *c = Credit(min(float64(*c)+tokens, Tuned.Credit)) }

// Pay subtracts what a look has cost, in tokens. The credit may become negative.
func (c *Credit) Pay(tokens float64) { *c -= Credit(tokens) }
