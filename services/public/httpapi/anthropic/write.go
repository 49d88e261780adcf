package anthropic

import (
	"encoding/json"
	"net/http"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// Usage counts tokens; input tokens without those that were found in the cache.
type Usage struct {
	Input   int `json:"input_tokens"`
	Created int `json:"cache_creation_input_tokens"`
	Cached  int `json:"cache_read_input_tokens"`
	Output  int `json:"output_tokens"`
}

// NewUsage returns the usage of a generation.
func NewUsage(r tandem.Result) Usage {
	return Usage{Input: r.PromptTokens - r.CachedTokens, Cached: r.CachedTokens, Output: r.OutputTokens}
}

// Message is an answer.
type Message struct {
	ID           string  `json:"id"`
	Type         string  `json:"type"` // "message"
	Role         string  `json:"role"`
	Model        string  `json:"model"`
	Content      []Block `json:"content"`
	StopReason   *string `json:"stop_reason"`
	StopSequence *string `json:"stop_sequence"`
	Usage        Usage   `json:"usage"`
}

// Block is a part of an answer; only the fields of its type are there.
type Block struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"`
	Signature *string         `json:"signature,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
}

// Text returns a block of text, Thought one of a thought, Call one of a call.
func Text(s string) Block { return Block{Type: "text", Text: &s} }

// Thought returns a block of what the model has thought. It needs no signature: whoever sends it back is believed.
func Thought(s string) Block { return Block{Type: "thinking", Thinking: &s, Signature: new(string)} }

// Call returns a block of a call of a tool.
func Call(id, name string, input json.RawMessage) Block {
	return Block{Type: "tool_use", ID: id, Name: name, Input: input}
}

// Event is one event of a stream; only the fields of its type are there.
type Event struct {
	Type    string   `json:"type"`
	Message *Message `json:"message,omitempty"`
	Index   *int     `json:"index,omitempty"`
	Block   *Block   `json:"content_block,omitempty"`
	Delta   any      `json:"delta,omitempty"`
	Usage   *Usage   `json:"usage,omitempty"`
}

// TextDelta, ThoughtDelta and InputDelta add to the block that is open.
type (
	TextDelta struct {
		Type string `json:"type"` // "text_delta"
		Text string `json:"text"`
	}
	ThoughtDelta struct {
		Type     string `json:"type"` // "thinking_delta"
		Thinking string `json:"thinking"`
	}
	InputDelta struct {
		Type string `json:"type"` // "input_json_delta"
		JSON string `json:"partial_json"`
	}
	SignatureDelta struct {
		Type      string `json:"type"` // "signature_delta"
		Signature string `json:"signature"`
	}
)

// StopDelta ends a message.
type StopDelta struct {
	StopReason   string  `json:"stop_reason"`
	StopSequence *string `json:"stop_sequence"`
}

// StopReason returns why an answer with that many calls ended, in this API's words, and the client's stop sequence if one ended it.
func StopReason(r tandem.Result, calls int) (reason string, sequence *string) {
	switch {
	case r.Finish == tandem.FinishLength:
		return "max_tokens", nil
	case calls > 0:
		return "tool_use", nil
	case r.Stopped != "":
		return "stop_sequence", &r.Stopped
	}
	return "end_turn", nil
}

// Error returns an error's body.
func Error(e *oai.Error) any {
	type details struct {
		Code        string   `json:"error_code"`
		Unsupported []string `json:"unsupported"`
	}
	type inner struct {
		Type    string   `json:"type"`
		Message string   `json:"message"`
		Details *details `json:"details,omitempty"`
	}
	out := struct {
		Type    string `json:"type"`
		Error   inner  `json:"error"`
		Request string `json:"request_id,omitempty"`
	}{"error", inner{Type: errorTypes[e.Status], Message: e.Message}, e.Request}
	if out.Error.Type == "" {
		out.Error.Type = "invalid_request_error"
		if e.Status >= http.StatusInternalServerError {
			out.Error.Type = "api_error"
		}
	}
	switch e.Code {
	case "thread_unsupported_request":
		out.Error.Details = &details{e.Code, []string{}}
	case "context_length_exceeded": // programs find the two numbers by these words
		out.Error.Message = e.TooLong.Words()
	}
	return out
}

// errorTypes are this API's names of statuses.
var errorTypes = map[int]string{
	http.StatusUnauthorized: "authentication_error", http.StatusForbidden: "permission_error", http.StatusNotFound: "not_found_error",
	http.StatusRequestEntityTooLarge: "request_too_large", http.StatusTooManyRequests: "rate_limit_error",
	http.StatusGatewayTimeout: "timeout_error", http.StatusServiceUnavailable: "overloaded_error",
}
