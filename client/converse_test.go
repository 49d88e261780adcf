package client_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/tandem-llm/tandem/client"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// TestConverse: a conversation becomes a request of the chat service, and its events become pieces.
func TestConverse(t *testing.T) {
	said := []*tandemv1.ChatResponse{
		{Event: &tandemv1.ChatResponse_Started{Started: &tandemv1.ChatStarted{Started: &tandemv1.Started{MaxTokens: 9,
			Prompt: &tandemv1.TokenList{Ids: []uint32{4}}}}}},
		{Event: &tandemv1.ChatResponse_Output{Output: &tandemv1.Delta{Text: "<t>a", Tokens: &tandemv1.TokenList{Ids: []uint32{5, 6}},
			Origins: []tandemv1.Origin{tandemv1.Origin_ORIGIN_DRAFT, tandemv1.Origin_ORIGIN_TARGET}}}},
		{Event: &tandemv1.ChatResponse_Thought{Thought: "a"}},
		{Event: &tandemv1.ChatResponse_Call{Call: &tandemv1.ChatToolCallBegin{}}}, // of tools that nobody offered
		{Event: &tandemv1.ChatResponse_Text{Text: "b"}},
		{Event: &tandemv1.ChatResponse_Finished{Finished: &tandemv1.ChatFinished{Reason: tandemv1.FinishReason_FINISH_REASON_LENGTH,
			Usage: &tandemv1.Usage{PromptTokens: 1, OutputTokens: 2}}}},
	}
	for i := range said {
		said[i].Sequence = uint64(i)
	}
	g := &gateway{said: said}
	c := serve(t, g)
	messages := []client.Message{{Role: "user", Content: "x"}, {Role: "assistant", Content: "y", Thought: "z"},
		{Role: "user", Content: "!"}}
	temperature, most := 0.5, 7
	var text, thought string
	var started, delta, finished int
	for p, err := range c.Converse(t.Context(), messages, `{"a":1}`, client.Request{MaxTokens: &most, Temperature: &temperature,
		Report: true, Stop: []string{"s"}, NoDraft: true}) {
		if err != nil {
			t.Fatal(err)
		}
		text, thought = text+p.Text, thought+p.Thought
		switch {
		case p.Started != nil && p.Started.MaxTokens == 9 && reflect.DeepEqual(p.Started.PromptTokens, []uint32{4}):
			started++
		case p.Delta != nil && reflect.DeepEqual(p.Delta.Drafted, []bool{true, false}) && p.Delta.Text == "<t>a":
			delta++
		case p.Finished != nil && p.Finished.Reason == "length" && p.Finished.OutputTokens == 2:
			finished++
		case p == (client.Piece{}):
			t.Error("a piece without anything")
		}
	}
	if text != "b" || thought != "a" || started != 1 || delta != 1 || finished != 1 {
		t.Errorf("text %q, thought %q, %d, %d and %d events", text, thought, started, delta, finished)
	}
	r := g.chat
	if len(r.GetMessages()) != 3 || r.GetMessages()[1].GetThought() != "z" || r.GetMessages()[2].GetContent() != "!" ||
		r.GetMaxTokens() != 7 ||
		r.GetSampling().GetTemperature() != 0.5 || r.GetTemplateVariables() != `{"a":1}` || !r.GetReport() ||
		r.GetSpeculation().GetEnabled() || !reflect.DeepEqual(r.GetStop(), []string{"s"}) {
		t.Errorf("asked for %v", r)
	}
	for _, err := range c.Converse(t.Context(), []client.Message{{Role: "user", Content: "\xff"}}, "", client.Request{}) {
		if !errors.Is(err, client.Invalid) {
			t.Errorf("not UTF-8: %v", err)
		}
	}
}
