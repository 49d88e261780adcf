package public

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/conversation"
)

// FuzzChat: any message becomes a conversation that templates can be given, or is refused with the field that is wrong.
func FuzzChat(f *testing.F) {
	for _, r := range []*tandemv1.ChatRequest{
		{Messages: []*tandemv1.ChatMessage{{Role: "developer", Content: "s"}, {Role: "user", Content: "x", Name: "n"},
			{Role: "assistant", Thought: "t", ToolCalls: []*tandemv1.ChatToolCall{{Id: "1", Name: "f", Arguments: `{"a":1}`}}},
			{Role: "tool", Content: "r", ToolCallId: "1"}},
			Tools: []*tandemv1.ChatTool{{Name: "f", Description: "d", Parameters: weatherSchema}}, ParallelToolCalls: new(false),
			ToolChoice: &tandemv1.ChatToolChoice{Mode: "required", Names: []string{"f"}}, TemplateVariables: new(`{"style":{"a":[1,null]}}`),
			EnableThinking: new(true), ReasoningEffort: new("low"), MaxTokens: new(int32(3)), Stop: []string{"a"},
			Sampling: &tandemv1.Sampling{MinP: new(0.1)}, Speculation: &tandemv1.Speculation{Nodes: new(int32(4))}},
		{Messages: []*tandemv1.ChatMessage{{Role: "user"}, {Role: "assistant", Content: "So"}}, ContinueFinalMessage: new(true)},
	} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	at := room()
	f.Fuzz(func(t *testing.T, b []byte) {
		var m tandemv1.ChatRequest
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		q, _, err := readChat(&m, ask.Defaults{MaxTokens: 5, Sampling: tandem.Sampling{TopP: 1}}, lines{})
		var of conversation.Conversation
		var tokens []tandem.Token
		if err == nil {
			of = q.Conversation()
			tokens, _, err = at.Tokens(t.Context(), of)
		}
		if err != nil {
			if !errors.Is(err, tandem.Invalid) || tandem.FieldOf(ofMessages(err)) == "" {
				t.Errorf("refused with %v of field %q", err, tandem.FieldOf(err))
			}
			return
		}
		for _, said := range of.Messages {
			if !slices.Contains([]string{"system", "user", "assistant", "tool"}, said.Role) ||
				len(said.ToolCalls) > 0 && !json.Valid(said.ToolCalls) {
				t.Errorf("a message is %+v", said)
			}
		}
		if len(of.Messages) == 0 || len(tokens) == 0 || len(of.Tools) > 0 && !json.Valid(of.Tools) || of.Must && len(of.Tools) == 0 {
			t.Errorf("accepted %+v", of)
		}
	})
}
