package gateway

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// bothSelfDrafts are the target's own in these tests.
var bothSelfDrafts = []tandem.SelfDraft{{Name: tandem.Medusa, Levels: 4}, {Name: tandem.PPD, Levels: 3, Members: 2}}

// guess returns what the model guesses by itself after the held tokens: each level has the right token first, second or not at all. Of
// ppd there are as many levels as prompt nodes of both members behind the last accepted node.
func (w *world) guess(h *heldSession, tree tandem.Tree, last int32, asked []string) (out []tandem.Guess) {
	for _, draft := range w.selfDrafts {
		if !slices.Contains(asked, draft.Name) {
			continue
		}
		levels := draft.Levels
		if draft.Members > 0 {
			levels = w.prompted(tree, last, draft)
		}
		g := tandem.Guess{SelfDraft: draft.Name}
		hash, n := h.hash, len(h.tokens)
		for range levels {
			right := w.next(hash, n, h.open.Sampling.Seed)
			level := []tandem.TopLogprob{{Token: right, LogProb: -0.4}, {Token: (right + 7) % vocabSize, LogProb: -1.5},
				{Token: (right + 9) % vocabSize, LogProb: -3}}
			switch mix(uint64(hash)+uint64(draft.Levels)) % 4 {
			case 0:
				level[0].Token, level[1].Token = level[1].Token, level[0].Token
			case 1:
				level[0].Token = (right + 5) % vocabSize
			}
			g.Levels = append(g.Levels, level)
			hash, n = hash.Add(right), n+1
		}
		if levels > 0 {
			out = append(out, g)
		}
	}
	return out
}

// prompted returns how many levels of a draft's prompt nodes are behind a node, and checks that the tree is as the contract has it.
func (w *world) prompted(t tandem.Tree, node int32, draft tandem.SelfDraft) (levels int) {
	if err := t.Validate(1<<10, vocabSize); err != nil {
		w.violate("ticket with %v", err)
		return 0
	}
	of := map[tandem.Token]int32{}
	for i := t.Guesses(); i < t.Len(); i++ {
		e, above := t.Tokens[i], node
		if int(e) >= draft.Levels*draft.Members {
			w.violate("embedding %d", e)
		}
		if int(e)%draft.Levels > 0 {
			above = -1
			if p, ok := of[e-1]; ok {
				above = p
			}
			if p := int(t.Parents[i]); p < t.Guesses() || t.Tokens[p] != e-1 {
				w.violate("prompt node %d with embedding %d below node %d", i, e, p)
			}
		}
		if above == t.Parents[i] {
			of[e] = int32(i)
		}
	}
	for ; levels < draft.Levels; levels++ {
		for m := range draft.Members {
			if _, ok := of[tandem.Token(m*draft.Levels+levels)]; !ok {
				return levels
			}
		}
	}
	return levels
}

// spoilGuesses returns what no verifier may say.
func spoilGuesses(guesses []tandem.Guess, how string) (out []tandem.Guess) {
	for _, g := range guesses {
		levels := make([][]tandem.TopLogprob, len(g.Levels))
		for i, l := range g.Levels {
			levels[i] = slices.Clone(l)
		}
		g.Levels = levels
		switch last := levels[len(levels)-1]; how {
		case "guess-token":
			last[0].Token = vocabSize
		case "guess-twice":
			last[0].Token = last[1].Token
		case "guess-levels":
			g.Levels = slices.Repeat(levels[:1], tandem.MostLevels+1)
		case "guess-nan":
			last[0].LogProb = float32(math.NaN())
		case "guess-name":
			g.SelfDraft = "palm reading"
		}
		out = append(out, g)
	}
	return out
}

var guessFaults = []string{"guess-token", "guess-twice", "guess-levels", "guess-nan", "guess-name"}

