package gateway

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/round"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec/learn"
)

func TestBadRules(t *testing.T) {
	w := newWorld()
	for want, change := range map[string]func(*Config){
		`weight of drafter "go" is 0`:    func(c *Config) { c.Rules.InitialWeights = map[string]float64{"go": 0} },
		`weight of drafter "py" is NaN`:  func(c *Config) { c.Rules.InitialWeights = map[string]float64{"go": 1, "py": math.NaN()} },
		`weight of drafter "py" is +Inf`: func(c *Config) { c.Rules.InitialWeights = map[string]float64{"py": math.Inf(1)} },
		"alpha is 1: want":               func(c *Config) { c.Rules.Alpha = 1 },
		"branch threshold is NaN: want":  func(c *Config) { c.Rules.Branch = math.NaN() },
		"length starts at 5 with at most 4": func(c *Config) {
			c.Rules.Length = learn.LengthRule{Rule: learn.LengthCurve, Start: 5, Most: 4, Punish: 1, Reward: 1, Records: 1}
		},
		"window of 0 outputs":           func(c *Config) { c.Rules.Weights = learn.WeightRule{Reward: 2} },
		"explore is 2: want":            func(c *Config) { c.Rules.Explore = 2 },
		`drafter 0, "": want a name`:    func(c *Config) { c.Drafters = []Enlisted{{Name: "", Drafter: fakeDrafter{}}} },
		`drafter 1, "b": want`:          func(c *Config) { c.Drafters = append(c.Drafters, Enlisted{Name: "b"}) },
		`drafter "fake" is there twice`: func(c *Config) { c.Drafters = append(c.Drafters, c.Drafters[0]) },
	} {
		c := w.config()
		change(&c)
		if _, err := New(c); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v: want invalid, %q", err, want)
		}
	}
}

// TestUnknownDrafter names a drafter that was never there, one that is there, and one that is gone for
// the moment: the first is a mistake, the last is not.
func TestUnknownDrafter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet = true
		c := w.config()
		c.Drafters = append(c.Drafters, w.enlisted("b"))
		w.gw, _ = New(c)
		r := tandem.Request{Prompt: "x", MaxTokens: 5, Sampling: tandem.Sampling{TopP: 1},
			Bounds: tandem.Bounds{Nodes: 8, Depth: 4, Width: 2}}
		for _, test := range []struct {
			names   []string
			want    string // in the error
			drafter string
		}{
			{[]string{"b", "go"}, `drafter "go" is not there: want some of fake, b`, ""},
			{[]string{"b"}, "", "b"},
			{nil, "", "fake"},
		} {
			r.Drafters = test.names
			s := &sink{}
			_, err := w.gw.Generate(context.Background(), r, s)
			switch {
			case test.want != "" && (tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), test.want)):
				t.Errorf("drafters %v: error %v, want %q", test.names, err, test.want)
			case test.want == "" && (err != nil || s.started.Drafter != test.drafter):
				t.Errorf("drafters %v: started with %q, error %v, want %q", test.names, s.started.Drafter, err, test.drafter)
			}
		}
		w.gw.Dismiss("b")
		r.Drafters = []string{"b"}
		s := &sink{}
		res, err := w.gw.Generate(context.Background(), r, s)
		if err != nil || res.Stats.PlainRounds != 5 || s.started.Drafter != "" {
			t.Errorf("drafter is gone: %d plain rounds of 5, drafter %q, error %v", res.Stats.PlainRounds, s.started.Drafter, err)
		}
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
	})
}

// TestCoordinationStaysFlat runs more rounds than are kept: what is kept is an even sample of all.
func TestCoordinationStaysFlat(t *testing.T) {
	c := newAccount(1)
	const rounds = 5 * mostSamples
	for i := range rounds {
		t := &turn{wall: time.Duration(i), Round: round.Round{Plan: round.Plan{Decision: strategy.Decision{
			Choice: fmt.Sprint("choice ", i%1000)}}, Verdict: tandem.Verdict{Nodes: 1, Tokens: []tandem.Token{1}}}}
		t.delta.Tokens = t.Verdict.Tokens
		c.round(t)
	}
	sum := 0.0
	for _, d := range c.stats.Coordination {
		sum += float64(d) / mostSamples
	}
	if n := len(c.stats.Coordination); n != mostSamples || math.Abs(sum-rounds/2) > rounds/50 {
		t.Errorf("%d samples with mean %.0f: want %d with about %d", n, sum, mostSamples, rounds/2)
	}
	if n := len(c.stats.Choices); n != mostChoices+1 || c.stats.Choices["other"] < rounds/2 {
		t.Errorf("%d choices, %d other: want %d, the rest other", n, c.stats.Choices["other"], mostChoices+1)
	}
}

