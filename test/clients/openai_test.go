package clients

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/services/public/httpapi"
)

// official returns OpenAI's own client of the server at url.
func official(url string, options ...option.RequestOption) *openai.Client {
	c := openai.NewClient(append([]option.RequestOption{option.WithBaseURL(url + "/v1"), option.WithAPIKey(key),
		option.WithMaxRetries(0)}, options...)...)
	return &c
}

// TestOfficialClient speaks with the server as programs do that were written for OpenAI's.
func TestOfficialClient(t *testing.T) {
	var asked tandem.Request
	s := serve(t, func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		asked = r
		return hello(ctx, r, sink)
	}, nil)
	c, ctx := official(s), t.Context()

	t.Run("chat", func(t *testing.T) {
		a, err := c.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
			Model: "gopher", Seed: openai.Int(0), MaxCompletionTokens: openai.Int(6), Temperature: openai.Float(0.5),
			TopP: openai.Float(0.9), N: openai.Int(2),
			FrequencyPenalty: openai.Float(0.25), PresencePenalty: openai.Float(-0.25), LogitBias: map[string]int64{"104": 5, "5": -100},
			Logprobs:    openai.Bool(true),
			TopLogprobs: openai.Int(2), User: openai.String("me"),
			Stop:           openai.ChatCompletionNewParamsStopUnion{OfStringArray: []string{"##", "$$"}},
			ResponseFormat: openai.ChatCompletionNewParamsResponseFormatUnion{OfText: &shared.ResponseFormatTextParam{}},
			Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("s"), openai.UserMessage("u"),
				openai.AssistantMessage("a"),
				openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{openai.TextContentPart("x"), openai.TextContentPart("y")})},
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Choices) != 2 || a.Choices[0].Message.Content != "hello " || a.Choices[1].Message.Content != "ello h" ||
			a.Choices[1].Index != 1 ||
			a.Choices[0].FinishReason != "length" || a.Usage.CompletionTokens != 12 || a.Usage.PromptTokensDetails.CachedTokens != 1 ||
			a.Object != "chat.completion" ||
			a.Model != "gopher" {
			t.Errorf("answer %s", a.RawJSON())
		}
		if l := a.Choices[0].Logprobs.Content; len(l) != 6 || l[0].Token != "h" || l[0].Logprob != -0.5 || len(l[0].TopLogprobs) != 2 ||
			l[0].Bytes[0] != 'h' {
			t.Errorf("log-probabilities %+v", l)
		}
		want := tandem.Sampling{Temperature: 0.5, TopP: 0.9, Seed: asked.Sampling.Seed, FrequencyPenalty: 0.25, PresencePenalty: -0.25,
			Logprobs: true, TopLogprobs: 2,
			Bias: []tandem.Bias{{Token: 5, Add: -100}, {Token: 104, Add: 5}}}
		if got := asked.Sampling; got.Temperature != want.Temperature || got.TopP != want.TopP || got.FrequencyPenalty != 0.25 ||
			got.PresencePenalty != -0.25 ||
			!got.Logprobs || got.TopLogprobs != 2 || len(got.Bias) != 2 || got.Bias[0] != want.Bias[0] || got.Bias[1] != want.Bias[1] ||
			asked.MaxTokens != 6 {
			t.Errorf("the generator was asked for %+v", asked)
		}
		if len(asked.Stop) != 2 || asked.Stop[1] != "$$" ||
			string(asked.Tokens[1:]) != "system: s\nuser: u\nassistant: a\nuser: x\ny\n" {
			t.Errorf("the generator was asked for %+v", asked)
		}
	})
	t.Run("chat stream", func(t *testing.T) {
		st := c.Chat.Completions.NewStreaming(ctx,
			openai.ChatCompletionNewParams{Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("u")}, Seed: openai.Int(0),
				MaxTokens: openai.Int(6), N: openai.Int(3),
				StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}, Model: "gopher"})
		var acc openai.ChatCompletionAccumulator
		for st.Next() {
			if !acc.AddChunk(st.Current()) {
				t.Errorf("chunk %s does not go on", st.Current().RawJSON())
			}
		}
		if err := st.Err(); err != nil {
			t.Fatal(err)
		}
		if len(acc.Choices) != 3 || acc.Choices[0].Message.Content != "hello " || acc.Choices[2].Message.Content != "llo he" ||
			acc.Choices[2].FinishReason != "length" ||
			acc.Choices[0].Message.Role != "assistant" || acc.Usage.CompletionTokens != 18 || acc.Usage.PromptTokens != 9 {
			t.Errorf("all chunks make %+v", acc.ChatCompletion)
		}
	})
	t.Run("completion", func(t *testing.T) {
		a, err := c.Completions.New(ctx,
			openai.CompletionNewParams{Model: "gopher", Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"a", "b"}},
				Seed: openai.Int(0), MaxTokens: openai.Int(5), Logprobs: openai.Int(1), BestOf: openai.Int(1), N: openai.Int(1),
				Echo: openai.Bool(false)})
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Choices) != 2 || a.Choices[1].Text != "hello" || a.Choices[1].Logprobs.Tokens[4] != "o" || a.Usage.TotalTokens != 14 ||
			a.Object != "text_completion" {
			t.Errorf("answer %s", a.RawJSON())
		}
		st := c.Completions.NewStreaming(ctx, openai.CompletionNewParams{Model: "gopher",
			Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfTokens: []int64{1, 2}}, Seed: openai.Int(0)})
		text := ""
		for st.Next() {
			text += st.Current().Choices[0].Text
		}
		if st.Err() != nil || text != "hello" {
			t.Errorf("streamed %q, %v", text, st.Err())
		}
	})
	t.Run("models", func(t *testing.T) {
		page, err := c.Models.List(ctx)
		if err != nil || len(page.Data) != 1 || page.Data[0].ID != "gopher" || page.Data[0].OwnedBy != "tandem" {
			t.Errorf("models %+v, %v", page, err)
		}
		if m, err := c.Models.Get(ctx, "gopher"); err != nil || m.Created != 1700000000 {
			t.Errorf("model %+v, %v", m, err)
		}
	})
	t.Run("errors", func(t *testing.T) {
		for _, tc := range []struct {
			p                 openai.CompletionNewParams
			status            int
			param, code, says string
		}{
			{openai.CompletionNewParams{Prompt: prompt("a"), Temperature: openai.Float(-1)}, 400, "temperature", "invalid_value",
				"temperature is -1: want 0 to 100"},
			{openai.CompletionNewParams{Prompt: prompt("a"), Echo: openai.Bool(true)}, 400, "echo", "unsupported_value", "echo is true"},
			{openai.CompletionNewParams{Prompt: prompt(strings.Repeat("a", 100))}, 400, "prompt", "context_length_exceeded",
				"maximum context length is 64 tokens. However, your prompt resulted in 101 tokens"},
		} {
			_, err := c.Completions.New(ctx, tc.p)
			var e *openai.Error
			if !errors.As(err, &e) || e.StatusCode != tc.status || e.Param != tc.param || e.Code != tc.code ||
				!strings.Contains(e.Message, tc.says) || e.Type != "invalid_request_error" {
				t.Errorf("%v, want %d %s %s", err, tc.status, tc.param, tc.code)
			}
		}
	})
}

