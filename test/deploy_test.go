package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// composeFile is the part of a compose file in deploy that the tests look at.
type composeFile struct {
	Services map[string]composeService
	Networks map[string]struct{ Internal bool }
	Volumes  map[string]struct {
		DriverOpts map[string]string `yaml:"driver_opts"`
	}
}

type composeService struct {
	Image       string
	User        string
	ReadOnly    bool     `yaml:"read_only"`
	CapDrop     []string `yaml:"cap_drop"`
	SecurityOpt []string `yaml:"security_opt"`
	MemLimit    string   `yaml:"mem_limit"`
	Grace       string   `yaml:"stop_grace_period"`
	Restart     string
	Runtime     string
	Devices     []string
	Command     []string
	Hostname    string
	Profiles    []string
	Ports       []string
	Volumes     []string
	Environment map[string]string
	Privileged  bool
	NetworkMode string                                `yaml:"network_mode"`
	DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
	Healthcheck struct{ Test []string }
	Build       struct{ Target string }
}

// readCompose reads a compose file in deploy. Where compose is installed, it must find the file valid too, behind the files over which it
// goes.
func readCompose(t *testing.T, name string, over ...string) (c composeFile) {
	t.Helper()
	text, err := os.ReadFile("../deploy/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, f := range append(over, name) {
		files = append(files, "-f", "../deploy/"+f)
	}
	bin := t.TempDir() // the context of the images
	for _, command := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if exec.Command(command[0], append(command[1:], "version")...).Run() != nil {
			continue
		}
		cmd := exec.Command(command[0], slices.Concat(command[1:], files, []string{"config", "-q"})...)
		cmd.Env = append(os.Environ(), "BIN="+bin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v finds %s not valid: %v\n%s", command, name, err, out)
		}
	}
	return c
}

// closed reports whether a service may do no more than it needs.
func (s composeService) closed() bool {
	return s.ReadOnly && slices.Equal(s.CapDrop, []string{"ALL"}) && slices.Contains(s.SecurityOpt, "no-new-privileges:true") &&
		!s.Privileged && s.User != "" && !strings.HasPrefix(s.User, "0") && s.MemLimit != "" && s.Grace == "30s" &&
		s.Restart == "unless-stopped" && s.NetworkMode == ""
}

// TestComposeFile holds what deploy/compose.yaml promises, service by service, where there is no Docker either.
func TestComposeFile(t *testing.T) {
	c, w := readCompose(t, "compose.yaml"), newWorld(t)
	profiles := map[string][]string{"gateway": nil, "verifier": nil, "drafter": {"cpu"}, "drafter-gpu": {"gpu"},
		"drafter-jetson": {"jetson"}, "jaeger": {"trace"}}
	if len(c.Services) != len(profiles) {
		t.Errorf("%d services: want those of %v", len(c.Services), profiles)
	}
	for name, want := range profiles {
		s, ok := c.Services[name]
		if !ok || !slices.Equal(s.Profiles, want) {
			t.Errorf("%s: profiles %v, want %v", name, s.Profiles, want)
			continue
		}
		if !s.closed() {
			t.Errorf("%s is not closed as it should be: %+v", name, s)
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") || name != "gateway" && name != "jaeger" {
				t.Errorf("%s publishes %s", name, p)
			}
		}
		if name == "jaeger" {
			if !strings.HasPrefix(s.Image, "jaegertracing/jaeger:2.") || len(s.Command) > 0 ||
				!slices.Equal(s.Ports, []string{"127.0.0.1:16686:16686"}) {
				t.Errorf("jaeger is %s with %v, published on %v: want version 2 with its defaults, the page alone published", s.Image,
					s.Command, s.Ports)
			}
			continue
		}
		role, _, _ := strings.Cut(name, "-")
		target := role
		if way, onGPU := strings.CutPrefix(name, "drafter-"); onGPU {
			target = "drafter-cuda"
			s.reachesGPU(t, way, "${DRAFT_DEVICE:-auto}")
		}
		if s.Build.Target != target || len(s.Healthcheck.Test) < 3 ||
			!slices.Equal(s.Healthcheck.Test[:3], []string{"CMD", "/tandem", "health"}) {
			t.Errorf("%s: image %s, health check %v", name, s.Build.Target, s.Healthcheck.Test)
		}
		for _, v := range s.Volumes {
			if strings.HasSuffix(v, ":ro") != strings.Contains(v, ":/models") {
				t.Errorf("%s mounts %s: want models read-only, and the sockets not", name, v)
			}
		}
		w.checkFlags(t, role, s.Command)
		if role == "drafter" && strings.Contains(strings.Join(s.Command, " "), "--threads") {
			t.Errorf("%s: %v: want the program to choose the drafter's threads", name, s.Command)
		}
		w.checkFlags(t, "health", s.Healthcheck.Test[3:])
		for on, d := range s.DependsOn {
			if d.Condition != "service_healthy" {
				t.Errorf("%s waits for %s to be %s", name, on, d.Condition)
			}
		}
	}
	if _, ok := c.Services["gateway"].DependsOn["verifier"]; !ok {
		t.Error("the gateway does not wait for the verifier: it would be stopped after it, and could not finish what runs")
	}
	if g := c.Services["gateway"]; !slices.Contains(g.Command, "--set=allow-host="+g.Hostname) {
		t.Errorf("the gateway, called %q by its peers, does not take this name: %v", g.Hostname, g.Command)
	}
	if !c.Networks["inside"].Internal || c.Volumes["run"].DriverOpts["type"] != "tmpfs" {
		t.Errorf("network %+v and volume %+v: want no way out, and memory", c.Networks["inside"], c.Volumes["run"])
	}
}

