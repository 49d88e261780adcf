package client_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-llm/tandem/client"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gateway plays a script.
type gateway struct {
	tandemv1.UnimplementedGenerationServiceServer
	tandemv1.UnimplementedChatServiceServer
	said   []*tandemv1.ChatResponse
	chat   *tandemv1.ChatRequest // the latest
	got    *tandemv1.GenerateRequest
	events []*tandemv1.GenerateResponse
	err    error
	hang   bool
	left   chan struct{}
	next   *gateway // answers further calls of Generate
	asked  bool
}

func (g *gateway) Generate(r *tandemv1.GenerateRequest, st grpc.ServerStreamingServer[tandemv1.GenerateResponse]) error {
	if g.asked && g.next != nil {
		return g.next.Generate(r, st)
	}
	g.got, g.asked = r, true
	for _, e := range g.events {
		if err := st.Send(e); err != nil {
			return err
		}
	}
	if g.hang {
		<-st.Context().Done()
		close(g.left)
		// as every gateway answers; a plain end may overtake the caller's own deadline
		return status.FromContextError(st.Context().Err()).Err()
	}
	return g.err
}

func (g *gateway) Chat(r *tandemv1.ChatRequest, st grpc.ServerStreamingServer[tandemv1.ChatResponse]) error {
	g.chat = r
	for _, e := range g.said {
		if err := st.Send(e); err != nil {
			return err
		}
	}
	if g.hang {
		<-st.Context().Done()
		close(g.left)
	}
	return g.err
}

func (g *gateway) Describe(context.Context, *tandemv1.DescribeRequest) (*tandemv1.DescribeResponse, error) {
	return &tandemv1.DescribeResponse{Model: "gopher"}, g.err
}

func serve(t testing.TB, g *gateway, opts ...client.Option) *client.Client {
	t.Helper()
	return serveWith(t, func(s *grpc.Server) {
		tandemv1.RegisterGenerationServiceServer(s, g)
		tandemv1.RegisterChatServiceServer(s, g)
	}, opts...)
}

