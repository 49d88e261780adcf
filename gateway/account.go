package gateway

import (
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/learn"
	"github.com/tandem-llm/tandem/spec/worth"
)

const (
	mostSamples = 10000 // of a session's coordination times; of more rounds an even sample is kept
	mostChoices = 64    // different ones that are counted by name; the rest is "other"
)

// account holds the statistics of one session.
type account struct {
	stats   tandem.Stats
	by      map[string]*tandem.DrafterStats
	sampler *rand.Rand
	plain   worth.Plain
}

func newAccount(id tandem.SessionID) account {
	return account{stats: tandem.Stats{Choices: map[string]int{}, Reasons: map[string]int{}}, by: map[string]*tandem.DrafterStats{},
		sampler: rand.New(rand.NewPCG(uint64(id), 0))}
}

// round counts a committed round.
func (c *account) round(t *turn) {
	st, tokens := &c.stats, t.delta.Tokens
	st.Rounds++
	st.Accepted += len(tokens) - 1
	st.AcceptedByDepth = deeper(st.AcceptedByDepth, len(tokens)-1)
	depth := 0
	switch path := len(t.Verdict.Path); {
	case t.Size > 1:
		st.Drafted += t.Size - 1
		depth = t.Depth
	case path > 0: // the drafter's answer was lost or late, its ticket was not
		st.Drafted += max(t.Verdict.Nodes-1, path)
		depth = path
	default:
		st.PlainRounds++
	}
	st.DraftedDepth += depth
	st.DraftedByDepth = deeper(st.DraftedByDepth, depth)
	st.VerifyBusy += max(t.Verdict.Busy, 0)
	c.drafts(t)
	if rest := t.Rest(t.wall); len(st.Coordination) < mostSamples {
		st.Coordination = append(st.Coordination, rest)
	} else if i := c.sampler.IntN(st.Rounds); i < mostSamples {
		st.Coordination[i] = rest // algorithm R: every round is as likely to be kept
	}
	choice := t.Choice
	if _, known := st.Choices[choice]; !known && len(st.Choices) >= mostChoices {
		choice = "other"
	}
	st.Choices[choice]++
	st.Reasons[t.Reason()]++
}

// drafts counts what each source contributed to a round, and what was drafted ahead of it.
func (c *account) drafts(t *turn) {
	hit, tried := false, false
	for i := range t.Drafts {
		d := &t.Drafts[i]
		st := c.by[d.Drafter]
		if st == nil {
			st = &tandem.DrafterStats{Name: d.Drafter}
			c.by[st.Name] = st
		}
		st.Rounds++
		st.Drafted += d.Got.Nodes - 1
		st.Accepted += t.Held(d, t.delta.Tokens)
		c.stats.DraftBusy += d.Got.Busy
		c.stats.AheadBusy += d.Got.Ahead
		c.stats.AheadUseful += d.Useful
		tried = tried || d.Tried
		hit = hit || d.Tried && d.Got.Reused > 0
	}
	if hit {
		c.stats.AheadHits++
	}
	if tried {
		c.stats.AheadTries++
	}
}

// result returns the statistics of a session that has ended.
func (c *account) result(r tandem.Request, w *learn.Weights) tandem.Result {
	if r.Sampling.Typical() {
		c.stats.Accept = string(tandem.AcceptTypical)
	}
	c.stats.Drafters = nil
	for _, name := range slices.Sorted(maps.Keys(c.by)) {
		st := *c.by[name]
		st.Weight = w.Of(name)
		c.stats.Drafters = append(c.stats.Drafters, st)
	}
	return tandem.Result{Stats: c.stats}
}

// deeper counts a round of that depth in n: n[i] counts the rounds of depth i+1 and more.
func deeper(n []int, depth int) []int {
	for len(n) < depth {
		n = append(n, 0)
	}
	for i := range depth {
		n[i]++
	}
	return n
}
