package pool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/rpc/certtest"
	"github.com/tandem-llm/tandem/test/testkit"
)

const sharedSecret = "secret-of-the-processes"

// secretOf returns a secret of that text.
func secretOf(t *testing.T, text string) *rpc.Secret {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := rpc.OpenSecret(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// certificateOf returns a certificate for 127.0.0.1 with those roles.
func certificateOf(t *testing.T, ca *certtest.CA, roles ...string) (c *rpc.Certificate, files rpc.TLSFiles) {
	t.Helper()
	cert, key, err := ca.Issue(t.TempDir(), certtest.Options{Names: []string{"127.0.0.1"}, Roles: roles})
	if err != nil {
		t.Fatal(err)
	}
	files = rpc.TLSFiles{Cert: cert, Key: key, CA: ca.File}
	if c, err = files.Load(); err != nil {
		t.Fatal(err)
	}
	return c, files
}

// foreign starts a NATS server that is not tandem's, with JetStream, with the rights of NATSConfig; extra is more of its configuration.
func foreign(t *testing.T, secret *rpc.Secret, extra string) (url string) {
	t.Helper()
	dir := t.TempDir()
	var printed strings.Builder
	if err := (Config{}).NATSConfig(&printed, secret); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tandem.conf"), []byte(printed.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	main := fmt.Sprintf("listen: \"127.0.0.1:-1\"\njetstream { store_dir: %q }\n%s\ninclude tandem.conf\n",
		filepath.Join(dir, "store"), extra)
	path := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(path, []byte(main), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := server.ProcessConfigFile(path)
	if err != nil {
		t.Fatalf("%v in\n%s", err, printed.String())
	}
	o.NoLog, o.NoSigs = true, true
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(30 * time.Second) {
		t.Fatal("the server does not start")
	}
	return s.ClientURL()
}

// connected returns a connection with an access, or why there is none.
func connected(t *testing.T, a Access) (*nats.Conn, error) {
	t.Helper()
	url, opts := a.options()
	c, err := nats.Connect(url, append(opts, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
	if err == nil {
		t.Cleanup(c.Close)
	}
	return c, err
}

// patiently connects again while a busy machine is too slow for the server's patience with handshakes.
func patiently(connect func() (*nats.Conn, error)) (c *nats.Conn, err error) {
	testkit.Until(func() bool {
		c, err = connect()
		return err == nil || errors.Is(err, nats.ErrAuthorization)
	})
	return c, err
}

// wantRights checks each line of allowed with a connection: as holds the initials of its roles.
func wantRights(t *testing.T, who, as string, c *nats.Conn) {
	t.Helper()
	for _, line := range allowed {
		for i, op := range []string{"Publish", "Subscription"} {
			var err error
			if i == 0 {
				err = c.Publish(line[0], nil)
			} else {
				_, err = c.SubscribeSync(line[0])
			}
			if err == nil {
				err = c.Flush()
			}
			if err != nil && !errors.Is(err, nats.ErrPermissionViolation) {
				t.Fatalf("%s, %s %s: %v", who, op, line[0], err)
			}
			last := c.LastError()
			denied := last != nil && strings.Contains(strings.ToLower(last.Error()),
				strings.ToLower(fmt.Sprintf("%s to %q", op, line[0])))
			if want := !strings.ContainsAny(line[1+i], as); denied != want {
				t.Errorf("%s: %s to %s is denied: %v, want %v", who, op, line[0], denied, want)
			}
		}
	}
}

// allowed says what gateways (g), drafters (d), verifiers (v), and those who claim no role (n) may do: subject, who may send on it, who
// may subscribe to it.
var allowed = [][3]string{
	{"tandem-drafts.ticket", "gd", "v"},
	{"tandem-drafts.ticket.box1", "gd", "v"},
	{"tandem-drafts.drafters", "d", "gv"},
	{"tandem-drafts.drafters.ask", "gv", "d"},
	{"tandem-drafts.verifiers", "v", "g"},
	{"tandem-drafts.verifiers.ask", "g", "v"},
	{"tandem-drafts.gateways", "g", "g"},
	{"tandem-drafts.gateways.ask", "g", "g"},
	{"tandem-drafts.other", "", ""},
	{"other.ticket", "", ""},
	{"x", "", ""},
	{">", "", ""},
	{"tandem-drafts.>", "", ""},
	{"tandem-drafts.*", "", ""},
	{"_INBOX.gateway.1", "", "gn"},
	{"_INBOX.drafter.1", "", "dn"},
	{"_INBOX.verifier.1", "", "vn"},
	{"_INBOX.>", "", "n"},
	{"_INBOX.1", "", "n"},
	{"$KV.tandem-drafts_members.gateways.1", "g", ""},
	{"$KV.tandem-drafts_members.drafters.1", "d", ""},
	{"$KV.tandem-drafts_members.verifiers.1", "v", ""},
	{"$KV.tandem-drafts_members.other.1", "", ""},
	{"$KV.other.drafters.1", "", ""},
	{"$KV.tandem-drafts_members.>", "", ""},
	{"$JS.API.INFO", "", ""},
	{"$JS.API.STREAM.INFO.KV_tandem-drafts_members", "g", ""},
	{"$JS.API.STREAM.CREATE.KV_tandem-drafts_members", "", ""},
	{"$JS.API.STREAM.UPDATE.KV_tandem-drafts_members", "", ""},
	{"$JS.API.STREAM.DELETE.KV_tandem-drafts_members", "", ""},
	{"$JS.API.STREAM.PURGE.KV_tandem-drafts_members", "", ""},
	{"$JS.API.STREAM.CREATE.tickets", "", ""},
	{"$JS.API.STREAM.MSG.GET.KV_tandem-drafts_members", "", ""},
	{"$JS.API.DIRECT.GET.KV_tandem-drafts_members.$KV.tandem-drafts_members.drafters.1", "", ""},
	{"$JS.API.CONSUMER.CREATE.KV_tandem-drafts_members.x.y", "", ""},
	{"$JS.API.CONSUMER.INFO.KV_tandem-drafts_members.x", "", ""},
	{"$JS.API.CONSUMER.DELETE.KV_tandem-drafts_members.x", "", ""},
	{"$SYS.REQ.SERVER.PING", "", ""},
}

// TestRights: at tandem's server and at another one with the printed configuration, each role may do what it needs, and nothing else.
func TestRights(t *testing.T) {
	ca, err := certtest.NewCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	secret := secretOf(t, sharedSecret)
	own, err := ServerConfig{TLS: nil, Secret: secret}.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Close)
	box, files := certificateOf(t, ca, "gateway")
	encrypted, err := ServerConfig{TLS: box.Server()}.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(encrypted.Close)
	byPassword := foreign(t, secret, "")
	byCertificate := foreign(t, nil, fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify_and_map: true }", files.Cert,
		files.Key, files.CA))
	for _, role := range everyRole {
		c, _ := certificateOf(t, ca, string(role))
		byFile := own.Access()
		byFile.Role = role
		secure := encrypted.Access()
		secure.Certificate, secure.Role = c, role
		for who, a := range map[string]Access{
			"file":                   byFile,
			"secret":                 {URL: own.Access().URL, Role: role, Secret: secret},
			"certificate":            secure,
			"printed, secret":        {URL: byPassword, Role: role, Secret: secret},
			"printed, certificate":   {URL: byCertificate, Role: role, Certificate: c},
			"token in the URL":       {URL: strings.Replace(own.Access().URL, "://", "://"+own.Access().Token+"@", 1), Role: role},
			"name in a file's URL":   inFile(t, byPassword, string(role)+":"+secret.PoolToken(role), role),
			"token in a file's URL ": inFile(t, own.Access().URL, own.Access().Token, role),
		} {
			conn, err := patiently(func() (*nats.Conn, error) { return connected(t, a) })
			if err != nil {
				t.Errorf("%s with %s: %v", role, who, err)
				continue
			}
			wantRights(t, string(role)+" with "+who, string(role[:1]), conn)
		}
	}
}

// inFile returns the access by a file with that URL and those credentials.
func inFile(t *testing.T, url, credentials string, role rpc.Role) Access {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pool")
	if err := os.WriteFile(path, []byte(strings.Replace(url, "://", "://"+credentials+"@", 1)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := FromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	a.Role = role
	return a
}

// TestClaimedRoles: what a process claims to be counts only if its credential shows it.
func TestClaimedRoles(t *testing.T) {
	ca, err := certtest.NewCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	box, _ := certificateOf(t, ca, "gateway")
	drafter, _ := certificateOf(t, ca, "drafter")
	both, _ := certificateOf(t, ca, "drafter", "verifier")
	stranger, _ := certificateOf(t, ca, "operator")
	secret := secretOf(t, sharedSecret)
	encrypted, err := ServerConfig{TLS: box.Server(), Secret: secret}.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(encrypted.Close)
	plain, err := ServerConfig{Secret: secret}.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plain.Close)
	token, e, p := encrypted.Access().Token, encrypted.Access().URL, plain.Access().URL
	asDrafter := secret.PoolToken(rpc.Drafter)
	for _, tc := range []struct {
		what      string
		url       string
		tls       *rpc.Certificate
		token, as string
		may       string // initials of the roles whose rights it has; "-": it is not let in
	}{
		{"a drafter's certificate as a drafter", e, drafter, token, "drafter", "d"},
		{"a drafter's certificate as a verifier", e, drafter, token, "verifier", "-"},
		{"a drafter's certificate as a gateway, with the secret", e, drafter, secret.PoolToken(rpc.Gateway), "gateway", "-"},
		{"a certificate with two roles as a verifier", e, both, token, "verifier", "v"},
		{"a certificate with two roles as a gateway", e, both, token, "gateway", "-"},
		{"a certificate with two roles, nothing claimed", e, both, token, "", "dvn"},
		{"a certificate of another role", e, stranger, token, "", "-"},
		{"a certificate of another role, claimed", e, stranger, token, "operator", "-"},
		{"a drafter's token as a drafter", p, nil, asDrafter, "drafter", "d"},
		{"a drafter's token as a gateway", p, nil, asDrafter, "gateway", "-"},
		{"a drafter's token as a verifier", p, nil, asDrafter, "verifier", "-"},
		{"a drafter's token, nothing claimed", p, nil, asDrafter, "", "-"},
		{"the file's token as a drafter", p, nil, plain.Access().Token, "drafter", "d"},
		{"the file's token as a verifier", p, nil, plain.Access().Token, "verifier", "v"},
		{"the file's token as something else", p, nil, plain.Access().Token, "operator", "-"},
		{"the file's token, nothing claimed", p, nil, plain.Access().Token, "", "gdvn"},
		{"no token as a drafter", p, nil, "", "drafter", "-"},
		{"the last release's token of the secret", p, nil, secret.PoolToken(""), "", "gdvn"},
		{"the last release's token of the secret as a drafter", p, nil, secret.PoolToken(""), "drafter", "-"},
	} {
		opts := []nats.Option{nats.Token(tc.token), nats.UserInfo(tc.as, ""),
			nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})}
		if tc.tls != nil {
			opts = append(opts, nats.Secure(tc.tls.Client()))
		}
		c, err := patiently(func() (*nats.Conn, error) { return nats.Connect(tc.url, opts...) })
		if err != nil {
			if tc.may != "-" {
				t.Errorf("%s: %v", tc.what, err)
			}
			continue
		}
		if tc.may == "-" {
			t.Errorf("%s: is let in", tc.what)
		} else {
			wantRights(t, tc.what, tc.may, c)
		}
		c.Close()
	}
}

