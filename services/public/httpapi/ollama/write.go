// Package ollama writes the answers of Ollama's API.
package ollama

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/answer"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// Level is the version of Ollama whose API this is; programs ask for a least one.
const Level = "0.17.4"

// Chunk is a line of an answer to /api/chat or /api/generate, or all of it. Only the fields of its path are there.
type Chunk struct {
	Model    string   `json:"model"`
	Created  string   `json:"created_at"`
	Message  *Message `json:"message,omitempty"`  // in an answer of /api/chat
	Response *string  `json:"response,omitempty"` // text of an answer of /api/generate
	Thinking string   `json:"thinking,omitempty"` // thoughts of such an answer
	Done     bool     `json:"done"`
	Reason   string   `json:"done_reason,omitempty"`

	Context []tandem.Token `json:"context,omitempty"` // prompt and answer, to go on from, in the last line of /api/generate
	*Figures
	Tandem *oai.Account `json:"tandem,omitempty"` // in an answer that was ended because it repeated itself
}

// Message is a piece of the assistant's turn.
type Message struct {
	Role      string `json:"role"`
	Content   string `json:"content"`
	Thinking  string `json:"thinking,omitempty"`
	ToolCalls []Call `json:"tool_calls,omitempty"`
}

// Call is a call of a tool, whole.
type Call struct {
	ID       string `json:"id,omitempty"`
	Function struct {
		Index     int             `json:"index"`
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

// newCall returns a call, whose arguments are a JSON object.
func newCall(index int, t answer.Tool) Call {
	c := Call{ID: t.ID}
	c.Function.Index, c.Function.Name, c.Function.Arguments = index, t.Name, json.RawMessage(t.Arguments)
	return c
}

// Figures are of the last line. Times are nanoseconds.
type Figures struct {
	Total      int64 `json:"total_duration"`
	Load       int64 `json:"load_duration"`
	Prompt     int   `json:"prompt_eval_count"`
	PromptTime int64 `json:"prompt_eval_duration"`
	Output     int   `json:"eval_count"`
	OutputTime int64 `json:"eval_duration"`
}

// Model is an entry of /api/tags and /api/ps.
type Model struct {
	Name     string  `json:"name"`
	Model    string  `json:"model"`
	Modified string  `json:"modified_at,omitempty"`
	Expires  string  `json:"expires_at,omitempty"`
	Size     int64   `json:"size"`
	Video    *int64  `json:"size_vram,omitempty"`
	Digest   string  `json:"digest"`
	Details  Details `json:"details"`
	Context  int     `json:"context_length,omitempty"`
}

// Details says what a model is.
type Details struct {
	Parent       string   `json:"parent_model"`
	Format       string   `json:"format"`
	Family       string   `json:"family"`
	Families     []string `json:"families"`
	Parameters   string   `json:"parameter_size"`
	Quantization string   `json:"quantization_level"`
}

// Short returns a number of parameters as Ollama shows it: 134.52M, 1.5B; "" for none.
func Short(n int64) string {
	switch f := float64(n); {
	case n >= 1e9:
		return fmt.Sprintf("%.1fB", f/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.2fM", f/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.2fK", f/1e3)
	case n > 0:
		return fmt.Sprint(n)
	}
	return ""
}

// Show is what /api/show answers.
type Show struct {
	Modelfile    string         `json:"modelfile"`
	Parameters   string         `json:"parameters"` // a line each: a name and what a request takes that says nothing
	Template     string         `json:"template"`
	System       string         `json:"system,omitempty"`
	Details      Details        `json:"details"`
	Info         map[string]any `json:"model_info"`
	Capabilities []string       `json:"capabilities"`
	Modified     string         `json:"modified_at"`
}

// Parameters returns how answers are made where a request says nothing, as a Modelfile says it.
func Parameters(d ask.Defaults, context int) string {
	s, out := d.Sampling, new(strings.Builder)
	line := func(name string, v any) { fmt.Fprintf(out, "%-30s %v\n", name, v) }
	line("num_ctx", context)
	line("temperature", s.Temperature)
	line("top_k", s.TopK)
	line("top_p", s.TopP)
	line("min_p", s.MinP)
	line("repeat_penalty", s.RepeatPenalty)
	line("repeat_last_n", s.RepeatLast)
	for _, text := range d.Stop {
		line("stop", strconv.Quote(text))
	}
	return out.String()
}

// Error returns an error's body: a text, and the request's id.
func Error(e *oai.Error) any {
	return struct {
		Error   string `json:"error"`
		Request string `json:"request_id,omitempty"`
	}{e.Message, e.Request}
}