// TestRoundsSayWhatWasChosen looks at the attributes of recorded rounds.
func TestRoundsSayWhatWasChosen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet = true
		rec := &recorder{}
		c := w.config()
		c.Events, c.Drafters = rec.events(), append(c.Drafters, w.enlisted("b"))
		w.gw, _ = New(c)
		_, err := w.gw.Generate(context.Background(), tandem.Request{Prompt: "x", MaxTokens: 30, Sampling: tandem.Sampling{TopP: 1},
			FullTrace: true,
			Bounds:    tandem.Bounds{Nodes: 8, Depth: 4, Width: 2}, Strategy: tandem.StrategyMinions}, &sink{})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
		var who []string
		for _, s := range rec.of(tandem.StageRound) {
			got := map[string]string{}
			for _, a := range s.attrs {
				got[a.Key] = a.Str
			}
			if got["strategy"] != "minions" || !strings.HasPrefix(got["choice"], "vote of 2 ") && got["choice"] != strategy.Plain {
				t.Errorf("round says %v", got)
			}
			who = append(who, got["drafter"])
		}
		if !slices.Contains(who, "fake") && !slices.Contains(who, "b") {
			t.Errorf("rounds were drafted by %v", who)
		}
	})
}

// BenchmarkStrategies measures what deciding, voting and learning cost in a round of four drafters with
// trees of 16 nodes, everything that is neither arithmetic nor communication.
func BenchmarkStrategies(b *testing.B) {
	for _, strategy := range []tandem.Strategy{tandem.StrategyFixed, tandem.StrategyLLMCad, tandem.StrategyMinions,
		tandem.StrategyPlanner} {
		for _, vote := range []tandem.Vote{tandem.VoteMajority, tandem.VoteTree} {
			b.Run(fmt.Sprintf("%s/%s", strategy, vote), func(b *testing.B) { benchmarkRound(b, strategy, vote) })
		}
	}
}

// open is a drafter that holds every session.
type open struct{ tandem.Drafter }

func (open) Open(context.Context, tandem.Opening) (tandem.Opened, error) { return tandem.Opened{}, nil }
func (open) Close(context.Context, tandem.SessionID) error               { return nil }

// desk returns a session of r whose drafters all wait to be asked.
func desk(t testing.TB, r tandem.Request, names ...string) *session {
	c := newWorld().config()
	c.Drafters = nil
	for _, n := range names {
		c.Drafters = append(c.Drafters, Enlisted{Name: n, Drafter: open{}})
	}
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Shutdown(context.Background()) })
	g.VerifierIs([]tandem.Cost{{Rows: 1, Time: 40e6}, {Rows: 8, Time: 43e6}, {Rows: 16, Time: 67e6}, {Rows: 32, Time: 122e6}}, 0, 0, 0)
	r.MaxTokens = 1 << 30
	s := newSession(&g.common, 1, r, []tandem.Token{1}, 1<<30, nil, newOutput(deaf{}, 1<<16, time.Minute))
	s.update(t.Context())
	s.sources.Settle(t.Context(), time.Minute)
	return s
}

