package client_test

import (
	"context"
	"errors"
	"fmt"
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
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-llm/tandem/client"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gateway plays a script.
type gateway struct {
	tandemv1.UnimplementedGenerationServiceServer
	got    *tandemv1.GenerateRequest
	events []*tandemv1.GenerateResponse
	err    error
	hang   bool
	left   chan struct{}
}

func (g *gateway) Generate(r *tandemv1.GenerateRequest, st grpc.ServerStreamingServer[tandemv1.GenerateResponse]) error {
	g.got = r
	for _, e := range g.events {
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

func serve(t testing.TB, g *gateway) *client.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "g")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	tandemv1.RegisterGenerationServiceServer(s, g)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() { s.Stop(); <-done })
	c, err := client.Dial("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func script() []*tandemv1.GenerateResponse {
	return []*tandemv1.GenerateResponse{
		{Sequence: 0, Event: &tandemv1.GenerateResponse_Started{Started: &tandemv1.Started{Session: "ab", Prompt: &tandemv1.TokenList{Ids: []uint32{1, 2}},
			Model: "gopher", Drafter: "d", MaxTokens: 9, Sampling: &tandemv1.Sampling{Temperature: new(0.5), TopK: new(int32(3)), TopP: new(0.9), Seed: new(uint64(4))},
			Speculation: &tandemv1.Speculation{Enabled: new(true), Nodes: new(int32(16)), Depth: new(int32(7)), Width: new(int32(10))}}}},
		{Sequence: 1, Event: &tandemv1.GenerateResponse_Delta{Delta: &tandemv1.Delta{Text: "ab", Tokens: &tandemv1.TokenList{Ids: []uint32{5, 6}},
			Origins: []tandemv1.Origin{tandemv1.Origin_ORIGIN_DRAFT, tandemv1.Origin_ORIGIN_TARGET}}}},
		{Sequence: 2, Event: &tandemv1.GenerateResponse_Finished{Finished: &tandemv1.Finished{Reason: tandemv1.FinishReason_FINISH_REASON_STOP,
			Usage: &tandemv1.Usage{PromptTokens: 2, OutputTokens: 2}, Statistics: &tandemv1.Statistics{Rounds: 1, Accepted: 1, DecodeNs: 1000, CoordinationNs: []int64{7}, AheadHits: 2, AheadTries: 3, AheadBusyNs: 4, AheadUsefulNs: 5,
				PlanningNs: 6, Choices: map[string]int32{"go 8/4": 1}, Drafters: []*tandemv1.DrafterStatistics{{Name: "go", Rounds: 1, Drafted: 8, Accepted: 1, Weight: 1.5}}}}}},
	}
}

func TestGenerate(t *testing.T) {
	g := &gateway{events: script()}
	c := serve(t, g)
	var got []client.Event
	for e, err := range c.Generate(context.Background(), client.Request{Prompt: "x", Temperature: new(0.0), MaxTokens: new(9), Seed: new(uint64(0)), NoDraft: true}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	want := []client.Event{
		{Started: &client.Started{Session: "ab", PromptTokens: []uint32{1, 2}, Model: "gopher", Drafter: "d", MaxTokens: 9, Temperature: 0.5, TopK: 3, TopP: 0.9, Seed: 4, Tree: client.Tree{Nodes: 16, Depth: 7, Width: 10}}},
		{Delta: &client.Delta{Text: "ab", Tokens: []uint32{5, 6}, Drafted: []bool{true, false}}},
		{Finished: &client.Finished{Reason: "stop", PromptTokens: 2, OutputTokens: 2, Statistics: client.Statistics{Rounds: 1, Accepted: 1, Decode: time.Microsecond, Coordination: []time.Duration{7}, AheadHits: 2, AheadTries: 3, AheadBusy: 4, AheadUseful: 5,
			Planning: 6, Choices: map[string]int{"go 8/4": 1}, Drafters: []client.Contribution{{Name: "go", Rounds: 1, Drafted: 8, Accepted: 1, Weight: 1.5}}}}},
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

func TestErrors(t *testing.T) {
	full, err := status.New(codes.ResourceExhausted, "queue is full").WithDetails(&errdetails.ErrorInfo{Domain: "tandem.dev", Reason: "EXHAUSTED"},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(50 * time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{events: script()[:2], err: full.Err()}
	c := serve(t, g)
	n, err := end(c, client.Request{Prompt: "x"})
	var e *client.Error
	if n != 2 || !errors.As(err, &e) || !errors.Is(err, client.Exhausted) || e.RetryAfter != 50*time.Millisecond || e.Error() != "queue is full" {
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
	for code, reason := range map[codes.Code]client.Reason{codes.InvalidArgument: client.Invalid, codes.Unavailable: client.Unavailable, codes.Unknown: client.Internal} {
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
	case <-time.After(5 * time.Second):
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

func ExampleClient_Generate() {
	c, err := client.Dial("127.0.0.1:7070")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for e, err := range c.Generate(ctx, client.Request{Prompt: "func main() {", MaxTokens: new(64), Temperature: new(0.0)}) {
		switch {
		case errors.Is(err, client.Unavailable):
			fmt.Println("is the gateway running?")
		case err != nil:
			fmt.Println(err)
		case e.Delta != nil:
			fmt.Print(e.Delta.Text)
		case e.Finished != nil:
			fmt.Printf("\n%d tokens in %d rounds\n", e.Finished.OutputTokens, e.Finished.Statistics.Rounds)
		}
	}
}
