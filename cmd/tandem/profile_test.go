package main

import (
	"bytes"
	"fmt"
	"os"
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

// placed is a placement of that speed.
func placed(device, drafts string, speed float64) profile.Placement {
	return profile.Placement{Device: device, DraftDevice: drafts, TokensPerSecond: speed, Rounds: []profile.Round{
		madeRound("go", "", 1, 1, 10, 0)}}
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

// TestDraftsFollowThePlan: whoever starts all processes puts the drafts where the plan has them beside the target's place, and gives the
// verifier no number of threads where it will compute on a group of cores.
func TestDraftsFollowThePlan(t *testing.T) {
	file := planOf(t, placed("cores:0", "", 300), placed("cores:0", "cores:0", 200), placed("cpu", "cpu", 100))
	for name, c := range map[string]struct {
		device, drafts, wantTarget, wantDrafts, say string
		threads                                     int
	}{
		"both":         {"auto", "auto", "cores:0", "cores:0", "on cores:0: the plan expects 200 tokens/s with drafts there", 0},
		"with threads": {"auto", "auto", "auto", "auto", "where the plan has the drafts: --drafter-threads 1", 1},
		"drafts alone": {"cpu", "auto", "cpu", "cpu", "expects 100 tokens/s", 0},
		"target alone": {"auto", "cpu", "cores:0", "cpu", "", 0},
		"nobody":       {"cpu", "cpu", "cpu", "cpu", "", 0},
		"elsewhere":    {"cuda:5", "auto", "cuda:5", "auto", "", 0},
	} {
		l := launch{target: smallTarget, drafts: []string{"d.gguf"}}
		l.Device, l.DraftDevice, l.KVType, l.Plan = c.device, c.drafts, "f16", file
		l.VerifierThreads, l.DrafterThreads = c.threads, c.threads
		said := ""
		l.planned(func(format string, args ...any) { said += fmt.Sprintf(format, args...) })
		target, drafts, err := l.places()
		if err != nil || target.String() != c.wantTarget || drafts.String() != c.wantDrafts || !strings.Contains(said, c.say) ||
			c.say == "" && said != "" || l.Device != c.device {
			t.Errorf("%s: %v and %v, %v, says %q: want %s and %s", name, target, drafts, err, said, c.wantTarget, c.wantDrafts)
		}
	}
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

// TestLaunchThreads: the verifier and the drafter get numbers of threads where nobody else says them, and both are told whether the
// other is on the same processor.
func TestLaunchThreads(t *testing.T) {
	for places, want := range map[[2]string]float64{{"cpu", "cpu"}: sharedGain, {"cores:0", "cores:1"}: -1, {"cpu", "cuda"}: -1,
		{"cuda+cpu", "cuda"}: sharedGain, {"auto", "auto"}: -1} {
		l := launch{}
		l.Device, l.DraftDevice, l.AheadGain = places[0], places[1], -1
		a, b, err := l.places()
		if err != nil || l.gain(a, b) != want {
			t.Errorf("%v: %v, gain %v, want %v", places, err, l.gain(a, b), want)
		}
		if l.AheadGain = 0.2; l.gain(a, b) != 0.2 {
			t.Errorf("%v: a gain that was given is not kept", places)
		}
	}

	for places, want := range map[[2]string]bool{{"cpu", "cpu"}: false, {"cores:0", "cores:1"}: true, {"cores:0-1", "cores:1"}: false,
		{"cpu", "cuda"}: true, {"cuda", "cpu"}: true, {"cuda+cpu", "cuda"}: false, {"auto", "auto"}: false, {"cuda", "auto"}: false} {
		l := launch{drafts: []string{"d.gguf"}}
		l.Device, l.DraftDevice = places[0], places[1]
		if got, err := l.apart(); err != nil || got != want {
			t.Errorf("%v: apart %v, %v, want %v", places, got, err, want)
		}
		if l.GPUMemory = 1; places[1] == "cuda" {
			if got, err := l.apart(); err != nil || got {
				t.Errorf("%v with layers on the GPU: apart %v, %v", places, got, err)
			}
		}
		if l.GPUMemory, l.drafts = 0, nil; want {
			if got, err := l.apart(); err != nil || got {
				t.Errorf("%v without a drafter: apart %v, %v", places, got, err)
			}
		}
	}

	large := filepath.Join(t.TempDir(), "large.gguf")
	if f, err := os.Create(large); err != nil || f.Truncate(1<<30) != nil || f.Close() != nil {
		t.Fatal(err)
	}
	for threads, want := range map[int]float64{0: 1, 1: sharedGain} {
		l := launch{}
		l.Device, l.DraftDevice, l.AheadGain, l.DrafterThreads, l.drafts = "cpu", "cpu", -1, threads, []string{large}
		if a, b, err := l.places(); err != nil || l.gain(a, b) != want {
			t.Errorf("a large draft with %d threads: %v, gain %v, want %v", threads, err, l.gain(a, b), want)
		}
	}
}
