package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc/certtest"
)

// services are all that tandem's processes offer each other, taken by no process in particular.
type everything struct {
	peerv1.UnimplementedVerifierServiceServer
	peerv1.UnimplementedDrafterServiceServer
	peerv1.UnimplementedProcessServiceServer
}

// internal serves every internal method; one that lets a caller in answers Unsupported.
func internal(t *testing.T, cfg ServerConfig) (addr string, counters *tandem.Counters) {
	t.Helper()
	cfg.Internal, cfg.Counters = true, new(tandem.Counters)
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	peerv1.RegisterVerifierServiceServer(s.Registrar(), everything{}.UnimplementedVerifierServiceServer)
	peerv1.RegisterDrafterServiceServer(s.Registrar(), everything{}.UnimplementedDrafterServiceServer)
	peerv1.RegisterProcessServiceServer(s.Registrar(), everything{}.UnimplementedProcessServiceServer)
	run(t, s)
	return s.Addr(), cfg.Counters
}

// methods are those of the internal services.
func methods() (out []string) {
	for _, d := range []grpc.ServiceDesc{peerv1.VerifierService_ServiceDesc, peerv1.DrafterService_ServiceDesc,
		peerv1.ProcessService_ServiceDesc} {
		for _, m := range d.Methods {
			out = append(out, "/"+d.ServiceName+"/"+m.MethodName)
		}
		for _, m := range d.Streams {
			out = append(out, "/"+d.ServiceName+"/"+m.StreamName)
		}
	}
	return out
}

// call makes a call and returns its error. A method that lets the caller in answers Unsupported.
func call(t *testing.T, conn *grpc.ClientConn, method string) error {
	t.Helper()
	s, err := stream(t, conn, method, 30*time.Second)
	if err == nil {
		if err = s.SendMsg(new(peerv1.SubmitRequest)); err == nil {
			err = s.CloseSend()
		}
		if err == nil || errors.Is(err, io.EOF) { // refused already: Recv knows why
			err = s.RecvMsg(new(peerv1.SubmitResponse))
		}
	}
	return FromStatus(err)
}

// stream begins a call of any kind, to which no message has been sent.
func stream(t *testing.T, conn *grpc.ClientConn, method string, limit time.Duration) (grpc.ClientStream, error) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
}

// letIn reports whether call's error is that of a caller who was let in.
func letIn(err error) bool { return errors.Is(err, tandem.Unsupported) }

// TestTableIsComplete: every method says who may call it.
func TestTableIsComplete(t *testing.T) {
	all := methods()
	for _, m := range all {
		if len(mayCall[m]) == 0 {
			t.Errorf("%s is for nobody, or for everybody: want it in the table of roles", m)
		}
	}
	if len(all) != len(mayCall) || len(all) < 12 {
		t.Errorf("%d methods, %d in the table", len(all), len(mayCall))
	}
}

// TestRoles: with TLS, a certificate opens what its roles need and nothing else.
func TestRoles(t *testing.T) {
	t.Parallel()
	ip := outside(t)
	ca := newCA(t)
	addr, counters := internal(t, ServerConfig{Listen: net.JoinHostPort(ip, "0"),
		TLS: load(t, ca, certtest.Options{Names: []string{ip}, Roles: []string{"verifier", "drafter"}})})
	for _, roles := range [][]string{{"gateway"}, {"drafter"}, {"verifier"}, {"verifier", "drafter"}, {"other"}, nil} {
		conn, err := anyOf(load(t, ca, certtest.Options{Names: []string{"x"}, Roles: roles}))(addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for _, m := range append(methods(), "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo") {
			want := slices.ContainsFunc(mayCall[m], func(r Role) bool { return slices.Contains(roles, string(r)) })
			err := call(t, conn, m)
			if strings.HasPrefix(m, "/grpc.reflection") { // not there, for nobody
				want = len(roles) > 0 && roles[0] != "other"
			}
			if letIn(err) != want || !want && (!errors.Is(err, tandem.Unauthenticated) ||
				!strings.Contains(err.Error(), "URI:tandem://role/")) {
				t.Errorf("%v calls %s: %v: let in, want %v", roles, m, err, want)
			}
		}
		if err := check(t, conn, nil); err != nil {
			t.Errorf("%v asks for health: %v", roles, err)
		}
	}
	if counters.Snapshot()["rpc.refused"] == 0 {
		t.Error("nothing is counted")
	}
	// the other way round: a drafter does not pass for a verifier
	gateway := &Credentials{Certificate: load(t, ca, certtest.Options{Names: []string{"x"}, Roles: []string{"gateway"}})}
	drafter, _ := internal(t, ServerConfig{Listen: net.JoinHostPort(ip, "0"),
		TLS: load(t, ca, certtest.Options{Names: []string{ip}, Roles: []string{"drafter"}})})
	for role, ok := range map[Role]bool{Drafter: true, Verifier: false, Gateway: false} {
		conn, err := gateway.Dialer(role)(drafter)
		if err = check(t, conn, err); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), role.URI()) {
			t.Errorf("a drafter dialed as a %s: %v", role, err)
		}
	}
}

