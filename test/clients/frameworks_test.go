package clients

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	eino "github.com/cloudwego/eino-ext/components/model/openai"
	"github.com/cloudwego/eino/schema"
	"github.com/tmc/langchaingo/llms"
	langchain "github.com/tmc/langchaingo/llms/openai"
)

func TestLangchaingo(t *testing.T) {
	g, ctx := start(t), context.Background()
	var seen http.Header
	m, err := langchain.New(langchain.WithBaseURL(g.url+"/v1"), langchain.WithToken(key), langchain.WithModel("gpt-4o-mini"),
		langchain.WithHTTPClient(client(&seen)))
	if err != nil {
		t.Fatal(err)
	}
	talk := []llms.MessageContent{{Role: llms.ChatMessageTypeHuman, Parts: []llms.ContentPart{llms.TextPart("first"),
		llms.TextPart("second")}}}
	a, err := m.GenerateContent(ctx, talk, llms.WithSeed(-3), llms.WithMetadata(map[string]any{"a": "b"}),
		llms.WithStopWords([]string{"a1", "a2", "a3", "a4", "a5", "a6"}))
	if err != nil {
		t.Fatal(err)
	}
	total, _ := a.Choices[0].GenerationInfo["TotalTokens"].(int)
	if !whole(a.Choices[0].StopReason, total) {
		t.Errorf("without a limit: %s, %v", a.Choices[0].StopReason, a.Choices[0].GenerationInfo)
	}
	if !strings.Contains(seen.Get("X-Tandem-Ignored"), "metadata") {
		t.Errorf("ignored %q", seen.Get("X-Tandem-Ignored"))
	}
	text := ""
	if _, err = m.GenerateContent(ctx, talk, llms.WithMaxTokens(8), llms.WithStreamingFunc(func(_ context.Context, piece []byte) error {
		text += string(piece)
		return nil
	})); err != nil || text == "" {
		t.Errorf("stream %q, %v", text, err)
	}
	object, err := m.GenerateContent(ctx, talk, llms.WithJSONMode(), llms.WithMaxTokens(32))
	if err != nil || !strings.HasPrefix(object.Choices[0].Content, "{") {
		t.Errorf("JSON mode: %+v, %v", object, err)
	}
	long := []llms.MessageContent{llms.TextParts(llms.ChatMessageTypeHuman, strings.Repeat("word ", 3000))}
	if _, err = m.GenerateContent(ctx, long); err == nil || !strings.Contains(err.Error(), "maximum context length is 1024 tokens") {
		t.Errorf("a prompt that is too long: %v", err)
	}
}

func TestEino(t *testing.T) {
	g, ctx := start(t), context.Background()
	var seen http.Header
	seed, name := -1, "me"
	config := eino.ChatModelConfig{BaseURL: g.url + "/v1", APIKey: key, Model: "qwen3", Seed: &seed, User: &name, HTTPClient: client(&seen),
		Stop: []string{"a1", "a2", "a3", "a4", "a5"}, ExtraFields: map[string]any{"cache_prompt": true, "min_tokens": 0, "keep_alive": "5m",
			"options": map[string]any{"num_ctx": 4096}, "top_p": 0}}
	m, err := eino.NewChatModel(ctx, &config)
	if err != nil {
		t.Fatal(err)
	}
	talk := []*schema.Message{schema.SystemMessage("s"), schema.UserMessage("u"), {Role: schema.Assistant, Content: "a",
		ReasoningContent: "hm"},
		{Role: schema.User, MultiContent: []schema.ChatMessagePart{{Type: schema.ChatMessagePartTypeText, Text: "b"},
			{Type: schema.ChatMessagePartTypeText, Text: "c"}}}}
	a, err := m.Generate(ctx, talk)
	if err != nil {
		t.Fatal(err)
	}
	if meta := a.ResponseMeta; meta == nil || meta.Usage == nil || !whole(meta.FinishReason, meta.Usage.TotalTokens) {
		t.Errorf("without a limit: %+v", meta)
	}
	for _, name := range []string{"user", "cache_prompt", "min_tokens", "keep_alive", "options"} {
		if !strings.Contains(seen.Get("X-Tandem-Ignored"), name) {
			t.Errorf("ignored %q: want %s among them", seen.Get("X-Tandem-Ignored"), name)
		}
	}
	most := 8
	config.MaxTokens = &most
	if m, err = eino.NewChatModel(ctx, &config); err != nil {
		t.Fatal(err)
	}
	s, err := m.Stream(ctx, talk)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	pieces := 0
	for {
		_, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		pieces++
	}
	if pieces == 0 {
		t.Error("the stream is empty")
	}
	tools, err := m.WithTools([]*schema.ToolInfo{{Name: "f", Desc: "d",
		ParamsOneOf: schema.NewParamsOneOfByParams(map[string]*schema.ParameterInfo{})}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = tools.Generate(ctx, talk); err != nil {
		t.Errorf("tools: %v", err)
	}
}
