package public

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/services/public/budget"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/text/calls"
)

// lines is a chat template that writes all that it is given, each on a line of its own.
type lines struct{}

func (lines) Reads(name string) bool { return name == "enable_thinking" || name == "style" }

func (lines) Prompt(_ context.Context, of conversation.Conversation) (conversation.Prompt, error) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(of.Variables)) {
		fmt.Fprintf(&b, "%s=%s\n", name, of.Variables[name])
	}
	fmt.Fprintf(&b, "tools=%s must=%v single=%v\n", of.Tools, of.Must, of.Single)
	for _, m := range of.Messages {
		fmt.Fprintf(&b, "%s: %s|%s|%s|%s|%s\n", m.Role, m.Content, m.Reasoning, m.ToolCalls, m.ToolCallID, m.Name)
		if m.Content == "refuse" {
			return conversation.Prompt{}, tandem.Errorf("chat", tandem.Invalid, "template line 3: roles must alternate")
		}
	}
	text := b.String()
	if of.Continue {
		text = strings.TrimSuffix(text, "||||\n")
	}
	o := calls.Options{Tools: calls.Parse(of.Tools), Single: of.Single}
	return conversation.Prompt{Text: text, Tokens: func() []tandem.Token { return bytesOf(text) },
		Output: conversation.Output{Reader: func() *calls.Reader { return calls.Hermes.Reader(o) }, Written: true}}, nil
}

func bytesOf(text string) (out []tandem.Token) {
	for _, b := range []byte(text) {
		out = append(out, tandem.Token(b))
	}
	return out
}

func promptOf(tokens []tandem.Token) string {
	var b []byte
	for _, t := range tokens {
		b = append(b, byte(t))
	}
	return string(b)
}

const chatContext = 4096 // positions

// scripted is a model that writes what answer says of a prompt, in pieces of n bytes, each a token. A prompt "wait" is answered until the
// call ends.
func scripted(n int, answer func(prompt string) string) generator {
	return generator{func(ctx context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
		if err := r.Validate(tandem.Limits{Context: chatContext, Vocab: 256}); err != nil {
			return tandem.Result{}, err
		}
		prompt := r.Prompt + promptOf(r.Tokens)
		res := tandem.Result{Finish: tandem.FinishStop, PromptTokens: len(r.Tokens), CachedTokens: 7, Identity: "fp_1",
			Stats: tandem.Stats{Rounds: 3}}
		if err := s.Started(tandem.Started{Session: 0xabc, PromptTokens: r.Tokens, Request: r, Identity: "fp_1"}); err != nil {
			return res, err
		}
		text := answer(prompt)
		for from := 0; from < len(text) || strings.Contains(prompt, "wait"); from += n {
			if err := ctx.Err(); err != nil {
				return res, err
			}
			piece := "…"
			if from < len(text) {
				piece = text[from:min(from+n, len(text))]
			} else {
				time.Sleep(time.Millisecond) // else a fast machine reaches the last token before the call ends
			}
			if res.OutputTokens++; res.OutputTokens > r.MaxTokens {
				res.OutputTokens, res.Finish = r.MaxTokens, tandem.FinishLength
				break
			}
			d := tandem.Delta{Text: piece, Tokens: []tandem.Token{'x'}, Origins: []tandem.Origin{tandem.OriginTarget}}
			if r.Sampling.Logprobs {
				d.Logprobs = []tandem.Logprob{{LogProb: -0.5}}
			}
			if err := s.Delta(d); err != nil {
				return res, err
			}
		}
		return res, nil
	}}
}

// serveChat serves conversations until the test ends. cfg may leave out what every test has.
func serveChat(t testing.TB, cfg Service) tandemv1.ChatServiceClient {
	t.Helper()
	s, err := rpc.NewServer(rpc.ServerConfig{Listen: "unix://" + filepath.Join(t.TempDir(), "g")})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Keys != nil {
		s.Admit(Admit(cfg.Keys, nil))
	}
	cfg.Model, cfg.Defaults = "gopher", defaults
	RegisterChat(s.Registrar(), ChatService{Service: cfg, Context: chatContext, Room: room()})
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() { cancel(); work.Wait() })
	conn, err := rpc.Dial(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return tandemv1.NewChatServiceClient(conn)
}

func room() conversation.Room {
	return conversation.Room{Chat: lines{}, Model: "gopher", Texts: budget.NewTexts(), Wait: time.Minute,
		Refuse: func(text string) error {
			if len(text) >= 2*chatContext {
				return wrong("prompt", "prompt has at least %d tokens: the context holds %d", len(text), chatContext)
			}
			return nil
		}}
}

