package chat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestArguments: the arguments of tool calls have the form that a template wants, whichever the client sent.
func TestArguments(t *testing.T) {
	const head = `{% for m in messages %}{% for c in m.tool_calls %}`
	const end = `{% endfor %}{% endfor %}`
	object := head + `{{ c.function.arguments|tojson }}` + end
	str := head + `{{ '<' + c.function.arguments + '>' }}` + end
	for _, c := range []struct{ name, source, arguments, want string }{
		{"parsed", object, `"{\"city\":\"Rome\"}"`, `{"city": "Rome"}`},
		{"an object", object, `{"city":"Rome"}`, `{"city": "Rome"}`},
		{"numbers", object, `"{\"a\": 12345678901234567890, \"b\": 1.0, \"c\": 1, \"d\": 1e20, \"e\": -0.0}"`,
			`{"a": 12345678901234567890, "b": 1.0, "c": 1, "d": 1e+20, "e": -0.0}`},
		{"order of keys", object, `"{\"z\": 1, \"a\": 2}"`, `{"z": 1, "a": 2}`},
		{"no JSON", object, `"{city: Rome}"`, `"{city: Rome}"`},
		{"two values", object, `"{} {}"`, `"{} {}"`},
		{"nothing", object, `""`, `{}`},
		{"joined to a string", str, `"{\"city\":\"Rome\"}"`, `<{"city":"Rome"}>`},
		{"an object, joined to a string", str, `{"city":"Rome"}`, `<{"city": "Rome"}>`},
		{"printed", head + `{{ c.function.arguments }}` + end, `"{\"city\":\"Rome\"}"`, `{"city":"Rome"}`},
		{"either", head + `{{ c.function.arguments if c.function.arguments is string else c.function.arguments|tojson }}` + end,
			`"{\"city\":\"Rome\"}"`, `{"city": "Rome"}`},
		{"entries", head + `{% for k, v in c.function.arguments|items %}<{{ k }}={{ v }}>{% endfor %}` + end, `"{\"city\":\"Rome\"}"`, `<city=Rome>`},
		{"a template that wants the tool's answer", `{% if messages[-1].role != 'tool' %}{{ raise_exception('no') }}{% endif %}` + str,
			`"{\"a\": 1}"`, `<{"a": 1}>`},
	} {
		calls := fmt.Sprintf(`[{"id":"call00001","type":"function","function":{"name":"f","arguments":%s}}]`, c.arguments)
		got := render(t, c.source, Options{}, Message{Role: "assistant", ToolCalls: json.RawMessage(calls)}, Message{Role: "tool"})
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestFormOutlivesRequest: a request that is cancelled while the form of arguments is looked for gives later ones no wrong form.
func TestFormOutlivesRequest(t *testing.T) {
	tmpl := mustParse(t, `{% for i in range(100) %}{% for j in range(50) %}{% endfor %}{% endfor %}`+
		`{% for m in messages %}{% for c in m.tool_calls %}{{ '<' + c.function.arguments + '>' }}{% endfor %}{% endfor %}`)
	turns := []Message{{Role: "assistant", ToolCalls: json.RawMessage(`[{"function":{"name":"f","arguments":{"a":1}}}]`)}}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := tmpl.Render(gone, turns, Options{}); !errors.Is(err, tandem.Canceled) {
		t.Errorf("error %v, want Canceled", err)
	}
	if out, err := tmpl.Render(context.Background(), turns, Options{}); err != nil || out.Text != `<{"a": 1}>` {
		t.Errorf("%q, error %v", out.Text, err)
	}
}

// TestReads: a template reads a variable wherever its name stands, unless it sets it first.
func TestReads(t *testing.T) {
	for source, want := range map[string]bool{
		`{{ x }}`: true, `{% if x is defined %}{% endif %}`: true, `{% macro f() %}{{ x }}{% endmacro %}`: true, `{{ a|d(default_value=x) }}`: true,
		`{% for i in y if i == x %}{% endfor %}`: true, `{% set x = 1 %}{{ x }}`: false, `{{ x.y }}`: true, `{{ y.x }}{{ 'x' }}`: false,
		`{% if not x is defined %}{% set x = 1 %}{% endif %}`: true, `{% for x in y %}{{ y }}{% endfor %}`: false, `{% for x in y %}{{ x }}{% endfor %}`: false,
		`{% for x in y %}{% endfor %}{{ x }}`: true, `{% macro f(x) %}{{ x }}{% endmacro %}`: false, `{% set x = x %}`: true,
		`{{ f(x=1) }}`: false, `{{ dict(**x) }}`: true, `{% call f(x) %}{% endcall %}`: true,
	} {
		tmpl, err := Parse(source, llama)
		if err != nil || tmpl.Reads("x") != want {
			t.Errorf("%s: reads x %v, error %v, want %v", source, !want, err, want)
		}
	}
}
