package test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/test/testkit"
)

// constraints are forms of outputs that end by themselves.
var constraints = []client.Constraint{
	{Schema: `{"type":"object","properties":{"name":{"type":"string","maxLength":20},"size":{"type":"integer","minimum":0,"maximum":99999},` +
		`"tags":{"type":"array","items":{"enum":["go","c","python"]},"maxItems":4},"open":{"type":"boolean"}},` +
		`"required":["name","size","tags","open"],"additionalProperties":false}`},
	{Schema: `{"$defs":{"n":{"type":"object","properties":{"v":{"type":["string","null"],"maxLength":8},"next":{"anyOf":[{"$ref":"#/$defs/n"},` +
		`{"type":"null"}]}},"required":["v","next"],"additionalProperties":false}},"$ref":"#/$defs/n"}`},
	{Regex: `func [A-Z][a-z]{2,12}\((a|b) int\) (string|error) \{`},
	{Choices: []string{"the first of these", "the second", "the", "日本語のテキスト"}},
}

// TestConstrainedTextAndKilledVerifier: outputs of a form are those of plain decoding with that form, token for token and with the same
// log-probabilities, over forms, seeds and strategies, also while the verifier is killed; those that end by themselves are of the form.
func TestConstrainedTextAndKilledVerifier(t *testing.T) {
	t.Parallel()
	mayBeSlow(t)
	g := up(t, "--no-measure")
	var jobs []shaped
	complete := 0
	for i, of := range constraints {
		for seed := range uint64(3) {
			r := setting{[]float64{0, 1, 0.7}[seed], seed}.request("package server\n\n// config:\n", 64)
			r.Constraint, r.Logprobs, r.TopLogprobs = &of, true, 1
			want := g.told(t, plain(r))
			if want.finished.Reason == "stop" {
				complete++
				if strings.HasPrefix(of.Schema, "{") && !json.Valid([]byte(want.text)) ||
					of.Choices != nil && !slices.Contains(of.Choices, want.text) {
					t.Errorf("form %d: %q", i, want.text)
				}
			}
			for k, strategy := range []string{"planner", "fixed", "llmcad", "minions"} {
				x := withTree(r, trees[k%len(trees)])
				x.Strategy = strategy
				jobs = append(jobs, shaped{fmt.Sprintf("form %d, seed %d, %s", i, seed, strategy), x, want})
			}
		}
	}
	if complete < len(jobs)/8 {
		t.Errorf("%d of %d texts ended by themselves", complete, len(jobs)/4)
	}
	if _, accepted := g.together(t, jobs, 0); accepted == 0 {
		t.Error("nothing that was drafted was accepted: did speculation run at all?")
	}
	reopened := 0
	for _, kill := range []int{2, 5} {
		again, _ := g.together(t, jobs[:8], kill)
		reopened += again
	}
	if reopened == 0 {
		t.Error("no session was opened again: was the verifier killed?")
	}
}

// TestStopWithinAForm: a stop sequence ends an answer within its form and is told, a complete answer says stop without one, a cut one says
// length and is counted; choices of one prompt have states of their own.
func TestStopWithinAForm(t *testing.T) {
	t.Parallel()
	g := upWeb(t, template, "--no-measure")
	ask := func(more string) (out struct {
		Choices []struct {
			Text   string
			Finish string `json:"finish_reason"`
		}
	}) {
		status, answer := g.ask(t, "POST", "/v1/completions", `{"prompt":"x","temperature":1,"seed":5,"guided_json":{"type":"object",`+
			`"properties":{"first":{"enum":["a","b"]},"second":{"type":"boolean"}},"required":["first","second"],"additionalProperties":false}`+more+`}`)
		if err := json.Unmarshal([]byte(answer), &out); err != nil || status != http.StatusOK {
			t.Fatalf("%d: %s", status, answer)
		}
		return out
	}
	if a := ask(`,"max_tokens":40,"stop":["second"]`).Choices[0]; a.Finish != "stop" || json.Valid([]byte(a.Text)) ||
		strings.Contains(a.Text, "second") {
		t.Errorf("with a stop sequence: %+v", a)
	}
	all := ask(`,"max_tokens":40,"n":6`).Choices
	for _, a := range all {
		if a.Finish != "stop" || !json.Valid([]byte(a.Text)) {
			t.Errorf("one of several choices: %+v", a)
		}
	}
	if len(all) != 6 || !slices.ContainsFunc(all, func(a struct {
		Text   string
		Finish string `json:"finish_reason"`
	}) bool {
		return a.Text != all[0].Text
	}) {
		t.Errorf("%d choices, all alike: %+v", len(all), all)
	}
	if a := ask(`,"max_tokens":3`).Choices[0]; a.Finish != "length" || json.Valid([]byte(a.Text)) {
		t.Errorf("with three tokens: %+v", a)
	}
	if _, metrics := g.ask(t, "GET", "/metrics", ""); !strings.Contains(metrics, `tandem_constraints_total{event="cut"`) {
		t.Error("the cut answer is not counted")
	}
}

