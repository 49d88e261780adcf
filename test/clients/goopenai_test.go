package clients

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	openai "github.com/sashabaranov/go-openai"
)

// openAI returns a client of the library go-openai; without a path, its base address is that of /v1.
func openAI(g gateway, h *http.Client, base ...string) *openai.Client {
	c := openai.DefaultConfig(key)
	c.BaseURL, c.HTTPClient = g.url+"/v1"+strings.Join(base, ""), h
	return openai.NewClientWithConfig(c)
}

func user(text string) openai.ChatCompletionMessage {
	return openai.ChatCompletionMessage{Role: openai.ChatMessageRoleUser, Content: text}
}

// ask sends a short chat.
func ask(t *testing.T, g gateway, c *openai.Client) openai.ChatCompletionResponse {
	t.Helper()
	a, err := c.CreateChatCompletion(context.Background(), openai.ChatCompletionRequest{Model: model, MaxTokens: 4,
		Messages: []openai.ChatCompletionMessage{user("three words here")}})
	if err != nil || len(a.Choices) != 1 || a.Usage.CompletionTokens > 4 {
		t.Errorf("answer %+v, %v", a, err)
	}
	return a
}

// refused checks an error of go-openai.
func refused(t *testing.T, err error, status int, code string, says ...string) {
	t.Helper()
	var e *openai.APIError
	if !errors.As(err, &e) || e.HTTPStatusCode != status || e.Code != code {
		t.Errorf("%v: want %d %s", err, status, code)
		return
	}
	for _, text := range says {
		if !strings.Contains(e.Message, text) {
			t.Errorf("message %q: want %q in it", e.Message, text)
		}
	}
}