func prompt(text string) openai.CompletionNewParamsPromptUnion {
	return openai.CompletionNewParamsPromptUnion{OfString: openai.String(text)}
}

// TestOfficialClientSeesErrorsOfStreams ends a stream with an error.
func TestOfficialClientSeesErrorsOfStreams(t *testing.T) {
	s := serve(t, func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		res, err := hello(ctx, r, sink)
		if err == nil {
			err = tandem.Errorf("generate", tandem.Unavailable, "the verifier is gone")
		}
		return res, err
	}, nil)
	st := official(s).Completions.NewStreaming(t.Context(), openai.CompletionNewParams{Prompt: prompt("a"), Seed: openai.Int(0)})
	text := ""
	for st.Next() {
		if c := st.Current().Choices; len(c) > 0 {
			text += c[0].Text
		}
	}
	if err := st.Err(); text != "hello" || err == nil || !strings.Contains(err.Error(), "the verifier is gone") {
		t.Errorf("text %q, error %v", text, err)
	}
}

// TestOfficialClientTriesAgain gets 429 with a time to wait, and waits it.
func TestOfficialClientTriesAgain(t *testing.T) {
	t.Parallel()
	calls := 0
	var first time.Time
	s := serve(t, func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		if calls++; calls == 1 {
			first = time.Now()
			return tandem.Result{}, &tandem.Error{Op: "generate", Kind: tandem.Exhausted, Err: errors.New("the queue is full"),
				RetryAfter: 300 * time.Millisecond}
		}
		return hello(ctx, r, sink)
	}, nil)
	a, err := official(s, option.WithMaxRetries(1)).Completions.New(t.Context(), openai.CompletionNewParams{Prompt: prompt("a"),
		Seed: openai.Int(0)})
	if err != nil || a.Choices[0].Text != "hello" || calls != 2 {
		t.Fatalf("answer %+v after %d calls: %v", a, calls, err)
	}
	if waited := time.Since(first); waited < 500*time.Millisecond {
		t.Errorf("the client waited %v: was it told 1 s?", waited)
	}
}

