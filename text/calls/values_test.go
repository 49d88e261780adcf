package calls

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// tool returns the tool f with one parameter, v.
func tool(schema, more string) Tools {
	return Parse(json.RawMessage(`[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"v": ` + schema +
		`}` + more + `}}}]`))
}

// arguments returns those of the only call in an output, or what else it is.
func arguments(f *Format, t Tools, output string) string {
	all := read(f, Options{Tools: t}, false, output)
	if len(all) == 2 && all[0].Kind == Begin && all[1].Kind == Arguments {
		return strings.TrimSuffix(strings.TrimPrefix(all[1].Text, `{"v": `), "}")
	}
	return show(all)
}

const defs = `, "$defs": {"Text": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}, "Maybe": {"anyOf": [{"$ref": "#/$defs/Maybe"},
	{"$ref": "#/$defs/Text"}, {"type": "null"}]}, "Point": {"type": "object", "properties": {"x": {"type": "string"}, "n": {"type": "integer"}}},
	"a/b~c": {"type": "string"}}, "definitions": {"Old": {"type": "boolean"}}`

// TestValues: values without quotes follow the whole schema, in all forms that write them so.
func TestValues(t *testing.T) {
	for _, c := range []struct{ schema, written, want string }{
		{`{"type": "string"}`, `12345`, `"12345"`},
		{`{"type": "string"}`, `null`, `"null"`},
		{`{"type": "string"}`, `True`, `"True"`},
		{`{"type": "integer"}`, `12`, `12`},
		{`{"type": "integer"}`, `twelve`, `"twelve"`},
		{`{"type": "integer"}`, `"12"`, `"12"`},
		{`{"type": "number"}`, `1e3`, `1e3`},
		{`{"type": "boolean"}`, `True`, `true`},
		{`{"type": "boolean"}`, `FALSE`, `false`},
		{`{"anyOf": [{"type": "string"}, {"type": "null"}]}`, `02134`, `"02134"`},
		{`{"anyOf": [{"type": "string"}, {"type": "null"}]}`, `12345`, `"12345"`},
		{`{"anyOf": [{"type": "string"}, {"type": "null"}]}`, `{"a": 1}`, `"{\"a\": 1}"`},
		{`{"anyOf": [{"type": "string"}, {"type": "null"}]}`, `null`, `null`},
		{`{"anyOf": [{"type": "string"}, {"type": "null"}]}`, `None`, `null`},
		{`{"anyOf": [{"type": "string"}, {"type": "null"}]}`, `True`, `"True"`},
		{`{"oneOf": [{"type": "integer"}, {"type": "null"}]}`, `None`, `null`},
		{`{"oneOf": [{"type": "integer"}, {"type": "string"}]}`, `7`, `7`},
		{`{"oneOf": [{"type": "integer"}, {"type": "string"}]}`, `seven`, `"seven"`},
		{`{"anyOf": [{"type": "boolean"}, {"type": "null"}]}`, `True`, `true`},
		{`{"anyOf": [{"type": "boolean"}, {"type": "null"}]}`, `7`, `"7"`},
		{`{"type": ["string", "null"]}`, `12345`, `"12345"`},
		{`{"type": ["integer", "null"]}`, `null`, `null`},
		{`{"type": "string", "nullable": true}`, `null`, `null`},
		{`{"type": "string", "nullable": true}`, `5`, `"5"`},
		{`{"$ref": "#/$defs/Text"}`, `12345`, `"12345"`},
		{`{"$ref": "#/$defs/a~1b~0c"}`, `12345`, `"12345"`},
		{`{"$ref": "#/definitions/Old"}`, `True`, `true`},
		{`{"$ref": "#/$defs/Maybe"}`, `12345`, `"12345"`},
		{`{"$ref": "#/$defs/Maybe"}`, `null`, `null`},
		{`{"$ref": "#/$defs/Loop"}`, `5`, `5`},
		{`{"$ref": "#/$defs/Missing"}`, `5`, `5`},
		{`{"$ref": "http://x.invalid/y"}`, `5`, `5`},
		{`{"$ref": "#"}`, `{"v": {}}`, `{"v": {}}`},
		{`{"allOf": [{"$ref": "#/$defs/Text"}]}`, `true`, `"true"`},
		{`{"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}`, `5`, `5`},
		{`{"allOf": [{"type": ["string", "integer"]}, {"type": ["string", "null"]}]}`, `5`, `"5"`},
		{`{"enum": ["1", "2"]}`, `1`, `"1"`},
		{`{"enum": [1, 2]}`, `1`, `1`},
		{`{"enum": ["a", null]}`, `null`, `null`},
		{`{"type": "string", "enum": ["on", "off"]}`, `on`, `"on"`},
		{`{"const": "5"}`, `5`, `"5"`},
		{`{"const": 5}`, `5`, `5`},
		{`{"properties": {"a": {}}}`, `{"a": 1}`, `{"a": 1}`},
		{`{"type": "object"}`, `{"a": "C:\Users", "b": [1,],}`, `{"a": "C:\\Users", "b": [1]}`},
		{`{"type": "object"}`, `{'a': True, 'b': None, "c": 'it"s'}`, `{"a": true, "b": null, "c": "it\"s"}`},
		{`{"$ref": "#/$defs/Point"}`, `{'x': 12, 'n': 12}`, `{"x": "12", "n": 12}`},
		{`{"type": "array", "items": {"type": "string"}}`, `['a', 2]`, `["a", "2"]`},
		{`{"type": "array"}`, `[1, 2`, `"[1, 2"`},
		{`{"type": "array"}`, `not a list`, `"not a list"`},
		{`{}`, `12`, `12`}, {`{}`, `None`, `null`}, {`{}`, `True`, `true`}, {`{}`, `a b`, `"a b"`}, {`true`, `12`, `12`},
		{`{}`, `"in quotes"`, `"in quotes"`}, {`{"type": "string"}`, `"in quotes"`, `"\"in quotes\""`},
		{`{"type": "odd"}`, `12`, `12`}, {`{"type": 5}`, `12`, `12`},
	} {
		tools := tool(c.schema, defs)
		xml := "<tool_call>\n<function=f>\n<parameter=v>\n" + c.written + "\n</parameter>\n</function>\n</tool_call>"
		if got := arguments(qwenCoder, tools, xml); got != c.want {
			t.Errorf("Qwen3-Coder, %s, %s: %s, want %s", c.schema, c.written, got, c.want)
		}
		if got := arguments(Hermes, tools, xml); got != c.want {
			t.Errorf("Hermes, %s, %s: %s, want %s", c.schema, c.written, got, c.want)
		}
		pairs := "<tool_call>f\n<arg_key>v</arg_key>\n<arg_value>" + c.written + "</arg_value>\n</tool_call>"
		if got := arguments(glm, tools, pairs); got != c.want {
			t.Errorf("GLM, %s, %s: %s, want %s", c.schema, c.written, got, c.want)
		}
	}
}

