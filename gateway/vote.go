package gateway

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
)

// vote has the round's drafters draft at the same time and merges what they say. It waits for each no
// longer than one Propose may take, and once one has answered, for the others no longer than they are worth.
func (s *session) vote(ctx context.Context, q question, a *answer) {
	told := make(chan *call, len(a.asks))
	calls := make([]*call, len(a.asks))
	begun := time.Now()
	for i, k := range a.asks {
		calls[i] = k.of.begin(ctx, s.wish(q, k, a, true), k.of.deadline(), told)
	}
	var enough <-chan time.Time
	if d := s.patience(a.asks); d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		enough = timer.C
	}
	take := func(c *call) {
		if d, err := c.of.judge(ctx, c); err == nil {
			a.drafts = append(a.drafts, d)
		}
		calls = slices.DeleteFunc(calls, func(o *call) bool { return o == c })
	}
	for late := false; len(calls) > 0 && !(late && len(a.drafts) > 0); {
		select {
		case c := <-told:
			take(c)
		case <-enough:
			late = true
		case <-ctx.Done():
			return
		}
	}
	took := time.Since(begun)
	for _, c := range slices.Clone(calls) {
		if c.ended() {
			take(c)
		} else {
			c.cut(took)
		}
	}
	planning := time.Now()
	s.merge(a, took)
	s.stats.Planning += time.Since(planning)
}

// patience returns for how long the slowest of several drafters is waited for: twice what the slower half
// of them usually takes, but at least a quarter of a round longer than that half, which is about what
// the one drafter brings that knows the text. 0: for as long as each may take, because what is usual is
// not known yet.
func (s *session) patience(asks []ask) time.Duration {
	var paces []time.Duration
	for _, k := range asks {
		switch {
		case k.of.of.Way != nil: // its answer is there
			continue
		case k.of.pace == 0:
			return 0
		}
		paces = append(paces, k.of.pace)
	}
	if len(paces) == 0 {
		return 0
	}
	slices.Sort(paces)
	median := paces[len(paces)/2]
	return max(2*median, median+s.pace/4)
}

// merge makes one tree of what several drafters have answered.
func (s *session) merge(a *answer, took time.Duration) {
	order := func(d draft) int {
		return slices.IndexFunc(a.asks, func(k ask) bool { return k.of == d.by })
	}
	slices.SortFunc(a.drafts, func(x, y draft) int { return order(x) - order(y) })
	var ballots []spec.Ballot
	var said []spec.Said
	var of []int // which draft a ballot is
	for i, d := range a.drafts {
		if d.by.of.Way == nil {
			a.proposed.Busy = max(a.proposed.Busy, d.got.Busy) // they ran at the same time
		}
		if d.got.Tree.Len() > 1 {
			ballots, of = append(ballots, spec.Ballot{Tree: d.got.Tree, Weight: s.weights.Of(d.by.of.Name)}), append(of, i)
			said = append(said, spec.Said{Drafter: d.by.of.Name, Tree: d.got.Tree})
		}
	}
	if len(ballots) == 0 {
		return
	}
	nodes := min(a.decision.Nodes, s.nodes-a.reserve)
	if a.decision.Vote == tandem.VoteTree {
		if mix := a.decision.Mix; mix != nil {
			a.tree = mix.Merge(said, nodes)
		} else {
			a.tree, _ = spec.Merge(ballots, nodes)
		}
		if a.decision.Cut.Verify != nil {
			a.tree, _ = spec.Cut(a.tree, a.decision.Cut, took)
		}
		a.by = "vote"
	} else {
		var voted int
		a.tree, voted = spec.Majority(ballots)
		a.voted = of[voted]
		a.by = a.drafts[a.voted].by.of.Name
	}
	if a.tree.Len() == 1 {
		return
	}
	a.drafted, a.merged, a.own = true, true, true
	_, a.proposed.Depth = a.tree.Depths()
	a.proposed.Nodes = a.tree.Len()
}
