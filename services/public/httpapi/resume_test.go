package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// whole returns the events of a complete stream, without the one that says so.
func whole(t *testing.T, stream string) []event {
	t.Helper()
	all := events(t, strings.NewReader(stream))
	if n := len(all); n == 0 || all[n-1].data != "[DONE]" {
		t.Fatalf("the stream does not end: %.300q", stream)
	}
	return all[:len(all)-1]
}

// heard is what a client makes of the events of a stream: what each choice says, in order, and the heads that came.
func heard(t *testing.T, all []event) string {
	t.Helper()
	said, heads := map[int]*strings.Builder{}, map[string]bool{}
	for _, e := range all {
		var c struct {
			ID      string
			Created int64
			Choices []struct {
				Index    int
				Text     string
				Finish   string `json:"finish_reason"`
				Logprobs struct {
					Tokens  []string
					Offsets []int `json:"text_offset"`
				}
				Delta struct {
					Role, Content string
					Reasoning     string `json:"reasoning_content"`
					Calls         []struct {
						Index    int
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
			}
		}
		if err := json.Unmarshal([]byte(e.data), &c); err != nil {
			t.Fatalf("%s: %v", e.data, err)
		}
		heads[fmt.Sprint(c.ID, c.Created)] = true
		for _, x := range c.Choices {
			b := said[x.Index]
			if b == nil {
				b = new(strings.Builder)
				said[x.Index] = b
			}
			add := func(k, text string) {
				if text != "" {
					fmt.Fprint(b, map[bool]string{true: "[" + k + "]"}[k != "t"], text)
				}
			}
			add("role", x.Delta.Role)
			add("t", x.Delta.Content+x.Text)
			add("thought", x.Delta.Reasoning)
			for _, call := range x.Delta.Calls {
				add("call", call.Function.Name)
				add("args", call.Function.Arguments)
			}
			add("finish", x.Finish)
			for i, token := range x.Logprobs.Tokens {
				fmt.Fprintf(b, "{%s@%d}", token, x.Logprobs.Offsets[i])
			}
		}
	}
	var out strings.Builder
	for i := range len(said) {
		fmt.Fprintf(&out, "%d: %s\n", i, strings.NewReplacer("[thought]", "", "[args]", "").Replace(said[i].String()))
	}
	return fmt.Sprint(out.String(), len(heads), " heads")
}

// TestStreamTakenUp: behind each event of a stream another server goes on, whatever pieces it writes in, and the client has the whole.
func TestStreamTakenUp(t *testing.T) {
	const chat = `{"messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":99,` + fAndG + `}`
	const plain = `{"prompt":"hi","stream":true,"max_tokens":7,"n":3,"seed":4}`
	for _, tc := range []struct {
		name, path, body string
		first, second    tandem.Generator
	}{
		{"small pieces", "/v1/chat/completions", chat, writes(twoCalls, 7, tandem.FinishStop), writes(twoCalls, 3, tandem.FinishStop)},
		{"large pieces", "/v1/chat/completions", chat, writes(twoCalls, 2, tandem.FinishStop), writes(twoCalls, 60, tandem.FinishStop)},
		{"three choices", "/v1/completions", plain, script(nil), script(nil)},
		{"log-probabilities", "/v1/completions", strings.Replace(plain, `"n":3`, `"logprobs":2,"n":2`, 1), script(nil), script(nil)},
		{"a seed of its own", "/v1/completions", `{"prompt":"hi","stream":true,"max_tokens":9}`, script(nil), script(nil)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := serve(t, tc.first, large), serve(t, tc.second, large)
			_, all := a.ask(t, "POST", tc.path, tc.body)
			sent := whole(t, all)
			want := heard(t, sent)
			for i, e := range sent {
				if e.id == "" {
					t.Fatalf("event %d has no id: %s", i, e.data)
				}
				answer, rest := b.ask(t, "POST", tc.path, tc.body, "Last-Event-ID", e.id)
				if answer.StatusCode != http.StatusOK {
					t.Fatalf("behind %s: %s: %s", e.id, answer.Status, rest)
				}
				if got := heard(t, slices.Concat(sent[:i+1], whole(t, rest))); got != want {
					t.Fatalf("taken up behind event %d, %s:\n%s\nwant\n%s", i, e.id, got, want)
				}
			}
		})
	}
}

// TestStreamTakenUpRefused: another request, other arithmetic, and garbage in place of an id.
func TestStreamTakenUpRefused(t *testing.T) {
	const body = `{"prompt":"hi","stream":true,"max_tokens":4}`
	s := serve(t, script(nil), nil)
	_, all := s.ask(t, "POST", "/v1/completions", body)
	id := whole(t, all)[1].id
	for _, tc := range []struct {
		path, body, id string
		status         int
		code, says     string
	}{
		{"/v1/completions", body + " ", id, http.StatusConflict, "other_request", "byte for byte"},
		{"/v1/completions", strings.Replace(body, "hi", "ho", 1), id, http.StatusConflict, "other_request", "another request"},
		{"/v1/completions", body, "17", http.StatusBadRequest, "bad_event_id", `Last-Event-ID is "17"`},
		{"/v1/completions", body, strings.Repeat("9", 5000), http.StatusBadRequest, "bad_event_id", "want the id of an event"},
		{"/v1/completions", body, id + ",3", http.StatusConflict, "other_request", "2 choices: this request has 1"},
		{"/v1/completions", body, id + "-", http.StatusBadRequest, "bad_event_id", "want the id of an event"},
		{"/v1/completions", body, strings.Replace(id, "-", "--", 1), http.StatusBadRequest, "bad_event_id", "want the id of an event"},
	} {
		p := s.refused(t, "POST", tc.path, tc.body, "Last-Event-ID", tc.id)
		if p.status != tc.status || p.Code != tc.code || !strings.Contains(p.Message, tc.says) {
			t.Errorf("%s with %.80s: %d %s %q: want %d %s with %q", tc.body, tc.id, p.status, p.Code, p.Message, tc.status, tc.code,
				tc.says)
		}
	}
	parts := strings.Split(id, "-")
	parts[3] = "00000000"
	if p := s.refused(t, "POST", "/v1/completions", body, "Last-Event-ID", strings.Join(parts, "-")); p.status != http.StatusBadRequest ||
		!strings.Contains(p.Message, "other arithmetic") {
		t.Errorf("of another identity: %d %q: want a refusal", p.status, p.Message)
	}
	if _, whole := s.ask(t, "POST", "/v1/completions", `{"prompt":"hi"}`, "Last-Event-ID", "17"); !strings.Contains(whole, "choices") {
		t.Errorf("an answer at once: %s: want the header ignored", whole)
	}
}

// takenUpEverywhere asks for a stream and, behind each of its events with an id, another server for the rest. check gets the stream that a
// client has then.
func takenUpEverywhere(t *testing.T, path, body string, first, second tandem.Generator, check func(all []event)) {
	t.Helper()
	a, b := serve(t, first, large), serve(t, second, large)
	_, all := a.ask(t, "POST", path, body)
	sent, ids := events(t, strings.NewReader(all)), 0
	check(sent)
	for i, e := range sent {
		if e.id == "" {
			continue
		}
		ids++
		answer, rest := b.ask(t, "POST", path, body, "Last-Event-ID", e.id)
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("behind %s: %s: %s", e.id, answer.Status, rest)
		}
		if check(slices.Concat(sent[:i+1], events(t, strings.NewReader(rest)))); t.Failed() {
			t.Fatalf("taken up behind event %d, %+v", i, e)
		}
	}
	if ids < 10 {
		t.Errorf("%d events have ids: want most", ids)
	}
}

