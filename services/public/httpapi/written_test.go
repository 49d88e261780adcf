package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/text/calls"
)

// shows is a template with these marks, whose answers are read by them, with tools and without.
type shows struct {
	lines
	marks string
}

func (s shows) Prompt(ctx context.Context, of conversation.Conversation) (conversation.Prompt, error) {
	p, err := s.lines.Prompt(ctx, of)
	f, o := calls.Find(s.marks), calls.Options{Tools: calls.Parse(of.Tools), Single: of.Single}
	p.Output = conversation.Output{Reader: func() *calls.Reader { return f.Reader(o) }}
	return p, err
}

// reply is an answer of any API.
type reply struct {
	thought, text string
	calls         []string // name and arguments
	end           string   // in the words of the API
}

func (m *reply) call(name string, arguments json.RawMessage) {
	var b bytes.Buffer
	if json.Compact(&b, arguments) != nil {
		b.WriteString("no JSON: " + string(arguments))
	}
	m.calls = append(m.calls, name+" "+b.String())
}

// asked asks for an answer in the API of chats, and puts it together.
func (s *site) asked(t *testing.T, tools string, stream bool) (m reply) {
	if stream {
		got := s.streamed(t, `{"messages":[{"role":"user","content":"q"}],"stream":true`+tools+`}`)
		m = reply{thought: got.thought, text: got.content, end: strings.TrimSuffix(got.finish, ".")}
		for _, c := range got.calls {
			name, arguments, _ := strings.Cut(c, " ")
			m.call(name, json.RawMessage(arguments))
		}
		return m
	}
	_, all := s.ask(t, "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"q"}]`+tools+`}`)
	var a struct {
		Choices []struct {
			Finish  string `json:"finish_reason"`
			Message struct {
				Content   string
				Reasoning string `json:"reasoning_content"`
				Calls     []struct {
					Function struct{ Name, Arguments string }
				} `json:"tool_calls"`
			}
		}
	}
	decode(t, all, &a)
	x := a.Choices[0]
	m = reply{thought: x.Message.Reasoning, text: x.Message.Content, end: x.Finish}
	for _, c := range x.Message.Calls {
		m.call(c.Function.Name, json.RawMessage(c.Function.Arguments))
	}
	return m
}

func decode(t *testing.T, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

// askedResponses does so in the Responses API.
func (s *site) askedResponses(t *testing.T, tools string, stream bool) (m reply) {
	type item struct {
		Type, Name, Arguments, Status string
		Content                       []struct{ Text string }
	}
	var a struct {
		Status string
		Output []item
	}
	_, all := s.ask(t, "POST", "/v1/responses", fmt.Sprintf(`{"input":"q","stream":%v%s}`, stream, tools))
	if stream {
		var done []item
		for _, e := range events(t, strings.NewReader(all)) {
			var x struct {
				Item     item
				Response json.RawMessage
			}
			decode(t, e.data, &x)
			if e.kind == "response.output_item.done" {
				done = append(done, x.Item)
			}
			if x.Response != nil {
				decode(t, string(x.Response), &a)
			}
		}
		if fmt.Sprint(done) != fmt.Sprint(a.Output) {
			t.Errorf("the items of the stream are %v, of its end %v", done, a.Output)
		}
	} else {
		decode(t, all, &a)
	}
	m.end = a.Status
	for _, i := range a.Output {
		for _, c := range i.Content {
			if i.Type == "reasoning" {
				m.thought += c.Text
			} else {
				m.text += c.Text
			}
		}
		if i.Type == "function_call" {
			if m.call(i.Name, json.RawMessage(i.Arguments)); i.Status != "completed" {
				t.Errorf("a call has the status %s", i.Status)
			}
		}
	}
	return m
}

// askedMessages does so in the Messages API.
func (s *site) askedMessages(t *testing.T, tools string, stream bool) (m reply) {
	type block struct {
		Type, Name, Text, Thinking string
		Input                      json.RawMessage
	}
	var a struct {
		Content []block
		Stop    string `json:"stop_reason"`
	}
	_, all := s.ask(t, "POST", "/v1/messages", fmt.Sprintf(`{"max_tokens":99,"messages":[{"role":"user","content":"q"}],"stream":%v%s}`, stream, tools))
	if stream {
		for _, e := range events(t, strings.NewReader(all)) {
			var x struct {
				Block block `json:"content_block"`
				Delta struct {
					Text, Thinking string
					JSON           string `json:"partial_json"`
					Stop           string `json:"stop_reason"`
				}
			}
			decode(t, e.data, &x)
			switch e.kind {
			case "content_block_start":
				x.Block.Input = nil
				a.Content = append(a.Content, x.Block)
			case "content_block_delta":
				b := &a.Content[len(a.Content)-1]
				b.Text, b.Thinking = b.Text+x.Delta.Text, b.Thinking+x.Delta.Thinking
				b.Input = append(b.Input, x.Delta.JSON...)
			case "message_delta":
				a.Stop = x.Delta.Stop
			}
		}
	} else {
		decode(t, all, &a)
	}
	m.end = a.Stop
	for _, b := range a.Content {
		m.text, m.thought = m.text+b.Text, m.thought+b.Thinking
		if b.Type == "tool_use" {
			m.call(b.Name, b.Input)
		}
	}
	return m
}

// askedOllama does so in Ollama's API.
func (s *site) askedOllama(t *testing.T, tools string, stream bool) (m reply) {
	_, all := s.ask(t, "POST", "/api/chat", fmt.Sprintf(`{"messages":[{"role":"user","content":"q"}],"stream":%v%s}`, stream, tools))
	for _, line := range strings.Split(strings.TrimSpace(all), "\n") {
		var a struct {
			Reason  string `json:"done_reason"`
			Message struct {
				Content, Thinking string
				Calls             []struct {
					Function struct {
						Name      string
						Arguments json.RawMessage
					}
				} `json:"tool_calls"`
			}
		}
		decode(t, line, &a)
		m.text, m.thought, m.end = m.text+a.Message.Content, m.thought+a.Message.Thinking, m.end+a.Reason
		for _, c := range a.Message.Calls {
			m.call(c.Function.Name, c.Function.Arguments)
		}
	}
	return m
}

// ends are the words for the end of an answer with calls, of a text, and of what was cut, by API.
var ends = map[string][3]string{"chat": {"tool_calls", "stop", "length"}, "responses": {"completed", "completed", "incomplete"},
	"messages": {"tool_use", "end_turn", "max_tokens"}, "ollama": {"stop", "stop", "length"}}

const schemaOfF = `{"type":"object","properties":{"a":{"anyOf":[{"type":"string"},{"type":"null"}]},"b":{"$ref":"#/$defs/B"}},` +
	`"$defs":{"B":{"type":"boolean"}}}`

// TestWritten: what a model writes is the same in every API, whole and streamed: thoughts, texts, calls, and how it ended.
func TestWritten(t *testing.T) {
	const coder = "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n</function>\n</tool_call>"
	const half = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x"
	const quotes = "{\"name\": \"f\", \"arguments\": {\"a\": \"\"\"A small\nfile.\"\"\"}}"
	const inThought = "Hm. <tool_call>{\"name\": \"g\"}</tool_call>"
	for name, c := range map[string]struct {
		marks, writes string
		cut           bool
		thought, text string
		calls         []string
	}{
		"a thought's mark in prose": {writes: "Write <think> in front and </think> behind.",
			text: "Write <think> in front and </think> behind."},
		"a thought":                       {writes: "<think>Hm.</think>\n\nWrite <think>.", thought: "Hm.", text: "Write <think>."},
		"a call in a closed thought":      {writes: "<think>" + inThought + "</think>No.", thought: inThought, text: "No."},
		"a call in an open thought":       {writes: "<think>" + inThought, thought: "Hm.", calls: []string{"g {}"}},
		"a call in a thought that is cut": {writes: "<think>" + inThought, cut: true, thought: inThought},
		"values by schema": {marks: "<function= <parameter=", writes: fmt.Sprintf(coder, "12345"),
			calls: []string{`f {"a":"12345","b":true}`}},
		"a null": {marks: "<function= <parameter=", writes: fmt.Sprintf(coder, "None"),
			calls: []string{`f {"a":null,"b":true}`}},
		"a value with a mark": {marks: "<function= <parameter=", writes: fmt.Sprintf(coder, "</function>"),
			calls: []string{`f {"a":"</function>","b":true}`}},
		"half a call":            {writes: half, text: half},
		"half a call, cut":       {writes: half, cut: true, text: half},
		"a call that breaks off": {writes: quotes, text: quotes},
		"a backslash":            {writes: `{"name": "f", "arguments": {"a": "\d",}}`, calls: []string{`f {"a":"\\d"}`}},
		"a fence":                {writes: "So:\n~~~tool\n{\"name\": \"g\"}\n~~~\n", text: "So:", calls: []string{"g {}"}},
		"marks twice": {writes: "<tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call><tool_call></tool_call>",
			calls: []string{"g {}"}},
		"semicolons": {marks: "<|start_header_id|>", writes: `{"name": "g"}; {"name": "f", "parameters": {}}`,
			calls: []string{"g {}", "f {}"}},
		"gpt-oss: no arguments": {marks: "<|channel|> <|message|>", writes: "<|channel|>commentary to=functions.g<|message|><|call|>",
			calls: []string{"g {}"}},
		"gpt-oss: half a call": {marks: "<|channel|> <|message|>", writes: "<|channel|>commentary to=functions.g<|message|>{\"a",
			text: "{\"a"},
		"gpt-oss: thoughts in a row": {marks: "<|channel|> <|message|>", thought: "A\n\nB",
			writes: "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B"},
		"a whole call and half a one, cut": {writes: `{"name": "g"}` + "\n" + half, cut: true, text: half, calls: []string{"g {}"}},
	} {
		t.Run(name, func(t *testing.T) {
			finish, end := tandem.FinishStop, 1
			if c.cut {
				finish, end = tandem.FinishLength, 2
			} else if c.calls != nil {
				end = 0
			}
			want := reply{c.thought, c.text, c.calls, ""}
			for _, n := range []int{1, 4, 1 << 10} {
				s := serve(t, writes(c.writes, n, finish), func(cfg *Config) { large(cfg); cfg.Chat = shows{marks: c.marks} })
				openai := fmt.Sprintf(`,"tools":[{"type":"function","function":{"name":"f","parameters":%s}},`+
					`{"type":"function","function":{"name":"g"}}]`, schemaOfF)
				anthropic := fmt.Sprintf(`,"tools":[{"name":"f","input_schema":%s},{"name":"g","input_schema":{"type":"object"}}]`, schemaOfF)
				flat := fmt.Sprintf(`,"tools":[{"type":"function","name":"f","parameters":%s},{"type":"function","name":"g"}]`, schemaOfF)
				for api, ask := range map[string]func(stream bool) reply{
					"chat":      func(stream bool) reply { return s.asked(t, openai, stream) },
					"responses": func(stream bool) reply { return s.askedResponses(t, flat, stream) },
					"messages":  func(stream bool) reply { return s.askedMessages(t, anthropic, stream) },
					"ollama":    func(stream bool) reply { return s.askedOllama(t, openai, stream) },
				} {
					want.end = ends[api][end]
					for _, stream := range []bool{false, true} {
						if got := ask(stream); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
							t.Errorf("%s, stream %v, in pieces of %d bytes: %q, want %q", api, stream, n, got, want)
						}
					}
				}
			}
		})
	}
}

// TestProseWithoutTools: without tools, marks of thoughts in prose are prose, and calls are text.
func TestProseWithoutTools(t *testing.T) {
	for _, text := range []string{"Write <think> in front and </think> behind.", "<tool_call>{\"name\": \"g\"}</tool_call>"} {
		s := serve(t, writes(text, 2, tandem.FinishStop), func(cfg *Config) { large(cfg); cfg.Chat = shows{} })
		for _, stream := range []bool{false, true} {
			for api, got := range map[string]reply{"chat": s.asked(t, "", stream), "responses": s.askedResponses(t, "", stream),
				"messages": s.askedMessages(t, "", stream), "ollama": s.askedOllama(t, "", stream)} {
				if want := (reply{text: text, end: ends[api][1]}); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
					t.Errorf("%s, stream %v: %q, want %q", api, stream, got, want)
				}
			}
		}
	}
}

// TestStoppedCall: a client's stop sequence within a call leaves text, and one in a thought leaves its calls in it.
func TestStoppedCall(t *testing.T) {
	for text, want := range map[string]reply{
		"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x": {text: "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x"},
		"<think><tool_call>{\"name\": \"g\"}</tool_call>":           {thought: "<tool_call>{\"name\": \"g\"}</tool_call>"},
	} {
		g := func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
			res, err := writes(text, 3, tandem.FinishStop)(ctx, r, sink)
			res.Stopped = "END"
			return res, err
		}
		s := serve(t, written(g), large)
		want.end = "stop_sequence"
		for _, stream := range []bool{false, true} {
			if got := s.askedMessages(t, `,"tools":[{"name":"f","input_schema":{}},{"name":"g","input_schema":{}}]`, stream); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
				t.Errorf("stream %v: %q, want %q", stream, got, want)
			}
		}
	}
}
