package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tandem-llm/tandem/client"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// TestGenerateTakenUp: a stream that breaks off goes on where it was, over another that breaks off before it says anything.
func TestGenerateTakenUp(t *testing.T) {
	whole := script()
	whole[0].GetStarted().Identity = "cpu-1"
	away := status.Error(codes.Unavailable, "the gateway stops")
	again := script()[:1]
	again[0].GetStarted().Resumed = true
	last := &gateway{events: append(again, &tandemv1.GenerateResponse{Sequence: 1, Event: whole[2].GetEvent()})}
	first := &gateway{events: whole[:2], err: away, next: &gateway{err: away, next: last}}
	c := serve(t, first)
	text, started, finished := "", 0, false
	for e, err := range c.Generate(context.Background(), client.Request{Prompt: "x"}) {
		switch {
		case err != nil:
			t.Fatal(err)
		case e.Started != nil:
			started++
		case e.Delta != nil:
			text += e.Delta.Text
		case e.Finished != nil:
			finished = true
		}
	}
	if text != "ab" || started != 1 || !finished {
		t.Errorf("text %q, started %d times, finished %v: want ab, once, and the end", text, started, finished)
	}
	if first.got.GetResume() != nil || first.got.GetSampling().Seed != nil {
		t.Errorf("the first request is %v: want no resume, and no seed", first.got)
	}
	for _, g := range []*gateway{first.next, last} {
		r := g.got.GetResume()
		if r.GetIdentity() != "cpu-1" || r.GetTokens() != 2 || r.GetText() != 2 || r.GetSeed() != 4 ||
			g.got.GetText() != "x" {
			t.Errorf("a later request is %v: want the same with seed 4, behind 2 tokens and 2 bytes of cpu-1", g.got)
		}
	}
}

// TestGenerateNotTakenUp: before it began, where the caller does not want it, and where the gateway refuses.
func TestGenerateNotTakenUp(t *testing.T) {
	away, wrong := status.Error(codes.Unavailable, "the gateway stops"), status.Error(codes.InvalidArgument, "another verifier")
	for name, tc := range map[string]struct {
		g      *gateway
		opts   []client.Option
		events int
		kind   client.Kind
	}{
		"not begun":  {&gateway{err: away}, nil, 0, client.Unavailable},
		"not wanted": {&gateway{events: script()[:2], err: away}, []client.Option{client.WithResume(0)}, 2, client.Unavailable},
		"not for now": {&gateway{events: script()[:2], err: away, next: &gateway{err: away}},
			[]client.Option{client.WithResume(200 * time.Millisecond)}, 2, client.Unavailable},
		"refused": {&gateway{events: script()[:2], err: away, next: &gateway{err: wrong}}, nil, 2, client.Invalid},
		"older":   {&gateway{events: script()[:2], err: away}, nil, 2, client.Unsupported},
		"wrong":   {&gateway{events: script()[:2], err: wrong}, nil, 2, client.Invalid},
	} {
		events, last := 0, error(nil)
		for _, err := range serve(t, tc.g, tc.opts...).Generate(context.Background(), client.Request{Prompt: "x"}) {
			if last = err; err == nil {
				events++
			}
		}
		if events != tc.events || !errors.Is(last, tc.kind) {
			t.Errorf("%s: %d events, then %v: want %d, then %s", name, events, last, tc.events, tc.kind)
		}
	}
}

// chats is a gateway whose answers break off, each behind one event more.
type chats struct {
	tandemv1.UnimplementedChatServiceServer
	events []*tandemv1.ChatResponse // behind the first
	got    []*tandemv1.ChatRequest
}

func (g *chats) Chat(r *tandemv1.ChatRequest, st grpc.ServerStreamingServer[tandemv1.ChatResponse]) error {
	g.got = append(g.got, proto.CloneOf(r))
	n := len(g.got)
	first := &tandemv1.ChatResponse{Event: &tandemv1.ChatResponse_Started{Started: &tandemv1.ChatStarted{Started: &tandemv1.Started{
		Identity: "cpu-1", Sampling: &tandemv1.Sampling{Seed: new(uint64(5))}, Resumed: r.GetResume() != nil}}}}
	if err := st.Send(first); err != nil {
		return err
	}
	next := proto.CloneOf(g.events[n-1])
	next.Sequence = 1
	if err := st.Send(next); err != nil || n == len(g.events) {
		return err
	}
	return status.Error(codes.Unavailable, "the gateway stops")
}

// TestChatTakenUp: the events of an answer that breaks off behind each of them are one sequence, and each request says what came.
func TestChatTakenUp(t *testing.T) {
	g := &chats{events: []*tandemv1.ChatResponse{
		{Event: &tandemv1.ChatResponse_Thought{Thought: "Hm."}},
		{Event: &tandemv1.ChatResponse_Text{Text: "ünd"}},
		{Event: &tandemv1.ChatResponse_Output{Output: &tandemv1.Delta{Tokens: &tandemv1.TokenList{Ids: []uint32{7, 8}}}}},
		{Event: &tandemv1.ChatResponse_Call{Call: &tandemv1.ChatToolCallBegin{Name: "f"}}},
		{Event: &tandemv1.ChatResponse_Arguments{Arguments: &tandemv1.ChatToolCallArguments{Json: "{}"}}},
		{Event: &tandemv1.ChatResponse_Finished{Finished: &tandemv1.ChatFinished{}}},
	}}
	r := &tandemv1.ChatRequest{Messages: []*tandemv1.ChatMessage{{Role: "user", Content: "x"}}}
	n := uint64(0)
	for m, err := range serveWith(t, func(s *grpc.Server) { tandemv1.RegisterChatServiceServer(s, g) }).Chat(t.Context(), r) {
		if err != nil || m.GetSequence() != n || n > 0 && proto.Size(m) < 3 {
			t.Fatalf("event %d: %v, %v", n, m, err)
		}
		n++
	}
	if n != 7 || r.GetResume() != nil {
		t.Errorf("%d events, and the caller's request is %v: want 7, and no resume", n, r)
	}
	for i, want := range []*tandemv1.Resume{nil, {Text: 3}, {Text: 7}, {Text: 7, Tokens: 2}, {Text: 8, Tokens: 2}, {Text: 10, Tokens: 2}} {
		if want != nil {
			want.Identity, want.Seed = "cpu-1", 5
		}
		if got := g.got[i].GetResume(); !proto.Equal(got, want) || g.got[i].GetMessages()[0].GetContent() != "x" {
			t.Errorf("request %d: resume %v: want %v", i, got, want)
		}
	}
}

// TestChatRequestsAreCopiedWhole: no field of a request is forgotten.
func TestChatRequestsAreCopiedWhole(t *testing.T) {
	r := new(tandemv1.ChatRequest)
	fields := r.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		v := r.ProtoReflect().NewField(f)
		switch {
		case f.IsList() && f.Message() != nil:
			v.List().Append(v.List().NewElement())
		case f.IsList():
			v.List().Append(protoreflect.ValueOfString("x"))
		}
		r.ProtoReflect().Set(f, v)
	}
	g := &chats{events: []*tandemv1.ChatResponse{{Event: &tandemv1.ChatResponse_Finished{Finished: &tandemv1.ChatFinished{}}}}}
	for _, err := range serveWith(t, func(s *grpc.Server) { tandemv1.RegisterChatServiceServer(s, g) }).Chat(t.Context(), r) {
		if err != nil {
			t.Fatal(err)
		}
	}
	r.Resume = nil // the client's
	if !proto.Equal(g.got[0], r) {
		t.Errorf("the gateway got %v: want %v", g.got[0], r)
	}
}