// heard is what a client makes of an answer.
type heard struct {
	text, thought, outputs string
	calls                  []*tandemv1.ChatToolCall
	started                *tandemv1.ChatStarted
	end                    *tandemv1.ChatFinished
}

// hear asks and puts the answer together.
func hear(ctx context.Context, c tandemv1.ChatServiceClient, r *tandemv1.ChatRequest, opts ...grpc.CallOption) (h heard, err error) {
	stream, err := c.Chat(ctx, r, opts...)
	if err != nil {
		return h, err
	}
	for n := uint64(0); ; n++ {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && h.end != nil:
			return h, nil
		case err != nil:
			return h, err
		case m.GetSequence() != n || (n == 0) != (m.GetStarted() != nil) || h.end != nil:
			return h, fmt.Errorf("event %d is %v", n, m)
		}
		switch e := m.GetEvent().(type) {
		case *tandemv1.ChatResponse_Started:
			h.started = e.Started
		case *tandemv1.ChatResponse_Text:
			h.text += e.Text
		case *tandemv1.ChatResponse_Thought:
			h.thought += e.Thought
		case *tandemv1.ChatResponse_Output:
			h.outputs += e.Output.GetText()
		case *tandemv1.ChatResponse_Call:
			if e.Call.GetIndex() != int32(len(h.calls)) {
				return h, fmt.Errorf("call %d begins behind %d calls", e.Call.GetIndex(), len(h.calls))
			}
			h.calls = append(h.calls, &tandemv1.ChatToolCall{Id: e.Call.GetId(), Name: e.Call.GetName()})
		case *tandemv1.ChatResponse_Arguments:
			h.calls[e.Arguments.GetIndex()].Arguments += e.Arguments.GetJson()
		case *tandemv1.ChatResponse_Finished:
			h.end = e.Finished
		}
	}
}

func user(content string) *tandemv1.ChatMessage {
	return &tandemv1.ChatMessage{Role: "user", Content: content}
}

const weatherSchema = `{"type":"object","properties":{"place":{"type":"string"}},"required":["place"]}`

// weather asks for the weather in two places, and says it once it has the results.
func weather(prompt string) string {
	if strings.Contains(prompt, "tool: 21") && strings.Contains(prompt, "tool: 3") {
		return "<think>Now I know.</think>It is 21 in Rome and 3 in Oslo."
	}
	return "<think>Two places.</think>I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"Rome\"}}\n</tool_call>\n" +
		"<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"Oslo\"}}\n</tool_call>"
}

