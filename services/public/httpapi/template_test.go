package httpapi

import (
	"context"
	"net/http"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestTemplateOfChats: /apply-template answers with the prompt that a chat with the same body has, and refuses what a chat refuses, in the
// same words.
func TestTemplateOfChats(t *testing.T) {
	var prompt []tandem.Token
	s := serve(t, written(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		prompt = slices.Clone(r.Tokens)
		return writes("a", 1, tandem.FinishStop)(ctx, r, sink)
	}), func(c *Config) { large(c); c.Strict = false })
	const (
		said  = `"messages":[{"role":"developer","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]}]`
		begun = `"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]`
		empty = `"messages":[{"role":"user","content":"a"},{"role":"assistant","content":""}]`
		flat  = `"tools":[{"type":"function","name":"f","parameters":{"properties":{}}}]`
	)
	rendered, refused := 0, 0
	for _, body := range []string{said, begun, empty, begun + `,"continue_final_message":true`, begun + `,"add_generation_prompt":false`,
		said + `,"continue_final_message":true`, said + "," + fAndG, said + "," + flat, said + `,"tools":[]`, said + `,"tools":[{"type":"x"}]`,
		said + `,"tools":[{"type":"function"}]`, said + "," + fAndG + `,"tool_choice":"none"`, said + "," + fAndG + `,"tool_choice":"auto"`,
		said + "," + fAndG + `,"tool_choice":"required"`, said + "," + fAndG + `,"tool_choice":"any"`,
		said + "," + fAndG + `,"tool_choice":"maybe"`, said + `,"tool_choice":"required"`,
		said + "," + fAndG + `,"tool_choice":{"type":"function","function":{"name":"g"}}`,
		said + "," + fAndG + `,"tool_choice":{"type":"function","function":{"name":"h"}}`,
		said + "," + fAndG + `,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"name":"f"}]}}`,
		said + "," + fAndG + `,"tool_choice":"required","parallel_tool_calls":false`,
		said + `,"enable_thinking":true,"chat_template_kwargs":{"style":1,"other":2},"reasoning_effort":"none"`,
		said + `,"temperature":0.5,"stop":["x"],"max_tokens":3,"seed":1,"model":"other","user":"u","cache_prompt":true,"unheard":1`,
		said + `,"temperature":"hot"`, said + `,"n":0`, said + `,"top_logprobs":2`, said + `,"grammar":"x"`, `"tools":[]`,
	} {
		body = "{" + body + "}"
		prompt = nil
		chat, all := s.ask(t, "POST", "/v1/chat/completions", body)
		template, got := s.ask(t, "POST", "/apply-template", body)
		switch {
		case chat.StatusCode != template.StatusCode || chat.Header.Get("X-Tandem-Ignored") != template.Header.Get("X-Tandem-Ignored"):
			t.Errorf("%s: a chat answers %s %v %s\nthe template %s %v %s", body, chat.Status, chat.Header, all, template.Status,
				template.Header, got)
		case chat.StatusCode != http.StatusOK:
			refused++
			if c, a := refusal(t, chat, all), refusal(t, template, got); c.Message != a.Message || c.Param != a.Param || c.Code != a.Code {
				t.Errorf("%s: a chat is refused with %+v, the template with %+v", body, c, a)
			}
		default:
			rendered++
			if want := (alphabet{}).DecodeWritten(prompt); object(t, got)["prompt"] != want[len("<s>"):] {
				t.Errorf("%s: a chat's prompt is %q, the template's %s", body, want, got)
			}
		}
	}
	if rendered < 15 || refused < 5 {
		t.Errorf("%d bodies were rendered and %d refused", rendered, refused)
	}
}
