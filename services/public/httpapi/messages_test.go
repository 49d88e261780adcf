package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

const asksClaude = `{"model":"claude-sonnet","max_tokens":32000,"system":[{"type":"text","text":"Be brief."}],"tools":[` +
	`{"name":"f","input_schema":{"type":"object","properties":{}}},{"name":"g","input_schema":{"type":"object"}},` +
	`{"type":"web_search_20260101","name":"web_search"}],"messages":[{"role":"user","content":"hi"}]%s}`

// message is an answer, or one put together from the events of a stream.
type message struct {
	ID, Model, Role string
	Content         []struct {
		Type, Text, Thinking, ID, Name string
		Input                          json.RawMessage
	}
	StopReason string `json:"stop_reason"`
	Usage      map[string]int
}

// blocks writes a message's blocks as one line.
func (m message) blocks() string {
	var out []string
	for _, b := range m.Content {
		var input bytes.Buffer
		_ = json.Compact(&input, b.Input)
		out = append(out, fmt.Sprintf("%s %q %q %s%s", b.Type, b.Text, b.Thinking, b.Name, &input))
	}
	return strings.Join(out, "; ") + "; " + m.StopReason
}

const wantBlocks = `thinking "" "Hm." ; text "I look." "" ; tool_use "" "" f{"a":"x\ny"}; tool_use "" "" g{}; tool_use`

// messageOf puts the events of a stream together, and checks their order.
func messageOf(t *testing.T, stream string) message {
	t.Helper()
	return messageFrom(t, events(t, strings.NewReader(stream)))
}

// messageFrom is messageOf for events.
func messageFrom(t *testing.T, all []event) (m message) {
	t.Helper()
	order, open := "", -1
	var input string
	for _, part := range all {
		var e struct {
			Type    string
			Message message
			Index   int
			Block   json.RawMessage `json:"content_block"`
			Delta   struct {
				Type, Text, Thinking string
				JSON                 string `json:"partial_json"`
				StopReason           string `json:"stop_reason"`
			}
			Usage map[string]int
		}
		if err := json.Unmarshal([]byte(part.data), &e); err != nil || part.kind != e.Type {
			t.Fatalf("%+v: %v", part, err)
		}
		switch e.Type {
		case "message_start":
			m = e.Message
		case "content_block_start":
			m.Content = slices.Grow(m.Content, 1)[:e.Index+1]
			if err := json.Unmarshal(e.Block, &m.Content[e.Index]); err != nil || open >= 0 {
				t.Fatalf("%+v: %v while block %d is open", part, err, open)
			}
			open, input = e.Index, ""
		case "content_block_delta":
			b := &m.Content[e.Index]
			b.Text, b.Thinking, input = b.Text+e.Delta.Text, b.Thinking+e.Delta.Thinking, input+e.Delta.JSON
		case "content_block_stop":
			if open != e.Index {
				t.Fatalf("%+v: block %d is open", part, open)
			}
			if open = -1; input != "" {
				m.Content[e.Index].Input = json.RawMessage(input)
			}
		case "message_delta":
			m.StopReason, m.Usage = e.Delta.StopReason, e.Usage
		}
		if e.Type != "ping" && !strings.HasPrefix(e.Type, "content_block") {
			order += e.Type + " "
		}
	}
	if order != "message_start message_delta message_stop " {
		t.Errorf("events %s", order)
	}
	return m
}

// TestMessages: calls, thoughts and text, streamed in pieces of every size and whole; and the number of tokens.
func TestMessages(t *testing.T) {
	for n := 1; n < len(twoCalls); n += 3 {
		s := serve(t, writes(twoCalls, n, tandem.FinishStop), large)
		answer, all := s.ask(t, "POST", "/v1/messages", fmt.Sprintf(asksClaude, `,"stream":true`))
		m := messageOf(t, all)
		if got := m.blocks(); got != wantBlocks || m.Usage["output_tokens"] == 0 || m.ID == "" || m.Model != "claude-sonnet" {
			t.Fatalf("streamed: %s, usage %v, want %s", got, m.Usage, wantBlocks)
		}
		if ignored := answer.Header.Get("X-Tandem-Ignored"); !strings.Contains(ignored, "web_search") {
			t.Errorf("ignored %q", ignored)
		}
	}
	s := serve(t, writes(twoCalls, 5, tandem.FinishStop), large)
	var m message
	if _, all := s.ask(t, "POST", "/v1/messages", fmt.Sprintf(asksClaude, "")); json.Unmarshal([]byte(all), &m) != nil ||
		m.blocks() != wantBlocks || m.Usage["input_tokens"] == 0 {
		t.Errorf("whole: %s, want %s", all, wantBlocks)
	}
	const count = `{"messages":[{"role":"user","content":"hi"}]}`
	if _, all := s.ask(t, "POST", "/v1/messages/count_tokens", count); strings.TrimSpace(all) != `{"input_tokens":10}` {
		t.Errorf("tokens: %s", all)
	}
}