// TestConversation: a client asks, is asked to call a tool twice, sends the results and gets the answer.
func TestConversation(t *testing.T) {
	for _, pieces := range []int{1, 3, 1000} {
		c := serveChat(t, Service{Generator: scripted(pieces, weather)})
		r := &tandemv1.ChatRequest{Messages: []*tandemv1.ChatMessage{{Role: "developer", Content: "Be brief."}, user("Rome and Oslo?")},
			Tools:    []*tandemv1.ChatTool{{Name: "weather", Description: "The weather <now>", Parameters: weatherSchema}},
			Sampling: &tandemv1.Sampling{Seed: new(uint64(42))}}
		var header, trailer metadata.MD
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", "mine")
		h, err := hear(ctx, c, r, grpc.Header(&header), grpc.Trailer(&trailer))
		if err != nil {
			t.Fatal(err)
		}
		if h.thought != "Two places." || h.text != "I look." || len(h.calls) != 2 ||
			h.end.GetReason() != tandemv1.FinishReason_FINISH_REASON_TOOL_CALLS {
			t.Errorf("pieces of %d bytes: %+v", pieces, h)
		}
		for i, place := range []string{"Rome", "Oslo"} {
			if got := h.calls[i]; got.GetName() != "weather" || got.GetArguments() != `{"place": "`+place+`"}` || got.GetId() == "" {
				t.Errorf("call %d is %v", i, got)
			}
		}
		if id := h.calls[0].GetId(); id == h.calls[1].GetId() || !strings.HasPrefix(id, "call_") {
			t.Errorf("the calls' ids are %q and %q", id, h.calls[1].GetId())
		}
		for _, id := range []string{header.Get(requestID)[0], trailer.Get(requestID)[0], h.started.GetRequestId(), h.end.GetRequestId()} {
			if id != "mine" {
				t.Errorf("the request's id is %q", id)
			}
		}
		s, u := h.started.GetStarted(), h.end.GetUsage()
		prompt := "tools=[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"description\":\"The weather <now>\",\"parameters\":" +
			weatherSchema + "}}] must=false single=false\nsystem: Be brief.||||\nuser: Rome and Oslo?||||\n"
		if got := promptOf(bytesOfIDs(s.GetPrompt().GetIds())); got != prompt {
			t.Errorf("the prompt is\n%s, want\n%s", got, prompt)
		}
		if s.GetMaxTokens() != int32(chatContext-len(prompt)) || s.GetModel() != "gopher" || s.GetSession() != "0000000000000abc" ||
			h.end.GetSampling().GetSeed() != 42 || h.end.GetIdentity() != "fp_1" || h.end.GetStatistics().GetRounds() != 3 ||
			u.GetPromptTokens() != int32(len(prompt)) || u.GetCachedPromptTokens() != 7 || u.GetOutputTokens() == 0 ||
			u.GetReasoningTokens() > u.GetOutputTokens() || pieces == 1 && u.GetReasoningTokens() < int32(len(h.thought)) {
			t.Errorf("started %v, finished %v", s, h.end)
		}

		r.Messages = append(r.Messages, &tandemv1.ChatMessage{Role: "assistant", Content: h.text, Thought: h.thought, ToolCalls: h.calls},
			&tandemv1.ChatMessage{Role: "tool", Content: "21", ToolCallId: h.calls[0].GetId(), Name: "weather"},
			&tandemv1.ChatMessage{Role: "tool", Content: "3", ToolCallId: h.calls[1].GetId()})
		first := h
		if h, err = hear(t.Context(), c, r); err != nil {
			t.Fatal(err)
		}
		history, _ := json.Marshal([]any{called(first.calls[0]), called(first.calls[1])})
		prompt += "assistant: I look.|Two places.|" + string(history) + "||\n" +
			"tool: 21|||" + first.calls[0].GetId() + "|weather\ntool: 3|||" + first.calls[1].GetId() + "|weather\n"
		if got := promptOf(bytesOfIDs(h.started.GetStarted().GetPrompt().GetIds())); got != prompt {
			t.Errorf("the second prompt is\n%s, want\n%s", got, prompt)
		}
		if h.text != "It is 21 in Rome and 3 in Oslo." || h.thought != "Now I know." || len(h.calls) > 0 ||
			h.end.GetReason() != tandemv1.FinishReason_FINISH_REASON_STOP || !strings.HasPrefix(h.end.GetRequestId(), "req_") {
			t.Errorf("the answer is %+v", h)
		}
	}
}

// called is a call as templates are given it.
func called(c *tandemv1.ChatToolCall) any {
	return struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function any    `json:"function"`
	}{c.GetId(), "function", struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}{c.GetName(), c.GetArguments()}}
}

func bytesOfIDs(ids []uint32) (out []tandem.Token) {
	for _, id := range ids {
		out = append(out, tandem.Token(id))
	}
	return out
}

