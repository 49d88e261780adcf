package test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/services/peers/telemetry/collectortest"
	"github.com/tandem-llm/tandem/test/testkit"
)

// fleetServices are those of deploy/fleet.yaml by their boxes; the last of them is on none.
var fleetServices = [][]string{{"nats-1", "gateway-1", "verifier-1", "drafter-1"}, {"nats-2", "gateway-2", "verifier-2", "drafter-2"},
	{"nats-3", "verifier-3", "drafter-3"}, {"jaeger"}}

// fleetOverrides puts programs of the test in place of images that cannot be pulled everywhere: the module's NATS server, which is what the
// official image holds, and a collector.
func fleetOverrides(tag string) string {
	text := "services:\n"
	for _, s := range slices.Concat(fleetServices...) {
		switch role, _, _ := strings.Cut(s, "-"); role {
		case "nats", "jaeger":
			text += fmt.Sprintf("  %s: {image: \"tandem-test-%s:%s\"}\n", s, role, tag)
		default:
			text += fmt.Sprintf("  %s: {healthcheck: {interval: 500ms}}\n", s)
		}
	}
	return text
}

// fleetBox is deploy/fleet.yaml under Docker.
type fleetBox struct {
	*box
	gateways [2]string // addresses of their HTTP servers
}

func newFleetBox(t *testing.T) *fleetBox {
	t.Helper()
	b := prepareBox(t, "../deploy/fleet.yaml", "")
	if os.Getuid() != 0 {
		t.Skip("not root: the certificates cannot be given to the images' user")
	}
	dir := filepath.Dir(b.override)
	if err := os.WriteFile(b.override, []byte(fleetOverrides(b.project)), 0o600); err != nil {
		t.Fatal(err)
	}
	certs := exec.Command("scripts/fleet-certs", filepath.Join(dir, "certs"))
	certs.Env = append(os.Environ(), "TANDEM="+filepath.Join(dir, "bin", "tandem"))
	if out, err := certs.CombinedOutput(); err != nil {
		t.Fatalf("test/scripts/fleet-certs: %v\n%s", err, out)
	}
	for role, pkg := range map[string]string{"nats": "github.com/nats-io/nats-server/v2", "jaeger": "./collector"} {
		b.image(filepath.Join(dir, role), "tandem-test-"+role+":"+b.project, pkg)
	}
	f := &fleetBox{box: b, gateways: [2]string{freePort(t), freePort(t)}}
	b.env = append(b.env, "COMPOSE_PROFILES=trace", "OTLP_ENDPOINT=jaeger:4317", "CERTS="+filepath.Join(dir, "certs"),
		port("JAEGER_PORT", freePort(t)), port("HTTP_PORT_1", f.gateways[0]), port("HTTP_PORT_2", f.gateways[1]))
	b.docker("build", fleetServices[0][1], fleetServices[0][2], fleetServices[0][3])
	b.docker("up", "-d", "--no-build")
	b.find(slices.Concat(fleetServices...))
	return f
}

// image builds an image that holds a static program of Go alone.
func (b *box) image(dir, name, pkg string) {
	b.t.Helper()
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "program"), pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.t.Fatalf("go build %s: %v\n%s", pkg, err, out)
	}
	file := "FROM scratch\nCOPY program /program\nENTRYPOINT [\"/program\"]\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(file), 0o600); err != nil {
		b.t.Fatal(err)
	}
	b.images = append(b.images, name)
	if out, err := exec.Command("docker", "build", "-t", name, dir).CombinedOutput(); err != nil {
		b.t.Fatalf("docker build of %s: %v\n%s", name, err, out)
	}
}

// each runs a docker command on the containers of a box.
func (f *fleetBox) each(command string, box int) {
	f.t.Helper()
	args := []string{command}
	for _, s := range fleetServices[box] {
		args = append(args, f.ids[s])
	}
	if out, err := exec.Command("docker", args...).CombinedOutput(); err != nil {
		f.t.Fatalf("docker %s of box %d: %v\n%s", command, box+1, err, out)
	}
}