// TestManyConstrainedRequestsAndKills: a hundred requests with forms at once, each with its own schema, in several dialects, while drafter
// and verifier are killed again and again. All are answered with 200, each complete answer is of its form, and each has an end.
func TestManyConstrainedRequestsAndKills(t *testing.T) {
	t.Parallel()
	mayBeSlow(t)
	g := upWeb(t, template, "--no-measure", "--sessions", "8")
	const schema = `{"type":"object","properties":{"a":{"type":"string","maxLength":%d},"b":{"type":"integer","minimum":-9,"maximum":%d}},` +
		`"required":["a","b"],"additionalProperties":false}`
	bodies := []struct{ path, body string }{
		{"/v1/chat/completions",
			`{"messages":[{"role":"user","content":"go %d"}],"max_tokens":80,"temperature":1,"seed":%d,"response_format":` +
				`{"type":"json_schema","json_schema":{"name":"n","schema":` + schema + `}}}`},
		{"/v1/completions", `{"prompt":"go %d","max_tokens":80,"temperature":1,"seed":%d,"guided_json":` + schema + `}`},
		{"/api/generate", `{"prompt":"go %d","stream":false,"options":{"num_predict":80,"seed":%d},"format":` + schema + `}`},
		{"/v1/chat/completions",
			`{"messages":[{"role":"user","content":"go %d"}],"max_tokens":80,"temperature":1,"seed":%d,"tool_choice":` +
				`"required","tools":[{"type":"function","function":{"name":"f","parameters":` + schema + `}}]}`},
	}
	const requests = 100
	var wg sync.WaitGroup
	var done, complete atomic.Int32
	for i := range requests {
		wg.Go(func() {
			defer done.Add(1)
			b, long, most := bodies[i%len(bodies)], 1+i%25, i/25 // of i's own schema
			status, answer := 0, ""
			testkit.Until(func() bool { // the queue is bounded; a client asks again
				status, answer = g.ask(t, "POST", b.path, fmt.Sprintf(b.body, i, i, long, most))
				return status != http.StatusTooManyRequests
			})
			switch {
			case status != http.StatusOK:
				t.Errorf("%s: %d: %s", b.path, status, answer)
			case strings.Contains(answer, `"stop"`) || strings.Contains(answer, `"tool_calls"`):
				if !hasForm(answer, long, most) {
					t.Errorf("%s: %s", b.path, answer)
				}
				complete.Add(1)
			}
		})
	}
	r, kills := newRandom(t), 0
	for next := int32(2); next < requests && !t.Failed(); next += 12 {
		testkit.Until(func() bool { return done.Load() >= next })
		role := []string{"drafter", "verifier"}[r.IntN(2)]
		victim := g.w.one(t, role)
		_ = syscall.Kill(victim, syscall.SIGKILL)
		g.back(t, role, victim)
		kills++
	}
	wg.Wait()
	t.Logf("%d complete answers of %d, %d kills", complete.Load(), requests, kills)
	if kills < 2 || complete.Load() < requests/2 {
		t.Errorf("%d complete answers of %d, %d kills: the test shows little", complete.Load(), requests, kills)
	}
}

// hasForm reports whether an answer in any dialect holds an object with a string a of at most long characters and an integer b from -9 to
// most.
func hasForm(answer string, long, most int) bool {
	var all struct {
		Response string
		Choices  []struct {
			Text    string
			Message struct {
				Content   string
				ToolCalls []struct{ Function struct{ Arguments string } } `json:"tool_calls"`
			}
		}
	}
	if json.Unmarshal([]byte(answer), &all) != nil {
		return false
	}
	text := all.Response
	for _, c := range all.Choices {
		text += c.Text + c.Message.Content
		if len(c.Message.ToolCalls) > 0 {
			text = c.Message.ToolCalls[0].Function.Arguments
		}
	}
	var of struct {
		A *string
		B *int
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(&of) == nil && of.A != nil && of.B != nil && len([]rune(*of.A)) <= long && *of.B >= -9 && *of.B <= most
}
