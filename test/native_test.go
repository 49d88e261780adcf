package test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestAPIsOfOthers: of two requests of Claude Code that differ in the block that says who asks, the second finds the first's prompt
// computed; llama.cpp's API gives the text of OpenAI's, a slot for each session; all is counted.
func TestAPIsOfOthers(t *testing.T) {
	g := upWeb(t, template, "--sessions", "2")
	ask := func(path, body string, to any) {
		t.Helper()
		if status, all := g.ask(t, "POST", path, body); status != 200 || json.Unmarshal([]byte(all), to) != nil {
			t.Fatalf("%s: %d: %s", body, status, all)
		}
	}
	const asks = `{"max_tokens":4,"system":[{"type":"text","text":"x-anthropic-billing-header: cch=%d%d"},{"type":"text","text":%q}],` +
		`"messages":[{"role":"user","content":"Write a reader."}]}`
	var m struct {
		Usage struct {
			Input  int `json:"input_tokens"`
			Cached int `json:"cache_read_input_tokens"`
		}
	}
	for turn := range 2 {
		ask("/v1/messages", fmt.Sprintf(asks, turn, turn, longPrompt(t)[:600]), &m)
		all := m.Usage.Cached + m.Usage.Input
		if turn == 0 && m.Usage.Cached != 0 || turn == 1 && (m.Usage.Input > pageTokens || all < 2*pageTokens) {
			t.Errorf("turn %d: %d tokens computed, %d found", turn, m.Usage.Input, m.Usage.Cached)
		}
		g.idle(t)
	}

	const fields = `"prompt":"import os","temperature":0.8,"seed":5,"stop":["zzz"],"stream":false`
	var native struct {
		Content  string
		Stop     string                `json:"stop_type"`
		Settings struct{ Seed uint64 } `json:"generation_settings"`
	}
	var completion struct {
		Choices []struct{ Text string }
	}
	ask("/completion", `{"n_predict":24,`+fields+`}`, &native)
	ask("/v1/completions", `{"max_tokens":24,`+fields+`}`, &completion)
	if native.Content == "" || native.Content != completion.Choices[0].Text || native.Settings.Seed != 5 || native.Stop == "" {
		t.Errorf("%+v, want the text %q", native, completion.Choices[0].Text)
	}
	if status, all := g.ask(t, "POST", "/infill", `{"input_prefix":"a","input_suffix":"b"}`); status != 400 || !strings.Contains(all, "cannot fill in text") {
		t.Errorf("a model without markers: %d: %s", status, all)
	}
	var slots []struct {
		ID      int
		Context int `json:"n_ctx"`
	}
	if status, all := g.ask(t, "GET", "/slots", ""); status != 200 || json.Unmarshal([]byte(all), &slots) != nil || len(slots) != 2 ||
		slots[1].ID != 1 || slots[1].Context == 0 {
		t.Errorf("slots: %d: %s", status, all)
	}
	_, all := g.ask(t, "GET", "/metrics", "")
	for _, line := range []string{`tandem_dialect_requests_total{dialect="messages",name="",process="gateway"} 2`,
		`tandem_dialect_requests_total{dialect="llama.cpp",name="",process="gateway"} 2`,
		`tandem_ignored_fields_total{dialect="messages",field="x-anthropic-billing-header",name="",process="gateway"} 2`} {
		if !strings.Contains(all, line) {
			t.Errorf("metrics lack %s", line)
		}
	}
}
