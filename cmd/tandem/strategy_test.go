package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/spec/learn"
)

func TestSpeculationFlags(t *testing.T) {
	for _, c := range []struct {
		flags    settings.Speculation
		strategy tandem.Strategy
		bounds   string
	}{
		{settings.Speculation{}, tandem.StrategyPlanner, tandem.DefaultBounds(tandem.StrategyPlanner).String()},
		{settings.Speculation{Tree: "8/4/2"}, tandem.StrategyPlanner, "8/4/2"},
		{settings.Speculation{Tree: "none"}, tandem.StrategyPlanner, "none"},
		{settings.Speculation{Strategy: "fixed"}, tandem.StrategyFixed, tandem.DefaultBounds(tandem.StrategyFixed).String()},
		{settings.Speculation{Strategy: "minions"}, tandem.StrategyMinions, tandem.DefaultBounds(tandem.StrategyMinions).String()},
		{settings.Speculation{Strategy: "fixed", Tree: "8/4/2"}, tandem.StrategyFixed, "8/4/2"},
	} {
		var r tandem.Request
		if err := c.flags.Speculate(&r); err != nil || r.Strategy != c.strategy || r.Bounds.String() != c.bounds {
			t.Errorf("%+v: strategy %s, tree %s, %v: want %s, %s", c.flags, r.Strategy, r.Bounds, err, c.strategy, c.bounds)
		}
	}
	s := settings.Sampling{MaxTokens: 1, TopP: 1, Speculation: settings.Speculation{Vote: "tree", Drafters: []string{"go", "py"},
		Without: []string{"ahead"}}}
	r, err := s.Request("x")
	if err != nil || r.Vote != tandem.VoteTree || !slices.Equal(r.Drafters, []string{"go", "py"}) || r.Without != tandem.TechniqueAhead {
		t.Errorf("request %+v, %v", r, err)
	}
	w := talk.Wire(r)
	if w.Strategy != "planner" || w.Vote != "tree" || len(w.Drafters) != 2 || !slices.Equal(w.Without, []string{"ahead"}) {
		t.Errorf("on the wire %+v", w)
	}
	for want, f := range map[string]settings.Speculation{
		`strategy is "best"`: {Strategy: "best"}, `vote is "all"`: {Vote: "all"}, `technique "luck"`: {Without: []string{"luck"}},
		"nodes is 100000": {Tree: "100000/7/10"}, `drafter "go"`: {Drafters: []string{"go", "go"}},
	} {
		if _, err := (settings.Sampling{MaxTokens: 1, TopP: 1, Speculation: f}).Request("x"); tandem.KindOf(err) != tandem.Invalid ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v: want %s", f, err, want)
		}
		if _, err := requestDefaults(f); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%+v as a gateway's defaults: %v", f, err)
		}
	}
}

// parseRules reads rule flags as the command line does.
func parseRules(t *testing.T, args ...string) (settings.Strategies, error) {
	t.Helper()
	var c struct{ settings.Strategies }
	k, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = k.Parse(args)
	return c.Strategies, err
}

func TestRules(t *testing.T) {
	f, err := parseRules(t)
	if err != nil {
		t.Fatal(err)
	}
	got, err := rules(f)
	if want := (gateway.Rules{Alpha: 0.01, Branch: 0.3, Weights: learn.DefaultWeightRule, Length: learn.DefaultLengthRule,
		Planner: learn.DefaultPlannerRule}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("defaults %+v, %v: want %+v", got, err, want)
	}
	f, err = parseRules(t, "--alpha=0.02", "--length-start=2", "--length-max=9", "--length-rule=paper", "--reward=1.3",
		"--acceptance-window=3", "--hysteresis=0.1", "--probe-max=9")
	if err != nil {
		t.Fatal(err)
	}
	got, err = rules(f)
	if err != nil || got.Alpha != 0.02 || got.Length.Start != 2 || got.Length.Most != 9 || got.Length.Rule != learn.LengthPaper ||
		got.Weights.Reward != 1.3 || got.Weights.Window != 3 || got.Planner.Hysteresis != 0.1 || got.Planner.ProbeMost != 9 {
		t.Errorf("changed %+v, %v", got, err)
	}
	for want, arg := range map[string]string{"--alpha is 0": "--alpha=0", "--branch is NaN": "--branch=NaN", "length": "--length-start=0",
		`length rule is "best": want curve or paper`: "--length-rule=best", "reward": "--reward=0.5",
		"punish": "--punish=2", "--hysteresis": "--hysteresis=-1", "--probe-first": "--probe-first=0",
		"--weights /no/such": "--weights=/no/such"} {
		f, err := parseRules(t, arg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := rules(f); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %s", arg, err, want)
		}
	}
}

func TestWeightsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.json")
	read := func(text string) (map[string]float64, error) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return readWeights(path)
	}
	got, err := read(`{"go": 1.5, "prose": 2e-1}`)
	if want := map[string]float64{"go": 1.5, "prose": 0.2}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %v, %v", got, err)
	}
	for text, want := range map[string]string{
		`{"go": 0}`: `drafter "go" is 0`, `{"go": NaN}`: `drafter "go" is NaN`, `{"a": 1, "py": -1}`: `drafter "py" is -1`,
		`{"go": Infinity}`: `drafter "go" is Infinity`,
		`{"go": "much"}`:   `drafter "go" is much`, `{"go": 1, "go": 2}`: `drafter "go"`, `{"go": [1]}`: `drafter "go"`,
		`{"go": 1e999}`: `drafter "go" is 1e999`, `{"go": null}`: `drafter "go"`,
		`[1]`: "want an object", ``: "want an object", `{"go": `: path,
	} {
		if got, err := read(text); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v: want %s", text, got, err, want)
		}
	}
}

func TestDraftPaths(t *testing.T) {
	got, err := find.Drafts([]string{"a/go.gguf", "lookup"}, "", tandem.Request{})
	if err != nil || !slices.Equal(got, []string{"a/go.gguf", "lookup"}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range [][]string{{"a/go.gguf", "b/go.gguf"}, {"lookup", "lookup"}, slices.Repeat([]string{"x"}, 3)} {
		if _, err := find.Drafts(bad, "", tandem.Request{}); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// TestWiden: the planner gets wide trees where the target is streamed, unless a tree is named; nobody else gets them.
func TestWiden(t *testing.T) {
	for _, c := range []struct {
		streamed bool
		strategy tandem.Strategy
		tree     string
		bounds   tandem.Bounds
		want     tandem.Bounds
	}{{true, tandem.StrategyPlanner, "", tandem.DefaultBounds(tandem.StrategyPlanner), tandem.StreamedBounds},
		{false, tandem.StrategyPlanner, "", tandem.Bounds{Nodes: 32, Depth: 31, Width: 8}, tandem.Bounds{Nodes: 32, Depth: 31, Width: 8}},
		{true, tandem.StrategyPlanner, "8/4/2", tandem.Bounds{Nodes: 8, Depth: 4, Width: 2}, tandem.Bounds{Nodes: 8, Depth: 4, Width: 2}},
		{true, tandem.StrategyFixed, "", tandem.Bounds{Nodes: 8, Depth: 4, Width: 2}, tandem.Bounds{Nodes: 8, Depth: 4, Width: 2}},
		{true, tandem.StrategyPlanner, "", tandem.Bounds{}, tandem.Bounds{}}} {
		r := tandem.Request{Strategy: c.strategy, Bounds: c.bounds}
		if (launch{streamed: c.streamed}).widen(&r, c.tree); r.Bounds != c.want {
			t.Errorf("%+v: bounds %v", c, r.Bounds)
		}
	}
	if err := (&tandem.Request{Prompt: "x", MaxTokens: 1, Strategy: tandem.StrategyPlanner, Bounds: tandem.StreamedBounds,
		Sampling: tandem.Sampling{TopP: 1}}).Validate(tandem.Limits{}); err != nil {
		t.Error(err)
	}
}