// TestGuessesNeverChangeTheText: with any strategy and vote, alone and beside drafters, with garbage among the guesses and with peers that
// fail, the text is that of plain decoding.
func TestGuessesNeverChangeTheText(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := genRequest(rt)
		r.Bounds = tandem.Bounds{Nodes: rapid.IntRange(2, 24).Draw(rt, "nodes"), Depth: rapid.IntRange(1, 7).Draw(rt, "depth"),
			Width: rapid.IntRange(1, 4).Draw(rt, "width")}
		r.Strategy = rapid.SampledFrom([]tandem.Strategy{tandem.StrategyFixed, tandem.StrategyLLMCad, tandem.StrategyMinions,
			tandem.StrategyPlanner}).Draw(rt, "strategy")
		r.Vote = rapid.SampledFrom([]tandem.Vote{tandem.VoteAuto, tandem.VoteNone, tandem.VoteMajority, tandem.VoteTree}).Draw(rt, "vote")
		r.Drafters = rapid.SampledFrom([][]string{nil, {"medusa"}, {"ppd"}, {"ppd", "medusa"}, {"fake", "ppd"},
			{"medusa", "fake"}}).Draw(rt, "drafters")
		faults := genFaults(rt, 4)
		for range rapid.IntRange(0, 5).Draw(rt, "garbage") {
			verdict := fmt.Sprintf("verdict %d", rapid.IntRange(1, 30).Draw(rt, "n"))
			faults[verdict] = fault{do: rapid.SampledFrom(guessFaults).Draw(rt, "how")}
		}
		var outages []outage
		for range rapid.IntRange(0, 2).Draw(rt, "outages") {
			outages = append(outages, outage{time.Duration(rapid.IntRange(0, 300).Draw(rt, "at")) * time.Millisecond,
				rapid.SampledFrom([]string{"verifier", "drafter"}).Draw(rt, "who"), rapid.Bool().Draw(rt, "hint")})
		}
		without := rapid.Bool().Draw(rt, "without drafter")
		var problem string
		synctest.Test(t, func(*testing.T) {
			w := newWorld()
			w.quiet, w.faults, w.selfDrafts = true, faults, bothSelfDrafts
			c := w.config()
			rec := &recorder{}
			c.Limits.Context, c.Events = 100, rec.events()
			if without && (r.Drafters == nil || !slices.Contains(r.Drafters, "fake")) {
				c.Drafters = nil
			}
			w.then = func() { w.gw.SelfDraftsAre(bothSelfDrafts) }
			problem = faulty(w, c, rec, r, outages)
		})
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

// guessed runs a request in a world in which the target guesses by itself, and returns what came of it.
func guessed(t *testing.T, w *world, c Config, r tandem.Request, then func(g *Gateway)) (tandem.Result, *sink, map[string]int64) {
	t.Helper()
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	w.gw = g
	g.SelfDraftsAre(w.selfDrafts)
	if then != nil {
		then(g)
	}
	s := &sink{}
	res, err := g.Generate(context.Background(), r, s)
	if err != nil {
		t.Fatal(err)
	}
	w.flights.Wait()
	if err := g.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	want, _, _ := w.plain(r, tandem.DefaultLimits.Context)
	if !slices.Equal(s.tokens, want) {
		t.Errorf("tokens %v, want %v", s.tokens, want)
	}
	if len(w.violations) > 0 {
		t.Errorf("contracts broken: %q", w.violations)
	}
	return res, s, c.Counters.Snapshot()
}

// TestSelfDraftsDraft: every strategy drafts with the self-drafts that a request names, with far fewer rounds than tokens, and the
// statistics know them by name.
func TestSelfDraftsDraft(t *testing.T) {
	for _, strategy := range []tandem.Strategy{tandem.StrategyFixed, tandem.StrategyLLMCad, tandem.StrategyMinions,
		tandem.StrategyPlanner} {
		for _, names := range [][]string{{"medusa"}, {"ppd"}, {"medusa", "ppd"}} {
			t.Run(fmt.Sprintf("%s %s", strategy, strings.Join(names, "+")), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld()
					w.quiet, w.selfDrafts = true, bothSelfDrafts
					c := w.config()
					c.Drafters = nil
					r := tandem.Request{Prompt: "a way", MaxTokens: 200, IgnoreEOS: true, Sampling: tandem.Sampling{TopP: 1},
						Strategy: strategy, Bounds: tandem.Bounds{Nodes: 24, Depth: 6, Width: 4}, Drafters: names}
					res, _, counts := guessed(t, w, c, r, nil)
					most := 160
					if strategy == tandem.StrategyMinions {
						most = 190 // chains, whose length it has yet to learn
					}
					if res.Stats.Rounds > most {
						t.Errorf("%d rounds for 200 tokens: want at most %d; %+v", res.Stats.Rounds, most, res.Stats)
					}
					accepted := 0
					for _, d := range res.Stats.Drafters {
						if !slices.Contains(names, d.Name) || d.Rounds == 0 {
							t.Errorf("statistics of %+v", d)
						}
						accepted += d.Accepted
					}
					if accepted < 20 || counts["guesses.taken"] < 50 || counts["guesses.garbage"]+counts["guesses.unasked"] > 0 {
						t.Errorf("accepted %d; %v", accepted, counts)
					}
				})
			})
		}
	}
}