// promptOf returns what the model reads for a body.
func (s *site) promptOf(t *testing.T, last *tandem.Request, body string) string {
	t.Helper()
	if answer, all := s.ask(t, "POST", "/v1/messages?beta=true", body); answer.StatusCode != 200 {
		t.Fatalf("%s: %s: %s", body, answer.Status, all)
	}
	return alphabet{}.DecodeWritten(last.Tokens)
}

// TestMessagesForms: what Claude Code and others send becomes a conversation.
func TestMessagesForms(t *testing.T) {
	var last tandem.Request
	s := serve(t, written(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		last = r
		return writes("ok", 1, tandem.FinishStop)(ctx, r, sink)
	}), large)
	for _, tc := range []struct{ body, want string }{
		{`{"max_tokens":5,"system":"s","messages":[{"role":"user","content":"a"}]}`, "<s>system: s\nuser: a\n"},
		{`{"max_tokens":5,"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=1; cch=12ab"},{"type":"text","text":"s",
			"cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":null},
			{"type":"text","text":"b"}]},{"role":"system","content":"now"}],"context_management":{"edits":[{"type":"x","keep":"all"}]},
			"thinking":{"type":"adaptive"},"output_config":{"effort":"high"},"metadata":{"user_id":"u"},"tools":[]}`,
			"<s>system: s\nuser: a\nb\n\nnow\n"},
		{`{"max_tokens":5,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"x"},
			{"type":"text","text":"b"},{"type":"tool_use","id":"toolu_1","name":"f","input":{"k":1}}]},{"role":"user","content":[{"type":"tool_result",
			"tool_use_id":"toolu_1","content":[{"type":"text","text":"r"}]},{"type":"tool_result","tool_use_id":"toolu_1","content":"q"},
			{"type":"text","text":"go on"}]}]}`, "<s>user: a\nassistant: b\ntool: r\ntool: q\nuser: go on\n"},
		{`{"max_tokens":5,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"{"}]}`, "<s>user: a\nassistant: {\ngoes on\n"},
		{`{"max_tokens":5,"messages":[{"role":"user","content":"a"}],"thinking":{"type":"enabled","budget_tokens":1024}}`,
			"<s>enable_thinking=true\nuser: a\n"},
		{`{"max_tokens":5,"messages":[{"role":"user","content":"a"}],"thinking":{"type":"disabled"}}`, "<s>enable_thinking=false\nuser: a\n"},
		{`{"max_tokens":5,"messages":[{"role":"user","content":"a"}],"output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}}`,
			"<s>system: Answer with one JSON value that follows this JSON Schema, and with nothing else:\n{\"type\":\"object\"}\n" +
				"user: a\n"},
	} {
		if got := s.promptOf(t, &last, tc.body); got != tc.want {
			t.Errorf("%s\nis read as %q\nwant %q", tc.body, got, tc.want)
		}
	}
	const block = `{"max_tokens":5,"system":[{"type":"text","text":"x-anthropic-billing-header: %d"},{"type":"text","text":"s"}],` +
		`"messages":[{"role":"user","content":"a"}]}`
	if a, b := s.promptOf(t, &last, fmt.Sprintf(block, 1)), s.promptOf(t, &last, fmt.Sprintf(block, 2)); a != b {
		t.Errorf("the block that says who asks changes the prompt: %q, %q", a, b)
	}
	kept := serve(t, written(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		last = r
		return writes("ok", 1, tandem.FinishStop)(ctx, r, sink)
	}), func(c *Config) { large(c); c.KeepAttribution = true })
	if got := kept.promptOf(t, &last, fmt.Sprintf(block, 1)); !strings.Contains(got, "billing-header: 1") {
		t.Errorf("the block is kept where that is asked for: %q", got)
	}
}