// serveWith serves what register registers until the test ends.
func serveWith(t testing.TB, register func(*grpc.Server), opts ...client.Option) *client.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "g")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	register(s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() { s.Stop(); <-done })
	c, err := client.Dial("unix://"+path, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func script() []*tandemv1.GenerateResponse {
	return []*tandemv1.GenerateResponse{
		{Sequence: 0, Event: &tandemv1.GenerateResponse_Started{Started: &tandemv1.Started{Session: "ab",
			Prompt: &tandemv1.TokenList{Ids: []uint32{1, 2}},
			Model:  "gopher", Drafter: "d", MaxTokens: 9, Sampling: &tandemv1.Sampling{Temperature: new(0.5), TopK: new(int32(3)),
				TopP: new(0.9), Seed: new(uint64(4))},
			Speculation: &tandemv1.Speculation{Enabled: new(true), Nodes: new(int32(16)), Depth: new(int32(7)), Width: new(int32(10))}}}},
		{Sequence: 1, Event: &tandemv1.GenerateResponse_Delta{Delta: &tandemv1.Delta{Text: "ab",
			Tokens:  &tandemv1.TokenList{Ids: []uint32{5, 6}},
			Origins: []tandemv1.Origin{tandemv1.Origin_ORIGIN_DRAFT, tandemv1.Origin_ORIGIN_TARGET}}}},
		{Sequence: 2, Event: &tandemv1.GenerateResponse_Finished{Finished: &tandemv1.Finished{
			Reason: tandemv1.FinishReason_FINISH_REASON_STOP,
			Usage:  &tandemv1.Usage{PromptTokens: 2, OutputTokens: 2}, Statistics: &tandemv1.Statistics{Rounds: 1, Accepted: 1,
				DecodeNs: 1000, CoordinationNs: []int64{7}, AheadHits: 2, AheadTries: 3, AheadBusyNs: 4, AheadUsefulNs: 5,
				PlanningNs: 6, Accept: "typical", Choices: map[string]int32{"go 8/4": 1},
				Drafters: []*tandemv1.DrafterStatistics{{Name: "go", Rounds: 1, Drafted: 8, Accepted: 1, Weight: 1.5}}}}}},
	}
}

func TestGenerate(t *testing.T) {
	g := &gateway{events: script()}
	c := serve(t, g)
	var got []client.Event
	for e, err := range c.Generate(context.Background(), client.Request{Prompt: "x", Temperature: new(0.0), MaxTokens: new(9),
		Seed: new(uint64(0)), NoDraft: true}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	want := []client.Event{
		{Started: &client.Started{Session: "ab", PromptTokens: []uint32{1, 2}, Model: "gopher", Drafter: "d", MaxTokens: 9,
			Temperature: 0.5, TopK: 3, TopP: 0.9, Seed: 4, Tree: client.Tree{Nodes: 16, Depth: 7, Width: 10}}},
		{Delta: &client.Delta{Text: "ab", Tokens: []uint32{5, 6}, Drafted: []bool{true, false}}},
		{Finished: &client.Finished{Reason: "stop", PromptTokens: 2, OutputTokens: 2, Statistics: client.Statistics{Rounds: 1, Accepted: 1,
			Decode: time.Microsecond, Coordination: []time.Duration{7}, AheadHits: 2, AheadTries: 3, AheadBusy: 4, AheadUseful: 5,
			Planning: 6, Accept: "typical", Choices: map[string]int{"go 8/4": 1},
			Drafters: []client.Contribution{{Name: "go", Rounds: 1, Drafted: 8, Accepted: 1, Weight: 1.5}}}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	r := g.got
	if r.GetText() != "x" || r.Sampling.Temperature == nil || r.Sampling.TopK != nil || r.GetMaxTokens() != 9 || r.Sampling.Seed == nil ||
		r.GetSpeculation().Enabled == nil || r.GetSpeculation().GetEnabled() || r.IgnoreEos != nil {
		t.Errorf("sent %v", r)
	}
}

func end(c *client.Client, r client.Request) (events int, err error) {
	for _, err := range c.Generate(context.Background(), r) {
		if err != nil {
			return events, err
		}
		events++
	}
	return events, nil
}

// TestChat: the events of an answer come in order, and how it ends is told.
func TestChat(t *testing.T) {
	event := func(n uint64, text string) *tandemv1.ChatResponse {
		return &tandemv1.ChatResponse{Sequence: n, Event: &tandemv1.ChatResponse_Text{Text: text}}
	}
	last := &tandemv1.ChatResponse{Sequence: 2, Event: &tandemv1.ChatResponse_Finished{Finished: &tandemv1.ChatFinished{RequestId: "x"}}}
	ask := func(g *gateway, most int) (text string, end *tandemv1.ChatFinished, err error) {
		for e, err := range serve(t, g).Chat(t.Context(), &tandemv1.ChatRequest{}) {
			if err != nil {
				return text, end, err
			}
			if text, end = text+e.GetText(), e.GetFinished(); len(text) == most {
				break
			}
		}
		return text, end, nil
	}
	all := []*tandemv1.ChatResponse{event(0, "a"), event(1, "b"), last}
	if text, end, err := ask(&gateway{said: all}, 9); text != "ab" || end.GetRequestId() != "x" || err != nil {
		t.Errorf("%q, %v, %v", text, end, err)
	}
	full := status.Error(codes.ResourceExhausted, "full")
	for want, g := range map[client.Kind]*gateway{client.Exhausted: {said: all[:2], err: full}, client.Unavailable: {said: all[:2]},
		client.Corrupt: {said: []*tandemv1.ChatResponse{all[0], all[1], event(3, "c")}}} {
		if text, _, err := ask(g, 9); text != "ab" || !errors.Is(err, want) {
			t.Errorf("%q, %v, want %s", text, err, want)
		}
	}
	g := &gateway{said: all[:2], hang: true, left: make(chan struct{})}
	if text, _, err := ask(g, 1); text != "a" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	<-g.left
}

func TestErrors(t *testing.T) {
	full, err := status.New(codes.ResourceExhausted, "queue is full").WithDetails(&errdetails.ErrorInfo{Domain: "tandem.dev",
		Reason: "EXHAUSTED"},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(50 * time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{events: script()[:2], err: full.Err()}
	c := serve(t, g, client.WithResume(0))
	n, err := end(c, client.Request{Prompt: "x"})
	var e *client.Error
	if n != 2 || !errors.As(err, &e) || !errors.Is(err, client.Exhausted) || e.RetryAfter != 50*time.Millisecond ||
		e.Error() != "queue is full" {
		t.Errorf("%d events, then %+v", n, err)
	}
	g.err = nil
	if _, err := end(c, client.Request{Prompt: "x"}); !errors.Is(err, client.Unavailable) {
		t.Errorf("stream that ends early: %v", err)
	}
	g.events = script()[1:]
	if n, err := end(c, client.Request{Prompt: "x"}); n != 0 || !errors.Is(err, client.Corrupt) {
		t.Errorf("stream with a gap: %d events, %v", n, err)
	}
	g.events = []*tandemv1.GenerateResponse{{}}
	if _, err := end(c, client.Request{Prompt: "x"}); !errors.Is(err, client.Unsupported) {
		t.Errorf("unknown event: %v", err)
	}
	if _, err := end(c, client.Request{Prompt: "\xff"}); !errors.Is(err, client.Invalid) {
		t.Errorf("invalid UTF-8: %v", err)
	}
	for code, reason := range map[codes.Code]client.Kind{codes.InvalidArgument: client.Invalid, codes.Unavailable: client.Unavailable,
		codes.Unknown: client.Internal} {
		g.err = status.Error(code, "x")
		if _, err := c.Describe(context.Background()); !errors.Is(err, reason) {
			t.Errorf("%v became %v", code, err)
		}
	}
}

func TestLeavingTheLoopCancels(t *testing.T) {
	g := &gateway{events: script()[:1], hang: true, left: make(chan struct{})}
	for range serve(t, g).Generate(context.Background(), client.Request{Prompt: "x"}) {
		break
	}
	select {
	case <-g.left:
	case <-time.After(30 * time.Second):
		t.Fatal("the gateway was not told")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	g.left = make(chan struct{})
	var last error
	for _, err := range serve(t, g).Generate(ctx, client.Request{Prompt: "x"}) {
		last = err
	}
	if !errors.Is(last, context.DeadlineExceeded) || !errors.Is(last, client.Deadline) {
		t.Errorf("after its deadline a generation ended with %v", last)
	}
}

func TestDial(t *testing.T) {
	for _, addr := range []string{"", "host", "host:", "unix://x", "http://host:1"} {
		if _, err := client.Dial(addr); !errors.Is(err, client.Invalid) || !strings.Contains(err.Error(), "want") {
			t.Errorf("%q: %v", addr, err)
		}
	}
	c, err := client.Dial("unix://" + filepath.Join(t.TempDir(), "none"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Describe(context.Background()); !errors.Is(err, client.Unavailable) {
		t.Errorf("nobody there: %v", err)
	}
}

// TestOptions has every field of a request arrive, and every field of the answers.
func TestOptions(t *testing.T) {
	events := script()
	events[0].GetStarted().Sampling = &tandemv1.Sampling{MinP: new(0.1), RepeatPenalty: new(1.5), RepeatLast: new(int32(9)),
		FrequencyPenalty: new(-0.5), PresencePenalty: new(0.75), LogitBias: map[uint32]float32{2: 1.5}}
	d := events[1].GetDelta()
	d.Logprobs = []*tandemv1.Logprob{{LogProb: -1, Top: []*tandemv1.TopLogprob{{Token: 5, LogProb: -1}, {Token: 3, LogProb: -2}}},
		{LogProb: -0.5}}
	d.Round = &tandemv1.Round{Index: 4, Base: 12, Choice: "go 8/4", Why: "x", Drafters: []string{"go"},
		Nodes: []*tandemv1.RoundNode{{Token: 6, Parent: -1}, {Token: 5, LogProb: new(float32(-3)), Votes: 1, Accepted: true}},
		Lanes: []*tandemv1.Lane{{Stage: "draft", By: "go", FromNs: 1e6, ToNs: 2e6}}}
	f := events[2].GetFinished()
	f.Stopped, f.Usage.CachedPromptTokens, f.Statistics.DraftedByDepth, f.Statistics.AcceptedByDepth = "()", 1, []int32{2, 1}, []int32{1}
	g := &gateway{events: events}
	var got []client.Event
	for e, err := range serve(t, g).Generate(context.Background(), client.Request{Tokens: []uint32{1}, MinP: new(0.1),
		RepeatPenalty: new(1.5), RepeatLast: new(9),
		FrequencyPenalty: new(-0.5), PresencePenalty: new(0.75), LogitBias: map[uint32]float32{2: 1.5}, Logprobs: true, TopLogprobs: 2,
		Stop: []string{"()"}, Report: true, Written: true}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	want := &tandemv1.GenerateRequest{Prompt: &tandemv1.GenerateRequest_Tokens{Tokens: &tandemv1.TokenList{Ids: []uint32{1}}},
		Sampling: &tandemv1.Sampling{MinP: new(0.1), RepeatPenalty: new(1.5), RepeatLast: new(int32(9)), FrequencyPenalty: new(-0.5),
			PresencePenalty: new(0.75), LogitBias: map[uint32]float32{2: 1.5}, Logprobs: new(true), TopLogprobs: new(int32(2))},
		Speculation: &tandemv1.Speculation{}, Stop: []string{"()"}, Report: new(true), Written: new(true)}
	if !proto.Equal(g.got, want) {
		t.Errorf("sent %v, want %v", g.got, want)
	}
	if s := got[0].Started; s.MinP != 0.1 || s.RepeatPenalty != 1.5 || s.RepeatLast != 9 || s.FrequencyPenalty != -0.5 ||
		s.PresencePenalty != 0.75 || s.LogitBias[2] != 1.5 {
		t.Errorf("started %+v", s)
	}
	delta := &client.Delta{Text: "ab", Tokens: []uint32{5, 6}, Drafted: []bool{true, false},
		Logprobs: []client.Logprob{{LogProb: -1, Top: []client.TopLogprob{{Token: 5, LogProb: -1}, {Token: 3, LogProb: -2}}},
			{LogProb: -0.5}},
		Round: &client.Round{Index: 4, Base: 12, Choice: "go 8/4", Why: "x", Drafters: []string{"go"},
			Nodes: []client.Node{{Token: 6, Parent: -1}, {Token: 5, LogProb: new(float32(-3)), Votes: 1, Accepted: true}},
			Lanes: []client.Lane{{Stage: "draft", By: "go", From: time.Millisecond, To: 2 * time.Millisecond}}}}
	if !reflect.DeepEqual(got[1].Delta, delta) {
		t.Errorf("delta %+v", got[1].Delta)
	}
	if f := got[2].Finished; f.Stopped != "()" || f.CachedPromptTokens != 1 || len(f.Statistics.DraftedByDepth) != 2 ||
		f.Statistics.AcceptedByDepth[0] != 1 {
		t.Errorf("finished %+v", f)
	}
}

func TestFieldOfErrors(t *testing.T) {
	bad, err := status.New(codes.InvalidArgument, "top_p is 2").WithDetails(&errdetails.ErrorInfo{Domain: "tandem.dev", Reason: "INVALID"},
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "sampling.top_p",
			Description: "top_p is 2"}}})
	if err != nil {
		t.Fatal(err)
	}
	c := serve(t, &gateway{err: bad.Err()})
	_, err = end(c, client.Request{Prompt: "x"})
	var e *client.Error
	if !errors.As(err, &e) || e.Kind != client.Invalid || e.Field != "sampling.top_p" {
		t.Errorf("%+v", err)
	}
	if _, err = end(c, client.Request{Prompt: "x", Stop: []string{"\xff"}}); !errors.As(err, &e) || e.Kind != client.Invalid ||
		e.Field != "stop" {
		t.Errorf("a stop sequence of no UTF-8: %+v", err)
	}
}

// guarded serves g over TLS to who has the key "alpha", and returns its address and certificates.
func guarded(t *testing.T, g *gateway) (addr string, roots *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots = x509.NewCertPool()
	roots.AddCert(cert)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der},
		PrivateKey: key}}})),
		grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if got := metadata.ValueFromIncomingContext(ctx, "authorization"); len(got) != 1 || got[0] != "Bearer alpha" {
				return nil, status.Error(codes.Unauthenticated, "no key")
			}
			return next(ctx, r)
		}))
	tandemv1.RegisterGenerationServiceServer(s, g)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String(), roots
}

