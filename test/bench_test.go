package test

import (
	"encoding/json"
	"testing"
)

// A suite of each group of processes runs, compares all texts, and puts each figure beside its bar. What the figures
// are is nothing for a test. All suites run on scripted processes in bench/system.
func TestBenchSuites(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts three groups of processes")
	}
	w := newWorld(t)
	e := w.ok("bench", "system", "--json", "--suite", "plain", "--suite", "drafts", "--suite", "sessions", "--suite", "vote", "--suite",
		"memory", "--count", "1", "--max-tokens", "8", "--scenario", "go", "--scenario", "changing", "--rounds", "200", "--budget", "4s")
	var r struct {
		Scenarios []struct {
			Name    string  `json:"name"`
			PlainTS float64 `json:"plain_tok_s"`
			SpecTS  float64 `json:"spec_tok_s"`
			Equal   bool    `json:"equal"`
		} `json:"scenarios"`
		Equal  bool     `json:"equal"`
		Differ []string `json:"differ"`
		Suites []struct {
			Name  string `json:"name"`
			Error string `json:"error"`
			Sets  []struct {
				Name     string `json:"name"`
				Tokens   int    `json:"tokens"`
				Equal    bool   `json:"equal"`
				Variants []struct {
					Name   string  `json:"name"`
					Tokens float64 `json:"tokens_per_round"`
				} `json:"variants"`
			} `json:"sets"`
			Bars []struct {
				Name  string   `json:"name"`
				Value float64  `json:"value"`
				Bar   *float64 `json:"bar"`
				Most  bool     `json:"at_most"`
				Met   *bool    `json:"met"`
			} `json:"bars"`
		} `json:"suites"`
	}
	if err := json.Unmarshal([]byte(e.stdout), &r); err != nil {
		t.Fatalf("%v in %.300s", err, e.stdout)
	}
	if !r.Equal || len(r.Differ) > 0 {
		t.Errorf("texts differ: %q", r.Differ)
	}
	if len(r.Scenarios) != 13 { // go by any and by its expert, changing texts by any; both by each of four drafts and lookup
		t.Errorf("%d scenarios: %+v", len(r.Scenarios), r.Scenarios)
	}
	for _, s := range r.Scenarios {
		if s.PlainTS <= 0 || s.SpecTS <= 0 || !s.Equal {
			t.Errorf("scenario %+v", s)
		}
	}
	names := map[string]bool{}
	for _, s := range r.Suites {
		names[s.Name] = true
		if s.Error != "" {
			t.Errorf("suite %s: %s", s.Name, s.Error)
		}
		if len(s.Bars) == 0 && s.Name != "drafts" {
			t.Errorf("suite %s has no figures", s.Name)
		}
		for _, b := range s.Bars {
			if (b.Bar == nil) != (b.Met == nil) || b.Met != nil && *b.Met != (b.Most && b.Value <= *b.Bar || !b.Most && b.Value >= *b.Bar) {
				t.Errorf("suite %s: %+v", s.Name, b)
			}
		}
		for _, c := range s.Sets {
			if c.Tokens < 1 || !c.Equal || len(c.Variants) < 2 {
				t.Errorf("suite %s: %+v", s.Name, c)
			}
			for _, v := range c.Variants {
				if v.Tokens < 1 {
					t.Errorf("suite %s, %s, %s: %v tokens per round", s.Name, c.Name, v.Name, v.Tokens)
				}
			}
		}
	}
	for _, want := range []string{"plain", "drafts", "sessions", "vote", "memory"} {
		if !names[want] {
			t.Errorf("suite %s did not run", want)
		}
	}
}