// TestOfficialClientOfLocalServers sends what programs add for other servers, and leaves out what they leave out.
func TestOfficialClientOfLocalServers(t *testing.T) {
	keys, err := access.New([]string{"k"})
	if err != nil {
		t.Fatal(err)
	}
	var asked tandem.Request
	s := serve(t, func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		asked = r
		return hello(ctx, r, sink)
	}, func(c *httpapi.Config) { c.Defaults.MaxTokens, c.Keys = 0, keys })
	ctx := t.Context()
	var answer *http.Response
	c := official(s, option.WithAPIKey("k"))
	user := []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")}
	a, err := c.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: "gpt-5", Messages: user, Seed: openai.Int(math.MinInt64),
		TopP: openai.Float(0), Store: openai.Bool(true), ParallelToolCalls: openai.Bool(false), User: openai.String("me"),
		ServiceTier: openai.ChatCompletionNewParamsServiceTierPriority},
		option.WithResponseInto(&answer), option.WithJSONSet("cache_prompt", true), option.WithJSONSet("keep_alive", "5m"))
	if err != nil || a.Model != "gopher" || a.Usage.TotalTokens != context1 || asked.Sampling.Seed != 1<<63 || asked.Sampling.TopK != 1 {
		t.Fatalf("%+v, %v, asked for %+v", a, err, asked.Sampling)
	}
	for _, name := range []string{"store", "user", "service_tier", "cache_prompt", "keep_alive"} {
		if !strings.Contains(answer.Header.Get("X-Tandem-Ignored"), name) {
			t.Errorf("ignored %q: want %s among them", answer.Header.Get("X-Tandem-Ignored"), name)
		}
	}
	for param, set := range map[string]option.RequestOption{
		"tools[0].function": option.WithJSONSet("tools", []any{map[string]any{"type": "function"}}),
		"grammar":           option.WithJSONSet("grammar", "root ::= x"), "response_format": option.WithJSONSet("response_format",
			map[string]any{"type": "xml"})} {
		var e *openai.Error
		if _, err := c.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Messages: user}, set); !errors.As(err, &e) ||
			e.StatusCode != 400 ||
			e.Param != param {
			t.Errorf("%s: %v", param, err)
		}
	}
	for _, base := range []string{s, s + "/v1/", s + "/v1"} {
		if page, err := official(s, option.WithBaseURL(base), option.WithAPIKey(""), option.WithHeader("X-Api-Key",
			"k")).Models.List(ctx); err != nil ||
			page.Data[0].Created != 1700000000 {
			t.Errorf("%s with X-Api-Key: %+v, %v", base, page, err)
		}
	}
}

// TestOfficialClientStreams: the shipped model says the same to the official client whole and streamed.
func TestOfficialClientStreams(t *testing.T) {
	c := official(start(t).url)
	p := openai.ChatCompletionNewParams{Model: model, Seed: openai.Int(5), MaxTokens: openai.Int(40), Temperature: openai.Float(0.8),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("You write Go."), openai.UserMessage("func main() {")}}
	a, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	st := c.Chat.Completions.NewStreaming(t.Context(), p)
	var acc openai.ChatCompletionAccumulator
	for st.Next() {
		acc.AddChunk(st.Current())
	}
	if err := st.Err(); err != nil {
		t.Fatal(err)
	}
	if want := a.Choices[0].Message.Content; want == "" || acc.Choices[0].Message.Content != want ||
		acc.Usage.CompletionTokens != a.Usage.CompletionTokens {
		t.Errorf("streamed %q with %+v, whole %q with %+v", acc.Choices[0].Message.Content, acc.Usage, want, a.Usage)
	}
}

// TestCallsOfOfficialClient: the official client puts a streamed chat with two calls together, and reads a whole response with them.
func TestCallsOfOfficialClient(t *testing.T) {
	c := official(scripted(t).url)
	stream := c.Chat.Completions.NewStreaming(t.Context(), openai.ChatCompletionNewParams{Model: "m",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")},
		Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "f"}),
			openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "g"})}})
	var all openai.ChatCompletionAccumulator
	for stream.Next() {
		if !all.AddChunk(stream.Current()) {
			t.Fatalf("the client refuses %s", stream.Current().RawJSON())
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	m := all.Choices[0].Message
	if len(m.ToolCalls) != 2 || m.ToolCalls[0].Function.Arguments != `{"a": "x\ny"}` || m.ToolCalls[1].Function.Name != "g" || m.Content != "I look." {
		t.Errorf("got %+v", m)
	}
	function := func(name string) responses.ToolUnionParam {
		return responses.ToolParamOfFunction(name, map[string]any{"type": "object"}, false)
	}
	whole, err := c.Responses.New(t.Context(), responses.ResponseNewParams{Model: "m", Store: openai.Bool(false),
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("hi")},
		Tools: []responses.ToolUnionParam{function("f"), function("g")}})
	if err != nil {
		t.Fatal(err)
	}
	var items []string
	for _, it := range whole.Output {
		text := ""
		for _, c := range it.Content {
			text += c.Text
		}
		items = append(items, fmt.Sprintf("%s %q %s%s", it.Type, text, it.Name, it.Arguments.OfString))
	}
	if got := strings.Join(items, "; "); got != `reasoning "Hm." ; message "I look." ; function_call "" f{"a": "x\ny"}; function_call "" g{}` ||
		whole.Usage.InputTokens == 0 {
		t.Errorf("the response is %s, %+v", got, whole.Usage)
	}
}
