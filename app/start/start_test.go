package start

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/kernels/cuda/gpu"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/supervise"
)

const (
	smallTarget = "../../models/gopher-draft-go-f16.gguf"
	version     = "test"
)

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
	p := (&profile.Plan{}).Begin(profile.ThisBox(), version)
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
		"with threads": {"auto", "auto", "auto", "cpu", "where the plan has the drafts: --drafter-threads 1", 1},
		"drafts alone": {"cpu", "auto", "cpu", "cpu", "expects 100 tokens/s", 0},
		"target alone": {"auto", "cpu", "cores:0", "cpu", "", 0},
		"nobody":       {"cpu", "cpu", "cpu", "cpu", "", 0},
		"elsewhere":    {"cuda:5", "auto", "cuda:5", "cpu", "", 0},
	} {
		s := Setup{TargetFile: smallTarget, DraftFiles: []string{"d.gguf"}}
		s.Device, s.DraftDevice, s.KVType, s.Plan = c.device, c.drafts, "f16", file
		s.VerifierThreads, s.DrafterThreads = c.threads, c.threads
		said := ""
		s.planned(Env{Version: version, GPUs: gpu.Chips, Say: func(format string, args ...any) { said += fmt.Sprintf(format, args...) }})
		target, drafts, err := s.places()
		if err != nil || target.String() != c.wantTarget || drafts.String() != c.wantDrafts || !strings.Contains(said, c.say) ||
			c.say == "" && said != "" || s.Device != c.device {
			t.Errorf("%s: %v and %v, %v, says %q: want %s and %s", name, target, drafts, err, said, c.wantTarget, c.wantDrafts)
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
		if (Setup{Streamed: c.streamed}).Widen(&r, c.tree); r.Bounds != c.want {
			t.Errorf("%+v: bounds %v", c, r.Bounds)
		}
	}
	if err := (&tandem.Request{Prompt: "x", MaxTokens: 1, Strategy: tandem.StrategyPlanner, Bounds: tandem.StreamedBounds,
		Sampling: tandem.Sampling{TopP: 1}}).Validate(tandem.Limits{}); err != nil {
		t.Error(err)
	}
}

// TestSetupThreads: the verifier and the drafter get numbers of threads where nobody else says them, and both are told whether the
// other is on the same processor.
func TestSetupThreads(t *testing.T) {
	for places, want := range map[[2]string]float64{{"cpu", "cpu"}: SharedGain, {"cores:0", "cores:1"}: -1, {"cpu", "cuda"}: -1,
		{"cuda+cpu", "cuda"}: SharedGain, {"auto", "auto"}: -1} {
		s := Setup{}
		s.Device, s.DraftDevice, s.AheadGain = places[0], places[1], -1
		a, b, err := s.places()
		if err != nil || s.gain(a, b) != want {
			t.Errorf("%v: %v, gain %v, want %v", places, err, s.gain(a, b), want)
		}
		if s.AheadGain = 0.2; s.gain(a, b) != 0.2 {
			t.Errorf("%v: a gain that was given is not kept", places)
		}
	}

	for places, want := range map[[2]string]bool{{"cpu", "cpu"}: false, {"cores:0", "cores:1"}: true, {"cores:0-1", "cores:1"}: false,
		{"cpu", "cuda"}: true, {"cuda", "cpu"}: true, {"cuda+cpu", "cuda"}: false, {"auto", "auto"}: false, {"cuda", "auto"}: false} {
		s := Setup{DraftFiles: []string{"d.gguf"}}
		s.Device, s.DraftDevice = places[0], places[1]
		if got, err := s.apart(); err != nil || got != want {
			t.Errorf("%v: apart %v, %v, want %v", places, got, err, want)
		}
		if s.GPUMemory = 1; places[1] == "cuda" {
			if got, err := s.apart(); err != nil || got {
				t.Errorf("%v with layers on the GPU: apart %v, %v", places, got, err)
			}
		}
		if s.GPUMemory, s.DraftFiles = 0, nil; want {
			if got, err := s.apart(); err != nil || got {
				t.Errorf("%v without a drafter: apart %v, %v", places, got, err)
			}
		}
	}

	large := filepath.Join(t.TempDir(), "large.gguf")
	if f, err := os.Create(large); err != nil || f.Truncate(1<<30) != nil || f.Close() != nil {
		t.Fatal(err)
	}
	for threads, want := range map[int]float64{0: 1, 1: SharedGain} {
		s := Setup{}
		s.Device, s.DraftDevice, s.AheadGain, s.DrafterThreads, s.DraftFiles = "cpu", "cpu", -1, threads, []string{large}
		if a, b, err := s.places(); err != nil || s.gain(a, b) != want {
			t.Errorf("a large draft with %d threads: %v, gain %v, want %v", threads, err, s.gain(a, b), want)
		}
	}
}

// TestCacheFolderIsHeard: all processes get the cache's folder that their group was given.
func TestCacheFolderIsHeard(t *testing.T) {
	dir, err := supervise.NewRunDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	target, err := find.Target("")
	if err != nil {
		t.Fatal(err)
	}
	s := Setup{Group: settings.Default[settings.Group](), TargetFile: target, DraftFiles: []string{target}}
	s.Cache = "/kept"
	c, err := s.children(dir, "unix:///x")
	if err != nil || c.gateway.Cache != s.Cache || c.verifier.Cache != s.Cache || c.drafter.Cache != s.Cache {
		t.Errorf("gateway %q, verifier %q, drafter %q: want %q; %v", c.gateway.Cache, c.verifier.Cache, c.drafter.Cache, s.Cache, err)
	}
}