// TestDrafterAloneBringsGuesses: a round that one drafter drafts alone asks the self-drafts as well, because that drafter's ticket does.
func TestDrafterAloneBringsGuesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet, w.selfDrafts = true, bothSelfDrafts[:1]
		w.knows["drafter"] = 0.95 // better than medusa, so that it is asked alone most of the time
		r := tandem.Request{Prompt: "alone", MaxTokens: 400, IgnoreEOS: true, Sampling: tandem.Sampling{TopP: 1},
			Strategy: tandem.StrategyPlanner, Vote: tandem.VoteNone, Bounds: tandem.Bounds{Nodes: 16, Depth: 6, Width: 4}}
		_, _, counts := guessed(t, w, w.config(), r, nil)
		alone, taken := w.counts["ticket that asks medusa"], counts["guesses.taken"]
		if alone < 1 || taken < int64(alone) {
			t.Errorf("%d tickets of the drafter asked medusa, %d guesses were taken: want one or more, and a guess of each", alone, taken)
		}
	})
}

// TestSelfDraftsComeAndGo: a self-draft drafts while the verifier offers it, nobody else can have its name, and guesses nobody asked
// for are ignored.
func TestSelfDraftsComeAndGo(t *testing.T) {
	r := tandem.Request{Prompt: "a way", MaxTokens: 100, IgnoreEOS: true, Sampling: tandem.Sampling{TopP: 1},
		Bounds: tandem.Bounds{Nodes: 16, Depth: 6, Width: 4}}
	used := func(res tandem.Result) (names []string) {
		for _, d := range res.Stats.Drafters {
			names = append(names, d.Name)
		}
		return names
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet, w.selfDrafts = true, bothSelfDrafts
		c := w.config()
		c.Drafters = nil
		res, _, counts := guessed(t, w, c, r, func(g *Gateway) { g.SelfDraftsAre(nil) })
		if len(used(res)) > 0 || res.Stats.Rounds != 100 || counts["guesses.taken"] > 0 {
			t.Errorf("%v drafted although the verifier offers nothing; %v", used(res), counts)
		}
		c = w.config()
		c.Drafters = nil
		var gw *Gateway
		rounds := 0
		c.RoundHook = func(round int, _ *tandem.Request) {
			if rounds = round; round == 20 {
				gw.SelfDraftsAre(nil)
			}
		}
		res, _, _ = guessed(t, w, c, r, func(g *Gateway) {
			gw = g
			g.Enlist(Enlisted{Name: "ppd", Drafter: fakeDrafter{w.peer("drafter")}}) // is ignored
		})
		if got := used(res); !slices.Equal(got, []string{"medusa"}) || res.Stats.PlainRounds < rounds-19 {
			t.Errorf("%v drafted, %d of %d rounds were plain: want medusa for the first 19", got, res.Stats.PlainRounds, rounds)
		}
		c = w.config() // a drafter in a process is asked first
		res, _, _ = guessed(t, w, c, r, nil)
		if got := used(res); !slices.Contains(got, "fake") || res.Stats.Drafters[0].Rounds < 20 {
			t.Errorf("%+v drafted", res.Stats.Drafters)
		}
		c = w.config()
		c.Drafters = []Enlisted{{Name: "medusa", Drafter: fakeDrafter{w.peer("drafter")}}}
		if _, err := New(c); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "a self-draft") {
			t.Errorf("a drafter named medusa: %v", err)
		}
	})
}

