package start

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/supervise"
)

// chip is a GPU that tests pretend to have.
var chip = cuda.Chip{Name: "GPU of a test", Arch: "sm_90", Total: 8 << 30}

// autoSetup returns the settings of up with the small target and a draft of the same file, and what it has said.
func autoSetup(t *testing.T, cache string) (s Setup, env Env, said *strings.Builder) {
	t.Helper()
	said = new(strings.Builder)
	env = Env{Stderr: os.Stderr, Version: version, GPUs: func() ([]cuda.Chip, error) { return []cuda.Chip{chip}, nil },
		Say: func(format string, args ...any) { fmt.Fprintf(said, format+"\n", args...) }}
	s = Setup{Group: settings.Default[settings.Group](), TargetFile: smallTarget, DraftFiles: []string{smallTarget}, KeepGateway: true}
	s.Cache, s.Plan = cache, "off"
	return s, env, said
}

// keepPlaced keeps placements of the models of s, the first of them chosen.
func keepPlaced(t *testing.T, s Setup, all ...profile.Placement) {
	t.Helper()
	v := &survey{kept: profile.Kept{Cache: s.Cache, Version: version, GPU: device.GPUs([]cuda.Chip{chip})}}
	var err error
	if v.of, err = profile.SeePlaced(s.TargetFile, s.files(), s.KVType); err != nil {
		t.Fatal(err)
	}
	v.of.Now, v.of.Placements = placed("cpu", "cpu", 10), all
	if err := v.kept.Place(v.of); err != nil {
		t.Fatal(err)
	}
}

// TestAutoWithoutGPU: auto is the default; without a GPU it is the cores, costs nothing and says nothing.
func TestAutoWithoutGPU(t *testing.T) {
	s, env, said := autoSetup(t, t.TempDir())
	env.GPUs = func() ([]cuda.Chip, error) { return nil, errors.New("this tandem is built without CUDA") }
	if s.Device != "auto" || s.DraftDevice != "auto" {
		t.Fatalf("the defaults are %s and %s", s.Device, s.DraftDevice)
	}
	if s.planned(env); s.Device != "cpu" || s.DraftDevice != "cpu" || s.survey != nil || said.Len() > 0 {
		t.Errorf("on %s and %s, measures %v, says %q", s.Device, s.DraftDevice, s.survey, said)
	}
	if all, err := filepath.Glob(filepath.Join(s.Cache, "*")); err != nil || len(all) > 0 {
		t.Errorf("left %v, %v", all, err)
	}
	s, env, _ = autoSetup(t, t.TempDir())
	if s.GPUMemory = 1 << 30; s.check() == nil || s.Device != "cpu" {
		t.Errorf("layers on a GPU of a program that knows none, with the target on %s: want it refused", s.Device)
	}
}

// TestAutoMeasures: with a GPU both begin on the cores, and what is left open is measured: everything that may move, layers where the whole
// target has no room, and nothing where somebody said where both are, nothing is to be measured, or one answer is all.
func TestAutoMeasures(t *testing.T) {
	for name, c := range map[string]struct {
		change           func(s *Setup)
		places, draftsTo []string
	}{
		"both":     {func(*Setup) {}, []string{"cuda", "cuda+cpu"}, []string{"cuda"}},
		"drafts":   {func(s *Setup) { s.Device = "cpu" }, nil, []string{"cuda"}},
		"target":   {func(s *Setup) { s.DraftDevice = "cpu" }, []string{"cuda", "cuda+cpu"}, nil},
		"no draft": {func(s *Setup) { s.DraftFiles = nil }, []string{"cuda", "cuda+cpu"}, nil},
		"said":     {func(s *Setup) { s.Device, s.DraftDevice = "cpu", "cpu" }, nil, nil},
		"once":     {func(s *Setup) { s.KeepGateway = false }, nil, nil},
		"unwanted": {func(s *Setup) { s.Measure = false }, nil, nil},
	} {
		s, env, said := autoSetup(t, t.TempDir())
		c.change(&s)
		s.planned(env)
		if s.Device != "cpu" || s.DraftDevice != "cpu" || said.Len() > 0 || (s.survey == nil) != (c.places == nil && c.draftsTo == nil) ||
			s.survey != nil && (!slices.Equal(s.survey.places, c.places) || !slices.Equal(s.survey.draftsTo, c.draftsTo)) {
			t.Errorf("%s: on %s and %s, measures %+v, says %q", name, s.Device, s.DraftDevice, s.survey, said)
		}
	}
	s, env, _ := autoSetup(t, t.TempDir())
	small := chip
	small.Total = 2 << 20
	env.GPUs = func() ([]cuda.Chip, error) { return []cuda.Chip{small}, nil }
	if s.planned(env); s.survey == nil || len(s.survey.places) != 1 || !strings.HasPrefix(s.survey.places[0], "cpu, --gpu-memory ") {
		t.Errorf("a small GPU: %+v: want layers", s.survey)
	}
}

