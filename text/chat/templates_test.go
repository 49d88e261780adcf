package chat

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

const tools = `[{"type": "function", "function": {"name": "get_weather", "description": "Tells the \"weather\" of <a city>", "parameters": {` +
	`"type": "object", "properties": {"city": {"type": "string", "description": "The city's name"}, "unit": {"type": "string", "enum": ` +
	`["C", "F"], "default": "C"}, "days": {"type": "array", "items": {"type": "integer"}, "minItems": 1}, "exact": {"type": ["boolean", "null"]}, ` +
	`"place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}}, "required": ["city"]}}}, ` +
	`{"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}]`

const calls = `[{"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": ` +
	`"{\"city\": \"Zürich\", \"days\": [1, 2], \"exact\": true, \"place\": {\"lat\": 47.4}}"}}, ` +
	`{"id": "call00002", "type": "function", "function": {"name": "now", "arguments": "{}"}}]`

// conversations are what TestTemplates renders with each template.
var conversations = []struct {
	messages []Message
	o        Options
}{
	{say("user", " Hi <b>\"you\"</b>\n"), Options{AddGenerationPrompt: true}},
	{say("system", "Be brief.\n", "user", "One?", "assistant", " 1 ", "user", "Two?"), Options{AddGenerationPrompt: true}},
	{append(say("user", "Why?"), Message{Role: "assistant", Content: "So.", Reasoning: "Hm.\n"}, Message{Role: "user", Content: "And?"},
		Message{Role: "assistant", Content: "<think>\nfirst\n</think>\n\nDone."}),
		Options{Extra: map[string]json.RawMessage{"enable_thinking": []byte("false")}}},
	{say("system", "Be brief.", "user", "Weather?"), Options{AddGenerationPrompt: true, Tools: json.RawMessage(tools)}},
	{append(say("user", "Weather?"), Message{Role: "assistant", Reasoning: "I ask.", ToolCalls: json.RawMessage(calls)},
		Message{Role: "tool", Content: `{"t": 12.50, "sky": "é"}`, Name: "get_weather", ToolCallID: "call00001"},
		Message{Role: "tool", Content: "noon", Name: "now", ToolCallID: "call00002"}),
		Options{AddGenerationPrompt: true, Tools: json.RawMessage(tools)}},
	{append(say("developer", "Rules.", "user", "Weather?"), Message{Role: "assistant", Content: "One moment.", ToolCalls: json.RawMessage(
		`[{"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Bern"}}}]`)},
		Message{Role: "tool", Content: "12", ToolCallID: "call00001"}, Message{Role: "assistant", Content: "12 C"},
		Message{Role: "user", Content: "Thanks"}), Options{AddGenerationPrompt: true, Tools: json.RawMessage(tools), Extra: extra}},
}

var extra = map[string]json.RawMessage{"enable_thinking": []byte("true"), "thinking": []byte("true"), "reasoning_effort": []byte(`"high"`),
	"date_string": []byte(`"1 May 2026"`), "builtin_tools": []byte(`["python"]`), "custom_tools": []byte("null"),
	"documents": []byte(`[{"doc_id": 1, "text": "Some text", "title": "T"}]`)}

// TestTemplates renders conversations by the templates of published models: each as recorded, when Jinja2 rendered them so too.
func TestTemplates(t *testing.T) {
	const folder = "testdata/templates/"
	files, err := filepath.Glob(folder + "*.jinja")
	if err != nil || len(files) < 100 {
		t.Fatalf("%d templates, %v", len(files), err)
	}
	recorded, err := os.ReadFile(folder + "OUTPUTS")
	if err != nil && !*testkit.Rewrite {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(recorded)) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		want[name] = rest
	}
	var all strings.Builder
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".jinja")
		got := outputs(t, file)
		fmt.Fprintf(&all, "%s %s\n", name, got)
		if got != want[name] && !*testkit.Rewrite {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want[name])
		}
		delete(want, name)
	}
	if *testkit.Rewrite {
		if err := os.WriteFile(folder+"OUTPUTS", []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if len(want) > 0 {
		t.Errorf("outputs of templates that are not there: %v", want)
	}
}

// outputs returns a digest of what each conversation becomes: "refused" and the message's where the template raises an exception,
// "unsupported" where it does what the sandbox does not allow, "error" where it fails otherwise.
func outputs(t *testing.T, file string) string {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	template, err := Parse(string(source), llama)
	if err != nil {
		t.Errorf("%s: %v", file, err)
		return ""
	}
	var digests []string
	for _, c := range conversations {
		c.o.Now = time.Date(2026, 3, 7, 12, 34, 56, 0, time.UTC)
		out, err := template.Render(context.Background(), c.messages, c.o)
		digest := fmt.Sprintf("%x", sha256.Sum256([]byte(out.Text)))[:12]
		switch {
		case err == nil:
		case errors.Is(err, tandem.Unsupported):
			digest = "unsupported"
		case strings.Contains(err.Error(), "refuses the conversation"):
			digest = fmt.Sprintf("refused:%x", sha256.Sum256([]byte(err.Error())))[:16]
		default:
			digest = "error"
		}
		digests = append(digests, digest)
	}
	return strings.Join(digests, " ")
}