func TestTLSAndToken(t *testing.T) {
	addr, roots := guarded(t, &gateway{})
	secure := client.WithTLS(&tls.Config{RootCAs: roots})
	for _, c := range []struct {
		name    string
		options []client.Option
		want    error
	}{
		{"all", []client.Option{secure, client.WithToken("alpha")}, nil},
		{"no token", []client.Option{secure}, client.Unauthenticated},
		{"another token", []client.Option{secure, client.WithToken("beta")}, client.Unauthenticated},
		{"no TLS", []client.Option{client.WithToken("alpha")}, client.Unavailable},
		{"another authority", []client.Option{client.WithTLS(&tls.Config{RootCAs: x509.NewCertPool()}), client.WithToken("alpha")},
			client.Unavailable},
	} {
		conn, err := client.Dial(addr, c.options...)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if _, err := conn.Describe(ctx); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		cancel()
		_ = conn.Close()
	}
}

func TestTokensThatDoNotTravel(t *testing.T) {
	for _, c := range []struct {
		addr string
		good bool
		with []client.Option
	}{
		{"192.0.2.1:80", false, nil}, {"example.com:80", false, nil}, {"192.0.2.1:80", true, []client.Option{client.WithCleartext()}},
		{"192.0.2.1:80", true, []client.Option{client.WithTLS(&tls.Config{})}}, {"127.0.0.1:80", true, nil}, {"[::1]:80", true, nil},
		{"localhost:80", true, nil}, {":80", true, nil}, {"unix:///tmp/x", true, nil},
	} {
		conn, err := client.Dial(c.addr, append(c.with, client.WithToken("alpha"))...)
		if (err == nil) != c.good || err != nil && (!errors.Is(err, client.Invalid) || !strings.Contains(err.Error(), "clear text") ||
			strings.Contains(err.Error(), "alpha")) {
			t.Errorf("%s: %v", c.addr, err)
		}
		if conn != nil {
			_ = conn.Close()
		}
	}
	for _, bad := range []string{"", "a b", "a\n", "é"} {
		if _, err := client.Dial("127.0.0.1:80", client.WithToken(bad)); !errors.Is(err, client.Invalid) {
			t.Errorf("token %q: %v", bad, err)
		}
	}
}