// TestAutoPlacedBefore: a later start uses what an earlier one has measured, says what and why, and computes on the cores if the GPU is not
// there. What is damaged is measured again, and said.
func TestAutoPlacedBefore(t *testing.T) {
	both := [2]bool{true, true}
	for name, c := range map[string]struct {
		all        []profile.Placement
		change     func(s *Setup)
		device, at string
		memory     settings.GPUShare
		says       string
		orCPU      [2]bool
		again      bool
	}{
		"target and drafts": {[]profile.Placement{placed("cuda", "cuda", 90), placed("cpu", "cpu", 10)}, nil, "cuda", "cuda", 0,
			"placed as measured: the target on cuda and drafts on cuda: about 90 tokens/s, and 10 where they were", both, false},
		"divided": {[]profile.Placement{placed("cuda+cpu", "cpu", 90), placed("cpu", "cpu", 10)}, nil, "cuda+cpu", "cpu", 0, "on cuda+cpu",
			both, false},
		"layers": {[]profile.Placement{placed("cpu, --gpu-memory 1073741824", "cuda", 90), placed("cpu", "cpu", 10)}, nil, "cpu", "cuda",
			1 << 30, "--gpu-memory", both, false},
		"the cores": {[]profile.Placement{placed("cpu", "cpu", 10), placed("cuda", "cpu", 9)}, nil, "cpu", "cpu", 0, "", both, false},
		"drafts may": {[]profile.Placement{placed("cuda", "cuda", 90), placed("cpu", "cuda", 20), placed("cpu", "cpu", 10)},
			func(s *Setup) { s.Device = "cpu" }, "cpu", "cuda", 0, "placed", [2]bool{false, true}, false},
		"a budget": {[]profile.Placement{placed("cuda", "cuda", 90), placed("cpu", "cuda", 20), placed("cpu", "cpu", 10)},
			func(s *Setup) { s.verifierBudget = 1 << 30 }, "cpu", "cuda", 0, "placed", [2]bool{false, true}, false},
		"one process": {[]profile.Placement{placed("cuda", "cuda", 90), placed("cpu", "cpu", 10)},
			func(s *Setup) { s.inside = true }, "cpu", "cpu", 0, "", [2]bool{}, false},
		"other version": {[]profile.Placement{placed("tpu", "cpu", 90), placed("cpu", "cpu", 10)}, nil, "cpu", "cpu", 0, "", both, false},
		"damaged":       {nil, nil, "cpu", "cpu", 0, "is not used, and measured again", both, true},
	} {
		s, env, said := autoSetup(t, t.TempDir())
		if c.all == nil {
			keepPlaced(t, s, placed("cuda", "cuda", 90))
			files, err := filepath.Glob(filepath.Join(s.Cache, "costs", "*.placed.json"))
			if err != nil || len(files) != 1 {
				t.Fatal(files, err)
			}
			if err := os.WriteFile(files[0], []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		} else {
			keepPlaced(t, s, c.all...)
		}
		if c.change != nil {
			c.change(&s)
		}
		s.lends = true
		s.planned(env)
		if near := c.device == "cpu" && c.memory == 0 && c.at == "cpu"; s.lends != near {
			t.Errorf("%s: lends %v, want %v", name, s.lends, near)
		}
		if s.Device != c.device || s.DraftDevice != c.at || s.GPUMemory != c.memory || s.orCPU != c.orCPU || (s.survey != nil) != c.again ||
			!strings.Contains(said.String(), c.says) || c.says == "" && said.Len() > 0 || strings.Count(said.String(), "\n") > 1 {
			t.Errorf("%s: on %s and %s, layers %v, or the cores %v, measures %v, says %q", name, s.Device, s.DraftDevice, s.GPUMemory,
				s.orCPU, s.survey != nil, said)
		}
	}
}

// quicker is a placement with passes that take half as long as those of placed.
func quicker(device, drafts string, speed float64) profile.Placement {
	p := placed(device, drafts, speed)
	p.Rounds[0].VerifyNS /= 2
	return p
}

// fakeProcesses note what is done to processes.
type fakeProcesses struct {
	added []supervise.Spec
	again []string
}

func (p *fakeProcesses) Add(s supervise.Spec) { p.added = append(p.added, s) }
func (p *fakeProcesses) Again(name string)    { p.again = append(p.again, name) }

// TestMoving: what a survey has found is said in a line. Drafts begin anew where they are faster, a target gets a second verifier there,
// which is not restarted, and if that one ends a line says who answers then. Where memory has no room for both, and where passes there are
// not shorter, so that the fleet would send it nothing, the verifier begins anew.
func TestMoving(t *testing.T) {
	for name, c := range map[string]struct {
		best   profile.Placement
		shared bool
		again  []string
		added  string // in the settings of a second verifier; "": there is none
	}{
		"stays":       {placed("cpu", "cpu", 90), false, nil, ""},
		"drafts":      {placed("cpu", "cuda", 90), false, []string{"drafter"}, ""},
		"target":      {quicker("cuda", "cpu", 90), false, nil, "device: \"cuda\"\n"},
		"both":        {quicker("cuda", "cuda", 90), false, []string{"drafter"}, "device: \"cuda\"\n"},
		"layers":      {quicker("cpu, --gpu-memory 1073741824", "cpu", 90), false, nil, "gpu-memory: "},
		"as long":     {placed("cuda", "cpu", 90), false, []string{"verifier"}, ""},
		"as long too": {placed("cuda", "cuda", 90), false, []string{"drafter", "verifier"}, ""},
		"little room": {quicker("cuda", "cpu", 90), true, []string{"verifier"}, ""},
	} {
		s, env, said := autoSetup(t, t.TempDir())
		target := s.TargetFile
		if c.shared {
			env.GPUs = func() ([]cuda.Chip, error) {
				of := chip
				of.Integrated = true
				return []cuda.Chip{of}, nil
			}
		}
		dir, err := supervise.NewRunDir(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if s.planned(env); s.survey == nil {
			t.Fatal(name, "is not measured")
		}
		if c.shared { // a target of which nobody knows how much memory it needs
			s.TargetFile = filepath.Join(t.TempDir(), "none.gguf")
		}
		now, p := new(atomic.Pointer[Setup]), &fakeProcesses{}
		now.Store(&s)
		m := &moving{env: env, group: p, dir: dir, addr: "unix:///x", now: now}
		specs, err := s.specs(dir, m.addr)
		if err != nil || !slices.Contains(specs[1].Args, "--or-cpu") || !slices.Contains(specs[2].Args, "--or-cpu") {
			t.Errorf("%s: processes that may move: %+v, %v: want that they come back to the cores", name, specs, err)
		}
		m.begin()
		if len(p.added) != 1 || p.added[0].Name != "survey" || p.added[0].Restart || !p.added[0].Late {
			t.Fatalf("%s: started %+v: want a survey", name, p.added)
		}
		survey := p.added[0]
		for _, want := range []string{"survey", "--survey-at=cpu", "--survey-place=cuda", "--survey-place=cuda+cpu",
			"--survey-drafts-place=cuda", "--survey-draft=" + target} {
			if !slices.Contains(survey.Args, want) {
				t.Errorf("%s: %q: want %s", name, survey.Args, want)
			}
		}
		survey.Ended(errors.New("exit status 1"))
		if len(p.added) > 1 || len(p.again) > 0 || said.Len() > 0 {
			t.Errorf("%s: a survey that failed moves %v and %+v, says %q", name, p.again, p.added, said)
		}
		v := s.survey.of
		v.Now, v.Placements = placed("cpu", "cpu", 10), []profile.Placement{c.best, placed("cpu", "cpu", 10)}
		if err := s.survey.kept.Place(v); err != nil {
			t.Fatal(err)
		}
		survey.Ended(nil)
		if !slices.Equal(p.again, c.again) || (len(p.added) > 1) != (c.added != "") || strings.Count(said.String(), "\n") != 1 ||
			!strings.Contains(said.String(), "measured in idle moments: ") || !strings.Contains(said.String(), "about 90 tokens/s") {
			t.Errorf("%s: begins %v anew, adds %+v, says %q", name, p.again, p.added, said)
		}
		if slices.Contains(c.again, "drafter") {
			file, err := os.ReadFile(dir.File("drafter.yaml"))
			if err != nil || !strings.Contains(string(file), fmt.Sprintf("device: %q", c.best.DraftDevice)) {
				t.Errorf("%s: the drafter's settings %s, %v", name, file, err)
			}
		}
		if c.added != "" {
			file, err := os.ReadFile(dir.File("placed.yaml"))
			spec := p.added[1]
			if err != nil || !strings.Contains(string(file), c.added) || spec.Restart || !spec.Late || spec.Args[0] != "verifier" {
				t.Errorf("%s: a second verifier %+v with %s, %v", name, spec, file, err)
			}
			spec.Ended(errors.New("exit status 1"))
			if !strings.Contains(said.String(), "on the GPU has ended (exit status 1): conversations are answered on the cores again") {
				t.Errorf("%s: its end says %q", name, said)
			}
		}
		dir.Close()
	}
	apart, same := chip, chip
	same.Integrated = true
	if file := int64(8 << 30); !fits(apart, file, 1) || fits(same, file, 9<<30) || !fits(same, file, 10<<30) {
		t.Error("9 GiB for a file of 8 GiB: want that they suffice beside a GPU with memory of its own, or free where it shares the cores'")
	}
}