// reachesGPU checks a service that may compute on a GPU: gpu has it by its description, jetson by the NVIDIA runtime.
func (s composeService) reachesGPU(t *testing.T, way, device string) {
	t.Helper()
	want := composeService{Devices: []string{"nvidia.com/gpu=all"}}
	if way == "jetson" {
		want = composeService{Runtime: "nvidia"}
	}
	if s.Runtime != want.Runtime || !slices.Equal(s.Devices, want.Devices) || s.Environment["TANDEM_DEVICE"] != device ||
		(s.Environment["NVIDIA_VISIBLE_DEVICES"] == "all") != (way == "jetson") {
		t.Errorf("%s: runtime %q, devices %q, environment %v: want a GPU handed over in one way", way, s.Runtime, s.Devices, s.Environment)
	}
	if c := s.Environment["CUDA_CACHE_PATH"]; !slices.ContainsFunc(s.Volumes, func(v string) bool { return strings.HasSuffix(v, ":"+c) }) {
		t.Errorf("%s: compiled kernels go to %q, which is no volume of %v: want them kept", way, c, s.Volumes)
	}
}

// TestVerifierOnGPU: the two files that go over compose.yaml change nothing of the verifier but where it computes, and give it more memory.
func TestVerifierOnGPU(t *testing.T) {
	onCPU := readCompose(t, "compose.yaml").Services["verifier"]
	for _, way := range []string{"gpu", "jetson"} {
		file := "verifier-" + way + ".yaml"
		over := readCompose(t, file, "compose.yaml").Services
		s := over["verifier"]
		if len(over) != 1 || s.Build.Target != "verifier-cuda" || s.MemLimit == "" || s.MemLimit == onCPU.MemLimit {
			t.Errorf("%s: %+v: want the verifier alone, with the image for GPUs and a limit of memory that fits its weights", file, over)
		}
		s.Volumes = onCPU.Volumes
		s.reachesGPU(t, way, "${DEVICE:-auto}")
		s.Runtime, s.Devices, s.Environment, s.Volumes = "", nil, nil, nil
		s.Image, s.MemLimit, s.Build.Target = "", "", ""
		if !reflect.DeepEqual(s, composeService{}) {
			t.Errorf("%s changes more: %+v", file, s)
		}
	}
	text, err := os.ReadFile("../deploy/Dockerfile")
	for _, target := range []string{"verifier-cuda", "drafter-cuda"} {
		image := " AS " + target + "\nENTRYPOINT [\"/tandem\", \"" + strings.TrimSuffix(target, "-cuda") + "\"]"
		if err != nil || !strings.Contains(string(text), image) {
			t.Errorf("the Dockerfile lacks the image %s (%v)", target, err)
		}
	}
}

