package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/telemetry/traceparent"
	"github.com/tandem-llm/tandem/test/testkit"
)

func TestMain(m *testing.M) {
	testkit.AtOnce(16)
	goleak.VerifyTestMain(m)
}

// service answers with what its functions say.
type service struct {
	tandemv1.UnimplementedGenerationServiceServer
	describe func(context.Context) error
	generate func(*tandemv1.GenerateRequest, grpc.ServerStreamingServer[tandemv1.GenerateResponse]) error
}

func (s *service) Describe(ctx context.Context, _ *tandemv1.DescribeRequest) (*tandemv1.DescribeResponse, error) {
	return &tandemv1.DescribeResponse{}, s.describe(ctx)
}

func (s *service) Generate(r *tandemv1.GenerateRequest, st grpc.ServerStreamingServer[tandemv1.GenerateResponse]) error {
	return s.generate(r, st)
}

// serve runs svc and returns a client and a function that stops the server and waits for it.
func serve(t *testing.T, cfg ServerConfig, svc *service) (tandemv1.GenerationServiceClient, *grpc.ClientConn, func()) {
	t.Helper()
	if cfg.Listen == "" {
		cfg.Listen = "unix://" + filepath.Join(t.TempDir(), "s")
	}
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tandemv1.RegisterGenerationServiceServer(s.Registrar(), svc)
	s.SetServing(true)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	stop := func() { cancel(); work.Wait() }
	t.Cleanup(stop)
	conn, err := Dial(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return tandemv1.NewGenerationServiceClient(conn), conn, stop
}

func TestErrorsSurviveTheWire(t *testing.T) {
	var answer error
	c, _, _ := serve(t, ServerConfig{}, &service{describe: func(context.Context) error { return answer }})
	for k := tandem.Invalid; k <= tandem.Unauthenticated; k++ {
		answer = tandem.Errorf("verify", k, "session %d is wrong: want %q", 7, "é")
		_, err := c.Describe(context.Background(), &tandemv1.DescribeRequest{})
		if !errors.Is(err, k) {
			t.Errorf("%v arrived as %v (%v)", k, tandem.KindOf(err), err)
		}
		if err.Error() != answer.Error() {
			t.Errorf("text %q arrived as %q", answer, err)
		}
		var e *tandem.Error
		if !errors.As(err, &e) || e.Op != "verify" {
			t.Errorf("operation arrived as %+v", e)
		}
	}
	for _, c := range []struct {
		err  error
		kind tandem.Kind
	}{{fmt.Errorf("wrapped: %w", tandem.Errorf("x", tandem.Stale, "y")), tandem.Stale}, {context.Canceled, tandem.Canceled},
		{context.DeadlineExceeded, tandem.Deadline}, {errors.New("bare"), tandem.Internal},
		{status.Error(codes.NotFound, "no"), tandem.UnknownSession}} {
		if got := FromStatus(ToStatus(c.err)); tandem.KindOf(got) != c.kind {
			t.Errorf("%v arrived as %v", c.err, tandem.KindOf(got))
		}
	}
	if ToStatus(nil) != nil || FromStatus(nil) != nil || FromStatus(io.EOF) != io.EOF {
		t.Error("nil or EOF did not pass")
	}
}

func TestStatusDetails(t *testing.T) {
	s := status.Convert(ToStatus(tandem.Errorf("kv", tandem.Exhausted, "no pages")))
	if s.Code() != codes.ResourceExhausted || s.Message() != "kv: no pages" || len(s.Details()) != 2 {
		t.Fatalf("status %v", s.Proto())
	}
	info, ok := s.Details()[0].(*errdetails.ErrorInfo)
	if !ok || info.GetDomain() != "tandem.dev" || info.GetReason() != "EXHAUSTED" {
		t.Errorf("detail %v", s.Details()[0])
	}
	if retry, ok := s.Details()[1].(*errdetails.RetryInfo); !ok || retry.GetRetryDelay().AsDuration() <= 0 {
		t.Errorf("detail %v", s.Details()[1])
	}
	full := fmt.Errorf("wrapped: %w", &tandem.Error{Op: "generate", Kind: tandem.Exhausted, Err: errors.New("queue is full"),
		RetryAfter: 3 * time.Second})
	if got := FromStatus(ToStatus(full)); tandem.RetryAfter(got) != 3*time.Second || !errors.Is(got, tandem.Exhausted) {
		t.Errorf("%v arrived with a retry after %v", got, tandem.RetryAfter(got))
	}
	field := &tandem.Error{Op: "request", Kind: tandem.Invalid, Field: "sampling.top_p", Err: errors.New("top_p is 2: want at most 1")}
	bad, ok := status.Convert(ToStatus(fmt.Errorf("wrapped: %w", field))).Details()[1].(*errdetails.BadRequest)
	if !ok || len(bad.GetFieldViolations()) != 1 || bad.FieldViolations[0].GetField() != "sampling.top_p" ||
		!strings.Contains(bad.FieldViolations[0].GetDescription(), "top_p is 2") {
		t.Errorf("field violation %v", bad)
	}
	if got := FromStatus(ToStatus(field)); tandem.FieldOf(got) != "sampling.top_p" || got.Error() != field.Error() {
		t.Errorf("%v arrived as %v of field %q", field, got, tandem.FieldOf(got))
	}
	invalid := status.Convert(ToStatus(tandem.Errorf("x", tandem.Invalid, "\xff")))
	if len(invalid.Details()) != 1 || invalid.Code() != codes.InvalidArgument {
		t.Errorf("status %v", invalid.Proto())
	}
}

func TestPanicHarmsOneRequest(t *testing.T) {
	counters := new(tandem.Counters)
	first := true
	svc := &service{
		describe: func(context.Context) error {
			if first {
				first = false
				panic("boom")
			}
			return nil
		},
		generate: func(*tandemv1.GenerateRequest, grpc.ServerStreamingServer[tandemv1.GenerateResponse]) error {
			panic("bang")
		},
	}
	c, _, _ := serve(t, ServerConfig{Counters: counters}, svc)
	_, err := c.Describe(context.Background(), &tandemv1.DescribeRequest{})
	if !errors.Is(err, tandem.Internal) || !strings.Contains(err.Error(), "boom") {
		t.Errorf("panic arrived as %v", err)
	}
	if _, err := c.Describe(context.Background(), &tandemv1.DescribeRequest{}); err != nil {
		t.Errorf("the request after a panic: %v", err)
	}
	st, err := c.Generate(context.Background(), &tandemv1.GenerateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(); !errors.Is(err, tandem.Internal) || !strings.Contains(err.Error(), "bang") {
		t.Errorf("panic in a stream arrived as %v", err)
	}
	if n := counters.Snapshot()["rpc.panics"]; n != 2 {
		t.Errorf("%d panics counted", n)
	}
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	hang := &service{
		describe: func(ctx context.Context) error { <-ctx.Done(); return errors.New("gave up") },
		generate: func(_ *tandemv1.GenerateRequest, st grpc.ServerStreamingServer[tandemv1.GenerateResponse]) error {
			<-st.Context().Done()
			return st.Context().Err()
		},
	}
	s, err := NewServer(ServerConfig{Listen: "unix://" + filepath.Join(t.TempDir(), "s"), Deadline: 20 * time.Millisecond,
		StreamDeadline: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	tandemv1.RegisterGenerationServiceServer(s.Registrar(), hang)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	defer work.Wait()
	defer cancel()
	raw, err := grpc.NewClient(s.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials())) // sends no deadline
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	c := tandemv1.NewGenerationServiceClient(raw)
	if _, err := c.Describe(context.Background(), &tandemv1.DescribeRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("call without a deadline ended with %v", err)
	}
	st, err := c.Generate(context.Background(), &tandemv1.GenerateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("stream without a deadline ended with %v", err)
	}
}

func TestTraceTravels(t *testing.T) {
	var got string
	c, _, _ := serve(t, ServerConfig{}, &service{describe: func(ctx context.Context) error {
		got = traceparent.Of(ctx)
		return nil
	}})
	for _, flags := range []string{"00", "01"} {
		want := "00-01000000000000000000000000000000-0200000000000000-" + flags
		ctx := metadata.AppendToOutgoingContext(traceparent.Adopt(context.Background(), want), "other", "kept")
		if _, err := c.Describe(ctx, &tandemv1.DescribeRequest{}); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("span %s arrived as %s", want, got)
		}
	}
	if _, err := c.Describe(context.Background(), &tandemv1.DescribeRequest{}); err != nil || got != "" {
		t.Errorf("no span arrived as %s, %v", got, err)
	}
}

func TestUndecodableRequestIsInvalid(t *testing.T) {
	c, conn, _ := serve(t, ServerConfig{},
		&service{generate: func(*tandemv1.GenerateRequest, grpc.ServerStreamingServer[tandemv1.GenerateResponse]) error {
			return nil
		}})
	_ = c
	st, err := conn.NewStream(context.Background(), &grpc.StreamDesc{ServerStreams: true},
		tandemv1.GenerationService_Generate_FullMethodName, grpc.ForceCodec(rawCodec{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := st.SendMsg([]byte("\x0a\x02\xff\xfe")); err != nil { // text: two bytes that are no UTF-8
		t.Fatal(err)
	}
	var answer []byte
	if err := st.RecvMsg(&answer); !errors.Is(err, tandem.Invalid) {
		t.Errorf("invalid UTF-8 is answered by %v: want invalid", err)
	}
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)   { return v.([]byte), nil }
func (rawCodec) Unmarshal(b []byte, v any) error { *v.(*[]byte) = b; return nil }
func (rawCodec) Name() string                    { return "proto" }

func TestPeerGoneAndBack(t *testing.T) {
	t.Parallel()
	addr := "unix://" + filepath.Join(t.TempDir(), "s")
	ok := &service{describe: func(context.Context) error { return nil }}
	c, _, stop := serve(t, ServerConfig{Listen: addr}, ok)
	if _, err := c.Describe(context.Background(), &tandemv1.DescribeRequest{}); err != nil {
		t.Fatal(err)
	}
	stop()
	start := time.Now()
	if _, err := c.Describe(context.Background(), &tandemv1.DescribeRequest{}); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("call to a peer that is gone: %v: want unavailable", err)
	}
	if d := time.Since(start); d > 10*time.Second { // it does not wait for the peer, nor for the deadline of a call
		t.Errorf("the answer took %v", d)
	}
	time.Sleep(500 * time.Millisecond) // the backoff has grown to its limit
	serve(t, ServerConfig{Listen: addr}, ok)
	start = time.Now()
	testkit.Eventually(t, "the peer is found again", func() bool {
		_, err := c.Describe(context.Background(), &tandemv1.DescribeRequest{})
		return err == nil
	})
	t.Logf("found again after %v", time.Since(start))
}

func TestStopEndsCallsInProgress(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{})
	c, _, stop := serve(t, ServerConfig{Grace: 50 * time.Millisecond}, &service{describe: func(ctx context.Context) error {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	}})
	var work sync.WaitGroup
	work.Go(func() {
		if _, err := c.Describe(context.Background(), &tandemv1.DescribeRequest{}); err == nil {
			t.Error("a call that was cut off returned no error")
		}
	})
	<-entered
	start := time.Now()
	stop()
	if d := time.Since(start); d > 30*time.Second { // the call would go on for 2 minutes
		t.Errorf("stopping took %v", d)
	}
	work.Wait()
}

func TestHealthAndReflection(t *testing.T) {
	_, conn, _ := serve(t, ServerConfig{Listen: "127.0.0.1:0"}, &service{})
	h, err := grpc_health_v1.NewHealthClient(conn).Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || h.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health is %v, %v", h, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	st, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	list := &grpc_reflection_v1.ServerReflectionRequest_ListServices{}
	if err := st.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: list}); err != nil {
		t.Fatal(err)
	}
	r, err := st.Recv()
	if err != nil || !strings.Contains(r.String(), "tandem.v1.GenerationService") {
		t.Errorf("reflection answers %v, %v", r, err)
	}
}

func TestListen(t *testing.T) {
	dir := t.TempDir()
	unix := func(name string) string { return "unix://" + filepath.Join(dir, name) }
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := Listen(unix("taken"))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	tcp, err := Listen(":0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	if !tcp.Addr().(*net.TCPAddr).IP.IsLoopback() {
		t.Errorf("no host listens on %v: want loopback", tcp.Addr())
	}
	for addr, want := range map[string]string{
		unix("taken"):                  "address in use",
		tcp.Addr().String():            "address in use",
		unix("file"):                   "address in use",
		unix("none/s"):                 "directory does not exist",
		unix(strings.Repeat("x", 120)): "bytes: a socket path holds 107",
		"unix://relative":              "want unix:///absolute/path",
		"":                             "want host:port",
		"localhost":                    "want host:port",
		"127.0.0.1:":                   "want host:port",
		"http://127.0.0.1:80":          "want host:port",
		"127.0.0.1:99999":              "127.0.0.1:99999",
		"unix:///proc/tandem-no-such":  "unix:///proc/tandem-no-such",
		"unix:///x\x00y":               "want unix:///absolute/path",
	} {
		l, err := Listen(addr)
		if err == nil {
			_ = l.Close()
			t.Errorf("%q: listens", addr)
			continue
		}
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v: want %q", addr, err, want)
		}
		var e *tandem.Error
		if !errors.As(err, &e) {
			t.Errorf("%q: %v has no kind", addr, err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(b) != "precious" {
		t.Error("a file was replaced by a socket")
	}
}

func TestAbandonedSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // as after a kill
	_ = l.Close()
	again, err := Listen("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket is %v, %v: want mode 0600", info.Mode(), err)
	}
	_ = again.Close()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket is left: %v", err)
	}
}

func TestDialRefusesBadAddresses(t *testing.T) {
	for _, addr := range []string{"", "host", "unix://x", "unix:///" + strings.Repeat("x", 200)} {
		if c, err := Dial(addr); !errors.Is(err, tandem.Invalid) {
			t.Errorf("%q: %v, %v: want invalid", addr, c, err)
		}
	}
}
