package grammar

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"
)

// repeated joins n texts made by a format.
func repeated(n int, format string) string {
	var parts []string
	for i := range n {
		parts = append(parts, fmt.Sprintf(format, i))
	}
	return strings.Join(parts, ",")
}

// hostile are Specs that ask for much.
var hostile = map[string]Spec{
	"product of anyOf":  schema(`{"allOf": [` + strings.Repeat(`{"anyOf": [{"minLength": 1}, {"maxLength": 9}, {"minimum": 1}, {"minItems": 2}]},`, 30) + `{}]}`),
	"nested anyOf":      schema(strings.Repeat(`{"anyOf": [{"title": "x"}, `, 30) + `{}` + strings.Repeat(`]}`, 30)),
	"many properties":   schema(`{"type": "object", "properties": {` + repeated(12000, `"%d": {}`) + `}}`),
	"many objects":      schema(`{"allOf": [` + repeated(1000, `{"properties": {"a%d": {}}, "additionalProperties": {"type": "string"}}`) + `]}`),
	"long enum":         schema(`{"enum": [` + repeated(20000, `"x%d"`) + `]}`),
	"two long enums":    schema(`{"oneOf": [{"enum": [` + repeated(9000, `%d`) + `]}, {"enum": [` + repeated(9000, `"%d"`) + `]}]}`),
	"oneOf of many":     schema(`{"oneOf": [` + repeated(2000, `{"type": "object", "required": ["a"], "properties": {"a": {"const": %d}}}`) + `]}`),
	"anyOf of many":     schema(`{"anyOf": [` + repeated(3000, `{"type": "string", "pattern": "^.*%d"}`) + `]}`),
	"allOf of patterns": schema(`{"type": "string", "allOf": [` + repeated(40, `{"pattern": "a.{%d}b"}`) + `]}`),
	"chain of references": schema(`{"$ref": "#/$defs/d0", "$defs": {` + func() string {
		var parts []string
		for i := range 4000 {
			parts = append(parts, fmt.Sprintf(`"d%d": {"$ref": "#/$defs/d%d"}`, i, i+1))
		}
		return strings.Join(parts, ",")
	}() + `, "d4000": {"type": "null"}}}`),
	"intersections of recursions": schema(`{"$ref": "#/$defs/d0", "$defs": {` + func() string {
		var parts []string
		for i := range 300 {
			parts = append(parts, fmt.Sprintf(`"d%d": {"type": "object", "properties": {"a": {"allOf": [{"$ref": "#/$defs/d%d"}, {"$ref": "#/$defs/d%d"}]},
				"b": {"$ref": "#/$defs/d%d"}}}`, i, (i+1)%300, (i*7+3)%300, (i*5+1)%300))
		}
		return strings.Join(parts, ",")
	}() + `}}`),
	"ambiguous recursion": schema(`{"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/a"}},
		{"type": "array", "items": {"$ref": "#/$defs/b"}}, {"type": "string", "pattern": "^[a-z]"}]}, "b": {"anyOf": [{"type": "array", "items":
		{"$ref": "#/$defs/a"}}, {"type": "array", "maxItems": 9, "items": {"$ref": "#/$defs/b"}}, {"type": "string", "pattern": "[a-z]$"}]}}}`),
	"huge counts":        schema(`{"type": "array", "minItems": 4000000000, "maxItems": 1e300, "items": {"type": "string", "minLength": 2147483647}}`),
	"long number":        schema(`{"minimum": ` + strings.Repeat("9", 100000) + `}`),
	"many digits":        schema(`{"type": "number", "minimum": 1e-390, "maximum": 1e390}`),
	"exponential":        {Regex: `(a|b)*a(a|b){25}`},
	"exponential search": schema(`{"type": "string", "pattern": "a.{25}b"}`),
	"long expression":    {Regex: strings.Repeat(`(\p{L}|\d)?`, 3000)},
	"counts in counts":   {Regex: `((a{1,30}b?){1,30}){1,30}`},
	"classes":            {Regex: `[` + strings.Repeat(`\p{Lu}\x{1000}-\x{2000}a-z`, 1000) + `]*`},
	"different classes": {Regex: func() (s string) { // of one character each
		for i := range 5000 {
			s += fmt.Sprintf(`|\x{%x}`, 0x4e00+2*i)
		}
		return s[1:]
	}()},
	"length and pattern": schema(`{"type": "string", "pattern": "^(ab|cde)+$", "minLength": 100000, "maxLength": 100001}`),
	"many expressions": {Any: func() (out []Spec) {
		for i := range 500 {
			out = append(out, Spec{Regex: fmt.Sprintf(`[a-z ]*%dx`, i)})
		}
		return out
	}()},
	"many markers": {Until: &Until{End: true, Markers: func() (out []string) {
		for i := range 3000 {
			out = append(out, strings.Repeat("<", i%40)+fmt.Sprint(i))
		}
		return out
	}()}},
	"deep arrays":           schema(strings.Repeat(`{"items":`, 60) + `{}` + strings.Repeat(`}`, 60)),
	"deep required objects": schema(strings.Repeat(`{"type": "object", "required": ["a"], "properties": {"a":`, 30) + `{}` + strings.Repeat(`}}`, 30)),
}

