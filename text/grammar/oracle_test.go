package grammar

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/tandem-llm/tandem"
)

// maker makes random schemas of everything that the room speaks.
type maker struct{ *rand.Rand }

func (m maker) pick(list ...string) string { return list[m.IntN(len(list))] }

func (m maker) schema(depth int) string {
	if depth == 0 {
		return m.scalar()
	}
	switch m.IntN(12) {
	case 0, 1, 2:
		return m.object(depth)
	case 3, 4:
		least := m.IntN(3)
		return fmt.Sprintf(`{"type": "array", "items": %s, "minItems": %d, "maxItems": %d}`, m.schema(depth-1), least, least+m.IntN(3))
	case 10:
		return fmt.Sprintf(`{"type": "array", "prefixItems": [%s, %s], "items": %s, "minItems": %d, "maxItems": 3}`, m.schema(depth-1),
			m.scalar(), m.scalar(), m.IntN(4))
	case 5:
		return fmt.Sprintf(`{"anyOf": [%s, %s]}`, m.schema(depth-1), m.schema(depth-1))
	case 6:
		return fmt.Sprintf(`{"allOf": [%s, %s], "title": "x"}`, m.object(depth), m.object(depth))
	case 7:
		return fmt.Sprintf(`{"oneOf": [%s, %s]}`, m.schema(depth-1), m.scalar())
	case 8:
		return `{"$ref": "#/$defs/` + m.pick("a", "list", "tree") + `"}`
	case 9:
		return fmt.Sprintf(`{"type": "object", "propertyNames": %s, "additionalProperties": %s}`,
			m.pick(`{"pattern": "^[ab]{1,3}$"}`, `{"maxLength": 2}`, `{"enum": ["x", "y\""]}`), m.schema(depth-1))
	default:
		return m.scalar()
	}
}

func (m maker) object(depth int) string {
	var properties, required []string
	for _, name := range []string{"a", "b\"c", "é", "d"} {
		if m.IntN(3) > 0 {
			properties = append(properties, fmt.Sprintf("%q: %s", name, m.schema(depth-1)))
		}
		if m.IntN(4) == 0 {
			required = append(required, fmt.Sprintf("%q", name))
		}
	}
	return fmt.Sprintf(`{"type": "object", "properties": {%s}, "required": [%s]%s}`, strings.Join(properties, ", "),
		strings.Join(required, ", "), m.pick("", `, "additionalProperties": false`, `, "additionalProperties": {"type": "integer"}`))
}

func (m maker) scalar() string {
	number := func() string { return m.pick("-100", "-1.5", "0", "0.25", "1", "7", "10.75", "99", "1e2", "250") }
	switch m.IntN(10) {
	case 0:
		return fmt.Sprintf(`{"type": "string", "minLength": %d, "maxLength": %d}`, m.IntN(3), 2+m.IntN(4))
	case 1:
		return fmt.Sprintf(`{"type": "string", "pattern": %q}`, m.pick("^a+b?$", "[0-9]{2}", "^[^x]{0,3}$", "é|ü$", "^(ab|c)*$", `^\S+$`))
	case 2:
		return fmt.Sprintf(`{"type": "string", "format": %q}`, m.pick("date", "time", "date-time", "uuid", "email", "uri", "ipv4", "hostname", "duration", "ipv6"))
	case 3:
		return fmt.Sprintf(`{"type": %s, "minimum": %s, "maximum": %s}`, m.pick(`"integer"`, `"number"`, `["number", "null"]`), number(), number())
	case 4:
		return fmt.Sprintf(`{"type": %s, "exclusiveMinimum": %s}`, m.pick(`"integer"`, `"number"`), number())
	case 5:
		return m.pick(`{"enum": ["a", 1, null, [1, {"x": "y"}]]}`, `{"const": "c\n"}`, `{"enum": [1.0, true], "type": ["integer", "boolean"]}`)
	case 6:
		return m.pick(`{"type": "boolean"}`, `{"type": "null"}`, `{"type": ["string", "null"], "maxLength": 3}`, `{"type": "integer"}`, `{"type": "number"}`,
			`{"type": "number", "multipleOf": 0.5, "maximum": 40}`, `{"type": "integer", "multipleOf": 12}`)
	case 7:
		return fmt.Sprintf(`{"type": "string", "pattern": %q, "minLength": %d, "maxLength": %d}`, m.pick("a", "^(aa)*$", "b$"), m.IntN(3), 1+m.IntN(4))
	default:
		return m.pick(`{"type": "integer", "minimum": -3, "maximum": 120}`, `{"type": "string", "maxLength": 4}`)
	}
}