// checkFlags fails the test for arguments of a command of tandem that it does not know.
func (w *world) checkFlags(t *testing.T, command string, args []string) {
	t.Helper()
	help, settings := w.ok(command, "--help").stdout, w.ok("config", "--all").stdout
	for _, a := range args {
		if set, ok := strings.CutPrefix(a, "--set="); ok {
			if key, _, _ := strings.Cut(set, "="); !strings.Contains(settings, "\n  "+key+" (default: ") {
				t.Errorf("tandem has no setting %q", key)
			}
			continue
		}
		m := regexp.MustCompile(`^--(no-)?([a-z][a-z0-9-]*)`).FindStringSubmatch(a)
		if m == nil {
			t.Errorf("tandem %s: %q is no flag", command, a)
			continue
		}
		known := regexp.MustCompile(`--(\[no-\])?` + regexp.QuoteMeta(m[2]) + `\b`).MatchString(help)
		if m[1] != "" {
			known = strings.Contains(help, "--[no-]"+m[2]) || strings.Contains(help, "--no-"+m[2])
		}
		if !known {
			t.Errorf("tandem %s has no flag %s", command, m[0])
		}
	}
}

// TestUnits checks the systemd units: flags that exist, settings that exist, who dies first, and what systemd-analyze
// says where it is installed.
func TestUnits(t *testing.T) {
	w := newWorld(t)
	settings := w.ok("config").stdout
	dir := t.TempDir()
	oom := map[string]int{}
	files, err := filepath.Glob("../deploy/systemd/tandem*.*")
	if err != nil {
		t.Fatal(err)
	}
	var units []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(f) == ".sysusers" {
			continue
		}
		text := strings.ReplaceAll(string(b), "\\\n", " ")
		unit := filepath.Join(dir, filepath.Base(f))
		units = append(units, unit)
		if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(b), "/usr/local/bin/tandem", program)), 0o600); err != nil {
			t.Fatal(err)
		}
		role, isRole := strings.CutSuffix(strings.TrimPrefix(filepath.Base(f), "tandem-"), ".service")
		if !isRole {
			continue
		}
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			switch key {
			case "ExecStart":
				args := strings.Fields(value)
				if len(args) < 2 || args[0] != "/usr/local/bin/tandem" || args[1] != role {
					t.Errorf("%s starts %q", f, value)
					continue
				}
				w.checkFlags(t, role, args[2:])
			case "Environment":
				name, _, _ := strings.Cut(value, "=")
				flag := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "TANDEM_")), "_", "-")
				if !strings.HasPrefix(name, "TANDEM_") || !regexp.MustCompile(`(?m)^`+flag+`\s`).MatchString(settings) {
					t.Errorf("%s sets %s, which is no setting", f, name)
				}
			case "OOMScoreAdjust":
				if oom[role], err = strconv.Atoi(value); err != nil {
					t.Errorf("%s: %s: %v", f, line, err)
				}
			}
		}
		for _, must := range []string{"ProtectSystem=strict", "NoNewPrivileges=yes", "User=tandem", "MemoryMax=",
			"CapabilityBoundingSet=\n", "Restart=on-failure", "TimeoutStopSec=30s"} {
			if !strings.Contains(text, must) {
				t.Errorf("%s lacks %q", f, must)
			}
		}
	}
	if len(oom) != 3 || oom["drafter"] <= oom["verifier"] || oom["verifier"] <= oom["gateway"] {
		t.Errorf("OOMScoreAdjust %v: want the drafter to die first, the gateway last", oom)
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("no systemd-analyze: the units are not verified further; apt-get install systemd brings it")
	}
	if out, err := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, units...)...).CombinedOutput(); err != nil ||
		len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	for _, u := range units {
		if filepath.Ext(u) != ".service" {
			continue
		}
		const worst = "20" // tenths of 10: "OK" begins at 4.9
		if out, err := exec.Command("systemd-analyze", "security", "--offline=yes", "--threshold="+worst, u).CombinedOutput(); err != nil {
			t.Errorf("%s is more open than %s: %v\n%s", filepath.Base(u), worst, err, out)
		}
	}
}
