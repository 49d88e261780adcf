package gateway

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// outage makes a peer forget everything at a moment, and perhaps says that it came up.
type outage struct {
	at   time.Duration
	who  string
	hint bool
}

var (
	faultsOf = map[string][]string{
		"open-verifier": {"fail", "slow"},
		"open-drafter":  {"fail", "slow", "deaf"},
		"propose": {"fail", "slow", "lose", "die", "garbage", "bad-tree", "root", "deep", "vocab", "cycle", "other-root", "nan",
			"million", "hindsight"},
		"ticket":  {"fail", "lose", "twice", "late"},
		"verdict": {"lose", "twice", "late", "epoch", "base", "hash", "length", "token", "path", "kind", "restart"},
	}
	passing = []tandem.Kind{tandem.UnknownSession, tandem.Stale, tandem.Exhausted, tandem.Unavailable, tandem.Deadline, tandem.Internal,
		tandem.Corrupt}
)

// genFaults draws up to most faults, spread over the first forty operations of each kind.
func genFaults(rt *rapid.T, most int, others ...string) map[string]fault {
	out := map[string]fault{}
	for range rapid.IntRange(0, most).Draw(rt, "faults") {
		operation := rapid.SampledFrom([]string{"open-verifier", "open-drafter", "propose", "ticket", "verdict"}).Draw(rt, "operation")
		where := operation
		if operation == "propose" || operation == "open-drafter" {
			if who := rapid.SampledFrom(append([]string{""}, others...)).Draw(rt, "whose"); who != "" {
				where = strings.TrimSuffix(operation, "drafter") + who
				if operation == "propose" {
					where = "propose-" + who
				}
			}
		}
		f := fault{do: rapid.SampledFrom(faultsOf[operation]).Draw(rt, "do")}
		f.kind = rapid.SampledFrom(passing).Draw(rt, "kind")
		switch {
		case operation == "open-verifier":
			f.kind = rapid.SampledFrom([]tandem.Kind{tandem.Exhausted, tandem.Unavailable, tandem.Deadline}).Draw(rt, "open kind")
		case operation == "verdict":
			f.kind = rapid.SampledFrom([]tandem.Kind{tandem.UnknownSession, tandem.Stale, tandem.Invalid, tandem.Internal}).Draw(rt,
				"verdict kind")
		case operation == "propose" && rapid.IntRange(0, 9).Draw(rt, "refused") == 0:
			f.kind = tandem.Unsupported
		}
		if f.do == "slow" || f.do == "late" || f.do == "deaf" {
			f.wait = time.Duration(rapid.IntRange(1, 400).Draw(rt, "wait")) * time.Millisecond
		}
		out[fmt.Sprintf("%s %d", where, rapid.IntRange(1, 40).Draw(rt, "n"))] = f
	}
	return out
}

func genRequest(rt *rapid.T) tandem.Request {
	r := tandem.Request{
		Prompt:    rapid.StringN(1, 12, -1).Draw(rt, "prompt"),
		MaxTokens: rapid.IntRange(1, 60).Draw(rt, "max"),
		Sampling:  tandem.Sampling{TopP: 1, Seed: rapid.Uint64().Draw(rt, "seed")},
		IgnoreEOS: rapid.Bool().Draw(rt, "ignore"),
		FullTrace: rapid.Bool().Draw(rt, "full"),
		Report:    rapid.Bool().Draw(rt, "report"),
	}
	if rapid.IntRange(0, 5).Draw(rt, "drafts") > 0 {
		r.Bounds = tandem.Bounds{Nodes: rapid.IntRange(2, 16).Draw(rt, "nodes"), Depth: rapid.IntRange(1, 7).Draw(rt, "depth"),
			Width: rapid.IntRange(1, 4).Draw(rt, "width")}
	}
	return r
}

