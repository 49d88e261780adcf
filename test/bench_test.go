package test

import (
	"encoding/json"
	"strings"
	"testing"
)

// A suite of each group of processes runs, compares all texts, and has figures. What the figures
// are is nothing for a test. All suites run on scripted processes in app/bench/system.
func TestBenchSuites(t *testing.T) {
	t.Parallel()
	mayBeSlow(t)
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
			Figures []struct {
				Name  string  `json:"name"`
				Value float64 `json:"value"`
			} `json:"figures"`
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
		if len(s.Figures) == 0 && s.Name != "drafts" {
			t.Errorf("suite %s has no figures", s.Name)
		}
		for _, f := range s.Figures {
			if f.Name == "" || !(f.Value >= 0) {
				t.Errorf("suite %s: %+v", s.Name, f)
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

// TestBenchPair: a server of the pair is started, a prompt is answered in all ways over HTTP, and many at once.
func TestBenchPair(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts two groups of processes")
	}
	w := newWorld(t)
	var r struct {
		Ways    []string
		Prompts []struct {
			Prompt string
			Cells  map[string][]struct {
				TokS float64 `json:"tok_s"`
			}
		}
		Crowds []struct {
			AtOnce int `json:"at_once"`
			Cells  map[string]struct{ Tokens int }
		}
	}
	base := []string{"bench", "pair", "--json", "--raw", "--rounds", "1", "--max-tokens", "12", "--ctx", "512", "--draft",
		"../models/gopher-draft-go-f16.gguf", "--prompts", "testdata/chats.jsonl"}
	e := w.ok(append(base, "--only", "edit-hints")...)
	if err := json.Unmarshal([]byte(e.stdout), &r); err != nil {
		t.Fatalf("%v in %.300s", err, e.stdout)
	}
	const ways = "plain, planner, lookup, chain of 2, chain of 4, tree of 8, planner, asked again"
	if strings.Join(r.Ways, ", ") != ways || len(r.Prompts) != 1 || r.Prompts[0].Prompt != "edit-hints" {
		t.Errorf("%+v", r)
	}
	for way, clocks := range r.Prompts[0].Cells {
		once := !strings.HasSuffix(way, "asked again") // an answer that is known comes in one piece
		if len(clocks) != 2 || once && clocks[0].TokS <= clocks[1].TokS || clocks[1].TokS <= 0 {
			t.Errorf("%s: %+v: want the speed without the time to the first token above that with it", way, clocks)
		}
	}
	e = w.ok(append(base, "--at-once", "3")...)
	if err := json.Unmarshal([]byte(e.stdout), &r); err != nil {
		t.Fatalf("%v in %.300s", err, e.stdout)
	}
	if len(r.Crowds) != 1 || r.Crowds[0].AtOnce != 3 || r.Crowds[0].Cells["planner"].Tokens != r.Crowds[0].Cells["plain"].Tokens ||
		r.Crowds[0].Cells["plain"].Tokens < 12 {
		t.Errorf("three at once: %+v", r.Crowds)
	}
}

// The command tells tokens a round of a draft, and refuses what is no side file.
func TestBenchGuesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.labOK("bench", "guesses", "--json", "--draft", draftModel, "--count", "1", "--calibrate", "1", "--max-tokens", "24",
		"--temperature", "0", "--width", "2,8", "--rounds", "1", "--domain", "go")
	var r struct {
		Temperatures []struct {
			Lengths []struct {
				Trees  string `json:"trees"`
				Domain string `json:"domain"`
				Tau    []struct {
					Width int     `json:"width"`
					Tau   float64 `json:"tau"`
				} `json:"tau"`
			} `json:"acceptance_length"`
		} `json:"temperatures"`
	}
	if err := json.Unmarshal([]byte(e.stdout), &r); err != nil {
		t.Fatalf("%v in %.300s", err, e.stdout)
	}
	if len(r.Temperatures) != 1 || len(r.Temperatures[0].Lengths) != 2 {
		t.Fatalf("%+v: want one temperature, go and all domains", r)
	}
	for _, l := range r.Temperatures[0].Lengths {
		if l.Trees != "gopher-draft-all-f16" || len(l.Tau) != 2 || l.Tau[0].Tau <= 1 || l.Tau[0].Tau > 2 || l.Tau[1].Tau < l.Tau[0].Tau {
			t.Errorf("%+v: want more than a token a round, and no fewer with 8 nodes than with 2", l)
		}
	}
	for _, flag := range []string{"--heads", "--draft"} {
		if e := w.lab("bench", "guesses", flag, "harness_test.go"); e.code != 2 || !strings.Contains(e.stderr, "harness_test.go") {
			t.Errorf("%s with a text: exit code %d: %s", flag, e.code, e.stderr)
		}
	}
}