// TestOwnRole: a certificate that the others would refuse is refused at the start, and no renewal brings one.
func TestOwnRole(t *testing.T) {
	ca, dir := newCA(t), t.TempDir()
	issue := func(roles ...string) (cert, key string) {
		cert, key, err := ca.Issue(dir, certtest.Options{Names: []string{"x"}, Roles: roles})
		if err != nil {
			t.Fatal(err)
		}
		return cert, key
	}
	cert, key := issue("drafter")
	c, err := TLSFiles{cert, key, ca.File}.Load()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Require(Gateway); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "URI:tandem://role/gateway") ||
		!strings.Contains(err.Error(), cert) {
		t.Errorf("a drafter's certificate at a gateway: %v", err)
	}
	if err := c.Require(Drafter); err != nil {
		t.Error(err)
	}
	first := c.now.Now()
	issue()
	later := time.Now().Add(time.Minute)
	if err := os.Chtimes(cert, later, later); err != nil {
		t.Fatal(err)
	}
	if c.now.Now() != first {
		t.Error("a certificate without the role is used")
	}
	if err := (*Certificate)(nil).Require(Gateway); err != nil {
		t.Errorf("no certificate: %v", err)
	}
}

// TestSecretOnLoopback: without TLS, TCP wants the secret with every call, and it is looked at before the message.
func TestSecretOnLoopback(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	if _, err := NewServer(ServerConfig{Listen: "127.0.0.1:0", Internal: true}); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("a server without a secret: %v", err)
	}
	path := filepath.Join(dir, "s")
	write(t, path, "a-secret-of-this-test", 0o600)
	own, err := OpenSecret(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	addr, counters := internal(t, ServerConfig{Listen: "127.0.0.1:0", Secret: own})
	with := func(md ...string) *grpc.ClientConn {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
				opts ...grpc.CallOption) (grpc.ClientStream, error) {
				return open(metadata.AppendToOutgoingContext(ctx, append([]string{headerProtocol, ours}, md...)...), d, cc, method, opts...)
			}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	const verdicts = peerv1.VerifierService_Verdicts_FullMethodName
	for name, md := range map[string][]string{
		"none": nil, "of another secret": {headerProof, proofOf("a-secret-of-this-tesT", verdicts)},
		"the secret itself":  {headerProof, "a-secret-of-this-test"},
		"for another method": {headerProof, proofOf("a-secret-of-this-test", peerv1.VerifierService_Submit_FullMethodName)},
		"empty":              {headerProof, ""},
		"both":               {headerProof, proofOf("a-secret-of-this-test", verdicts), headerProof, "x"},
		"a number":           {headerProcess, "a1"},
		"no nonce":           {headerProof, callProof("a-secret-of-this-test", verdicts, "")},
	} {
		s, err := stream(t, with(md...), verdicts, 30*time.Second)
		if err == nil {
			err = FromStatus(s.RecvMsg(new(peerv1.SubmitResponse))) // no message is ever sent
		}
		if !errors.Is(err, tandem.Unauthenticated) || strings.Contains(err.Error(), "a-secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := call(t, with(headerProof, proofOf("a-secret-of-this-test", verdicts)), verdicts); !letIn(err) {
		t.Errorf("the secret: %v", err)
	}
	conn, err := (&Credentials{Secret: own}).Dialer(Verifier)(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := call(t, conn, verdicts); !letIn(err) {
		t.Errorf("a process with the same file: %v", err)
	}
	if conn, err := Dial(addr); check(t, conn, err) != nil {
		t.Error("a probe without a secret cannot ask for health")
	}
	if n := counters.Snapshot()["rpc.refused"]; n != 8 {
		t.Errorf("%d calls counted as refused: want 8", n)
	}
	write(t, path, "the-next-secret-of-this-test", 0o600)
	if err := call(t, with(headerProof, proofOf("the-next-secret-of-this-test", verdicts)), verdicts); !letIn(err) {
		t.Errorf("the secret in its place: %v", err)
	}
}

// TestSecretIsNoCertificate: where certificates tell roles, who has the secret too may do no more for it.
func TestSecretIsNoCertificate(t *testing.T) {
	t.Parallel()
	ip := outside(t)
	ca, path := newCA(t), filepath.Join(t.TempDir(), "secret")
	write(t, path, one, 0o600)
	secret, err := OpenSecret(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	addr, _ := internal(t, ServerConfig{Listen: net.JoinHostPort(ip, "0"), Secret: secret,
		TLS: load(t, ca, certtest.Options{Names: []string{ip}, Roles: []string{"verifier"}})})
	drafter := load(t, ca, certtest.Options{Names: []string{"x"}, Roles: []string{"drafter"}})
	conn, err := dial(addr, drafter.Client, secret)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := call(t, conn, peerv1.VerifierService_Open_FullMethodName); !errors.Is(err, tandem.Unauthenticated) {
		t.Errorf("a drafter with the secret opens a session at a verifier: %v", err)
	}
	if err := call(t, conn, peerv1.VerifierService_Features_FullMethodName); !letIn(err) {
		t.Errorf("a drafter asks a verifier for features: %v", err)
	}
	plain, err := dial(addr, nil, secret)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if err := call(t, plain, peerv1.VerifierService_Open_FullMethodName); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("the secret without a certificate: %v: want no connection", err)
	}
}

// TestOneUserNeedsNothing: processes of one user that were told nothing find the same secret.
func TestOneUserNeedsNothing(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	early := new(Credentials)
	if early.secretFor("127.0.0.1:1").current() != "" {
		t.Fatal("a secret out of nowhere")
	}
	secret, err := new(Credentials).Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	early.own.look.Store(0)
	addr, _ := internal(t, ServerConfig{Listen: "127.0.0.1:0", Secret: secret})
	for name, c := range map[string]*Credentials{"one that was there before": early, "one that comes later": new(Credentials)} {
		conn, err := c.Dialer(Verifier)(addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := call(t, conn, peerv1.VerifierService_Describe_FullMethodName); !letIn(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for addr, shown := range map[string]bool{"localhost:1": true, ":1": true, "[::1]:1": true, "192.0.2.1:1": false, "box:1": false,
		"unix:///x": false} {
		if got := new(Credentials).secretFor(addr) != nil; got != shown {
			t.Errorf("the secret of this user is shown at %s: %v, want %v", addr, got, shown)
		}
	}
	for urls, shown := range map[string]bool{"nats://127.0.0.1:1": true, "nats://127.0.0.1:1,nats://box:1": false,
		"tls://192.0.2.1:1": false} {
		if got := new(Credentials).PoolSecret(urls) != nil; got != shown {
			t.Errorf("the secret of this user opens %s: %v, want %v", urls, got, shown)
		}
	}
	if _, err := new(Credentials).Listen("0.0.0.0:1"); err == nil || !strings.Contains(err.Error(), "--secret-file") {
		t.Errorf("an address of others, without TLS and a secret that they have: %v", err)
	}
	if s, err := new(Credentials).Listen("unix:///x"); s != nil || err != nil {
		t.Errorf("a socket: %v", err)
	}
}

// proofOf is the proof of a caller with that secret.
func proofOf(secret, method string) string { return "nonce." + callProof(secret, method, "nonce") }