// TestProposals looks at what each strategy asks for, and whether that moves when all that is drafted is right or
// all is wrong.
func TestProposals(t *testing.T) {
	bounds := tandem.Bounds{Nodes: 16, Depth: 7, Width: 4}
	for _, test := range []struct {
		name     string
		r        tandem.Request
		asks     int
		vote     tandem.Vote
		proposal tandem.Proposal // without Plan
		moves    bool
		choice   string
	}{
		{"fixed", tandem.Request{}, 1, tandem.VoteNone, tandem.Proposal{Bounds: bounds}, false, "go 16/7"},
		{"fixed, vote", tandem.Request{Vote: tandem.VoteTree}, 3, tandem.VoteTree, tandem.Proposal{Bounds: bounds}, false,
			"vote of 3 16/7"},
		{"fixed, chains", tandem.Request{Without: tandem.TechniqueBranches}, 1, tandem.VoteNone,
			tandem.Proposal{Bounds: tandem.Bounds{Nodes: 8, Depth: 7, Width: 1}}, false, "go 8/7"},
		{"llmcad", tandem.Request{Strategy: tandem.StrategyLLMCad}, 1, tandem.VoteNone,
			tandem.Proposal{Bounds: bounds, Growth: tandem.GrowPacer, Branch: 0.3, Stop: 0.01, Ahead: true}, true, "go 16/7"},
		{"llmcad without techniques", tandem.Request{Strategy: tandem.StrategyLLMCad,
			Without: tandem.TechniqueAhead | tandem.TechniqueAdaptive | tandem.TechniqueBranches}, 1, tandem.VoteNone,
			tandem.Proposal{Bounds: tandem.Bounds{Nodes: 8, Depth: 7, Width: 1}, Growth: tandem.GrowPacer, Branch: 0.3, Stop: 0.01}, false,
			"go 8/7"},
		{"minions", tandem.Request{Strategy: tandem.StrategyMinions}, 3, tandem.VoteMajority,
			tandem.Proposal{Bounds: tandem.Bounds{Nodes: 5, Depth: 4, Width: 1}}, true, "vote of 3 5/4"},
		{"minions without adaptation", tandem.Request{Strategy: tandem.StrategyMinions, Without: tandem.TechniqueAdaptive}, 3,
			tandem.VoteMajority,
			tandem.Proposal{Bounds: tandem.Bounds{Nodes: 8, Depth: 7, Width: 1}}, false, "vote of 3 8/7"},
		{"minions alone", tandem.Request{Strategy: tandem.StrategyMinions, Drafters: []string{"py"}}, 1, tandem.VoteNone,
			tandem.Proposal{Bounds: tandem.Bounds{Nodes: 5, Depth: 4, Width: 1}}, true, "py 5/4"},
	} {
		test.r.Bounds = bounds
		s := desk(t, test.r, "go", "py", "prose")
		ask := func() (*turn, tandem.Proposal) {
			a := s.plan()
			if len(a.Asks) == 0 {
				t.Fatalf("%s asks nobody", test.name)
			}
			return a, a.Asks[0].Proposal
		}
		a, first := ask()
		if p := a.Decision; len(p.Asks) != test.asks || p.Vote != test.vote || !reflect.DeepEqual(first, test.proposal) ||
			p.Choice != test.choice {
			t.Errorf("%s: asks %d, vote %s, proposal %+v, choice %q: want %d, %s, %+v, %q", test.name, len(p.Asks), p.Vote, first, p.Choice,
				test.asks, test.vote, test.proposal, test.choice)
		}
		for _, name := range []string{"go", "py", "prose"} {
			s.weights.Of(name) // as a vote does
		}
		for i := range 100 {
			a, now := ask()
			chain := tandem.Root(1)
			chain.LogProbs = []float32{0}
			for n := range now.Bounds.Depth {
				chain.Tokens, chain.Parents, chain.LogProbs = append(chain.Tokens, tandem.Token(n)), append(chain.Parents, int32(n)),
					append(chain.LogProbs, chain.LogProbs[n]-0.1)
			}
			a.Tree, a.Origin = chain, round.Returned
			a.Drafts = []round.Draft{{Drafter: a.Asks[0].Drafter,
				Got: tandem.Proposed{Nodes: chain.Len(), Depth: chain.Len() - 1, Tree: chain}}}
			a.Verdict = tandem.Verdict{Nodes: chain.Len(), Busy: 40*time.Millisecond + time.Duration(i%3)*time.Millisecond,
				Tokens: append(slices.Clone(chain.Tokens[1:]), 99)}
			s.strategy.Learn(a.Outcome(len(a.Verdict.Tokens), false, 0))
		}
		if _, last := ask(); reflect.DeepEqual(last, first) == test.moves {
			t.Errorf("%s: proposal was %+v, is %+v after a hundred good drafts", test.name, first, last)
		}
		if w := s.weights.Of("go"); test.r.Strategy == tandem.StrategyMinions && test.asks > 1 && (w > 1) != test.moves {
			t.Errorf("%s: weight of the drafter that is right is %v", test.name, w)
		}
	}
}

