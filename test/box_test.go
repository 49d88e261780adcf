package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem/client"
)

// box is a compose file of deploy under Docker, with names, ports and images of the test's own.
type box struct {
	t        *testing.T
	file     string   // deploy/compose.yaml or another
	compose  []string // the program and its first arguments
	project  string
	env      []string
	grpc     string // addresses of the gateway
	http     string
	ids      map[string]string // containers by service
	override string            // path of a compose file that goes over the other; bin with the program is beside it
	images   []string          // to be removed at the end
	client   *client.Client
}

// services are what the profile cpu starts.
var services = []string{"gateway", "verifier", "drafter"}

// overrides make the test quicker, and have every tree go through shared memory.
const overrides = `services:
  gateway: {healthcheck: {interval: 500ms}}
  verifier: {healthcheck: {interval: 500ms}}
  drafter: {healthcheck: {interval: 500ms}, environment: {TANDEM_INLINE_LIMIT: "0"}}
`

// newBox brings the services of deploy/compose.yaml up.
func newBox(t *testing.T) *box {
	t.Helper()
	begun := time.Now()
	b := prepareBox(t, "../deploy/compose.yaml", overrides)
	b.grpc, b.http = freePort(t), freePort(t)
	b.env = append(b.env, "COMPOSE_PROFILES=cpu", port("GRPC_PORT", b.grpc), port("HTTP_PORT", b.http))
	t.Logf("static program built after %v", time.Since(begun))
	b.docker("build")
	b.docker("up", "-d")
	t.Logf("services healthy after %v", time.Since(begun))
	b.find(services)
	var err error
	if b.client, err = client.Dial(b.grpc); err != nil {
		t.Fatal(err)
	}
	return b
}

// prepareBox builds the static program for a compose file, over which an override goes. It skips the test where there is no Docker to run
// them with. Everything is taken away at the end of the test.
func prepareBox(t *testing.T, file, override string) *box {
	t.Helper()
	mayBeSlow(t)
	if err := watchSources(); err != nil {
		t.Fatal(err)
	}
	project := fmt.Sprintf("tandemtest%d%s", os.Getpid(), strings.ToLower(t.Name()))
	b := &box{t: t, file: file, ids: map[string]string{}, project: project, compose: composeCommand(t)}
	dir := t.TempDir()
	if out, err := exec.Command("scripts/static", filepath.Join(dir, "bin", "tandem")).CombinedOutput(); err != nil {
		t.Fatalf("test/scripts/static: %v\n%s", err, out)
	}
	dockerfile, err := os.ReadFile("../deploy/Dockerfile")
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "deploy"), 0o700) // beside bin, as in the checkout
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "deploy", "Dockerfile"), dockerfile, 0o600)
	}
	if err == nil {
		b.override = filepath.Join(dir, "override.yaml")
		err = os.WriteFile(b.override, []byte(override), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.env = append(os.Environ(), "COMPOSE_PROJECT_NAME="+b.project, "TAG="+b.project, "BIN="+filepath.Join(dir, "bin"))
	for _, s := range services {
		b.images = append(b.images, "tandem-"+s+":"+b.project)
	}
	t.Cleanup(b.down)
	return b
}

// port returns a variable with the port of an address.
func port(name, addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return name + "=" + port
}

// find notes the containers of services.
func (b *box) find(services []string) {
	b.t.Helper()
	for _, s := range services {
		out, err := b.try("ps", "-q", s)
		words := strings.Fields(out)
		if err != nil || len(words) == 0 {
			b.t.Fatalf("%s: %v %s", s, err, out)
		}
		b.ids[s] = words[len(words)-1]
	}
}

// freePort returns an address of loopback that nobody listens on now.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// composeCommand returns what runs compose files here, and skips the test where nothing does.
func composeCommand(t *testing.T) []string {
	t.Helper()
	if out, err := exec.Command("docker", "version", "--format", "{{.Server.Version}}").CombinedOutput(); err != nil {
		t.Skipf("needs a Docker engine that this user may use: as root, test/scripts/docker-engine start brings one: %v: %s", err,
			bytes.TrimSpace(out))
	}
	for _, c := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if exec.Command(c[0], append(c[1:], "version")...).Run() == nil {
			return c
		}
	}
	t.Skip("needs docker compose, or docker-compose: as root, test/scripts/docker-engine start brings one")
	return nil
}

// docker runs compose with the test's files.
func (b *box) docker(args ...string) {
	b.t.Helper()
	if out, err := b.try(args...); err != nil {
		b.t.Fatalf("compose %v: %v\n%s", args, err, out)
	}
}