func (m maker) whole() string {
	root := m.schema(1 + m.IntN(3))
	defs := fmt.Sprintf(`"$defs": {"a": %s, "list": {"type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 2},
		"tree": {"type": "object", "properties": {"v": {"$ref": "#/$defs/a"}, "t": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]}},
		"required": ["t"], "additionalProperties": false}}`, m.scalar())
	return strings.TrimSuffix(root, "}") + ", " + defs + "}"
}

// TestRandomSchemas: 10,000 random texts of random schemas satisfy an independent validator, and Go's parser of JSON. It writes them to the
// file TANDEM_GRAMMAR_TEXTS for test/scripts/llguidance.
func TestRandomSchemas(t *testing.T) {
	v, ended, refused, file, want := small(), 0, 0, io.Discard, 10000
	if testing.Short() {
		want = 500
	}
	if name := os.Getenv("TANDEM_GRAMMAR_TEXTS"); name != "" {
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		file = f
	}
	for seed := uint64(0); ended < want; seed++ {
		m := maker{rand.New(rand.NewPCG(seed, 7))}
		text := m.whole()
		g, err := Compile(schema(text), Limits{})
		if errors.Is(err, ErrUnsupported) || errors.Is(err, ErrInvalid) {
			if refused++; refused > 2000 {
				t.Fatalf("%d schemas are refused, the last %s: %v", refused, text, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		oracle := validator(t, text)
		for range 5 {
			out, done := hurried(t, v, g, m.Rand)
			if !done {
				t.Fatalf("%s: %q does not end", text, out)
			}
			ended++
			value, err := jsonschema.UnmarshalJSON(strings.NewReader(out))
			if err != nil || !json.Valid([]byte(out)) {
				t.Fatalf("%s: %q is no JSON: %v", text, out, err)
			}
			if err := oracle.Validate(value); err != nil {
				t.Fatalf("%s: %q: %v", text, out, err)
			}
			line, _ := json.Marshal([]string{text, out})
			fmt.Fprintf(file, "%s\n", line)
		}
	}
	t.Logf("%d texts, %d schemas refused", ended, refused)
}

func validator(t *testing.T, text string) *jsonschema.Schema {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("schema.json", value); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("schema.json")
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return compiled
}

// distance is a measure of what is left to the end of s's text.
func distance(s State) int32 {
	if s.Ended() {
		return 0
	}
	nearest := int32(infinite)
	for _, c := range s.confs() {
		left := int32(len(c.n.text)) - c.q
		if c.n.kind == chars {
			if left = c.n.auto.far[c.q] + c.lo; c.n.mode == quoted {
				left += 5000 // its end comes first
			}
		}
		if c.up != nil {
			left += 1000 * c.up.depth
		}
		nearest = min(nearest, left)
	}
	return nearest
}

// hurried draws allowed tokens until the text ends. After a while it mostly draws what is near to it.
func hurried(t *testing.T, v *Vocabulary, g *Grammar, r *rand.Rand) (string, bool) {
	t.Helper()
	s, out := g.Start(), []byte(nil)
	for n := range 2000 {
		m := v.Mask(s)
		var ids []int
		for id := range v.size - 1 {
			if m[id>>6]>>(id&63)&1 != 0 {
				ids = append(ids, id)
			}
		}
		if s.Done() && (len(ids) == 0 || r.IntN(3) == 0) {
			return string(out), true
		}
		if len(ids) == 0 {
			t.Fatalf("after %q nothing is allowed", out)
		}
		if n > 20 && r.IntN(8) > 0 { // what brings the end nearest
			best, nearest := []int(nil), distance(State{})
			for _, id := range ids {
				next, _ := v.Next(s, tandem.Token(id))
				if d := distance(next); d < nearest {
					best, nearest = []int{id}, d
				} else if d == nearest {
					best = append(best, id)
				}
			}
			ids = best
		}
		id := tandem.Token(ids[r.IntN(len(ids))])
		next, ok := v.Next(s, id)
		if !ok {
			t.Fatalf("after %q: a token of the mask cannot be read", out)
		}
		s, out = next, append(out, v.bytes(id)...)
	}
	return string(out), false
}
