package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/processes/settings"
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
