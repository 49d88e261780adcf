package public_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/budget"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi"
)

// everything is a template that writes all that it is given.
type everything struct{}

func (everything) Reads(name string) bool { return name == "enable_thinking" || name == "style" }

func (everything) Prompt(_ context.Context, of conversation.Conversation) (conversation.Prompt, error) {
	raw, err := json.Marshal(of)
	text := string(raw)
	return conversation.Prompt{Text: text, Tokens: func() []tandem.Token { return letters{}.Encode(text, false) },
		Output: conversation.Output{Written: len(of.Tools) > 0}}, err
}

// TestBothFrontsChatAlike asks for the same conversation over HTTP and gRPC: the generator is asked the same, and what one refuses the
// other refuses too, naming the same place.
func TestBothFrontsChatAlike(t *testing.T) {
	j := &judge{limits: tandem.Limits{Context: 2000, Vocab: 256}}
	defaults := ask.Defaults{Sampling: tandem.Sampling{TopP: 1}, Bounds: tandem.Bounds{Nodes: 16, Depth: 7, Width: 10},
		Strategy: tandem.StrategyPlanner}
	texts := budget.NewTexts()
	web, err := httpapi.New(httpapi.Config{Listen: "127.0.0.1:0", Generator: j, Model: httpapi.Model{Name: "m"}, Defaults: defaults,
		Limits: j.limits, Vocab: letters{}, Chat: everything{}, Texts: texts})
	if err != nil {
		t.Fatal(err)
	}
	run(t, web.Run)
	wire, err := rpc.NewServer(rpc.ServerConfig{Listen: "unix://" + filepath.Join(t.TempDir(), "g")})
	if err != nil {
		t.Fatal(err)
	}
	public.RegisterChat(wire.Registrar(), public.ChatService{Service: public.Service{Generator: j, Defaults: defaults}, Context: 2000,
		Room: conversation.Room{Chat: everything{}, Model: "m", Texts: texts, Wait: time.Minute}})
	run(t, wire.Run)
	conn, err := rpc.Dial(wire.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := tandemv1.NewChatServiceClient(conn)

	type (
		request = tandemv1.ChatRequest
		message = tandemv1.ChatMessage
		call    = tandemv1.ChatToolCall
		tool    = tandemv1.ChatTool
		choice  = tandemv1.ChatToolChoice
	)
	const hello = `{"role":"user","content":"hello"}`
	const f, g = `{"type":"function","function":{"name":"f","description":"<d>","parameters":{"b":1,"a":{}}}}`,
		`{"type":"function","function":{"name":"g"}}`
	tools := []*tool{{Name: "f", Description: "<d>", Parameters: `{"b":1,"a":{}}`}, {Name: "g"}}
	for _, c := range []struct {
		messages string // behind hello, over HTTP
		fields   string // of the body, besides
		said     []*message
		r        *request
		web, on  string // the field that is refused, over HTTP and gRPC; "" for none
	}{
		{"", "", nil, &request{}, "", ""},
		{`,{"role":"assistant","content":"a","reasoning_content":"t","tool_calls":[{"id":"1","type":"function","function":` +
			`{"name":"f","arguments":"{\"x\": 1}"}}]},{"role":"tool","content":"r","tool_call_id":"1","name":"f"}`,
			`,"tools":[` + f + `,` + g + `]`,
			[]*message{{Role: "assistant", Content: "a", Thought: "t", ToolCalls: []*call{{Id: "1", Name: "f", Arguments: `{"x": 1}`}}},
				{Role: "tool", Content: "r", ToolCallId: "1", Name: "f"}}, &request{Tools: tools}, "", ""},
		{`,{"role":"assistant","content":"So"}`, `,"continue_final_message":true`, []*message{{Role: "assistant", Content: "So"}},
			&request{ContinueFinalMessage: new(true)}, "", ""},
		{`,{"role":"assistant","content":""}`, ``, []*message{{Role: "assistant"}}, &request{}, "", ""},
		{`,{"role":"developer","content":"s"}`, ``, []*message{{Role: "developer", Content: "s"}}, &request{}, "", ""},
		{"", `,"tools":[` + f + `,` + g + `],"tool_choice":{"type":"function","function":{"name":"g"}},"parallel_tool_calls":false`, nil,
			&request{Tools: tools, ToolChoice: &choice{Names: []string{"g"}}, ParallelToolCalls: new(false)}, "", ""},
		{"", `,"tools":[` + f + `],"tool_choice":"required"`, nil, &request{Tools: tools[:1], ToolChoice: &choice{Mode: "required"}}, "", ""},
		{"", `,"tools":[` + f + `],"tool_choice":"none"`, nil, &request{Tools: tools[:1], ToolChoice: &choice{Mode: "none"}}, "", ""},
		{"", `,"chat_template_kwargs":{"style":{"b":1,"a":[2]},"z":1},"enable_thinking":true,"reasoning_effort":"none"`, nil,
			&request{TemplateVariables: new(`{"style":{"b":1,"a":[2]},"z":1}`), EnableThinking: new(true), ReasoningEffort: new("none")},
			"", ""},
		{"", `,"max_tokens":7,"temperature":0.5,"stop":["a"],"speculation":{"enabled":false}`, nil, &request{MaxTokens: new(int32(7)),
			Sampling: &tandemv1.Sampling{Temperature: new(0.5)}, Stop: []string{"a"},
			Speculation: &tandemv1.Speculation{Enabled: new(false)}}, "", ""},

		{`,{"role":"x","content":"s"}`, ``, []*message{{Role: "x", Content: "s"}}, &request{}, "messages[1].role", "messages[1].role"},
		{`,{"role":"user","content":"s","tool_calls":[{"function":{"name":"f"}}]}`, ``,
			[]*message{{Role: "user", Content: "s", ToolCalls: []*call{{Name: "f"}}}}, &request{}, "messages[1].tool_calls",
			"messages[1].tool_calls"},
		{"", `,"tools":[{"type":"function","function":{}}]`, nil, &request{Tools: []*tool{{}}}, "tools[0].function.name", "tools[0].name"},
		{"", `,"tools":[` + f + `],"tool_choice":{"type":"function","function":{"name":"h"}}`, nil,
			&request{Tools: tools[:1], ToolChoice: &choice{Names: []string{"h"}}}, "tool_choice", "tool_choice"},
		{"", `,"tool_choice":"required"`, nil, &request{ToolChoice: &choice{Mode: "required"}}, "tool_choice", "tool_choice"},
		{"", `,"chat_template_kwargs":{"messages":1}`, nil, &request{TemplateVariables: new(`{"messages":1}`)},
			"chat_template_kwargs.messages", "template_variables.messages"},
		{"", `,"continue_final_message":true`, nil, &request{ContinueFinalMessage: new(true)}, "continue_final_message",
			"continue_final_message"},
		{"", `,"max_tokens":0`, nil, &request{MaxTokens: new(int32(0))}, "max_tokens", "max_tokens"},
		{fmt.Sprintf(`,{"role":"user","content":"%02000d"}`, 0), "", []*message{{Role: "user", Content: fmt.Sprintf("%02000d", 0)}}, &request{},
			"messages", "messages"},
	} {
		status, param, says := post(t, web.URL()+"/v1/chat/completions", `{"seed":1,"messages":[`+hello+c.messages+`]`+c.fields+`}`)
		one := j.asked()
		c.r.Messages = append([]*message{{Role: "user", Content: "hello"}}, c.said...)
		if c.r.Sampling == nil {
			c.r.Sampling = new(tandemv1.Sampling)
		}
		c.r.Sampling.Seed = new(uint64(1))
		stream, err := client.Chat(t.Context(), c.r)
		for err == nil {
			_, err = stream.Recv()
		}
		other := j.asked()
		one.Tenant, other.Tenant = "", ""
		switch {
		case c.web == "":
			if status != http.StatusOK || !errors.Is(err, io.EOF) || !reflect.DeepEqual(one, other) || len(one.Tokens) == 0 {
				t.Errorf("%s%s: %d %s; %v:\n%+v over HTTP\n%+v over gRPC", c.messages, c.fields, status, says, err, one, other)
			}
		case status != http.StatusBadRequest || param != c.web:
			t.Errorf("%s%s: HTTP says %d of %q: %s", c.messages, c.fields, status, param, says)
		case !errors.Is(rpc.FromStatus(err), tandem.Invalid) || tandem.FieldOf(rpc.FromStatus(err)) != c.on:
			t.Errorf("%s%s: gRPC says %v of %q, want %q", c.messages, c.fields, err, tandem.FieldOf(rpc.FromStatus(err)), c.on)
		}
	}
}
