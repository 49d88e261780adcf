package public

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// units is an answer as resume counts it: the bytes of texts, thoughts and arguments, and one byte for each call. It returns the tokens of
// outputs, too.
func units(t *testing.T, c tandemv1.ChatServiceClient, r *tandemv1.ChatRequest) (answer string, tokens int) {
	t.Helper()
	stream, err := c.Chat(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return b.String(), tokens
		}
		if err != nil {
			t.Fatal(err)
		}
		if s := m.GetStarted(); s != nil && s.GetStarted().GetResumed() != (r.GetResume() != nil) {
			t.Fatalf("started says %v of %v", s, r.GetResume())
		}
		b.WriteString(m.GetText() + m.GetThought() + m.GetArguments().GetJson())
		if m.GetCall() != nil {
			b.WriteByte(0)
		}
		tokens += len(m.GetOutput().GetTokens().GetIds())
	}
}

// TestChatTakenUp: behind any place of an answer the rest comes, whatever pieces the model writes in.
func TestChatTakenUp(t *testing.T) {
	r := &tandemv1.ChatRequest{Messages: []*tandemv1.ChatMessage{user("Rome and Oslo?")}, Report: new(true),
		Tools: []*tandemv1.ChatTool{{Name: "weather", Parameters: weatherSchema}}, Sampling: &tandemv1.Sampling{Seed: new(uint64(42))}}
	want, tokens := units(t, serveChat(t, Service{Generator: scripted(1, weather)}), r)
	if strings.Count(want, "\x00") != 2 || !strings.Contains(want, "Two places.I look.") || tokens < len(want) {
		t.Fatalf("%q in %d tokens", want, tokens)
	}
	c := serveChat(t, Service{Generator: scripted(5, weather)})
	_, all := units(t, c, r)
	for n := 0; n <= len(want); n += 3 {
		had := min(n, all)
		r.Resume = &tandemv1.Resume{Identity: "fp_1", Text: uint64(n), Tokens: uint32(had)}
		if rest, tokens := units(t, c, r); rest != want[n:] || tokens != all-had {
			t.Errorf("behind %d units: %q in %d tokens: want %q in %d", n, rest, tokens, want[n:], all-had)
		}
	}
}

// TestGenerateTakenUp: the same of a generation, and one of another identity is refused.
func TestGenerateTakenUp(t *testing.T) {
	const want = "what the model writes, and so on"
	c := serve(t, Service{Defaults: defaults, Generator: scripted(4, func(string) string { return want })})
	for n := 0; n <= len(want); n += 4 {
		r := text("x")
		r.Resume = &tandemv1.Resume{Identity: "fp_1", Text: uint64(n), Tokens: uint32(n / 4)}
		events, err := collect(t, c, r)
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		rest, tokens := "", 0
		for _, e := range events {
			rest, tokens = rest+e.GetDelta().GetText(), tokens+len(e.GetDelta().GetTokens().GetIds())
		}
		if rest != want[n:] || tokens != (len(want)-n+3)/4 || !events[0].GetStarted().GetResumed() {
			t.Errorf("behind %d bytes: %q in %d tokens", n, rest, tokens)
		}
	}
	r := text("x")
	r.Resume = &tandemv1.Resume{Identity: "fp_1", Text: 1}
	half := serve(t, Service{Defaults: defaults, Generator: scripted(4, func(string) string { return "ünd" })})
	if events, err := collect(t, half, r); !errors.Is(err, io.EOF) || events[1].GetDelta().GetText() != "\uFFFDnd" {
		t.Errorf("behind half a character: %v, %v", events, err)
	}
	r.Resume = &tandemv1.Resume{Identity: "fp_2"}
	if _, err := collect(t, c, r); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), `"fp_2"`) {
		t.Errorf("of another identity: %v", err)
	}
}
