package placement

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/processes/profile"
)

const version = "test"

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
	name, err := FileOf(smallTarget, "f16")
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

// TestAutoFollowsThePlan: --device auto computes where the plan has it, and says so with the figure; where that is not there, of no use or
// too small, it does what it does without a plan. A plan of another model or type of cache, or none, decides nothing.
func TestAutoFollowsThePlan(t *testing.T) {
	var told bytes.Buffer
	tell := func(format string, args ...any) { fmt.Fprintf(&told, format+"\n", args...) }
	for name, c := range map[string]struct {
		plan      []profile.Placement
		fail      error // of the first place
		want, say string
	}{
		"a group": {[]profile.Placement{placed("cores:0", "", 200), placed("cpu", "", 100)}, nil, "cores:0",
			"expects 200 tokens/s there, and 100 on cpu"},
		"a lost GPU": {[]profile.Placement{placed("cuda:9+cpu", "", 200), placed("cpu", "", 100)}, nil, "cpu",
			"does not compute on cuda:9+cpu"},
		"layers": {[]profile.Placement{placed("cpu, --gpu-memory 2147483648", "", 200)}, nil, "cpu",
			"does not compute on cpu, --gpu-memory 2147483648, where the plan has it: --gpu-memory 2.0 GiB"},
		"no bytes":       {[]profile.Placement{placed("cpu, --gpu-memory x", "", 200)}, nil, "cpu", "is no device for --device"},
		"settings":       {[]profile.Placement{placed("cpu, --x 1", "", 200)}, nil, "cpu", "needs more than a device"},
		"auto":           {[]profile.Placement{placed("auto", "", 200)}, nil, "cpu", "auto is no device"},
		"nonsense":       {[]profile.Placement{placed("x", "", 200)}, nil, "cpu", `no processor is called "x"`},
		"without memory": {[]profile.Placement{placed("cores:0", "", 200)}, &cuda.OutOfMemory{}, "cpu", "does not compute on cores:0"},
	} {
		d := Decided(planOf(t, c.plan...), version, smallTarget, "f16", nil)
		if d == nil {
			t.Fatal(name, "no decision")
		}
		told.Reset()
		got := ""
		err := Choose("auto", 0, d, tell, func(p device.Spec) error {
			got = p.String()
			fail := c.fail
			c.fail = nil
			return fail
		})
		if err != nil || got != c.want || !strings.Contains(told.String(), c.say) {
			t.Errorf("%s: computes on %s, %v, says %q: want %s and %q", name, got, err, told.String(), c.want, c.say)
		}
	}
	file := planOf(t, placed("cores:0", "cpu", 200))
	why := ""
	d := Decided(file, version, smallTarget, "q8_0", func(err error) { why = err.Error() })
	if d != nil || !strings.Contains(why, "of type q8_0") {
		t.Errorf("another type of cache: %+v, %q", d, why)
	}
	if d := Decided(file, version, "../../models/gopher-draft-py-f16.gguf", "f16", nil); d != nil {
		t.Errorf("another model: %+v", d)
	}
	for _, none := range []string{"", filepath.Join(t.TempDir(), "none.json")} {
		if d := Decided(none, version, smallTarget, "f16", func(err error) { t.Error(err) }); d != nil {
			t.Errorf("plan %q: %+v", none, d)
		}
	}
}

// TestDraftsFollowThePlan: --draft-device auto puts the drafts where the plan has them beside the target's device.
func TestDraftsFollowThePlan(t *testing.T) {
	file := planOf(t, placed("cores:0", "", 300), placed("cores:0", "cores:0", 200), placed("cpu", "cpu", 100))
	d := Decided(file, version, smallTarget, "f16", nil)
	for name, c := range map[string]struct {
		target  string
		threads int
		want    string
		says    string
	}{
		"both":         {"auto", 0, "cores:0", "on cores:0: the plan expects 200 tokens/s with drafts there"},
		"with threads": {"auto", 1, "auto", "where the plan has the drafts: --drafter-threads 1"},
		"drafts alone": {"cpu", 0, "cpu", "expects 100 tokens/s"},
		"elsewhere":    {"cuda:5", 0, "auto", ""},
	} {
		said := ""
		got := Drafts(d, c.target, c.threads, func(format string, args ...any) { said += fmt.Sprintf(format, args...) })
		if got != c.want || !strings.Contains(said, c.says) || c.says == "" && said != "" {
			t.Errorf("%s: %s, says %q: want %s and %q", name, got, said, c.want, c.says)
		}
	}
}
