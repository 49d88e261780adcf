package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

const asksCodex = `{"model":"m","instructions":"Be brief.","input":[{"type":"message","role":"developer","content":[{"type":"input_text","text":"d"}]},` +
	`{"role":"user","content":"hi"}],"tools":[{"type":"function","name":"f","strict":false,"parameters":{"type":"object"}},` +
	`{"type":"namespace","name":"n","tools":[{"type":"function","name":"g","parameters":{}}]},{"type":"web_search"}],` +
	`"store":false,"include":["reasoning.encrypted_content"],"prompt_cache_key":"k","reasoning":{"summary":"auto"},"client_metadata":{}%s}`

// responseEvent is the part of an event of a Responses stream that tests look at.
type responseEvent struct {
	Type, Delta string
	Sequence    int `json:"sequence_number"`
	Index       int `json:"output_index"`
	Response    struct {
		Status string
		Output []struct {
			Type, Name, Namespace, Arguments string
			Content                          []struct{ Text string }
		}
		Usage struct {
			Output int `json:"output_tokens"`
		}
	}
}

// items writes the items of the answer as one line.
func (e *responseEvent) items() string {
	var out []string
	for _, it := range e.Response.Output {
		text := ""
		for _, c := range it.Content {
			text += c.Text
		}
		out = append(out, fmt.Sprintf("%s %q %s.%s%s", it.Type, text, it.Namespace, it.Name, it.Arguments))
	}
	return strings.Join(out, "; ")
}

const wantItems = `reasoning "Hm." .; message "I look." .; function_call "" .f{"a": "x\ny"}; function_call "" n.g{}`

// TestResponses: items, streamed in pieces of every size and whole, in the order that clients need.
func TestResponses(t *testing.T) {
	for n := 1; n < len(twoCalls); n += 3 {
		s := serve(t, writes(twoCalls, n, tandem.FinishStop), large)
		answer, all := s.ask(t, "POST", "/v1/responses", fmt.Sprintf(asksCodex, `,"stream":true`))
		if ignored := answer.Header.Get("X-Tandem-Ignored"); !strings.Contains(ignored, "web_search") {
			t.Errorf("ignored %q", ignored)
		}
		var last responseEvent
		var order []string
		done := map[int]string{}
		for i, part := range events(t, strings.NewReader(all)) {
			var e responseEvent
			if err := json.Unmarshal([]byte(part.data), &e); err != nil || part.kind != e.Type || e.Sequence != i {
				t.Fatalf("event %d: %+v: %v", i, part, err)
			}
			switch e.Type {
			case "response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.delta":
				done[e.Index] += e.Delta
				if len(order) > 0 && order[len(order)-1] == e.Type {
					continue
				}
			case "response.completed":
				last = e
			}
			order = append(order, e.Type)
		}
		if got := last.items(); got != wantItems || last.Response.Usage.Output == 0 || last.Response.Status != "completed" {
			t.Fatalf("streamed: %s, want %s", got, wantItems)
		}
		if got := fmt.Sprint(done); got != `map[0:Hm. 1:I look. 2:{"a": "x\ny"} 3:{}]` {
			t.Errorf("deltas: %s", got)
		}
		if got := strings.ReplaceAll(strings.Join(order, " "), "response.", ""); got != "created in_progress "+
			"output_item.added content_part.added reasoning_text.delta reasoning_text.done content_part.done output_item.done "+
			"output_item.added content_part.added output_text.delta output_text.done content_part.done output_item.done "+
			"output_item.added function_call_arguments.delta function_call_arguments.done output_item.done "+
			"output_item.added function_call_arguments.delta function_call_arguments.done output_item.done completed" {
			t.Errorf("order: %s", got)
		}
	}
}
