package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// successors returns what the model finds likely after each node of a ticket's tree: its next token, and others. w.mu must be held.
func (w *world) successors(h *heldSession, t tandem.Ticket) (out []tandem.Token) {
	if t.Successors == 0 {
		return nil
	}
	hashes, depths := make([]tandem.PrefixHash, t.Tree.Guesses()), make([]int, t.Tree.Guesses())
	for i := range hashes {
		if hashes[i] = h.hash; i > 0 {
			parent := t.Tree.Parents[i]
			hashes[i], depths[i] = hashes[parent].Add(t.Tree.Tokens[i]), depths[parent]+1
		}
		right := w.next(hashes[i], len(h.tokens)+depths[i], h.open.Sampling.Seed)
		for rank := range tandem.Token(t.Successors) {
			out = append(out, (right+5*rank)%vocabSize)
		}
	}
	return out
}

// spoilSuccessors returns what no verifier may say.
func spoilSuccessors(all []tandem.Token, how string) []tandem.Token {
	all = slices.Clone(all)
	switch {
	case how == "successor-unasked":
		return append(all, 1, 2, 3)
	case len(all) == 0:
	case how == "successor-token":
		all[len(all)-1] = vocabSize
	case how == "successor-few":
		all = all[1:]
	}
	return all
}

// TestRecyclingNeverChangesTheText: with any strategy and vote, alone and beside a drafter, with garbage among the successors and with
// peers that fail, the text is that of plain decoding.
func TestRecyclingNeverChangesTheText(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := genRequest(rt)
		r.Bounds = tandem.Bounds{Nodes: rapid.IntRange(2, 24).Draw(rt, "nodes"), Depth: rapid.IntRange(1, 7).Draw(rt, "depth"),
			Width: rapid.IntRange(1, 4).Draw(rt, "width")}
		r.Strategy = rapid.SampledFrom([]tandem.Strategy{tandem.StrategyFixed, tandem.StrategyLLMCad, tandem.StrategyMinions,
			tandem.StrategyPlanner}).Draw(rt, "strategy")
		r.Vote = rapid.SampledFrom([]tandem.Vote{tandem.VoteAuto, tandem.VoteNone, tandem.VoteMajority, tandem.VoteTree}).Draw(rt, "vote")
		r.Drafters = rapid.SampledFrom([][]string{nil, {tandem.Recycling}, {"fake", tandem.Recycling}}).Draw(rt, "drafters")
		faults := genFaults(rt, 4)
		spoilt := rapid.SampledFrom([]string{"successor-token", "successor-few", "successor-unasked"})
		for range rapid.IntRange(0, 5).Draw(rt, "garbage") {
			faults[fmt.Sprintf("verdict %d", rapid.IntRange(1, 30).Draw(rt, "n"))] = fault{do: spoilt.Draw(rt, "how")}
		}
		var outages []outage
		for range rapid.IntRange(0, 2).Draw(rt, "outages") {
			outages = append(outages, outage{time.Duration(rapid.IntRange(0, 300).Draw(rt, "at")) * time.Millisecond,
				rapid.SampledFrom([]string{"verifier", "drafter"}).Draw(rt, "who"), rapid.Bool().Draw(rt, "hint")})
		}
		var problem string
		synctest.Test(t, func(*testing.T) {
			w := newWorld()
			w.quiet, w.faults = true, faults
			c := w.config()
			rec := &recorder{}
			c.Limits.Context, c.Events, c.Recycling = 100, rec.events(), true
			problem = faulty(w, c, rec, r, outages)
		})
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

// TestRecyclingDraftsForItsTenant: a text that comes again takes fewer rounds, by every strategy, for the tenant that had it and for no
// other, nor for a request of its own that has a salt; a request without drafts asks for no successors.
func TestRecyclingDraftsForItsTenant(t *testing.T) {
	for _, strategy := range []tandem.Strategy{tandem.StrategyFixed, tandem.StrategyLLMCad, tandem.StrategyMinions,
		tandem.StrategyPlanner} {
		t.Run(string(strategy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.quiet = true
				c := w.config()
				c.Drafters, c.Recycling, c.Counters = nil, true, new(tandem.Counters)
				g, err := New(c)
				if err != nil {
					t.Fatal(err)
				}
				w.gw = g
				run := func(tenant, salt string, b tandem.Bounds) tandem.Stats {
					r := tandem.Request{Prompt: "again", MaxTokens: 60, IgnoreEOS: true, Sampling: tandem.Sampling{TopP: 1}, Tenant: tenant,
						CacheSalt: salt, Strategy: strategy, Bounds: b}
					s := &sink{}
					res, err := g.Generate(context.Background(), r, s)
					if want, _, _ := w.plain(r, tandem.DefaultLimits.Context); err != nil || !slices.Equal(s.tokens, want) {
						t.Errorf("tokens %v, %v: want %v", s.tokens, err, want)
					}
					return res.Stats
				}
				b := tandem.Bounds{Nodes: 8, Depth: 4, Width: 2}
				run("a", "", tandem.Bounds{})
				if n := c.Counters.Snapshot()["successors.taken"]; n != 0 {
					t.Errorf("%d nodes' successors for a request without drafts", n)
				}
				first := run("a", "", b)
				again := run("a", "", b)
				other := run("b", "", b)
				for range 2 {
					if salted := run("a", "s", b); salted.Rounds < first.Rounds-5 {
						t.Errorf("%d rounds with a salt: want about %d", salted.Rounds, first.Rounds)
					}
				}
				if again.Rounds > 45 || other.Rounds < first.Rounds-5 {
					t.Errorf("%d rounds, %d when the text came again, %d for another tenant", first.Rounds, again.Rounds, other.Rounds)
				}
				if len(again.Drafters) != 1 || again.Drafters[0].Name != tandem.Recycling || again.Drafters[0].Accepted < 15 {
					t.Errorf("statistics of %+v", again.Drafters)
				}
				w.flights.Wait()
				if err := g.Shutdown(context.Background()); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// TestNobodyElseIsRecycling: no drafter can have the name.
func TestNobodyElseIsRecycling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c := w.config()
		c.Drafters[0].Name = tandem.Recycling
		if _, err := New(c); !errors.Is(err, tandem.Invalid) {
			t.Errorf("enlisted at the start: %v: want invalid", err)
		}
		c = w.config()
		c.Recycling = true
		g, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		g.Enlist(Enlisted{Name: tandem.Recycling, Drafter: w.config().Drafters[0].Drafter})
		if entries, _ := g.roster.List([]string{tandem.Recycling}); len(entries) != 1 || !entries[0].Recycling {
			t.Errorf("enlisted later: %+v", entries)
		}
		if err := g.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
}