// TestChatOptions: what a request asks of the template, the tools and the answer arrives there.
func TestChatOptions(t *testing.T) {
	c := serveChat(t, Service{Generator: scripted(4, weather)})
	tools := []*tandemv1.ChatTool{{Name: "weather"}, {Name: "time", Parameters: `{"$ref":"#/x"}`}}
	const first, second = `{"type":"function","function":{"name":"weather"}}`,
		`{"type":"function","function":{"name":"time","parameters":{"$ref":"#/x"}}}`
	for name, tc := range map[string]struct {
		r       *tandemv1.ChatRequest
		prompt  string // of it
		ignored []string
		answer  func(heard) bool
	}{
		"auto": {&tandemv1.ChatRequest{ToolChoice: &tandemv1.ChatToolChoice{Mode: "auto"}},
			"tools=[" + first + "," + second + "] must=false single=false\n", nil, func(h heard) bool { return len(h.calls) == 2 }},
		"required": {&tandemv1.ChatRequest{ToolChoice: &tandemv1.ChatToolChoice{Mode: "required"}},
			"tools=[" + first + "," + second + "] must=true single=false\n", nil, nil},
		"none": {&tandemv1.ChatRequest{ToolChoice: &tandemv1.ChatToolChoice{Mode: "none"}}, "tools= must=false single=false\n", nil,
			func(h heard) bool { return len(h.calls) == 0 && strings.Contains(h.text, "<tool_call>") }},
		"a named one": {&tandemv1.ChatRequest{ToolChoice: &tandemv1.ChatToolChoice{Names: []string{"time"}}},
			"tools=[" + second + "] must=true single=false\n", nil, nil},
		"some": {&tandemv1.ChatRequest{ToolChoice: &tandemv1.ChatToolChoice{Mode: "auto", Names: []string{"time", "weather"}}},
			"tools=[" + second + "," + first + "] must=false single=false\n", nil, nil},
		"one call": {&tandemv1.ChatRequest{ParallelToolCalls: new(false)},
			"tools=[" + first + "," + second + "] must=false single=true\n", nil, func(h heard) bool { return len(h.calls) == 1 }},
		"variables": {&tandemv1.ChatRequest{TemplateVariables: new(`{"style": {"b":1,"a":2}, "other": 1}`), EnableThinking: new(false),
			ReasoningEffort: new("high"), ToolChoice: &tandemv1.ChatToolChoice{Mode: "none"}},
			"enable_thinking=false\nstyle={\"b\":1,\"a\":2}\ntools= must=false single=false\n",
			[]string{"template_variables.other", "reasoning_effort"}, nil},
		"no effort": {&tandemv1.ChatRequest{ReasoningEffort: new("none"), ToolChoice: &tandemv1.ChatToolChoice{Mode: "none"}},
			"enable_thinking=false\ntools= must=false single=false\n", nil, nil},
		"outputs": {&tandemv1.ChatRequest{Sampling: &tandemv1.Sampling{Logprobs: new(true)}},
			"tools=[" + first + "," + second + "] must=false single=false\n", nil,
			func(h heard) bool { return h.outputs == weather("") && h.thought == "Two places." }},
		"a cut call": {&tandemv1.ChatRequest{MaxTokens: new(int32(26))},
			"tools=[" + first + "," + second + "] must=false single=false\n", nil,
			func(h heard) bool {
				return h.end.GetReason() == tandemv1.FinishReason_FINISH_REASON_LENGTH && len(h.calls) == 1 &&
					h.calls[0].GetArguments() == `{"place": "Rome"}`
			}},
		"half a call": {&tandemv1.ChatRequest{MaxTokens: new(int32(20))},
			"tools=[" + first + "," + second + "] must=false single=false\n", nil,
			func(h heard) bool {
				return h.end.GetReason() == tandemv1.FinishReason_FINISH_REASON_LENGTH && len(h.calls) == 0 &&
					strings.HasPrefix(h.text, "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {")
			}},
	} {
		tc.r.Messages, tc.r.Tools = []*tandemv1.ChatMessage{user("x")}, tools
		h, err := hear(t.Context(), c, tc.r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		prompt, ok := strings.CutSuffix(promptOf(bytesOfIDs(h.started.GetStarted().GetPrompt().GetIds())), "user: x||||\n")
		if prompt != tc.prompt || !ok || !reflect.DeepEqual(h.started.GetIgnored(), tc.ignored) {
			t.Errorf("%s: the prompt is\n%s, ignored %q", name, prompt, h.started.GetIgnored())
		}
		if tc.answer != nil && !tc.answer(h) {
			t.Errorf("%s: the answer is %+v", name, h)
		}
	}
	said := []*tandemv1.ChatMessage{user("x"), {Role: "assistant", Content: "So"}}
	for content, want := range map[string]string{"So": "user: x||||\nassistant: So", "": "user: x||||\n"} {
		said[1].Content = content
		h, err := hear(t.Context(), c, &tandemv1.ChatRequest{Messages: said, ContinueFinalMessage: new(true)})
		if got := promptOf(bytesOfIDs(h.started.GetStarted().GetPrompt().GetIds())); err != nil || !strings.HasSuffix(got, "\n"+want) {
			t.Errorf("the answer begins with %q: %v, prompt\n%s", content, err, got)
		}
	}
}

// TestBadChats: what is wrong is refused with the place where it stands, and what would be right.
func TestBadChats(t *testing.T) {
	c := serveChat(t, Service{Generator: scripted(4, weather)})
	ask := func(m ...*tandemv1.ChatMessage) *tandemv1.ChatRequest { return &tandemv1.ChatRequest{Messages: m} }
	with := func(change func(*tandemv1.ChatRequest)) *tandemv1.ChatRequest {
		r := ask(user("x"))
		r.Tools = []*tandemv1.ChatTool{{Name: "weather", Parameters: weatherSchema}}
		change(r)
		return r
	}
	deep := strings.Repeat("[", 20000)
	for _, tc := range []struct {
		r          *tandemv1.ChatRequest
		field, say string
	}{
		{ask(), "messages", "at least one message"},
		{ask(user("refuse")), "messages", "roles must alternate"},
		{ask(user(strings.Repeat("x", chatContext))), "messages", "tokens: the context holds 4096"},
		{ask(user(strings.Repeat("x", 3*chatContext))), "messages", "at least 12330 tokens: the context holds 4096"},
		{ask(user("x"), &tandemv1.ChatMessage{Content: "y"}), "messages[1].role", "missing: want system, developer"},
		{ask(&tandemv1.ChatMessage{Role: "function"}), "messages[0].role", `"function": want system, developer, user, assistant or tool`},
		{ask(&tandemv1.ChatMessage{Role: "user", ToolCalls: []*tandemv1.ChatToolCall{{Name: "f"}}}), "messages[0].tool_calls",
			"only the assistant calls tools"},
		{ask(user("x"), &tandemv1.ChatMessage{Role: "assistant", ToolCalls: []*tandemv1.ChatToolCall{{Name: "f"}, {Id: "1"}}}),
			"messages[1].tool_calls[1].name", "want the tool's name"},
		{ask(&tandemv1.ChatMessage{Role: "assistant", ToolCalls: []*tandemv1.ChatToolCall{{Name: "f", Arguments: `{"a`}}}),
			"messages[0].tool_calls[0].arguments", "not JSON"},
		{with(func(r *tandemv1.ChatRequest) { r.Tools[0].Name = "" }), "tools[0].name", "want the function's name"},
		{with(func(r *tandemv1.ChatRequest) { r.Tools[0].Parameters = "{'a':1}" }), "tools[0].parameters", "not JSON"},
		{with(func(r *tandemv1.ChatRequest) { r.Tools[0].Parameters = "[]" }), "tools[0].parameters", "an array: want a JSON object"},
		{with(func(r *tandemv1.ChatRequest) { r.Tools[0].Parameters = deep }), "tools[0].parameters", "not JSON"},
		{with(func(r *tandemv1.ChatRequest) {
			r.Tools[0].Parameters = `{"a":"` + strings.Repeat("x", maxSchema) + `"}`
		}),
			"tools[0].parameters", "at most 1048576 allowed"},
		{with(func(r *tandemv1.ChatRequest) {
			r.Tools[0].Parameters = `{"a":"` + strings.Repeat("x", maxSchema/2) + `"}`
		}),
			"messages", "the context holds 4096"},
		{with(func(r *tandemv1.ChatRequest) { r.Tools = make([]*tandemv1.ChatTool, maxTools+1) }), "tools", "at most 1024"},
		{with(func(r *tandemv1.ChatRequest) { r.ToolChoice = &tandemv1.ChatToolChoice{Mode: "any"} }), "tool_choice.mode",
			`want "auto", "none" or "required"`},
		{with(func(r *tandemv1.ChatRequest) {
			r.ToolChoice = &tandemv1.ChatToolChoice{Names: slices.Repeat([]string{"time"}, maxTools+1)}
		}), "tool_choice.names", "1025 elements: at most 1024"},
		{with(func(r *tandemv1.ChatRequest) { r.ToolChoice = &tandemv1.ChatToolChoice{Names: []string{"time"}} }), "tool_choice",
			"want one of weather"},
		{with(func(r *tandemv1.ChatRequest) {
			r.Tools, r.ToolChoice = nil, &tandemv1.ChatToolChoice{Mode: "required"}
		}), "tool_choice", "no functions in tools"},
		{with(func(r *tandemv1.ChatRequest) { r.TemplateVariables = new("") }), "template_variables", "not JSON"},
		{with(func(r *tandemv1.ChatRequest) { r.TemplateVariables = new("5") }), "template_variables", "a number: want a JSON object"},
		{with(func(r *tandemv1.ChatRequest) { r.TemplateVariables = new(`{"tools":1}`) }), "template_variables.tools", "the server sets it"},
		{with(func(r *tandemv1.ChatRequest) { r.TemplateVariables = new(`{"a":1,"a":2}`) }), "template_variables.a", "there twice"},
		{with(func(r *tandemv1.ChatRequest) { r.ContinueFinalMessage = new(true) }), "continue_final_message", "want one to continue"},
		{with(func(r *tandemv1.ChatRequest) { r.MaxTokens = new(int32(0)) }), "max_tokens", "at least 1"},
		{with(func(r *tandemv1.ChatRequest) { r.Sampling = &tandemv1.Sampling{TopP: new(2.0)} }), "sampling.top_p", "top_p"},
		{with(func(r *tandemv1.ChatRequest) { r.Speculation = &tandemv1.Speculation{Vote: new("x")} }), "speculation.vote", "want"},
	} {
		_, err := hear(t.Context(), c, tc.r)
		if err = rpc.FromStatus(err); !errors.Is(err, tandem.Invalid) || tandem.FieldOf(err) != tc.field ||
			!strings.Contains(err.Error(), tc.say) || len(err.Error()) > 400 {
			t.Errorf("%q wanted with %q, got %q: %.500v", tc.field, tc.say, tandem.FieldOf(err), err)
		}
	}
}

// TestChatFailures: errors of the gateway arrive as Generate's do, keys are asked for, and a gateway without a template says so.
func TestChatFailures(t *testing.T) {
	r := &tandemv1.ChatRequest{Messages: []*tandemv1.ChatMessage{user("x")}}
	full := serveChat(t, Service{Generator: generator{func(context.Context, tandem.Request, tandem.Sink) (tandem.Result, error) {
		return tandem.Result{}, &tandem.Error{Op: "admit", Kind: tandem.Exhausted, RetryAfter: 3 * time.Second, Err: errors.New("full")}
	}}})
	var trailer metadata.MD
	_, err := hear(t.Context(), full, r, grpc.Trailer(&trailer))
	if err = rpc.FromStatus(err); !errors.Is(err, tandem.Exhausted) || tandem.RetryAfter(err) != 3*time.Second ||
		len(trailer.Get(requestID)) != 1 {
		t.Errorf("%v after %v, trailer %v", err, tandem.RetryAfter(err), trailer)
	}
	broken := serveChat(t, Service{Generator: generator{func(context.Context, tandem.Request, tandem.Sink) (tandem.Result, error) {
		panic("no")
	}}})
	if _, err := hear(t.Context(), broken, r); !errors.Is(rpc.FromStatus(err), tandem.Internal) {
		t.Errorf("a panic is %v", err)
	}

	keys, err := access.New([]string{"right"})
	if err != nil {
		t.Fatal(err)
	}
	tenants := make(chan string, 1)
	closed := serveChat(t, Service{Keys: keys, Generator: generator{func(_ context.Context, r tandem.Request, s tandem.Sink) (tandem.Result,
		error) {
		tenants <- r.Tenant
		return tandem.Result{Finish: tandem.FinishStop}, s.Started(tandem.Started{Request: r})
	}}})
	if _, err := hear(t.Context(), closed, r); !errors.Is(rpc.FromStatus(err), tandem.Unauthenticated) {
		t.Errorf("without a key: %v", err)
	}
	want, _ := keys.Tenant("Bearer right")
	if _, err := hear(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer right"), closed, r); err != nil ||
		<-tenants != want || want == "" {
		t.Errorf("with a key: %v", err)
	}

	bare := room()
	bare.Chat, bare.Instead = nil, "Generate"
	_, _, err = bare.Tokens(t.Context(), conversation.Conversation{Messages: []conversation.Message{{Role: "user"}}})
	if !errors.Is(err, tandem.Unsupported) || tandem.FieldOf(err) != "messages" || !strings.Contains(err.Error(), "or use Generate") {
		t.Errorf("without a template: %v", err)
	}
}

// TestChatsEndAlone: of many conversations at once, those that are cancelled or late end so, and the others are whole.
func TestChatsEndAlone(t *testing.T) {
	c := serveChat(t, Service{Generator: scripted(1, weather)})
	tools := []*tandemv1.ChatTool{{Name: "weather"}}
	var work sync.WaitGroup
	for i := range 24 {
		work.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			content, want := "x", tandem.OK
			switch i % 3 {
			case 1:
				content, want = "wait", tandem.Canceled
				time.AfterFunc(time.Duration(i)*3*time.Millisecond, cancel)
			case 2:
				var end context.CancelFunc
				ctx, end = context.WithTimeout(ctx, time.Duration(i)*3*time.Millisecond)
				defer end()
				content, want = "wait", tandem.Deadline
			}
			h, err := hear(ctx, c, &tandemv1.ChatRequest{Messages: []*tandemv1.ChatMessage{user(content)}, Tools: tools})
			if tandem.KindOf(rpc.FromStatus(err)) != want || want == tandem.OK && (len(h.calls) != 2 || h.text != "I look.") {
				t.Errorf("conversation %d: %v, %+v", i, err, h)
			}
		})
	}
	work.Wait()
}