// TestMessagesTakenUp: behind each event of a message another server goes on, whatever pieces it writes in, and the message is whole: its
// blocks begin and end once.
func TestMessagesTakenUp(t *testing.T) {
	for _, pieces := range [][2]int{{7, 3}, {2, 60}} {
		want := ""
		takenUpEverywhere(t, "/v1/messages", fmt.Sprintf(asksClaude, `,"stream":true`), writes(twoCalls, pieces[0], tandem.FinishStop),
			writes(twoCalls, pieces[1], tandem.FinishStop), func(all []event) {
				m := messageFrom(t, all)
				got := fmt.Sprint(m.ID, m.blocks()) // the two servers count other tokens
				for _, b := range m.Content {
					if b.Type == "tool_use" && b.ID == "" {
						t.Errorf("a call without an id: %+v", b)
					}
				}
				if want == "" {
					want = got
				}
				if got != want || m.blocks() != wantBlocks {
					t.Errorf("%s\nwant\n%s", got, want)
				}
			})
	}
}

// TestResponsesTakenUp: the same for the Responses API. Events are numbered through, and the last one holds the items that the client saw.
func TestResponsesTakenUp(t *testing.T) {
	for _, pieces := range [][2]int{{7, 3}, {2, 60}} {
		want := ""
		takenUpEverywhere(t, "/v1/responses", `{"model":"m","input":"hi","stream":true,"tools":[{"type":"function","name":"f"},`+
			`{"type":"custom","name":"g"}]}`, writes(twoCalls, pieces[0], tandem.FinishStop), writes(twoCalls, pieces[1], tandem.FinishStop),
			func(all []event) {
				got := responseFrom(t, all)
				if want == "" {
					want = got
				}
				if got != want || !strings.Contains(got, "I look.") {
					t.Errorf("%s\nwant\n%s", got, want)
				}
			})
	}
}