// verifiers waits until both gateways, or the first, know that so many verifiers are up.
func (f *fleetBox) verifiers(n, gateways int) {
	f.t.Helper()
	for i := range gateways {
		var out []byte
		testkit.Eventually(f.t, fmt.Sprintf("gateway %d to know %d verifiers", i+1, n), func() bool {
			out, _ = exec.Command("docker", "exec", f.ids[fmt.Sprint("gateway-", i+1)], "/tandem", "ps", "-v", "--addr",
				"unix:///run/tandem/gateway.sock").Output()
			_, fleet, _ := strings.Cut(string(out), "\nFLEET")
			is := 0
			for line := range strings.Lines(fleet) {
				if words := strings.Fields(line); len(words) > 2 && words[0] == "verifier" && words[1] == "up" {
					is++
				}
			}
			return is == n
		})
	}
}

// TestFleetInContainers runs deploy/fleet.yaml: both gateways give the text that one process gives, a box that is killed costs no text, it
// comes back, and one trace shows a request on several boxes.
func TestFleetInContainers(t *testing.T) {
	t.Parallel()
	f := newFleetBox(t)
	f.verifiers(3, 2)
	w := newWorld(t)
	var prompts, want []string
	for i := range 4 {
		prompts = append(prompts, fmt.Sprintf("// Function %d returns", i))
		want = append(want, w.generate("--target", targetModel, "--no-draft", "--prompt", prompts[i], "--max-tokens", "100").Text)
		for _, addr := range f.gateways {
			if got, err := complete(addr, prompts[i], 100); err != nil || got != want[i] {
				t.Errorf("gateway %s: %q, %v, without containers %q", addr, got, err, want[i])
			}
		}
	}
	var stop atomic.Bool
	var done atomic.Int64
	var all sync.WaitGroup
	for k := range 6 {
		all.Go(func() {
			for i := k % 4; !stop.Load(); i = (i + 1) % 4 {
				if got, err := complete(f.gateways[0], prompts[i], 100); err != nil || got != want[i] {
					t.Errorf("while box 2 is killed: %q, %v, without faults %q", got, err, want[i])
					return
				}
				done.Add(1)
			}
		})
	}
	more := func() {
		n := done.Load() + 12
		testkit.Eventually(t, "requests to end", func() bool { return done.Load() >= n || t.Failed() })
	}
	more()
	time.Sleep(2 * time.Second) // each process sends its spans once a second
	f.each("kill", 1)
	more()
	f.verifiers(2, 1)
	more()
	f.each("start", 1)
	f.verifiers(3, 2)
	more()
	stop.Store(true)
	all.Wait()
	if got, err := complete(f.gateways[1], prompts[0], 100); err != nil || got != want[0] {
		t.Errorf("gateway of the killed box: %q, %v, before %q", got, err, want[0])
	}
	f.tracesOfBoxes()
}

// tracesOfBoxes looks for a trace whose gateway and verifier are on different boxes, with one root and all parents.
func (f *fleetBox) tracesOfBoxes() {
	f.t.Helper()
	out, err := exec.Command("docker", "logs", f.ids["jaeger"]).Output()
	if err != nil {
		f.t.Fatal(err)
	}
	traces := map[string][]collectortest.Span{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var s collectortest.Span
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			f.t.Fatalf("%v: %s", err, lines.Text())
		}
		traces[s.Trace] = append(traces[s.Trace], s)
	}
	across := map[string]int{} // whole traces by the boxes that they show
	for _, spans := range traces {
		ids, hosts, roots, orphans := map[string]bool{}, map[string]bool{}, 0, 0
		for _, s := range spans {
			ids[s.ID], hosts[strings.TrimPrefix(s.Service, "tandem-")+" on "+s.Host] = true, true
		}
		for _, s := range spans {
			if s.Parent == "" {
				roots++
			} else if !ids[s.Parent] {
				orphans++
			}
		}
		if roots == 1 && orphans == 0 {
			for h := range hosts {
				for g := range hosts {
					if strings.HasPrefix(g, "gateway") {
						across[g+", "+h]++
					}
				}
			}
		}
	}
	if across["gateway on box-1, verifier on box-2"]+across["gateway on box-1, verifier on box-3"] == 0 {
		f.t.Errorf("no whole trace of %d shows the first box's gateway and another box's verifier: %v", len(traces), across)
	}
	f.t.Logf("%d traces; whole ones that show: %v", len(traces), across)
}