func TestGoOpenAI(t *testing.T) {
	g := start(t, "--alias", "gpt-4o", "--cors-origin", page)
	var seen http.Header
	c, ctx := openAI(g, client(&seen)), context.Background()

	t.Run("models", func(t *testing.T) {
		list, err := c.ListModels(ctx)
		if err != nil || len(list.Models) != 2 || list.Models[0].ID != model || list.Models[1].ID != "gpt-4o" {
			t.Fatalf("%+v, %v", list, err)
		}
		if m, err := c.GetModel(ctx, "gpt-4o"); err != nil || m.ID != "gpt-4o" || m.CreatedAt < 1 {
			t.Errorf("%+v, %v", m, err)
		}
	})
	t.Run("fields without an effect", func(t *testing.T) {
		seed := -7
		a, err := c.CreateChatCompletion(ctx, openai.ChatCompletionRequest{Model: "any-name",
			Messages:  []openai.ChatCompletionMessage{user("hi")},
			MaxTokens: 4, Seed: &seed, Stop: []string{"a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "a10", "a11", "a12",
				"a13", "a14", ""},
			User: "me", Store: true, Metadata: map[string]string{"a": "b"}, ServiceTier: "priority", Verbosity: "low",
			SafetyIdentifier:  "x",
			ParallelToolCalls: false, Prediction: &openai.Prediction{Content: "x", Type: "content"}})
		if err != nil || a.Model != model {
			t.Fatalf("%+v, %v", a, err)
		}
		for _, name := range []string{"user", "store", "metadata", "service_tier", "verbosity", "safety_identifier",
			"parallel_tool_calls", "prediction"} {
			if !strings.Contains(seen.Get("X-Tandem-Ignored"), name) {
				t.Errorf("ignored %q: want %s among them", seen.Get("X-Tandem-Ignored"), name)
			}
		}
		again, err := c.CreateChatCompletion(ctx, openai.ChatCompletionRequest{Model: model,
			Messages:  []openai.ChatCompletionMessage{user("hi")},
			MaxTokens: 4, Seed: &seed})
		if err != nil || again.Choices[0].Message.Content != a.Choices[0].Message.Content {
			t.Errorf("seed %d gives %q and %q, %v", seed, a.Choices[0].Message.Content, again.Choices[0].Message.Content, err)
		}
	})
	t.Run("tools", func(t *testing.T) {
		tool := func(name string) openai.Tool {
			return openai.Tool{Type: "function", Function: &openai.FunctionDefinition{Name: name,
				Parameters: map[string]any{"properties": map[string]any{}}}}
		}
		g := openai.ToolChoice{Type: "function", Function: openai.ToolFunction{Name: "g"}}
		for _, choice := range []any{"auto", "required", "none", g} {
			if _, err := c.CreateChatCompletion(ctx, openai.ChatCompletionRequest{MaxTokens: 3, ToolChoice: choice,
				Messages: []openai.ChatCompletionMessage{user("hi")}, Tools: []openai.Tool{tool("f"), tool("g")}}); err != nil {
				t.Errorf("%v: %v", choice, err)
			}
		}
	})
	t.Run("no limit", func(t *testing.T) {
		a, err := c.CreateChatCompletion(ctx,
			openai.ChatCompletionRequest{Messages: []openai.ChatCompletionMessage{user("Tell me a story.")}})
		if err != nil || !whole(string(a.Choices[0].FinishReason), a.Usage.TotalTokens) {
			t.Errorf("%+v, %v", a.Usage, err)
		}
		if a, err = c.CreateChatCompletion(ctx, openai.ChatCompletionRequest{MaxTokens: -1,
			Messages: []openai.ChatCompletionMessage{user("Tell me a story.")}}); err != nil ||
			!whole(string(a.Choices[0].FinishReason), a.Usage.TotalTokens) {
			t.Errorf("-1: %+v, %v", a.Usage, err)
		}
	})
	t.Run("parts and turns sent back", func(t *testing.T) {
		a, err := c.CreateChatCompletion(ctx, openai.ChatCompletionRequest{MaxTokens: 4, Messages: []openai.ChatCompletionMessage{
			{Role: "user", MultiContent: []openai.ChatMessagePart{{Type: "text", Text: "first"}, {Type: "text", Text: "second"}}},
			{Role: "assistant", Content: "a", ReasoningContent: "I think"}, {Role: "assistant", Refusal: "no"}, {Role: "assistant"},
			user("b")}})
		one, err1 := c.CreateChatCompletion(ctx, openai.ChatCompletionRequest{MaxTokens: 4, Messages: []openai.ChatCompletionMessage{
			user("first\nsecond"), {Role: "assistant", Content: "a"}, {Role: "assistant", Content: "no"}, {Role: "assistant",
				Content: ""}, user("b")}})
		if err != nil || err1 != nil || a.Usage.PromptTokens != one.Usage.PromptTokens {
			t.Errorf("%+v, %v; as one text %+v, %v", a.Usage, err, one.Usage, err1)
		}
	})
	t.Run("choices", func(t *testing.T) {
		r := openai.ChatCompletionRequest{Messages: []openai.ChatCompletionMessage{user("hi")}}
		r.GuidedChoice = []string{"red", "green"}
		a, err := c.CreateChatCompletion(ctx, r)
		if err != nil || a.Choices[0].FinishReason != "stop" || !slices.Contains([]string{"red", "green"}, a.Choices[0].Message.Content) {
			t.Errorf("%+v, %v", a.Choices, err)
		}
	})
	t.Run("what cannot be done", func(t *testing.T) {
		for param, change := range map[string]func(*openai.ChatCompletionRequest){
			"functions": func(r *openai.ChatCompletionRequest) { r.Functions = []openai.FunctionDefinition{{Name: "f"}} },
			"response_format": func(r *openai.ChatCompletionRequest) {
				r.ResponseFormat = &openai.ChatCompletionResponseFormat{Type: "xml"}
			},
			"messages[0].content[0].type": func(r *openai.ChatCompletionRequest) {
				r.Messages = []openai.ChatCompletionMessage{{Role: "user", MultiContent: []openai.ChatMessagePart{{Type: "image_url",
					ImageURL: &openai.ChatMessageImageURL{URL: "data:"}}}}}
			},
		} {
			r := openai.ChatCompletionRequest{Messages: []openai.ChatCompletionMessage{user("hi")}}
			change(&r)
			_, err := c.CreateChatCompletion(ctx, r)
			refused(t, err, 400, "unsupported_value", param)
		}
	})
	t.Run("a prompt that is too long", func(t *testing.T) {
		_, err := c.CreateChatCompletion(ctx,
			openai.ChatCompletionRequest{Messages: []openai.ChatCompletionMessage{user(strings.Repeat("word ", 3000))}})
		refused(t, err, 400, "context_length_exceeded",
			"This model's maximum context length is 1024 tokens. However, your messages resulted in 30")
	})
	t.Run("addresses", func(t *testing.T) {
		ask(t, g, openAI(g, client(nil), "/"))
		ask(t, g, openAI(g, client(nil, "Host", "host.docker.internal:8450")))
		c := openai.DefaultConfig(key)
		c.BaseURL, c.HTTPClient = g.url, client(nil)
		ask(t, g, openai.NewClientWithConfig(c))
	})
	t.Run("keys", func(t *testing.T) {
		ask(t, g, openAI(g, client(nil, "Authorization", "", "X-Api-Key", key)))
		_, err := openAI(g, client(nil, "Authorization", "Bearer other")).ListModels(ctx)
		refused(t, err, 401, "invalid_api_key", "X-Api-Key")
	})
	t.Run("a page of another origin", func(t *testing.T) {
		var seen http.Header
		ask(t, g, openAI(g, client(&seen, "Origin", page, "Sec-Fetch-Site", "cross-site")))
		if seen.Get("Access-Control-Allow-Origin") != page {
			t.Errorf("headers %v", seen)
		}
	})
	t.Run("stream", func(t *testing.T) {
		s, err := c.CreateChatCompletionStream(ctx,
			openai.ChatCompletionRequest{Messages: []openai.ChatCompletionMessage{user("hi")}, MaxTokens: 4,
				StreamOptions: &openai.StreamOptions{IncludeUsage: true}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var usage *openai.Usage
		for {
			chunk, err := s.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			usage = chunk.Usage
		}
		if usage == nil || usage.CompletionTokens < 1 {
			t.Errorf("usage %+v", usage)
		}
	})
}

// TestStrict: with --strict-fields the same fields are refused by name, and so is a model that is not listed.
func TestStrict(t *testing.T) {
	g := start(t, "--strict-fields", "--alias", "gpt-4o")
	c, ctx := openAI(g, client(nil)), context.Background()
	ask(t, g, c)
	_, err := c.CreateChatCompletion(ctx, openai.ChatCompletionRequest{Messages: []openai.ChatCompletionMessage{user("hi")}, Store: true})
	refused(t, err, 400, "unsupported_value", "store")
	_, err = c.CreateChatCompletion(ctx, openai.ChatCompletionRequest{Model: "other", Messages: []openai.ChatCompletionMessage{user("hi")}})
	refused(t, err, 404, "model_not_found", "gpt-4o")
}