// responseFrom returns what a client makes of the events of a response: the deltas of each item, the kinds of the other events, and the
// response that the last one holds. It checks the numbers of events.
func responseFrom(t *testing.T, all []event) string {
	t.Helper()
	said, order, last := map[string]string{}, "", ""
	for i, part := range all {
		var e struct {
			Type     string
			Sequence int    `json:"sequence_number"`
			ItemID   string `json:"item_id"`
			Delta    string
			Response json.RawMessage
		}
		if err := json.Unmarshal([]byte(part.data), &e); err != nil || part.kind != e.Type || e.Sequence != i {
			t.Fatalf("event %d: %+v: %v", i, part, err)
		}
		if e.Delta != "" {
			said[e.ItemID] += e.Delta
		} else {
			order += e.Type + " "
		}
		last, _, _ = strings.Cut(string(e.Response), `"usage":{`) // the two servers count other tokens
	}
	return fmt.Sprint(said, order, last)
}

// TestTakenUpRefusedInItsForm: ids of other requests are refused in the form of each API.
func TestTakenUpRefusedInItsForm(t *testing.T) {
	s := serve(t, writes("text", 2, tandem.FinishStop), large)
	_, all := s.ask(t, "POST", "/v1/messages", fmt.Sprintf(asksClaude, `,"stream":true`))
	id := events(t, strings.NewReader(all))[0].id
	for _, tc := range []struct{ path, body, id, says string }{
		{"/v1/messages", fmt.Sprintf(asksClaude, `,"stream":true,"top_k":3`), id, "another request"},
		{"/v1/messages", fmt.Sprintf(asksClaude, `,"stream":true`), "17", `Last-Event-ID is \"17\"`},
		{"/v1/responses", `{"input":"hi","stream":true}`, id, "another request"},
	} {
		answer, text := s.ask(t, "POST", tc.path, tc.body, "Last-Event-ID", tc.id)
		if answer.StatusCode < 400 || answer.StatusCode > 499 || !strings.Contains(text, tc.says) {
			t.Errorf("%s behind %s: %s: %s: want a refusal with %q", tc.path, tc.id, answer.Status, text, tc.says)
		}
	}
	for path, body := range map[string]string{"/v1/messages": fmt.Sprintf(asksClaude, ""), "/v1/responses": `{"input":"hi"}`} {
		if answer, text := s.ask(t, "POST", path, body, "Last-Event-ID", "17"); answer.StatusCode != http.StatusOK {
			t.Errorf("%s at once: %s: %s: want the header ignored", path, answer.Status, text)
		}
	}
}