func benchmarkRound(b *testing.B, strategy tandem.Strategy, vote tandem.Vote) {
	s := desk(b, tandem.Request{Strategy: strategy, Vote: vote, Bounds: tandem.Bounds{Nodes: 16, Depth: 7, Width: 4}}, "go", "py", "prose",
		"lookup")
	rng := rand.New(rand.NewPCG(1, 2))
	trees := make([]tandem.Tree, 64)
	for i := range trees {
		t := tandem.Tree{Tokens: []tandem.Token{1}, Parents: []int32{-1}, LogProbs: []float32{0}}
		for n := 1; n < 16; n++ {
			p := max(int32(n)-1-rng.Int32N(3), 0)
			t.Tokens, t.Parents = append(t.Tokens, tandem.Token(n)), append(t.Parents, p)
			t.LogProbs = append(t.LogProbs, t.LogProbs[p]-rng.Float32())
		}
		trees[i] = t
	}
	for i := 0; b.Loop(); i++ {
		a := s.plan()
		for j, k := range a.Asks {
			t := trees[(i+j)%len(trees)]
			_, depth := t.Depths()
			a.Answer(&round.Draft{Drafter: k.Drafter, Busy: time.Millisecond, Got: tandem.Proposed{Nodes: t.Len(), Depth: depth,
				Busy: time.Millisecond, Tree: t}})
		}
		a.Merged(2*time.Millisecond, false)
		a.Verdict = tandem.Verdict{Nodes: max(a.Tree.Len(), 1), Rows: 16, Batch: 1,
			Busy: 50*time.Millisecond + time.Duration(i%7)*time.Millisecond, Tokens: []tandem.Token{1, 2, 3}}
		a.delta.Tokens, a.wall = a.Verdict.Tokens, 55*time.Millisecond
		s.learn(a)
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N), "µs/round")
}

