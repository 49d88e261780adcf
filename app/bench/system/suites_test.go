package system

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// scripted are processes that compute nothing: each prompt has one continuation, whatever drafts it, and speculation takes
// half the time.
type scripted struct {
	group  Group
	rounds *atomic.Int64
	broken string // the name of a drafter under which texts change
	dies   error  // cause of the ctx's end after the first text
	cancel context.CancelCauseFunc
}

func (s *scripted) Generate(ctx context.Context, r tandem.Request, heard func([]tandem.Token)) (out tandem.Result, err error) {
	if err := context.Cause(ctx); err != nil {
		return out, err
	}
	h := fnv.New64a()
	fmt.Fprint(h, r.Prompt, r.Tokens)
	seed := h.Sum64()
	if slices.Equal(r.Drafters, []string{s.broken}) {
		seed++
	}
	perRound, took := 1, 2*time.Millisecond
	if !r.Bounds.Plain() {
		perRound, took = 2, time.Millisecond
		out.Stats.Drafters = []tandem.DrafterStats{{Name: "go", Weight: 2}, {Name: "py", Weight: 1}}
	}
	for n := 0; n < r.MaxTokens; n += perRound {
		runtime.Gosched() // so that several decode at once
		tokens := make([]tandem.Token, min(perRound, r.MaxTokens-n))
		for i := range tokens {
			tokens[i] = tandem.Token(seed>>(n+i)%8) & 0xff
		}
		heard(tokens)
		s.rounds.Add(1)
		out.Stats.Rounds++
		out.Stats.Accepted += len(tokens) - 1
		out.Stats.Decode += took
		out.Stats.VerifyBusy += took / 2
		out.Stats.Coordination = append(out.Stats.Coordination, 100*time.Microsecond)
	}
	out.Stats.Drafted, out.Stats.DraftedDepth = 2*out.Stats.Accepted, out.Stats.Accepted
	out.Stats.Choices, out.Stats.Reasons = map[string]int{"go 8/4": out.Stats.Rounds}, map[string]int{"best": out.Stats.Rounds}
	out.Finish, out.OutputTokens = tandem.FinishLength, r.MaxTokens
	if s.dies != nil {
		s.cancel(s.dies)
	}
	return out, nil
}

func (s *scripted) Counters(context.Context) map[string]map[string]int64 {
	return map[string]map[string]int64{"gateway": {}, "verifier": {busyCounter: 20 * s.rounds.Load(), "kv.pages": 0,
		passesCounter: s.rounds.Load(), verdictsCounter: 2 * s.rounds.Load()}}
}

func (s *scripted) PIDs() map[string]int { return map[string]int{"gateway": os.Getpid()} }

func (s *scripted) Drafts() []string { return s.group.Drafts }

