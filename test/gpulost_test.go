package test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/test/testkit"
)

// keepOnGPU keeps in a cache folder that targetModel and draftModel were measured to be fastest on the emulated GPU.
func keepOnGPU(t *testing.T, cache string) {
	t.Helper()
	on := func(device string, speed float64) profile.Placement {
		return profile.Placement{Device: device, DraftDevice: device, TokensPerSecond: speed,
			Rounds: []profile.Round{{Text: "assumed", Nodes: 1, Tokens: 1, VerifyNS: int64(1e9 / speed)}}}
	}
	of := profile.Placed{KV: "f16", Now: on("cpu", 10), Placements: []profile.Placement{on("cuda", 90), on("cpu", 10)}}
	target, err := profile.See(targetModel)
	if err != nil {
		t.Fatal(err)
	}
	draft, err := profile.See(draftModel)
	if err != nil {
		t.Fatal(err)
	}
	of.Target, of.Drafts = target, []profile.Sighting{draft}
	gpu := device.GPUs([]cuda.Chip{{Name: "emulated GPU", Arch: "emulated", Total: 4 << 30, Processors: 4}})
	if err := (profile.Kept{Cache: cache, Version: "devel", GPU: gpu}).Place(of); err != nil {
		t.Fatal(err)
	}
}

// devices returns where the verifier and the drafter compute that answer now; "" for one that does not.
func (g *group) devices(t *testing.T) (target, drafts string) {
	t.Helper()
	d, err := g.client.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range d.GetProcesses() {
		switch {
		case !p.GetUp() || p.GetPid() == 0: // lookup is a drafter without a process
		case p.GetRole() == "verifier":
			target = p.GetDevice()
		case p.GetRole() == "drafter":
			drafts = p.GetDevice()
		}
	}
	return target, drafts
}

// TestPlacedThenLost: a start whose target and drafts were measured to be faster on a GPU has them there. When the GPU is lost, in the
// middle of an answer, that goes on with the same text, and both serve again on the cores. A later start without the GPU is on the cores.
func TestPlacedThenLost(t *testing.T) {
	mayBeSlow(t)
	tandem := filepath.Join(emulatedGPU(t, "tandem"), "tandem")
	request := setting{0, 0}.request(story, 24)
	want := up(t).run(t, request)
	cache, gone := t.TempDir(), filepath.Join(t.TempDir(), "gone")
	keepOnGPU(t, cache)
	begin := func() *group {
		w := newWorld(t)
		w.program = tandem
		g := w.begin([]string{"TEST_GPU_GONE=" + gone}, "--target", targetModel, "--draft", draftModel, "--cache", cache,
			"--strategy", "fixed")
		t.Cleanup(func() { g.stop(t) })
		g.ready(t)
		return g
	}
	g := begin()
	same := func(what string) {
		t.Helper()
		if got := g.run(t, request); got.text != want.text {
			t.Fatalf("%s: %q, want %q", what, got.text, want.text)
		}
	}
	same("on the GPU")
	testkit.Eventually(t, "both on the GPU", func() bool {
		target, drafts := g.devices(t)
		return target == "cuda" && drafts == "cuda"
	})
	lost := false
	var text string
	for event, err := range g.client.Generate(t.Context(), request) {
		if err != nil {
			t.Fatalf("the answer in which the GPU was lost: %v", err)
		}
		if event.Delta != nil {
			text += event.Delta.Text
		}
		if !lost {
			if err := os.WriteFile(gone, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			lost = true
		}
	}
	if text != want.text {
		t.Errorf("the answer in which the GPU was lost: %q, want %q", text, want.text)
	}
	testkit.Eventually(t, "both on the cores", func() bool {
		same("without the GPU")
		target, drafts := g.devices(t)
		return target == "cpu" && drafts == "cpu"
	})
	g = begin()
	same("a later start")
	if target, drafts := g.devices(t); target != "cpu" || drafts != "cpu" {
		t.Errorf("a later start has the target on %q and drafts on %q: want the cores", target, drafts)
	}
}

// TestSurveyed: the processes of a program with a GPU find out in idle moments that a GPU which is emulated brings nothing, keep that, and
// go on as they are.
func TestSurveyed(t *testing.T) {
	mayBeSlow(t)
	w := newWorld(t)
	w.program = filepath.Join(emulatedGPU(t, "tandem"), "tandem")
	cache := t.TempDir()
	g := w.begin(nil, "--target", targetModel, "--draft", draftModel, "--cache", cache)
	t.Cleanup(func() { g.stop(t) })
	g.ready(t)
	want := g.run(t, setting{0, 0}.request(story, 24))
	testkit.Eventually(t, "the survey's result", func() bool {
		files, err := filepath.Glob(filepath.Join(cache, "costs", "*.placed.json"))
		return err == nil && len(files) == 1
	})
	if got := g.run(t, setting{0, 0}.request(story, 24)); got.text != want.text {
		t.Errorf("behind the survey %q, want %q", got.text, want.text)
	}
	if target, drafts := g.devices(t); target != "cpu" || drafts != "cpu" {
		t.Errorf("the target is on %q and drafts on %q: want the cores", target, drafts)
	}
}