// TestTicketsAtAnotherServer: tickets and replies pass through a server with the printed configuration.
func TestTicketsAtAnotherServer(t *testing.T) {
	secret := secretOf(t, sharedSecret)
	url := foreign(t, secret, "")
	as := func(role rpc.Role) Config { return Config{Access: Access{URL: url, Role: role, Secret: secret}} }
	q := newConsumer(t, ConsumerConfig{Config: as(rpc.Verifier)})
	for i, role := range []rpc.Role{rpc.Drafter, rpc.Gateway} {
		p := newPublisher(t, PublisherConfig{Config: as(role)})
		put(t, p, ticket(i+1, chain(3)))
		if got := <-q.tickets; int(got.Base) != i+1 {
			t.Errorf("the %s's ticket came as %+v", role, got)
		}
	}
}

// TestDeniedIsSaid: a process that may not do what it needs says so once, and counts it.
func TestDeniedIsSaid(t *testing.T) {
	s, err := StartServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	a := s.Access()
	a.Role = rpc.Drafter
	var log lines
	cfg := Config{Access: a, Log: log.logger()}.withDefaults()
	c, err := cfg.Connect("test", func() {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for range 3 {
		if _, err := c.Subscribe(cfg.tickets(""), func(*nats.Msg) {}); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "three denials are counted", func() bool { return cfg.Counters.Snapshot()["pool.denied"] == 3 })
	if n := log.count("does not allow this process"); n != 1 {
		t.Errorf("said %d times: want once", n)
	}
}