func (b *box) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	all := slices.Concat(b.compose[1:], []string{"-f", b.file, "-f", b.override}, args)
	cmd := exec.CommandContext(ctx, b.compose[0], all...)
	cmd.Env = b.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// down takes everything away and checks that nothing is left.
func (b *box) down() {
	if b.client != nil {
		_ = b.client.Close()
	}
	if b.t.Failed() {
		out, _ := b.try("logs", "--no-color")
		b.t.Logf("logs:\n%.6000s", out)
	}
	if out, err := b.try("down", "-v"); err != nil {
		b.t.Errorf("compose down: %v\n%s", err, out)
	}
	for _, image := range b.images {
		_ = exec.Command("docker", "rmi", "-f", image).Run()
	}
	for _, list := range [][]string{{"ps", "-aq"}, {"volume", "ls", "-q"}, {"network", "ls", "-q"}} {
		out, err := exec.Command("docker", append(list, "--filter", "label=com.docker.compose.project="+b.project)...).Output()
		if err != nil || len(bytes.TrimSpace(out)) > 0 {
			b.t.Errorf("docker %v after the end: %s, %v: want nothing", list, out, err)
		}
	}
}

// container is the part of `docker inspect` that the test looks at.
type container struct {
	Config struct{ User string }
	State  struct {
		Pid, ExitCode int
		OOMKilled     bool
		Health        struct{ Status string }
	}
	HostConfig struct {
		ReadonlyRootfs bool
		CapDrop        []string
		SecurityOpt    []string
		Memory         int64
		OomScoreAdj    int
		RestartPolicy  struct{ Name string }
	}
	NetworkSettings struct {
		Ports map[string][]struct{ HostIP, HostPort string }
	}
	Mounts []struct {
		Destination string
		RW          bool
	}
	RestartCount int
}

// inspect returns the container of a service.
func (b *box) inspect(service string) container {
	b.t.Helper()
	out, err := exec.Command("docker", "inspect", b.ids[service]).Output()
	var all []container
	if err != nil || json.Unmarshal(out, &all) != nil || len(all) != 1 {
		b.t.Fatalf("docker inspect of %s: %v: %.500s", service, err, out)
	}
	return all[0]
}

// TestBox runs deploy/compose.yaml: the images hold the program alone, the containers may do nothing that they need
// not, a prompt is answered as without containers, whoever is killed comes back, and what runs is finished before
// the gateway stops.
func TestBox(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Log("not root: no container's process is killed, and maps are not looked at")
	}
	b := newBox(t)
	w := newWorld(t)
	prompt := "func (r *Reader) Read("
	want := w.generate("--target", targetModel, "--no-draft", "--prompt", prompt, "--max-tokens", "48")
	r := withTree(setting{}.request(prompt, 48), trees[0])
	g := &group{w: w, client: b.client}
	answer := func(what string) {
		t.Helper()
		testkit.Eventually(t, "drafts "+what, func() bool {
			got, err := g.try(t.Context(), r)
			if err == nil && !slices.EqualFunc(got.tokens, want.Tokens, func(a uint32, b int32) bool { return a == uint32(b) }) {
				t.Fatalf("tokens %s\n%v, without containers\n%v", what, got.tokens, want.Tokens)
			}
			return err == nil && got.finished.Statistics.Accepted > 0
		})
	}
	answer("in containers")
	b.hardened()
	if text := b.complete(prompt, 48); text != want.Text {
		t.Errorf("completion by HTTP\n%q, without containers\n%q", text, want.Text)
	}
	if e := w.ok("health", "--addr", b.grpc, "--addr", "http://"+b.http); !strings.HasPrefix(e.stdout, "serving") {
		t.Errorf("health from outside: %q", e.stdout)
	}
	if os.Getuid() == 0 {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", b.inspect("verifier").State.Pid))
		if err != nil || !bytes.Contains(maps, []byte("memfd:tandem")) {
			t.Errorf("the verifier does not map the drafter's shared memory: %v", err)
		}
		for _, s := range services {
			old := b.inspect(s).State.Pid
			at := time.Now()
			if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "another process of "+s, func() bool { pid := b.inspect(s).State.Pid; return pid != old && pid != 0 })
			answer("after a kill of the " + s)
			t.Logf("%s killed: drafts again after %v", s, time.Since(at))
		}
	}
	b.stopUnderLoad(g)
}

// complete asks for a completion as curl does.
func (b *box) complete(prompt string, tokens int) string {
	b.t.Helper()
	text, err := complete(b.http, prompt, tokens)
	if err != nil {
		b.t.Fatal(err)
	}
	return text
}

