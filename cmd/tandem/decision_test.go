package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/cmd/tandem/config"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/profile"
	"github.com/tandem-llm/tandem/settings"
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
	name, err := fileOf(smallTarget, "f16")
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

// TestAutoFollowsThePlan: --device auto computes where the plan has it, and says so with the figure; where that is not there, of no use or
// too small, it does what it does without a plan. A plan of another model or type of cache, or none, decides nothing.
func TestAutoFollowsThePlan(t *testing.T) {
	var stderr bytes.Buffer
	a := &app{stderr: &stderr}
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
		"no bytes":       {[]profile.Placement{placed("cpu, --gpu-memory x", "", 200)}, nil, "cpu", "is no place for --device"},
		"settings":       {[]profile.Placement{placed("cpu, --x 1", "", 200)}, nil, "cpu", "needs more than a device"},
		"auto":           {[]profile.Placement{placed("auto", "", 200)}, nil, "cpu", "auto is no place"},
		"nonsense":       {[]profile.Placement{placed("x", "", 200)}, nil, "cpu", `no processor is called "x"`},
		"without memory": {[]profile.Placement{placed("cores:0", "", 200)}, &cuda.OutOfMemory{}, "cpu", "does not compute on cores:0"},
	} {
		d := decided(planOf(t, c.plan...), smallTarget, "f16", nil)
		if d == nil {
			t.Fatal(name, "no decision")
		}
		stderr.Reset()
		got := ""
		err := computeFlags{Processor: settings.Processor{Device: "auto"}}.chooseBy(a, d, func(p place) error {
			got = p.String()
			fail := c.fail
			c.fail = nil
			return fail
		})
		if err != nil || got != c.want || !strings.Contains(stderr.String(), c.say) {
			t.Errorf("%s: computes on %s, %v, says %q: want %s and %q", name, got, err, stderr.String(), c.want, c.say)
		}
	}
	file := planOf(t, placed("cores:0", "cpu", 200))
	why := ""
	if d := decided(file, smallTarget, "q8_0", func(err error) { why = err.Error() }); d != nil || !strings.Contains(why, "of type q8_0") {
		t.Errorf("another type of cache: %+v, %q", d, why)
	}
	if d := decided(file, "../../models/gopher-draft-py-f16.gguf", "f16", nil); d != nil {
		t.Errorf("another model: %+v", d)
	}
	for _, none := range []string{"", filepath.Join(t.TempDir(), "none.json")} {
		if d := decided(none, smallTarget, "f16", func(err error) { t.Error(err) }); d != nil {
			t.Errorf("plan %q: %+v", none, d)
		}
	}
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