// TestPlannerPays runs the planner in a world where a pass costs what the 0.97-billion Q8_0 target does on two
// cores, and drafters know much, little or nothing: it comes close to the best of all fixed ways, and
// where nobody knows anything it loses next to nothing.
func TestPlannerPays(t *testing.T) {
	curve := []struct{ rows, us int }{{1, 39000}, {8, 43000}, {12, 54000}, {16, 67000}, {32, 122000}, {64, 240000}}
	cost := func(rows int) time.Duration {
		for i, c := range curve[1:] {
			if b := curve[i]; rows <= c.rows {
				return time.Duration(b.us+(c.us-b.us)*(rows-b.rows)/(c.rows-b.rows)) * time.Microsecond
			}
		}
		return time.Second
	}
	var measured []tandem.Cost
	for _, c := range curve {
		measured = append(measured, tandem.Cost{Rows: c.rows, Time: time.Duration(c.us) * time.Microsecond})
	}
	const tokens = 400
	rate := func(knows map[string]float64, r tandem.Request) (tokensPerSecond float64, st tandem.Stats) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.quiet, w.knows, w.costs, w.carry = true, knows, cost, 100*time.Microsecond
			c := w.config()
			c.Timeouts = DefaultTimeouts
			c.Drafters = append(c.Drafters, w.enlisted("b"), w.enlisted("c"))
			w.gw, _ = New(c)
			w.gw.VerifierIs(measured, 0, 0, 0)
			r.Prompt, r.MaxTokens, r.IgnoreEOS, r.Sampling = "func (s *session) put(ctx context.Context", tokens, true,
				tandem.Sampling{TopP: 1}
			res, err := w.gw.Generate(context.Background(), r, &sink{})
			if err != nil {
				t.Fatal(err)
			}
			tokensPerSecond, st = tokens/res.Stats.Decode.Seconds(), res.Stats
			if err := w.gw.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
			w.flights.Wait()
		})
		return tokensPerSecond, st
	}
	for _, test := range []struct {
		name         string
		knows        map[string]float64
		least, plain float64 // shares of the best fixed way, and of plain decoding
	}{
		{"one expert", map[string]float64{"drafter": 0.1, "b": 0.85, "c": 0.3}, 0.84, 2},
		{"all know something", map[string]float64{"drafter": 0.6, "b": 0.6, "c": 0.6}, 0.9, 1.3},
		{"nobody knows anything", map[string]float64{"drafter": 0, "b": 0, "c": 0}, 0, 0.97},
	} {
		t.Run(test.name, func(t *testing.T) {
			plain, _ := rate(test.knows, tandem.Request{})
			best, how := 0.0, ""
			for _, who := range []string{"fake", "b", "c"} {
				for _, p := range []tandem.Bounds{{Nodes: 3, Depth: 2, Width: 1}, {Nodes: 5, Depth: 4, Width: 1},
					{Nodes: 8, Depth: 7, Width: 1}, {Nodes: 12, Depth: 11, Width: 1}} {
					if got, _ := rate(test.knows, tandem.Request{Bounds: p, Drafters: []string{who}}); got > best {
						best, how = got, fmt.Sprint(who, " ", p)
					}
				}
			}
			got, st := rate(test.knows, tandem.Request{Bounds: tandem.Bounds{Nodes: 32, Depth: 12, Width: 1},
				Strategy: tandem.StrategyPlanner})
			t.Logf("plain %.1f, best fixed %.1f (%s), planner %.1f tokens/s: %v", plain, best, how, got, st.Choices)
			if got < test.least*best || got < test.plain*plain {
				t.Errorf("planner makes %.1f tokens/s, plain decoding %.1f, the best fixed way (%s) %.1f: %v", got, plain, how, best,
					st.Choices)
			}
		})
	}
}

// listener notes what a drafter is asked for.
type listener struct {
	tandem.Drafter
	mu    sync.Mutex
	asked []tandem.Proposal
}

func (l *listener) Propose(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	l.mu.Lock()
	l.asked = append(l.asked, p)
	l.mu.Unlock()
	return l.Drafter.Propose(ctx, p)
}

// TestRestingDraftersFollow: a drafter that knows little is told what was committed while another drafts, in votes or by the smallest
// proposals that there are.
func TestRestingDraftersFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet, w.knows, w.costs = true, map[string]float64{"drafter": 0.1, "b": 0.85},
			func(int) time.Duration { return 40 * time.Millisecond }
		c := w.config()
		c.Timeouts = DefaultTimeouts
		resting := &listener{Drafter: c.Drafters[0].Drafter}
		c.Drafters[0].Drafter = resting
		c.Drafters = append(c.Drafters, w.enlisted("b"))
		g, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		w.gw = g
		g.VerifierIs([]tandem.Cost{{Rows: 1, Time: 40 * time.Millisecond}, {Rows: 64, Time: 41 * time.Millisecond}}, 0, 0, 0)
		res, err := g.Generate(context.Background(), tandem.Request{Prompt: "func (s *session) put(ctx context.Context", MaxTokens: 400,
			IgnoreEOS: true,
			Bounds:    tandem.Bounds{Nodes: 16, Depth: 8, Width: 1}, Strategy: tandem.StrategyPlanner, Sampling: tandem.Sampling{TopP: 1}},
			&sink{})
		if err != nil {
			t.Fatal(err)
		}
		latest := tandem.Position(0)
		for _, p := range resting.asked {
			if latest > 0 && p.Base-latest > 96 {
				t.Errorf("not told of the tokens from %d to %d for so long", latest, p.Base)
			}
			latest = p.Base
		}
		if n := len(resting.asked); n < res.Stats.Rounds/10 || res.Stats.Rounds > 400/3 {
			t.Errorf("told %d times in %d rounds: %v", n, res.Stats.Rounds, res.Stats.Choices)
		}
		if err := g.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
	})
}