// TestFaultsNeverChangeTheText: whatever is lost, late, repeated, wrong or restarted, a request says
// what plain decoding says, and counts what it said.
func TestFaultsNeverChangeTheText(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := genRequest(rt)
		contextSize := rapid.IntRange(60, 120).Draw(rt, "context")
		faults := genFaults(rt, 7)
		eosEvery := rapid.SampledFrom([]uint64{0, 20, 60}).Draw(rt, "eos")
		var outages []outage
		for range rapid.IntRange(0, 3).Draw(rt, "outages") {
			outages = append(outages, outage{time.Duration(rapid.IntRange(0, 400).Draw(rt, "at")) * time.Millisecond,
				rapid.SampledFrom([]string{"verifier", "drafter"}).Draw(rt, "who"), rapid.Bool().Draw(rt, "hint")})
		}
		var problem string
		synctest.Test(t, func(*testing.T) {
			w := newWorld()
			w.quiet, w.faults, w.eosEvery = true, faults, eosEvery
			c := w.config()
			rec := &recorder{}
			c.Limits.Context, c.Events = contextSize, rec.events()
			problem = faulty(w, c, rec, r, outages)
		})
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

// faulty runs one request and returns what is wrong with it.
func faulty(w *world, c Config, rec *recorder, r tandem.Request, outages []outage) string {
	g, err := New(c)
	if err != nil {
		return err.Error()
	}
	w.gw = g
	if w.then != nil {
		w.then()
	}
	for _, o := range outages {
		w.later(o.at, func() {
			w.restart(o.who)
			if o.hint {
				w.hint(o.who)
			}
		})
	}
	reports := &reports{want: r.Report, base: len(fakeVocab{}.Encode(r.Prompt, true)), choices: map[string]int{}}
	s := &sink{each: reports.take}
	res, err := g.Generate(context.Background(), r, s)
	w.flights.Wait()
	if shut := g.Shutdown(context.Background()); shut != nil {
		return shut.Error()
	}
	want, str, finish := w.plain(r, c.Limits.Context)
	switch {
	case err != nil:
		return fmt.Sprintf("request failed: %v", err)
	case !slices.Equal(s.tokens, want):
		return fmt.Sprintf("tokens %v, want %v", s.tokens, want)
	case s.text != str:
		return fmt.Sprintf("text %q, want %q", s.text, str)
	case res.Finish != finish:
		return fmt.Sprintf("finish %q, want %q", res.Finish, finish)
	case len(w.violations) > 0:
		return fmt.Sprintf("contracts broken: %q", w.violations)
	case w.held() > 0:
		return "sessions left in the peers"
	}
	if p := unsettled(w.gw); p != "" {
		return p
	}
	st := res.Stats
	switch {
	case res.OutputTokens != len(want) || st.Accepted+st.Rounds != len(want):
		return fmt.Sprintf("%d tokens, but accepted %d + rounds %d", len(want), st.Accepted, st.Rounds)
	case s.deltas != st.Rounds || slices.Contains(s.sizes, 0):
		return fmt.Sprintf("%d deltas of %v tokens in %d rounds: want at least a token in each", s.deltas, s.sizes, st.Rounds)
	case len(st.Coordination) != st.Rounds || st.PlainRounds > st.Rounds || st.Accepted > st.Drafted || st.DraftedDepth > st.Drafted ||
		s.drafts != st.Accepted:
		return fmt.Sprintf("figures contradict each other: %+v", st)
	}
	choices, reasons := 0, 0
	for _, n := range st.Choices {
		choices += n
	}
	for _, n := range st.Reasons {
		reasons += n
	}
	for _, d := range st.Drafters {
		if d.Rounds > st.Rounds || d.Accepted > d.Drafted || !(d.Weight > 0) {
			return fmt.Sprintf("figures contradict each other: %+v of %d rounds", d, st.Rounds)
		}
	}
	if reports.problem != "" {
		return reports.problem
	}
	if r.Report && !maps.Equal(reports.choices, st.Choices) {
		return fmt.Sprintf("choices reported %v, counted %v", reports.choices, st.Choices)
	}
	if choices != st.Rounds || reasons != st.Rounds || st.AheadHits > st.AheadTries || st.AheadUseful > st.AheadBusy {
		return fmt.Sprintf("figures contradict each other: %+v", st)
	}
	return rec.problem(len(want))
}

// unsettled returns what is wrong with the counts of sessions after all have ended.
func unsettled(g *Gateway) string {
	running, waiting := g.Load()
	if parked := g.cfg.Counters.Snapshot()["sessions.parked"]; running != 0 || waiting != 0 || parked != 0 {
		return fmt.Sprintf("%d sessions run, %d wait, %d are parked after the last request: want none", running, waiting, parked)
	}
	return ""
}

// genSpeculation draws how a request drafts.
func genSpeculation(rt *rapid.T, r *tandem.Request, names []string) {
	r.Strategy = rapid.SampledFrom([]tandem.Strategy{"", tandem.StrategyPlanner, tandem.StrategyFixed, tandem.StrategyLLMCad,
		tandem.StrategyMinions}).Draw(rt, "strategy")
	r.Vote = rapid.SampledFrom([]tandem.Vote{"", tandem.VoteAuto, tandem.VoteNone, tandem.VoteMajority, tandem.VoteTree}).Draw(rt, "vote")
	r.Without = tandem.Technique(rapid.IntRange(0, 7).Draw(rt, "without"))
	r.Drafters = nil
	if rapid.Bool().Draw(rt, "named") {
		r.Drafters = slices.Clone(rapid.Permutation(names).Draw(rt, "names"))[:rapid.IntRange(1, len(names)).Draw(rt, "how many")]
	}
}

// TestStrategiesNeverChangeTheText: whatever strategy, vote and set of drafters a request has, while
// drafters fail, send garbage, join and leave, and the request's bounds change from round to round, the
// text is that of plain decoding.
func TestStrategiesNeverChangeTheText(t *testing.T) {
	names := []string{"drafter", "b", "c", "d"}
	rapid.Check(t, func(rt *rapid.T) {
		r := genRequest(rt)
		genSpeculation(rt, &r, []string{"fake", "b", "c", "d"})
		faults := genFaults(rt, 12, names[1:]...)
		there := rapid.IntRange(1, len(names)).Draw(rt, "there from the start")
		type change struct {
			at      time.Duration
			who, do string
		}
		var changes []change
		for range rapid.IntRange(0, 6).Draw(rt, "changes") {
			changes = append(changes, change{time.Duration(rapid.IntRange(0, 400).Draw(rt, "at")) * time.Millisecond,
				rapid.SampledFrom(names).Draw(rt, "who"), rapid.SampledFrom([]string{"enlist", "dismiss", "restart", "up"}).Draw(rt,
					"change")})
		}
		hooks := map[int]tandem.Request{}
		for range rapid.IntRange(0, 4).Draw(rt, "hooks") {
			h := genRequest(rt)
			genSpeculation(rt, &h, []string{"fake", "b", "c", "d"})
			hooks[rapid.IntRange(1, 20).Draw(rt, "round")] = h
		}
		slow := time.Duration(rapid.IntRange(0, 20).Draw(rt, "slower")) * time.Millisecond
		measured := rapid.Bool().Draw(rt, "measured")
		var problem string
		synctest.Test(t, func(*testing.T) {
			w := newWorld()
			w.quiet, w.faults = true, faults
			w.slower["d"] = slow
			c := w.config()
			c.Drafters, c.Limits.Context = nil, 1000
			for i, who := range names {
				if m := w.enlisted(who); i < there || slices.Contains(r.Drafters, m.Name) {
					c.Drafters = append(c.Drafters, m)
				}
			}
			rec := &recorder{}
			c.Events = rec.events()
			c.RoundHook = func(round int, r *tandem.Request) {
				if h, ok := hooks[round]; ok {
					r.Bounds, r.Strategy, r.Vote, r.Without, r.Drafters = h.Bounds, h.Strategy, h.Vote, h.Without, h.Drafters
				}
			}
			w.then = func() {
				for _, x := range changes {
					w.later(x.at, func() {
						switch x.do {
						case "enlist":
							w.gw.Enlist(w.enlisted(x.who))
						case "dismiss":
							w.gw.Dismiss(w.enlisted(x.who).Name)
						case "restart":
							w.restart(x.who)
						case "up":
							w.hint(x.who)
						}
					})
				}
				if measured {
					w.gw.VerifierIs([]tandem.Cost{{Rows: 1, Time: 5 * time.Millisecond}, {Rows: 8, Time: 6 * time.Millisecond},
						{Rows: 16, Time: 12 * time.Millisecond}}, 0, 0, 0)
				}
			}
			problem = faulty(w, c, rec, r, nil)
		})
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

// TestCancelAtEveryMoment cancels a request in each millisecond of its life: it ends at once, and both
// peers have forgotten it within 50 ms.
func TestCancelAtEveryMoment(t *testing.T) {
	r := tandem.Request{Prompt: "func", MaxTokens: 12, Sampling: tandem.Sampling{TopP: 1},
		Bounds: tandem.Bounds{Nodes: 8, Depth: 4, Width: 2}}
	for at := time.Duration(0); at < 300*time.Millisecond; at += 997 * time.Microsecond {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.quiet = true
			w.faults["open-drafter 1"] = fault{do: "slow", wait: 15 * time.Millisecond}
			w.faults["propose 2"] = fault{do: "fail", kind: tandem.UnknownSession}
			w.faults["verdict 3"] = fault{do: "restart"}
			w.faults["open-verifier 2"] = fault{do: "fail", kind: tandem.Unavailable}
			w.faults["ticket 6"] = fault{do: "fail", kind: tandem.Exhausted}
			c := w.config()
			rec := &recorder{}
			c.Events = rec.events()
			w.gw, _ = New(c)
			ctx, cancel := context.WithCancel(context.Background())
			stop := time.AfterFunc(at, cancel)
			s := &sink{}
			res, err := w.gw.Generate(ctx, r, s)
			stop.Stop()
			cancel()
			if life := time.Since(w.began); err == nil && life > at || err != nil && life != at {
				t.Errorf("cancelled after %v, ended after %v: %v", at, life, err)
			}
			want, _, _ := w.plain(r, 1000)
			if err != nil && tandem.KindOf(err) != tandem.Canceled || err == nil && res.Finish != tandem.FinishLength {
				t.Errorf("cancelled after %v: finish %q, error %v", at, res.Finish, err)
			}
			if len(s.tokens) > len(want) || !slices.Equal(s.tokens, want[:len(s.tokens)]) {
				t.Errorf("cancelled after %v: tokens %v are no prefix of %v", at, s.tokens, want)
			}
			if p := rec.problem(res.OutputTokens); p != "" {
				t.Error(p)
			}
			testkit.Sleep(50 * time.Millisecond)
			synctest.Wait()
			w.mu.Lock()
			if w.held() > 0 {
				t.Errorf("cancelled after %v: sessions still held 50 ms later", at)
			}
			w.mu.Unlock()
			if err := w.gw.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
			w.flights.Wait()
		})
	}
}