// TestHostile: what asks for much is refused or compiled within bounds of time and memory, and its states are cheap enough.
func TestHostile(t *testing.T) {
	exact(t)
	for name, spec := range hostile {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			start := time.Now()
			g, err := Compile(spec, Limits{})
			took := time.Since(start)
			runtime.GC()
			runtime.ReadMemStats(&after)
			kept := int64(after.HeapAlloc) - int64(before.HeapAlloc)
			if t.Log(took, kept>>10, "KiB,", (after.TotalAlloc-before.TotalAlloc)>>20, "MiB made:", err); took > 10*time.Second {
				t.Error("it took too long")
			}
			if err != nil {
				if !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrUnsupported) {
					t.Error("it is refused for another reason")
				}
				return
			}
			if kept > 64<<20 {
				t.Errorf("it takes %d MiB", kept>>20)
			}
			start = time.Now()
			walk(t, small(), g, rand.New(rand.NewPCG(1, 1)), 40, true)
			t.Log("40 tokens in", time.Since(start))
		})
	}
}

// TestLongTexts: a grammar remembers a bounded number of stacks, and forgetting them changes no state.
func TestLongTexts(t *testing.T) {
	g := compile(t, schema(`{"type": "array", "maxItems": 1000000, "items": {"type": "object", "properties": {"a": {"type": "string"}}}}`))
	s, _ := g.Start().Next([]byte("["))
	item := []byte(`{"a": "x", "b": [[1], "y"]}, `)
	for n := range 40000 {
		next, ok := s.Next(item)
		if !ok {
			t.Fatalf("item %d is refused", n)
		}
		s = next
	}
	if n := len(g.known); n > maxFrames {
		t.Errorf("%d stacks are remembered", n)
	}
	before, _ := s.Next(item)
	g.known = nil
	after, _ := s.Next(item)
	if string(before.key(nil, longest)) != string(after.key(nil, longest)) {
		t.Error("a state is another one when stacks were forgotten")
	}
}

// TestBlanks: wherever a JSON text stands, at most one blank may follow that is not part of a string.
func TestBlanks(t *testing.T) {
	const text = `{"a": [1, {"b": -2.5e3}, "x", true, null, {}], "c": ""}`
	call := Spec{Until: &Until{Markers: []string{"<call>"}, Then: []Spec{{Object: true}}}}
	for before, spec := range map[string]Spec{"": schema(`{}`), "text <call>": call} {
		s, _ := compile(t, spec).Start().Next([]byte(before))
		inString := false
		for i := range len(text) {
			if _, ok := s.Next([]byte("  ")); ok && !inString {
				t.Errorf("two blanks may stand behind %q", before+text[:i])
			}
			if _, ok := s.Next([]byte("{{")); ok && !inString {
				t.Errorf("{{ may stand behind %q", before+text[:i])
			}
			if text[i] == '"' {
				inString = !inString
			}
			next, ok := s.Next([]byte{text[i]})
			if !ok {
				t.Fatalf("%q is refused", before+text[:i+1])
			}
			s = next
		}
	}
}

func FuzzSchema(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(maker{rand.New(rand.NewPCG(seed, 3))}.whole(), seed)
	}
	for _, spec := range hostile {
		if len(spec.Schema) > 0 && len(spec.Schema) < 4<<10 {
			f.Add(string(spec.Schema), uint64(1))
		}
	}
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		fuzz(t, schema(text), seed)
	})
}

func FuzzRegex(f *testing.F) {
	for _, e := range []string{`a|b`, `(a*)*b{2,3}`, `^\d+$|[^a-z]`, `(?i)ä\x{10ffff}`, `\pL{3}`, `(a|b)*a(a|b){9}`} {
		f.Add(e, uint64(1))
	}
	f.Fuzz(func(t *testing.T, e string, seed uint64) {
		fuzz(t, Spec{Regex: e}, seed)
	})
}

func FuzzSpec(f *testing.F) {
	for _, spec := range append([]Spec{tools()}, specs...) {
		text, err := json.Marshal(spec)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, uint64(1))
	}
	f.Add([]byte(`{"until":{"markers":["<a>","\u0000b"],"then":[{"repeat":{"of":{"any":[{"text":"x"},{"regex":"a|b"}]},"max":2}},{"object":true}],"again":true}}`), uint64(1))
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		var s Spec
		if json.Unmarshal(text, &s) == nil {
			fuzz(t, s, seed)
		}
	})
}

// fuzz compiles a Spec and walks its texts.
func fuzz(t *testing.T, s Spec, seed uint64) {
	g, err := Compile(s, Limits{Work: 1 << 20, States: 1 << 10})
	var e *Error
	if err != nil && !errors.As(err, &e) {
		t.Fatal(err)
	}
	if err == nil {
		walk(t, small(), g, rand.New(rand.NewPCG(seed, 1)), 10, true)
		g.Start().Next([]byte(`{"a": [1, "x\u00e4"]}`))
	}
}