// TestWideSchemas: a schema whose parts refer to each other in exponentially many ways is asked in no time.
func TestWideSchemas(t *testing.T) {
	var b strings.Builder
	for i := range 60 {
		fmt.Fprintf(&b, `, "d%d": {"anyOf": [{"$ref": "#/x/d%d"}, {"$ref": "#/x/d%d"}, {"$ref": "#/x/d%d"}]}`, i, i+1, i+1, i/2)
	}
	tools := tool(`{"$ref": "#/x/d0"}`, `, "x": {"d60": {"type": "boolean"}`+b.String()+`}`)
	began := time.Now()
	if got := arguments(llama, tools, "[f(v={'a': {'b': [1, True]}})]"); got != `{"a": {"b": [1, true]}}` {
		t.Error(got)
	}
	if got := arguments(qwenCoder, tools, "<function=f><parameter=v>True</parameter></function>"); got != "true" {
		t.Error(got)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestWords: where strings have quotes, a word is a string only if the schema allows nothing else that it could be.
func TestWords(t *testing.T) {
	for _, c := range []struct{ schema, written, want string }{
		{`{"type": "string"}`, `12345`, `"12345"`}, {`{"type": "string"}`, `'12345'`, `"12345"`}, {`{"type": "string"}`, `None`, `null`},
		{`{"type": "integer"}`, `12345`, `12345`}, {`{"type": "integer"}`, `'5'`, `"5"`}, {`{}`, `True`, `true`},
		{`{"$ref": "#/$defs/Point"}`, `{'x': 5, 'n': 5}`, `{"x": "5", "n": 5}`},
		{`{"type": "array", "items": {"$ref": "#/$defs/Text"}}`, `[1, "b"]`, `["1", "b"]`},
		{`{"type": "string"}`, `'\d'`, `"\\d"`}, {`{"type": "string"}`, `'it\'s'`, `"it's"`}, {`{"type": "array"}`, `[1, 2,]`, `[1, 2]`},
	} {
		tools := tool(c.schema, defs)
		if got := arguments(llama, tools, "[f(v="+c.written+")]"); got != c.want {
			t.Errorf("Llama, %s, %s: %s, want %s", c.schema, c.written, got, c.want)
		}
	}
	for written, want := range map[string]string{`12`: `"12"`, `<escape>12<escape>`: `"12"`, `<escape>a<end_function_call>}<escape>`: `"a<end_function_call>}"`} {
		got := arguments(functionGemma, tool(`{"type": "string"}`, ""), "<start_function_call>call:f{v:"+written+"}<end_function_call>")
		if got != want {
			t.Errorf("FunctionGemma, %s: %s, want %s", written, got, want)
		}
	}
}

// TestRepair: what JSON lacks is repaired where it can be read in one way, in all forms of JSON; else the whole is text.
func TestRepair(t *testing.T) {
	tools := tool(`{}`, "")
	for written, want := range map[string]string{
		`"C:\Users"`: `"C:\\Users"`, `"\d+"`: `"\\d+"`, `"it\'s"`: `"it\\'s"`, `"C:\users"`: `"C:\\users"`, `"\u12"`: `"\\u12"`,
		`"\d \"q\""`: `"\\d \"q\""`, `"a` + "\n\tb" + `"`: `"a\n\tb"`, "\"a\\\nb\"": `"a\\\nb"`, `[1, 2,]`: `[1, 2]`, `{"a": 1, }`: `{"a": 1 }`,
		`{"a": [true,],}`: `{"a": [true]}`, `True`: `true`, `[None, False]`: `[null, false]`, `"\u00e9\n\\"`: `"\u00e9\n\\"`, `"` + "\x01" + `"`: `"\u0001"`,
		// in two ways, or in none
		`"C:\new\Users"`: "", `"C:\Users\new"`: "", `"\\a\d"`: "", `"\u00e9\d"`: "", `"""A small…"""`: "", `"say "hi""`: "", `[1,,2]`: "", `{"a": 1,,}`: "",
		`[,]`: "", `{,}`: "", `'a'`: "", `{a: 1}`: "", `[1 2]`: "", `truth`: "", `01`: "", `a.go`: "", `[1}`: "", `nul`: "",
	} {
		object := `{"v": ` + written + `}`
		for name, output := range map[*Format]string{
			Hermes: "<tool_call>\n{\"name\": \"f\", \"arguments\": " + object + "}\n</tool_call>", mistral: "[TOOL_CALLS]f[ARGS]" + object,
			granite:  `<|tool_call|>[{"name": "f", "arguments": ` + object + `}]`,
			deepseek: "<｜tool▁call▁begin｜>f<｜tool▁sep｜>" + object + "<｜tool▁call▁end｜>",
			llama:    `{"name": "f", "parameters": ` + object + `}`,
			harmony:  "<|channel|>commentary to=functions.f<|message|>" + object + "<|call|>",
		} {
			whole := output
			if name == harmony {
				whole = object
			}
			want := want
			if want == "" {
				want = fmt.Sprintf("text0 %q\n", whole)
			}
			if got := arguments(name, tools, output); got != want {
				t.Errorf("%s, %s: %s, want %s", name.Name, written, got, want)
			}
		}
	}
}

// FuzzRepaired: what is repaired is JSON, JSON is its own repair, and a value without quotes is told as JSON by any schema.
func FuzzRepaired(f *testing.F) {
	for _, v := range []string{`{"a": "\d", "b": [1,],}`, `"C:\Users"`, `{'a': True}`, `[None, 1e5]`, `"\u12"`, "\"a\nb\"", `12`, `{"v": {"$ref": "#"}}`} {
		f.Add(v, `{"anyOf": [{"type": "object"}, {"$ref": "#/properties/v"}]}`)
		f.Add(v, `{"type": ["string", "null"], "enum": [1, "a"]}`)
	}
	f.Fuzz(func(t *testing.T, v, schema string) {
		if len(v)+len(schema) > 1<<12 {
			return
		}
		out, ok := repaired(v)
		if valid := json.Valid([]byte(v)); ok && !json.Valid([]byte(out)) || valid && (!ok || out != strings.TrimSpace(v) && out != v) {
			t.Errorf("%q becomes %q, %v", v, out, ok)
		}
		of := newSchema(json.RawMessage(`{"properties": {"v": ` + schema + `}}`))
		if got := of.property("v").value(v); !json.Valid([]byte(got)) {
			t.Errorf("%q by %s is %s", v, schema, got)
		}
	})
}

// TestLinear: an output that comes in pieces of four bytes is read in about linear time, whatever is held back.
func TestLinear(t *testing.T) {
	tools := tool(`{"type": "string"}`, "")
	repeat := func(s string, n int) string { return strings.Repeat(s, n/len(s)+1) }
	for name, c := range map[string]struct {
		*Format
		thinking         bool
		lead, body, tail string
	}{
		"a long argument": {Hermes, false, `<tool_call>{"name": "f", "arguments": {"v": "`, "some text ", `"}}</tool_call>`},
		"an endless call": {Hermes, false, `<tool_call>{"name": "f", "arguments": {"v": "`, "<tool_call>{", ""},
		"a value in tags": {qwenCoder, false, "<function=f><parameter=v>\n", "a </parameter> <b> ", "</parameter></function>"},
		"a value of GLM": {glm, false, "<tool_call>f\n<arg_key>v</arg_key><arg_value>", "x</arg_value>y",
			"</arg_value></tool_call>"},
		"Python": {llama, false, "[f(v='", "[]\"", "')]"},
		"braces": {functionGemma, false, "<start_function_call>call:f{v:<escape>", "<end_function_call>",
			"<escape>}<end_function_call>"},
		"a message":                 {harmony, false, "<|channel|>commentary to=functions.f<|message|>{\"v\": \"", "<|end|>", `"}<|call|>`},
		"an array":                  {Hermes, false, "<tool_call>[", `{"name": "f"},`, `{"name": "f"}]</tool_call>`},
		"a fence":                   {Hermes, false, "", "```\n", ""},
		"marks":                     {Hermes, false, "", "<tool_call>", ""},
		"marks and braces":          {Hermes, false, "", "<tool_call>{", ""},
		"parts of marks":            {Hermes, false, "", "<<tool_c", ""},
		"space":                     {Hermes, false, "", " ", ""},
		"space in text":             {Hermes, false, "a", "\n", "b"},
		"space in a call":           {Hermes, false, "<tool_call>", "\n", ""},
		"calls":                     {Hermes, false, "", "<tool_call>{\"name\": \"f\"}</tool_call>", ""},
		"a call in a thought":       {Hermes, true, `<tool_call>{"name": "f", "arguments": {}}`, "</thin<tool_call>{}", "</think>"},
		"a call at a thought's end": {Hermes, true, `<tool_call>{"name": "f", "arguments": {}}`, "</thin<tool_call>{", ""},
		"an open fence":             {Hermes, false, "```json\n{\"name\": \"f\", \"arguments\": {\"v\": \"", "```\n", `"}}`},
		"semicolons":                {llama, false, `{"name": "f"}`, "; ", ""},
		"closing marks":             {Hermes, false, `<tool_call>{"name": "f"}`, "</tool_call>", ""},
		"a link":                    {llama, false, "[", "f", "(a)]"},
	} {
		t.Run(name, func(t *testing.T) {
			work := func(n int, step int) time.Duration {
				output := c.lead + repeat(c.body, n) + c.tail
				began := time.Now()
				r := c.Reader(Options{Tools: tools, Thinking: c.thinking})
				for from := 0; from < len(output); from += step {
					r.Read(output[from:min(from+step, len(output))])
				}
				r.End(false)
				return time.Since(began)
			}
			for _, step := range []int{4, 1 << 21} {
				const most = 3 * time.Second
				if took := work(1<<20, step); took > most && work(1<<20, step) > most { // else the machine was busy
					t.Errorf("1 MiB in pieces of %d bytes took %v", step, took)
				}
			}
		})
	}
}
