package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/settings/config"
)

const smallTarget = "../../models/gopher-draft-go-f16.gguf"

// madeRound is a round that takes what it says in milliseconds.
func madeRound(text, drafter string, nodes int, tokens float64, verify, draft int64) profile.Round {
	return profile.Round{Text: text, Drafter: drafter, Nodes: nodes, Tokens: tokens, VerifyNS: verify * 1e6, DraftNS: draft * 1e6}
}

// planOf writes a plan that decides about the small target, and returns its file.
func planOf(t *testing.T, placements ...profile.Placement) string {
	t.Helper()
	name, err := placement.FileOf(smallTarget, "f16")
	if err != nil {
		t.Fatal(err)
	}
	p := (&profile.Plan{}).Begin(profile.ThisBox(), buildVersion().Version)
	p.Decide(profile.Decision{File: name, Identity: "9f3a-51c0-0f6e-f16-a1", Placements: placements})
	file := filepath.Join(t.TempDir(), profile.Name)
	if err := p.Write(file); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestExplain: the decision of a plan is printed as a table with its figures, and as JSON, without measuring; without a decision the error
// says what to do.
func TestExplain(t *testing.T) {
	file := planOf(t, profile.Placement{Device: "cuda+cpu", DraftDevice: "cuda", TokensPerSecond: 123.4, Rounds: []profile.Round{
		{Text: "go", Drafter: "expert", Nodes: 5, Tokens: 3.25, VerifyNS: 20e6, DraftNS: 8e6, HiddenNS: 2e6, Hits: 0.3, Burden: 0.05},
		madeRound("prose", "", 1, 1, 15, 0)}}, profile.Placement{Device: "cpu", TokensPerSecond: 50, Rounds: []profile.Round{
		madeRound("go", "", 1, 1, 20, 0), madeRound("prose", "", 1, 1, 20, 0)}})
	explain := func(args ...string) (string, error) {
		t.Helper()
		settings := config.NewResolver(func(string) (string, bool) { return "", false })
		parser, err := newParser(settings)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := parser.Parse(append([]string{"profile", "--explain", "--target", smallTarget}, args...))
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = parsed.Run(&app{stdout: &out, stderr: &out, ctx: t.Context(), kong: parsed, settings: settings})
		return out.String(), err
	}
	out, err := explain("--cache", filepath.Dir(file))
	for _, want := range []string{"best with --device cuda+cpu --draft-device cuda, 123.4 tokens/s expected", "hits is a lower bound"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v: %s\nwant %q", err, out, want)
		}
	}
	var cells []string
	for line := range strings.Lines(out) {
		cells = append(cells, strings.Join(strings.Fields(line), " "))
	}
	for _, want := range []string{"cuda+cpu cuda 123.4 go expert 5 3.25 20.00 8.00 2.00 0.30 0.05",
		"prose none 1 1.00 15.00 0.00 0.00 0.00 0.00", "cpu - 50.0 go none 1 1.00 20.00 0.00 0.00 0.00 0.00"} {
		if !strings.Contains(strings.Join(cells, "\n"), want) {
			t.Errorf("%s\nwant a line %q", out, want)
		}
	}
	if out, err := explain("--cache", filepath.Dir(file), "--json"); err != nil || !strings.Contains(out, `"tokens_per_second":123.4`) {
		t.Errorf("%v: %s", err, out)
	}
	_, err = explain("--cache", filepath.Dir(file), "--kv-type", "q8_0")
	if err == nil || !strings.Contains(err.Error(), "tandem profile") {
		t.Errorf("another type of cache: %v", err)
	}
	if _, err := explain("--cache", t.TempDir()); err == nil || !strings.Contains(err.Error(), "measure with") {
		t.Errorf("without a plan: %v", err)
	}
}
