package calls

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// typed offers tools whose schemas have all that values follow.
const typed = `[{"function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"},
	"b": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "c": {"$ref": "#/$defs/C"}, "d": {"type": "array", "items": {"type": "boolean"}}},
	"$defs": {"C": {"oneOf": [{"$ref": "#/$defs/C"}, {"type": "object", "properties": {"a": {"enum": ["1", "x"]}}}]}}}}},
	{"function": {"name": "list", "parameters": {}}}]`

var formats = []*Format{Hermes, qwenCoder, glm, llama, mistral, deepseek, granite, functionGemma, gemma4, harmony, kimi,
	glm4, functionary, pythonic}

// markers are those of a format, which outputs may hold anywhere.
func markers(f *Format) []string {
	all := append(f.marks(), f.think[0], f.think[1])
	if f.channel {
		all = append(all, ends...)
		all = append(all, "<|message|>", "<|channel|>analysis<|message|>", "<|channel|>commentary to=functions.f<|message|>")
	}
	return all
}

// fragments are what outputs are made of, besides markers.
var fragments = []string{`{"name": "f", "arguments": {"a": "x", "b": 1}}`, `{"name": "list"}`, `{"name": "f", "arguments": {`, `}`, `}}`, `]`, `[`,
	`"a": `, `"x`, `"`, `\d`, `\n`, `,`, `; `, ` `, "\n", "\n\n", `:`, `True`, `null`, `12`, "```", "```json\n", "~~~", "\n```\n", `<think>`,
	`</think>`, `<tool_call>`, `</tool_call>`, `<function=f>`, `<parameter=a>`, `</parameter>`, `</function>`, `<arg_key>a</arg_key>`,
	`<arg_value>`, `</arg_value>`, `f`, `list`, `[f(a="x", b=None)]`, `call:f{a:`, `call:list{}`, `f[ARGS]{}`, `function`, "f\n```json\n{}\n```",
	`Hello`, `{"a": 1}`, `{{`, `<`, `"arguments": "{\"a\": 1}"`, `'`, `é`, `}}</tool_call>`}

// written are calls in all forms, whole.
var written = []string{"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}\n</tool_call>", `<tool_call>{"name": "list"}</tool_call>`,
	"```json\n{\"name\": \"f\", \"arguments\": {\"a\": \"```\"}}\n```\n", `{"name": "f", "arguments": {"a": "x",}}; {"name": "list"}`,
	"<tool_call>\n<function=f>\n<parameter=a>\n1</function>\n</parameter>\n<parameter=b>\nNone\n</parameter>\n</function>\n</tool_call>",
	"<tool_call>f\n<arg_key>d</arg_key>\n<arg_value>[True]</arg_value>\n</tool_call>", `[f(a="]", c={'a': 1}), list()]`,
	`[TOOL_CALLS]f[ARGS]{"a": "\d"}`, `[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "list"}]`,
	"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": \"x\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
	`<|tool_call|>[{"name": "list", "arguments": {}}]`, `<start_function_call>call:f{a:<escape>x<escape>,b:3}<end_function_call>`,
	`<|tool_call>call:f{a:<|"|><tool_call|><|"|>,d:[true]}<tool_call|>`, `<|python_tag|>{"name": "f", "parameters": {"b": 1}}`,
	`<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "<|call|>"}<|call|>`,
	`<|channel|>analysis<|message|>Hm.<|end|>`}

// made returns a random output of a format.
func made(r *rand.Rand, f *Format) string {
	own := markers(f)
	var b strings.Builder
	for range 1 + r.IntN(14) {
		from := [][]string{own, fragments, fragments, written}[r.IntN(4)]
		b.WriteString(from[r.IntN(len(from))])
	}
	return b.String()
}

// check reports what is wrong with what a reader makes of an output, cut where r says; "" for nothing.
func check(f *Format, o Options, output string, cut bool, r *rand.Rand) string {
	whole := read(f, o, cut, output)
	var parts []string
	for rest := output; rest != ""; {
		n := 1 + r.IntN(min(len(rest), 1+r.IntN(12)))
		parts, rest = append(parts, rest[:n]), rest[n:]
	}
	if got, want := show(read(f, o, cut, parts...)), show(whole); got != want {
		return fmt.Sprintf("in parts %q it gives\n%swhole\n%s", parts, got, want)
	}
	var told strings.Builder
	calls, thoughts := 0, false
	for i, p := range whole {
		switch p.Kind {
		case Begin:
			calls++
			if i+1 == len(whole) || whole[i+1].Kind != Arguments {
				return "a call has no arguments"
			}
		case Arguments:
			var object map[string]any
			if json.Unmarshal([]byte(p.Text), &object) != nil || object == nil {
				return "arguments are no object: " + p.Text
			}
		case Thought:
			thoughts = true
			told.WriteString(p.Text)
		case Text:
			told.WriteString(p.Text)
		}
	}
	if text, ok := strings.CutPrefix(strings.TrimLeft(output, space), f.all); ok && f.all != "" {
		output = text
	}
	switch {
	case calls > 0 || f.channel:
	case !thoughts && !o.Thinking && told.String() != output && !strings.HasPrefix(strings.TrimLeft(output, space), f.think[0]):
		return fmt.Sprintf("no call, and the text is %q", told.String())
	case bare(told.String(), f) != bare(output, f):
		return fmt.Sprintf("no call, and the rest is %q", told.String())
	}
	return ""
}

// bare returns s without space and marks of thoughts.
func bare(s string, f *Format) string {
	s = strings.Join(strings.Fields(s), "")
	for _, m := range f.think {
		if m = strings.TrimSpace(m); m != "" {
			s = strings.ReplaceAll(s, m, "")
		}
	}
	return s
}

// TestRandom: outputs made of markers and fragments of calls, cut anywhere, are told as they are whole; arguments are objects; of an
// output without calls nothing is lost.
func TestRandom(t *testing.T) {
	seed := uint64(43)
	if testing.Verbose() {
		seed = uint64(time.Now().UnixNano())
	}
	r, told := rand.New(rand.NewPCG(seed, 1)), 0
	n := 20000
	if testing.Short() {
		n /= 10
	}
	for i := range n {
		f := formats[i%len(formats)]
		output := made(r, f)
		o := Options{Tools: Parse(json.RawMessage(typed)), Thinking: r.IntN(4) == 0 && f.think[0] != "", Single: r.IntN(5) == 0}
		cut := r.IntN(2) == 0
		if wrong := check(f, o, output, cut, r); wrong != "" {
			t.Fatalf("seed %d, %d: %s, thinking %v, cut %v: %q: %s", seed, i, f.Name, o.Thinking, cut, output, wrong)
		}
		for _, p := range read(f, o, cut, output) {
			if p.Kind == Begin {
				told++
			}
		}
	}
	if told < n/20 {
		t.Errorf("%d calls in %d outputs: the test hardly makes any", told, n)
	}
}
