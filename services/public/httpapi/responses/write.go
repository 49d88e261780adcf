// Package responses writes the answers of OpenAI's Responses API.
package responses

import (
	"encoding/json"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/httpapi/bodies"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// Response is an answer, complete or not.
type Response struct {
	ID         string      `json:"id"`
	Object     string      `json:"object"` // "response"
	Created    int64       `json:"created_at"`
	Status     string      `json:"status"` // "in_progress", "completed", "incomplete" or "failed"
	Error      *Failure    `json:"error"`
	Incomplete *Incomplete `json:"incomplete_details"`
	Model      string      `json:"model"`
	Output     []Item      `json:"output"`
	Usage      *Usage      `json:"usage"`
	Previous   *string     `json:"previous_response_id"` // always null
	Store      bool        `json:"store"`                // always false
	Truncation string      `json:"truncation"`           // "disabled"
	bodies.Echo
	Tandem *oai.Account `json:"tandem,omitempty"` // in an answer that was ended because it repeated itself
}

// newResponse returns the beginning of an answer.
func newResponse(id, model string, created int64, e bodies.Echo) Response {
	for _, raw := range []*json.RawMessage{&e.Instructions, &e.ToolChoice} {
		if len(*raw) == 0 {
			*raw = json.RawMessage("null")
		}
	}
	if len(e.Tools) == 0 || string(e.Tools) == "null" {
		e.Tools = json.RawMessage("[]")
	}
	return Response{ID: id, Object: "response", Created: created, Status: "in_progress", Model: model, Output: []Item{},
		Truncation: "disabled", Echo: e}
}

// Failure is why an answer failed, Incomplete why it is not complete.
type (
	Failure struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Request string `json:"request_id,omitempty"`
	}
	Incomplete struct {
		Reason string `json:"reason"`
	}
)

// Error is a Failure as an event of its own tells it.
type Error struct {
	Failure
	Type  string  `json:"type"`
	Param *string `json:"param"`
}

// Usage counts tokens.
type Usage struct {
	Input        int `json:"input_tokens"`
	InputDetails struct {
		Cached int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	Output        int `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Total int `json:"total_tokens"`
}

// newUsage returns the usage of a generation with so many tokens of thoughts.
func newUsage(x *tandem.Result, thoughts int) *Usage {
	u := &Usage{Input: x.PromptTokens, Output: x.OutputTokens, Total: x.PromptTokens + x.OutputTokens}
	u.InputDetails.Cached, u.OutputDetails.Reasoning = x.CachedTokens, thoughts
	return u
}

// Item is a part of an answer; only the fields of its type are there.
type Item struct {
	ID        string  `json:"id"`
	Type      string  `json:"type"` // "message", "reasoning", "function_call" or "custom_tool_call"
	Status    string  `json:"status"`
	Role      string  `json:"role,omitempty"`
	Content   []Part  `json:"content,omitzero"`
	Summary   []Part  `json:"summary,omitzero"`
	CallID    string  `json:"call_id,omitempty"`
	Name      string  `json:"name,omitempty"`
	Namespace string  `json:"namespace,omitempty"`
	Arguments *string `json:"arguments,omitempty"`
	Input     *string `json:"input,omitempty"`
}

// Part is a part of a message's or a thought's content.
type Part struct {
	Type        string `json:"type"`
	Text        string `json:"text"`
	Annotations []any  `json:"annotations,omitzero"`
	Logprobs    []any  `json:"logprobs,omitzero"`
}

// Event is one event of a stream; only the fields of its type are there.
type Event struct {
	Type      string    `json:"type"`
	Sequence  int       `json:"sequence_number"`
	Response  *Response `json:"response,omitempty"`
	Error     *Error    `json:"error,omitempty"`
	Output    *int      `json:"output_index,omitempty"`
	Item      *Item     `json:"item,omitempty"`
	ItemID    string    `json:"item_id,omitempty"`
	Content   *int      `json:"content_index,omitempty"`
	Part      *Part     `json:"part,omitempty"`
	Delta     string    `json:"delta,omitempty"`
	Text      *string   `json:"text,omitempty"`
	Name      string    `json:"name,omitempty"`
	Arguments *string   `json:"arguments,omitempty"`
	Input     *string   `json:"input,omitempty"`
	Logprobs  []any     `json:"logprobs,omitzero"`
}
