package clients

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/ollama/ollama/api"
)

// TestAnthropic: the official client, with tools, streamed and whole. The shipped model calls none; what it writes is text.
func TestAnthropic(t *testing.T) {
	g := start(t)
	c := anthropic.NewClient(option.WithBaseURL(g.url), option.WithAPIKey(key), option.WithMaxRetries(0))
	p := anthropic.MessageNewParams{Model: "claude-sonnet", MaxTokens: 8, System: []anthropic.TextBlockParam{{Text: "Be brief."}},
		Tools: []anthropic.ToolUnionParam{{OfTool: &anthropic.ToolParam{Name: "f",
			InputSchema: anthropic.ToolInputSchemaParam{Properties: map[string]any{}}}}},
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("hi"))}}
	whole, err := c.Messages.New(t.Context(), p)
	if err != nil || whole.Usage.OutputTokens == 0 || whole.StopReason == "" {
		t.Fatalf("%+v, %v", whole, err)
	}
	stream := c.Messages.NewStreaming(t.Context(), p)
	var all anthropic.Message
	for stream.Next() {
		if err := all.Accumulate(stream.Current()); err != nil {
			t.Fatalf("%s: %v", stream.Current().RawJSON(), err)
		}
	}
	if err := stream.Err(); err != nil || all.StopReason == "" || all.Usage.OutputTokens == 0 {
		t.Errorf("streamed %+v, %v", all, err)
	}
	count, err := c.Messages.CountTokens(t.Context(), anthropic.MessageCountTokensParams{Model: "m", Messages: p.Messages})
	if err != nil || count.InputTokens == 0 {
		t.Errorf("%+v, %v", count, err)
	}
}

// keyed shows the key with each request, which Ollama's client has no setting for.
type keyed struct{}

func (keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+key)
	return http.DefaultTransport.RoundTrip(r)
}

// TestOllama: Ollama's own client lists, shows, chats with a tool, and generates.
func TestOllama(t *testing.T) {
	g := start(t)
	base, err := url.Parse(g.url)
	if err != nil {
		t.Fatal(err)
	}
	c, ctx := api.NewClient(base, &http.Client{Transport: keyed{}}), t.Context()
	if v, err := c.Version(ctx); err != nil || v == "" {
		t.Errorf("version %q, %v", v, err)
	}
	list, err := c.List(ctx)
	if err != nil || len(list.Models) == 0 || list.Models[0].Name == "" {
		t.Fatalf("%+v, %v", list, err)
	}
	if r, err := c.ListRunning(ctx); err != nil || len(r.Models) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	name := list.Models[0].Name
	if shown, err := c.Show(ctx, &api.ShowRequest{Model: name}); err != nil || len(shown.Capabilities) < 2 {
		t.Errorf("%+v, %v", shown, err)
	}
	var last api.ChatResponse
	text := ""
	err = c.Chat(ctx, &api.ChatRequest{Model: name, Messages: []api.Message{{Role: "user", Content: "hi"}},
		Tools:   api.Tools{{Type: "function", Function: api.ToolFunction{Name: "f"}}},
		Options: map[string]any{"num_predict": 8, "num_ctx": 512, "temperature": 0, "num_gpu": 1}},
		func(r api.ChatResponse) error { last = r; text += r.Message.Content; return nil })
	if err != nil || !last.Done || last.DoneReason != "length" || last.EvalCount != 8 || text == "" {
		t.Errorf("%+v, %q, %v", last, text, err)
	}
	whole := false
	var got api.GenerateResponse
	if err := c.Generate(ctx, &api.GenerateRequest{Model: name, Prompt: "hi", Stream: &whole, Options: map[string]any{"num_predict": 4}},
		func(r api.GenerateResponse) error { got = r; return nil }); err != nil || !got.Done || got.Response == "" {
		t.Errorf("%+v, %v", got, err)
	}
	format := json.RawMessage(`"json"`)
	err = c.Chat(ctx, &api.ChatRequest{Model: name, Messages: []api.Message{{Role: "user", Content: "hi"}}, Format: format,
		Options: map[string]any{"num_ctx": 1 << 20}}, func(api.ChatResponse) error { return nil })
	if err == nil {
		t.Error("a window above the context is taken")
	}
}