// complete asks the gateway at an address for a completion.
func complete(addr, prompt string, tokens int) (string, error) {
	body, _ := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": tokens, "temperature": 0})
	r, err := http.Post("http://"+addr+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	var answer struct{ Choices []struct{ Text string } }
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil || r.StatusCode != http.StatusOK || len(answer.Choices) != 1 {
		return "", fmt.Errorf("completion: %s, %+v, %v", r.Status, answer, err)
	}
	return answer.Choices[0].Text, nil
}

// hardened checks what docker made of the file.
func (b *box) hardened() {
	t := b.t
	for _, s := range services {
		c := b.inspect(s)
		h := c.HostConfig
		if c.Config.User != "65532:65532" || !h.ReadonlyRootfs || !slices.Equal(h.CapDrop, []string{"ALL"}) || h.Memory == 0 ||
			!slices.ContainsFunc(h.SecurityOpt, func(o string) bool { return strings.HasPrefix(o, "no-new-privileges") }) ||
			h.RestartPolicy.Name != "unless-stopped" {
			t.Errorf("%s runs as %q with %+v", s, c.Config.User, h)
		}
		if s == "drafter" && h.OomScoreAdj <= 0 {
			t.Errorf("the drafter's oom_score_adj is %d: it is not the first to go", h.OomScoreAdj)
		}
		for _, m := range c.Mounts {
			if m.RW != (m.Destination == "/run/tandem" || s == "verifier" && m.Destination == "/cache") {
				t.Errorf("%s may write to %s: %v", s, m.Destination, m.RW)
			}
		}
		for port, published := range c.NetworkSettings.Ports {
			for _, p := range published {
				if s != "gateway" || p.HostIP != "127.0.0.1" {
					t.Errorf("%s publishes %s on %s:%s", s, port, p.HostIP, p.HostPort)
				}
			}
		}
		out, err := exec.Command("docker", "image", "inspect", "-f", "{{len .RootFS.Layers}} {{.Size}}", "tandem-"+s+":"+b.project).Output()
		var layers, size int64
		_, scan := fmt.Sscan(string(out), &layers, &size)
		program, stat := os.Stat(filepath.Join(filepath.Dir(b.override), "bin", "tandem"))
		want := int64(1)
		if s == "verifier" {
			want = 2 // an empty folder for the cache
		}
		if err != nil || scan != nil || stat != nil || layers != want || size != program.Size() {
			t.Errorf("image of %s: %s, %v: want %d layers with the program alone", s, bytes.TrimSpace(out), err, want)
		}
	}
}

// stopUnderLoad stops the gateway while it works: what runs is finished, and it ends with code 0.
func (b *box) stopUnderLoad(g *group) {
	t := b.t
	jobs := g.workload(t, 4, 64)
	ends := make(chan error, len(jobs))
	begun := make(chan struct{}, len(jobs))
	for _, j := range jobs {
		go func() {
			var tokens []uint32
			for event, err := range g.client.Generate(t.Context(), j.request) {
				if err != nil {
					ends <- fmt.Errorf("%s ended after %d tokens: %w", j.id, len(tokens), err)
					return
				}
				if event.Delta != nil {
					if tokens == nil {
						begun <- struct{}{}
					}
					tokens = append(tokens, event.Delta.Tokens...)
				}
			}
			if !slices.Equal(tokens, j.want) {
				ends <- fmt.Errorf("%s: tokens\n%v, undisturbed\n%v", j.id, tokens, j.want)
				return
			}
			ends <- nil
		}()
	}
	for range jobs {
		select {
		case <-begun:
		case err := <-ends:
			t.Fatal(err)
		case <-time.After(20 * time.Second):
			t.Fatal("not every request began within 20 s")
		}
	}
	at := time.Now()
	if out, err := exec.Command("docker", "stop", "-t", "30", b.ids["gateway"]).CombinedOutput(); err != nil {
		t.Fatalf("docker stop: %v %s", err, out)
	}
	took := time.Since(at)
	for range jobs {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
	if out, err := exec.Command("docker", "stop", "-t", "30", b.ids["verifier"], b.ids["drafter"]).CombinedOutput(); err != nil {
		t.Fatalf("docker stop: %v %s", err, out)
	}
	for _, s := range services {
		if c := b.inspect(s); c.State.ExitCode != 0 || c.State.OOMKilled {
			t.Errorf("%s ended with code %d", s, c.State.ExitCode)
		}
	}
	t.Logf("gateway stopped in %v with %d requests", took, len(jobs))
}