// TestMessagesRefused: errors have this API's form, and words that programs look for.
func TestMessagesRefused(t *testing.T) {
	s := serve(t, writes("ok", 1, tandem.FinishStop), nil)
	const user = `"messages":[{"role":"user","content":"a"}]`
	for body, want := range map[string]string{
		`{` + user + `}`:                             "400 invalid_request_error max_tokens is missing",
		`{"max_tokens":0,` + user + `}`:              "400 invalid_request_error max_tokens is 0",
		`{"max_tokens":1}`:                           "400 invalid_request_error messages is missing",
		`{"max_tokens":1,"messages":[{"role":"x"}]}`: "400 invalid_request_error messages[0].role",
		`{"max_tokens":"x",` + user + `}`:            "400 invalid_request_error max_tokens is \"x\": want an integer",
		`[]`:                                         "400 invalid_request_error the body is",
		`{"max_tokens":1,"thread":{"type":"create"},` + user + `}`:                                   "400 invalid_request_error thread is not supported",
		`{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]}`:     "400 invalid_request_error messages[0].content[0].type",
		`{"max_tokens":1,"tool_choice":{"type":"tool","name":"h"},` + user + `}`:                     "400 invalid_request_error tool_choice asks",
		`{"max_tokens":1,"messages":[{"role":"user","content":"` + strings.Repeat("a", 100) + `"}]}`: "400 invalid_request_error prompt is too long: 108 tokens > 63 maximum",
		`{"max_tokens":1,"temperature":-1,` + user + `}`:                                             "400 invalid_request_error temperature",
	} {
		answer, all := s.ask(t, "POST", "/v1/messages", body)
		var e struct {
			Type  string
			Error struct {
				Type, Message string
				Details       json.RawMessage
			}
		}
		if err := json.Unmarshal([]byte(all), &e); err != nil || e.Type != "error" {
			t.Errorf("%s: %s, %v", body, all, err)
		}
		if got := fmt.Sprintf("%d %s %s", answer.StatusCode, e.Error.Type, e.Error.Message); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
		const details = `{"error_code":"thread_unsupported_request","unsupported":[]}`
		if thread := strings.Contains(body, "thread"); thread != (string(e.Error.Details) == details) {
			t.Errorf("%s: details %s", body, e.Error.Details)
		}
	}
	keyed := serve(t, writes("ok", 1, tandem.FinishStop), func(c *Config) { large(c); c.Keys = keysOf(t, "k") })
	if answer, all := keyed.ask(t, "POST", "/v1/messages", `{"max_tokens":1,`+user+`}`, "x-api-key", "j"); answer.StatusCode != 401 ||
		!strings.Contains(all, "authentication_error") {
		t.Errorf("a wrong key: %s: %s", answer.Status, all)
	}
	if answer, _ := keyed.ask(t, "POST", "/v1/messages", `{"max_tokens":1,`+user+`}`, "x-api-key", "k"); answer.StatusCode != 200 {
		t.Errorf("the right key: %s", answer.Status)
	}
}

// TestMessagesStopSequence: which stop sequence ended the text is told, whole and in a stream, and not where something else ended it.
func TestMessagesStopSequence(t *testing.T) {
	ends := func(text string, result tandem.Result) written {
		return func(_ context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
			if err := sink.Started(tandem.Started{Request: r}); err != nil {
				return result, err
			}
			return result, sink.Delta(tandem.Delta{Text: text, Tokens: []tandem.Token{1}, Origins: []tandem.Origin{0}})
		}
	}
	for _, tc := range []struct {
		text string
		res  tandem.Result
		want string
	}{
		{"a", tandem.Result{Finish: tandem.FinishStop, Stopped: "##"}, `"stop_reason":"stop_sequence","stop_sequence":"##"`},
		{"a", tandem.Result{Finish: tandem.FinishStop}, `"stop_reason":"end_turn","stop_sequence":null`},
		{"a", tandem.Result{Finish: tandem.FinishLength}, `"stop_reason":"max_tokens","stop_sequence":null`},
		{twoCalls, tandem.Result{Finish: tandem.FinishStop, Stopped: "##"}, `"stop_reason":"tool_use","stop_sequence":null`},
	} {
		s := serve(t, ends(tc.text, tc.res), large)
		for _, fields := range []string{`,"stop_sequences":["##"]`, `,"stop_sequences":["##"],"stream":true`} {
			if _, all := s.ask(t, "POST", "/v1/messages", fmt.Sprintf(asksClaude, fields)); !strings.Contains(all, tc.want) {
				t.Errorf("%+v%s: %s, want %s", tc.res, fields, all, tc.want)
			}
		}
	}
}
