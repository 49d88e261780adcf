package test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// TestFleetFile holds what deploy/fleet.yaml promises, service by service, where there is no Docker either.
func TestFleetFile(t *testing.T) {
	c, w := readCompose(t, "fleet.yaml"), newWorld(t)
	settings := w.ok("config").stdout + strings.ReplaceAll(w.ok("config", "--all").stdout, "\n  ", "\n")
	if len(c.Services) != 12 || !c.Networks["lan"].Internal {
		t.Errorf("%d services, network %+v: want 12, and no way out of it", len(c.Services), c.Networks["lan"])
	}
	module, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`nats-server/v2 v(\S+)`).FindStringSubmatch(string(module))[1]
	for name, s := range c.Services {
		role, box, _ := strings.Cut(name, "-")
		if !s.closed() {
			t.Errorf("%s is not closed as it should be: %+v", name, s)
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") || role != "gateway" && role != "jaeger" {
				t.Errorf("%s publishes %s", name, p)
			}
		}
		for _, v := range s.Volumes {
			if run := strings.HasPrefix(v, "run-"); strings.HasSuffix(v, ":ro") == run || run && !strings.HasPrefix(v, "run-"+box+":") ||
				strings.Contains(v, "/box-") && !strings.Contains(v, "/box-"+box+":") {
				t.Errorf("%s mounts %s: want its own box's folders, and all but the run volume read-only", name, v)
			}
		}
		switch role {
		case "jaeger":
		case "nats":
			if s.Image != "nats:"+version {
				t.Errorf("%s has image %s: want the version that the program contains, %s", name, s.Image, version)
			}
		default:
			w.checkFlags(t, role, s.Command)
			w.checkFlags(t, "health", s.Healthcheck.Test[3:])
			for key := range s.Environment {
				flag := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(key, "TANDEM_")), "_", "-")
				if !regexp.MustCompile(`(?m)^` + flag + `\s`).MatchString(settings) {
					t.Errorf("%s sets %s, which is no setting", name, key)
				}
			}
		}
	}
}

// TestFleetCerts: the script gives each box what it needs, the pool's token is that of the secret, and a second run keeps the secret.
func TestFleetCerts(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("no openssl, which makes the certificates: apt-get install openssl brings it")
	}
	dir, before := t.TempDir(), ""
	for range 2 {
		cmd := exec.Command("scripts/fleet-certs", dir, "a=10.0.0.1,a.example", "b=10.0.0.2")
		cmd.Env = append(os.Environ(), "OWNER=0:0", "TANDEM="+program)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("test/scripts/fleet-certs: %v\n%s", err, out)
		}
		for _, box := range []string{"a", "b"} {
			file := func(name string) string { return filepath.Join(dir, box, name) }
			secret, err := rpc.OpenSecret(file("secret"), nil)
			if err != nil {
				t.Fatal(err)
			}
			token := secret.PoolToken(rpc.Drafter)
			conf, err := os.ReadFile(file("pool.conf"))
			if err != nil || !strings.Contains(string(conf), `password: "`+token+`"`) || before != "" && token != before {
				t.Errorf("box %s: %v, %s: want the token %s", box, err, conf, token)
			}
			before = token
			natsConfig(t, filepath.Join(dir, box))
			if _, err := (rpc.TLSFiles{Cert: file("box.pem"), Key: file("box.key"), CA: file("ca.pem")}).Load(); err != nil {
				t.Error(err)
			}
		}
	}
	out, err := exec.Command("scripts/fleet-certs", dir, "a").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "want BOX=NAME") {
		t.Errorf("a box without a name: %v, %s", err, out)
	}
}

// natsConfig checks that a NATS server takes deploy/nats.conf with what a box has been given: a user for each role with its rights, and one
// that reads the registry.
func natsConfig(t *testing.T, certs string) {
	t.Helper()
	conf, err := os.ReadFile("../deploy/nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	etc := t.TempDir()
	text := strings.ReplaceAll(strings.ReplaceAll(string(conf), "../certs/pool.conf", "pool.conf"), "/certs/", certs+"/")
	pool, err := os.ReadFile(filepath.Join(certs, "pool.conf"))
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(etc, "nats.conf"), []byte(text), 0o600),
			os.WriteFile(filepath.Join(etc, "pool.conf"), pool, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	o := new(server.Options)
	if err := o.ProcessConfigFile(filepath.Join(etc, "nats.conf")); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, u := range o.Users {
		names[u.Username] = u.Permissions != nil && len(u.Permissions.Publish.Allow) > 0
	}
	if len(names) != 4 || !names["registry"] || !names["gateway"] || !names["verifier"] || !names["drafter"] || !o.JetStream ||
		len(o.Routes) != 2 {
		t.Errorf("users %v, JetStream %v, %d routes: want the three roles and the registry's reader with rights, and two routes", names,
			o.JetStream, len(o.Routes))
	}
}