// scriptedBench is of all suites on scripted processes; the groups that are started are added to groups.
func scriptedBench(t *testing.T, groups *[]Group, change func(*scripted)) Bench {
	t.Helper()
	prompts := filepath.Join(t.TempDir(), "prompts.jsonl")
	var lines string
	for _, domain := range []string{"go", "python"} {
		for i := range 3 {
			lines += fmt.Sprintf("{\"id\":\"%s-%d\",\"domain\":%[1]q,\"prompt\":\"%[1]s text %d\"}\n", domain, i, i)
		}
	}
	if err := os.WriteFile(prompts, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := Choose([]string{"all"})
	if err != nil {
		t.Fatal(err)
	}
	request := tandem.Request{MaxTokens: 16, Strategy: tandem.StrategyPlanner, Bounds: tandem.DefaultBounds(tandem.StrategyPlanner)}
	return Bench{Suites: all, Count: 2, Repeat: 1, Rounds: 500, Streamed: true, Parallel: 1, Prompts: prompts, Vocab: 512, LengthStart: 4,
		Request: request,
		Target:  "/m/target.gguf", SmallTarget: "/m/small.gguf", Drafts: []string{"/m/x-go-f16.gguf", "/m/x-py-f16.gguf"},
		Informed: []string{"medusa", "x-py-f16"},
		Start: func(g Group, do func(context.Context, Processes) error) error {
			*groups = append(*groups, g)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			s := &scripted{group: g, rounds: new(atomic.Int64), cancel: cancel}
			if change != nil {
				change(s)
			}
			err := do(ctx, s)
			if gone := context.Cause(ctx); gone != nil {
				return gone
			}
			return err
		},
		AtRatio: func(_ context.Context, want float64) (Group, func(), error) {
			return Group{Target: "/m/big.gguf", Drafts: []string{fmt.Sprintf("/m/%v-go-f16.gguf", want)}, Sessions: 1}, func() {}, nil
		}}
}

// TestSuites: every suite runs, on the group of processes that it needs, compares all texts, and has its figures.
func TestSuites(t *testing.T) {
	var groups []Group
	c := scriptedBench(t, &groups, nil)
	r, err := Run(t.Context(), c)
	if err != nil || r.Err() != nil {
		t.Fatal(err, r.Err())
	}
	want := []Group{
		{Target: "/m/target.gguf", Drafts: c.Drafts, Sessions: manySessions},
		{Target: "/m/target.gguf", Drafts: c.Drafts, Sessions: manySessions, Batches: 1},
		{Target: "/m/target.gguf", Drafts: c.Drafts, Sessions: manySessions, Batches: 2},
		{Target: "/m/target.gguf", Drafts: c.Drafts, Sessions: 32},
		{Target: "/m/target.gguf", Drafts: c.Drafts, Sessions: 32, Batches: 1},
		{Target: "/m/target.gguf", Drafts: c.Drafts, Sessions: 32, Batches: 2},
		{Target: "/m/target.gguf", Drafts: c.Drafts, Sessions: 1, OneSize: true},
		{Target: "/m/small.gguf", Drafts: c.Drafts, Sessions: memorySessions},
	}
	for _, ratio := range []string{"0.02", "0.07", "0.16", "0.32", "0.45"} {
		want = append(want, Group{Target: "/m/big.gguf", Drafts: []string{"/m/" + ratio + "-go-f16.gguf"}, Sessions: 1})
	}
	if fmt.Sprint(groups) != fmt.Sprint(want) {
		t.Errorf("groups %+v: want %+v", groups, want)
	}
	ran := map[string]bool{}
	for _, s := range r.Suites {
		ran[s.Name] = true
		if s.Error != "" || len(s.Figures) == 0 && s.Name != "drafts" ||
			len(s.Sets) == 0 && s.Sessions == nil && s.Pipeline == nil && s.Minions == nil && s.Memory == nil {
			t.Errorf("suite %s: %d figures, %d sets, error %q", s.Name, len(s.Figures), len(s.Sets), s.Error)
		}
		for _, f := range s.Figures {
			if f.Name == "" || !(f.Value >= 0) {
				t.Errorf("suite %s: %+v", s.Name, f)
			}
		}
		for _, set := range s.Sets {
			for i, v := range set.Variants {
				if v.Name == "plain" && (i != 0 || v.TokensPerRound != 1) || v.Name != "plain" && v.TokensPerRound != 2 || v.TokS <= 0 {
					t.Errorf("suite %s, %s: %+v", s.Name, set.Name, v)
				}
			}
			if !set.Equal || set.Tokens != 16*set.Prompts {
				t.Errorf("suite %s: set %s: equal %v, %d tokens of %d prompts", s.Name, set.Name, set.Equal, set.Tokens, set.Prompts)
			}
		}
	}
	if len(ran) != len(suites) {
		t.Errorf("ran %v: want all of %d", ran, len(suites))
	}
	i := slices.IndexFunc(r.Suites, func(s *suiteResult) bool { return s.Name == "ways" })
	var compared []string
	for _, set := range r.Suites[i].Sets {
		for _, v := range set.Variants {
			compared = append(compared, set.Name+": "+v.Name)
		}
	}
	one := "go, temperature 0: plain,go, temperature 0: without,go, temperature 0: with,go, temperature 0: medusa alone," +
		"go, temperature 0: x-py-f16 alone,go, temperature 1: plain,"
	if got := strings.Join(compared, ","); len(compared) != 20 || !strings.HasPrefix(got, one) {
		t.Errorf("the suite ways compared %s", got)
	}
	for _, s := range r.Scenarios {
		if !s.Equal || s.Ratio < 3.9 || s.Ratio > 4.1 || s.VerifierBusy != 0.5 || s.Choices["go 8/4"] == 0 {
			t.Errorf("scenario %+v: want four times plain decoding", s)
		}
	}
	if len(r.Scenarios) != 11 { // go, python by any and by an expert, hostile by any; go, python by each draft; go, python at the wall
		t.Errorf("%d scenarios", len(r.Scenarios))
	}
	if r.Coordination.P50 != 100 || r.Coordination.P99 != 100 {
		t.Errorf("coordination %+v: want 100 µs", r.Coordination)
	}
}

// TestOtherText: a text that is not the same for all is found, and is the run's error.
func TestOtherText(t *testing.T) {
	var groups []Group
	c := scriptedBench(t, &groups, func(s *scripted) { s.broken = "x-py-f16" })
	c.Suites, c.Scenario, c.Count = []string{"drafts"}, []string{"go"}, 1
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Err(); r.Equal || tandem.KindOf(err) != tandem.Internal || len(r.Differ) != 1 || r.Suites[0].Sets[0].Equal {
		t.Errorf("equal %v, differ %q, error %v", r.Equal, r.Differ, err)
	}
}

// TestProcessesThatDie: the error is theirs; what was measured before is kept.
func TestProcessesThatDie(t *testing.T) {
	dead := errors.New("the verifier died")
	for _, c := range []struct {
		at   int // in this group of processes
		left int // suites of which something is told
	}{{1, 0}, {2, len(suites) - 4}} {
		var groups []Group
		config := scriptedBench(t, &groups, nil)
		start := config.Start
		config.Start = func(g Group, do func(context.Context, Processes) error) error {
			if len(groups)+1 == c.at {
				return dead
			}
			return start(g, do)
		}
		r, err := Run(t.Context(), config)
		if !errors.Is(err, dead) || (r == nil) != (c.left == 0) || r != nil && len(r.Suites) != c.left {
			t.Errorf("dead at the start of group %d: %v, %+v", c.at, err, r)
		}
	}
	var groups []Group
	config := scriptedBench(t, &groups, func(s *scripted) { s.dies = dead })
	if r, err := Run(t.Context(), config); !errors.Is(err, dead) || r == nil || len(r.Suites) != 1 || r.Suites[0].Error != dead.Error() {
		t.Errorf("dead after the first text: %v, %+v", err, r)
	}
}
