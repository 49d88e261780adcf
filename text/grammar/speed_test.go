package grammar

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// worst are states whose masks cost most.
var worst = map[string]struct {
	spec Spec
	so   string
}{
	"free string":         {schema(`{"type": "object", "properties": {"a": {"type": "string"}, "b": {}}}`), `{"a": "x`},
	"string of 200":       {schema(`{"type": "object", "properties": {"a": {"type": "string", "maxLength": 200}}}`), `{"a": "x`},
	"string, 3 left":      {schema(`{"type": "object", "properties": {"a": {"type": "string", "maxLength": 4}}}`), `{"a": "x`},
	"any JSON string":     {schema(`{}`), `{"a": ["x`},
	"pattern":             {schema(`{"type": "string", "pattern": "^[A-Za-z ]+$"}`), `"x`},
	"pattern of 64":       {schema(`{"type": "string", "pattern": "^[a-z0-9_-]{1,64}$"}`), `"x`},
	"unanchored pattern":  {schema(`{"type": "string", "pattern": "[0-9]{3}"}`), `"x`},
	"number":              {schema(`{"type": "object", "properties": {"a": {"type": "number"}, "b": {}}}`), `{"a": 1`},
	"between members":     {schema(`{"type": "object", "properties": {"a": {"type": "string"}, "b": {}}}`), `{"a": "x"`},
	"free text":           {Spec{Until: &Until{Markers: []string{"<tool_call>"}, End: true, Then: []Spec{{Object: true}}}}, `x`},
	"free text, letter":   {Spec{Until: &Until{Markers: []string{"Action:"}, End: true, Then: []Spec{{Object: true}}}}, `x`},
	"regular expression":  {Spec{Regex: `(?s).*x`}, `x`},
	"key of many":         {schema(`{"type": "object", "properties": {"alpha": {}, "beta": {}, "gamma": {}}}`), `{"`},
	"escape":              {schema(`{"type": "string"}`), `"\`},
	"start of any":        {schema(`{}`), ``},
	"start of string":     {schema(`{"type": "string"}`), ``},
	"indented, a bracket": {Spec{Object: true, Indent: true}, `{`},
}

// BenchmarkMask measures masks that are not in the cache, by vocabulary and state.
func BenchmarkMask(b *testing.B) {
	for _, name := range []string{"qwen", "gemma"} {
		v := open(b, name)
		for what, w := range worst {
			s, ok := compile(b, w.spec).Start().Next([]byte(w.so))
			if !ok {
				b.Fatalf("%s: %q is refused", what, w.so)
			}
			b.Run(name+"/"+what, func(b *testing.B) {
				for b.Loop() {
					v.masks.young, v.masks.old = nil, nil
					v.Mask(s)
				}
			})
			b.Run(name+"/"+what+"/cached", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					v.Mask(s)
				}
			})
		}
	}
}

// exact skips a test of times or allocations in short form, as the race detector runs tests: it is slow, and empties pools.
func exact(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("times and allocations are measured without -short")
	}
}

// TestNoAllocation: what is asked for each token allocates nothing in a string, a literal, and free text.
func TestNoAllocation(t *testing.T) {
	exact(t)
	v := small()
	for _, name := range []string{"free string", "any JSON string", "free text", "string of 200"} {
		s, _ := compile(t, worst[name].spec).Start().Next([]byte(worst[name].so))
		v.Mask(s)
		for what, f := range map[string]func(){
			"Next":   func() { s.Next([]byte("abc")) },
			"Forced": func() { s.Forced() },
			"Allows": func() { v.Allows(s, tandem.Token('a')) },
			"Mask":   func() { v.Mask(s) },
		} {
			if n := testing.AllocsPerRun(100, f); n > 0 {
				t.Errorf("%s: %s allocates %v times", name, what, n)
			}
		}
	}
}

// tools are as many tools, with as large schemas, as a coding agent sends: 27 in 16 kB.
func tools() Spec {
	call := Until{Markers: []string{"<tool_call>\n"}, End: true, Then: []Spec{{}}}
	var any []Spec
	for i := range 27 {
		name := fmt.Sprintf("tool_%d", i)
		properties := []string{`"file_path": {"type": "string", "description": "The absolute path"}`,
			`"limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991}`,
			`"mode": {"type": "string", "enum": ["content", "files_with_matches", "count"]}`,
			`"timeout": {"anyOf": [{"type": "number", "minimum": 0, "maximum": 600000}, {"type": "null"}], "default": null}`,
			`"force": {"type": ["boolean", "null"]}`}
		if i%5 == 0 {
			properties = append(properties, `"todos": {"type": "array", "minItems": 1, "maxItems": 256, "items": {"type": "object",
				"properties": {"content": {"type": "string", "minLength": 1, "maxLength": 524288}, "status": {"enum": ["pending", "done"]},
				"url": {"type": "string", "format": "uri"}, "id": {"type": "string", "pattern": "^aa_[a-z0-9-]{6,}$"}},
				"required": ["content", "status"], "additionalProperties": false}}`,
				`"answers": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "string"}}`)
		}
		closed := []string{``, `, "additionalProperties": false`}[i%2]
		text := fmt.Sprintf(`{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {%s}, "required": ["file_path"]%s}`,
			strings.Join(properties, ", "), closed)
		any = append(any, Spec{Seq: []Spec{{Text: `{"name": "` + name + `", "arguments": `}, schema(text), {Text: "}"}}})
	}
	call.Then[0] = Spec{Seq: []Spec{{Any: any}, {Text: "\n</tool_call>"}}}
	return Spec{Until: &call}
}

func BenchmarkVocabulary(b *testing.B) {
	for _, name := range []string{"qwen", "gemma"} {
		v := open(b, name)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				NewVocabulary(v.bytes, v.size, v.ends)
			}
		})
	}
}

// BenchmarkToken measures what a drawn token costs without a mask.
func BenchmarkToken(b *testing.B) {
	v := small()
	for what, w := range worst {
		s, _ := compile(b, w.spec).Start().Next([]byte(w.so))
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			for t := tandem.Token(0); b.Loop(); t = (t + 1) & 127 {
				v.Next(s, t)
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	s := tools()
	for b.Loop() {
		compile(b, s)
	}
}

// TestCompileTime: a coding agent's tools are compiled in 50 ms, and their grammar takes little work.
func TestCompileTime(t *testing.T) {
	exact(t)
	best := time.Hour
	for range 10 {
		start := time.Now()
		g := compile(t, tools())
		best = min(best, time.Since(start))
		text := "so: <tool_call>\n" + `{"name": "tool_5", "arguments": {"file_path": "x", "mode": "count", "todos": [{"content":"a", "status": "done", "id": "aa_xxxxxx"}]}}`
		if !takes(t, g, text+"\n</tool_call>") {
			t.Fatal("a call is refused")
		}
	}
	if text, _ := json.Marshal(tools()); len(text) < 15<<10 {
		t.Errorf("the tools have %d bytes", len(text))
	}
	if t.Log(best); best > 50*time.Millisecond {
		t.Errorf("the fastest of ten compilations took %v", best)
	}
}