// TestSelfDraftsToldLate: a request that names a self-draft waits until the verifier has told which there are, but not for ever.
func TestSelfDraftsToldLate(t *testing.T) {
	r := tandem.Request{Prompt: "a way", MaxTokens: 50, IgnoreEOS: true, Sampling: tandem.Sampling{TopP: 1}, Drafters: []string{"medusa"},
		Bounds: tandem.Bounds{Nodes: 16, Depth: 6, Width: 4}}
	for _, tc := range []struct {
		after   time.Duration
		offered []tandem.SelfDraft
		want    string
	}{{time.Second, bothSelfDrafts, ""}, {time.Second, nil, `drafter "medusa" is not there`},
		{time.Minute, bothSelfDrafts, `drafter "medusa" is not there`}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.quiet, w.selfDrafts = true, tc.offered
			g, err := New(w.config())
			if err != nil {
				t.Fatal(err)
			}
			w.gw = g
			time.AfterFunc(tc.after, func() { g.SelfDraftsAre(w.selfDrafts) })
			start := time.Now()
			res, err := g.Generate(t.Context(), r, &sink{})
			if tc.want == "" && (err != nil || len(res.Stats.Drafters) != 1 || res.Stats.Drafters[0].Name != "medusa") {
				t.Errorf("told %v after %v: %v; %+v", tc.offered, tc.after, err, res.Stats.Drafters)
			}
			if tc.want != "" && (tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("told %v after %v: %v, want %s", tc.offered, tc.after, err, tc.want)
			}
			if took := time.Since(start); tc.want != "" && took > describeWait {
				t.Errorf("told %v after %v: refused after %v", tc.offered, tc.after, took)
			}
			w.flights.Wait()
			if err := g.Shutdown(context.Background()); err != nil {
				t.Fatal(err)
			}
			testkit.Sleep(tc.after)
		})
	}
}

// TestGarbageGuesses: each is counted and ignored, and the next good guess is used.
func TestGarbageGuesses(t *testing.T) {
	for _, how := range guessFaults {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.quiet, w.selfDrafts = true, bothSelfDrafts
			for n := 3; n < 100; n += 3 {
				w.faults[fmt.Sprintf("verdict %d", n)] = fault{do: how}
			}
			c := w.config()
			c.Drafters = nil
			r := tandem.Request{Prompt: "garbage", MaxTokens: 100, IgnoreEOS: true, Sampling: tandem.Sampling{TopP: 1},
				Drafters: []string{"medusa"}, Bounds: tandem.Bounds{Nodes: 16, Depth: 6, Width: 4}}
			res, _, counts := guessed(t, w, c, r, nil)
			if bad := counts["guesses.garbage"] + counts["guesses.unasked"]; bad < 10 || res.Stats.Accepted < 10 ||
				counts["drafter.garbage"] > 0 {
				t.Errorf("%s: %d counted, %d accepted; %v", how, bad, res.Stats.Accepted, counts)
			}
		})
	}
}
