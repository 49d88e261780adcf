package grammar

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestSchemas(t *testing.T) {
	for _, c := range []struct {
		schema  string
		yes, no []string
	}{
		{`{"type": "string"}`, []string{`""`, `"é\n"`}, []string{`1`, `"`, `null`}},
		{`{"type": ["integer", "null"], "description": "x", "x-other": 1}`, []string{`0`, `-17`, `null`}, []string{`1.5`, `-0`, `1e3`, `01`}},
		{`{"type": "boolean"}`, []string{`true`, `false`}, []string{`null`, `tru`}},
		{`{"type": "object", "properties": {"b": {"type": "integer"}, "a": {"const": "x"}, "c": {}}, "required": ["a"],
			"additionalProperties": false}`, []string{`{"a":"x"}`, `{"b": 1, "a": "x", "c": [{}]}`, `{"a":"x","c":1}`},
			[]string{`{}`, `{"b":1}`, `{"a":"x","b":1}`, `{"a":"y"}`, `{"a":"x","d":1}`, `{"a":"x",}`, `{,"a":"x"}`, `{"a":"x","a":"x"}`}},
		{`{"type": "object", "properties": {}}`, []string{`{}`, `{"x": 1}`}, []string{`[]`, `{x: 1}`}},
		{`{"properties": {"ab": {"type": "null"}}, "type": "object"}`, []string{`{"ab":null,"abc":1}`, `{"a":1}`, `{"":1}`, `{"b\u0061":1}`},
			[]string{`{"ab":1}`, `{"a\u0062":1}`, `{"\u0061b":1}`, `{"ab":null,"ab":1}`}},
		{`{"type": "object", "additionalProperties": {"type": "integer"}, "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 3}}`,
			[]string{`{}`, `{"abc": 1,"z":2}`}, []string{`{"abcd":1}`, `{"A":1}`, `{"a":"x"}`, `{"":1}`}},
		{`{"type": "object", "propertyNames": {"enum": ["a", "b"]}}`, []string{`{"a":1,"b":[]}`}, []string{`{"c":1}`}},
		{`{"enum": ["a", 1, null, {"x": [1, "y"]}, true]}`, []string{`"a"`, `1`, `null`, `{"x": [1, "y"]}`, `{"x":[1,"y"]}`, `true`}, []string{`"b"`, `{"x":[1]}`}},
		{`{"type": "string", "enum": ["a", 1, "bcd"], "maxLength": 2}`, []string{`"a"`}, []string{`1`, `"bcd"`}},
		{`{"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 5}]}`, []string{`"x"`, `5`}, []string{`4`, `true`}},
		{`{"type": "object", "properties": {"k": {"type": "integer"}}, "required": ["k"], "anyOf": [{"properties": {"k": {"minimum": 3}}},
			{"properties": {"l": {"const": 1}}, "required": ["l"]}]}`, []string{`{"k":3}`, `{"k":1,"l":1}`}, []string{`{"k":1}`, `{"k":1,"l":2}`}},
		{`{"oneOf": [{"type": "object", "properties": {"t": {"const": "a"}, "v": {"type": "integer"}}, "required": ["t", "v"]},
			{"type": "object", "properties": {"t": {"const": "b"}}, "required": ["t"]}]}`, []string{`{"t": "a","v":1}`, `{"t":"b"}`},
			[]string{`{"t":"a"}`, `{"t":"c"}`, `{}`}},
		{`{"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"$ref": "#/$defs/more"}],
			"$defs": {"more": {"properties": {"b": {"type": "string"}, "a": {"maximum": 9}}, "required": ["b"], "additionalProperties": false}}}`,
			[]string{`{"a":9,"b":""}`}, []string{`{"a":10,"b":""}`, `{"a":1}`, `{"a":1,"b":"","c":1}`}},
		{`{"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"of": {"type": "array",
			"items": {"$ref": "#/$defs/tree"}}}, "required": ["of"], "additionalProperties": false}}}`,
			[]string{`{"of":[]}`, `{"of":[{"of":[{"of":[]}]}, {"of":[]}]}`}, []string{`{}`, `{"of":[1]}`}},
		{`{"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}`, []string{`[true]`, `[true,false, true]`},
			[]string{`[]`, `[1]`, `[true,true,true,true]`, `[true,]`, `[,true]`}},
		{`{"type": "array", "prefixItems": [{"const": 1}, {"type": "string"}], "items": {"type": "null"}, "minItems": 1, "maxItems": 4}`,
			[]string{`[1]`, `[1, "x"]`, `[1,"x",null,null]`}, []string{`[]`, `["x"]`, `[1,2]`, `[1,"x",1]`, `[1,"x",null,null,null]`, `[,1]`}},
		{`{"type": "array", "prefixItems": [{}, {}, {}], "maxItems": 2}`, []string{`[]`, `[1]`, `[1,2]`}, []string{`[1,2,3]`}},
		{`{"type": "array", "items": [{"type": "integer"}], "additionalItems": false}`, []string{`[]`, `[1]`}, []string{`["x"]`, `[1,2]`}},
		{`{"allOf": [{"prefixItems": [{"minimum": 3}, {}]}, {"items": {"type": "integer"}}], "type": "array"}`, []string{`[3,1,1]`, `[]`},
			[]string{`[2]`, `[3,"x"]`, `["x"]`}},
		{`{"oneOf": [{"type": "array", "prefixItems": [{"const": "a"}, {"type": "null"}], "minItems": 2}, {"type": "array",
			"prefixItems": [{"const": "b"}], "minItems": 1}]}`, []string{`["a",null]`, `["b"]`, `["b",1]`}, []string{`["a",1]`, `["c"]`}},
		{`{"type": "array", "items": false}`, []string{`[]`}, []string{`[1]`}},
		{`{"type": "string", "minLength": 2, "maxLength": 3}`, []string{`"éé"`, `"\ud834\udd1e\n"`, `"\u0041bc"`, `"𝄞𝄞𝄞"`}, []string{`""`, `"a"`, `"abcd"`, `"\n"`}},
		{`{"type": "string", "maxLength": 524288}`, []string{`"` + strings.Repeat("x", 524288) + `"`}, []string{`"` + strings.Repeat("x", 524289) + `"`}},
		{`{"type": "string", "pattern": "b+"}`, []string{`"b"`, `"abbc"`, `"\u0062"`}, []string{`""`, `"a"`}},
		{`{"type": "string", "pattern": "^(aa)+$", "minLength": 3, "maxLength": 5}`, []string{`"aaaa"`}, []string{`"aa"`, `"aaa"`, `"aaaaa"`, `"aaaaaa"`}},
		{`{"type": "string", "pattern": "^é\\u0041{1,2}[^x]$"}`, []string{`"éA\n"`, `"\u00e9A𝄞"`, `"éA\uD834\uDD1E"`}, []string{`"éx"`, `"éAx"`}},
		{`{"type": "string", "pattern": "^x", "maxLength": 524288}`, []string{`"xyz"`}, []string{`"y"`}},
		{`{"type": "string", "format": "date"}`, []string{`"2024-02-29"`, `"2000-02-29"`, `"1999-12-31"`}, []string{`"2023-02-29"`, `"1900-02-29"`, `"2024-04-31"`, `"2024-13-01"`, `"x"`}},
		{`{"type": "string", "format": "date-time"}`, []string{`"2024-02-29T23:59:59Z"`, `"2024-02-29T23:59:59.123+01:00"`}, []string{`"2024-02-29"`, `"2024-02-29T24:00:00Z"`}},
		{`{"type": "string", "format": "time"}`, []string{`"12:00:00Z"`}, []string{`"12:00"`, `"12:00:00"`}},
		{`{"type": "string", "format": "uuid"}`, []string{`"123e4567-e89b-12d3-a456-426614174000"`}, []string{`"123e4567"`}},
		{`{"type": "string", "format": "email"}`, []string{`"a.b.c+d@c.example.org"`}, []string{`"a@b"`, `"@b.cc"`, `"a b@c.dd"`, `"` + strings.Repeat("x", 65) + `@c.dd"`}},
		{`{"type": "string", "format": "uri"}`, []string{`"https://example.org:80/a?b=c#d"`, `"mailto:a@b.cc"`, `"file:///a/b.c"`}, []string{`"example.org"`, `"http://a b"`}},
		{`{"format": "int32", "type": "integer"}`, []string{`1`}, []string{`"x"`}},
		{`{"type": "integer", "minimum": -12, "maximum": 105}`, []string{`-12`, `-9`, `0`, `99`, `100`, `105`}, []string{`-13`, `106`, `-100`, `200`, `1.0`}},
		{`{"type": "integer", "exclusiveMinimum": 0}`, []string{`1`, `10`}, []string{`0`, `-1`, `-0`}},
		{`{"type": "integer", "minimum": 1.5, "maximum": 2.5}`, []string{`2`}, []string{`1`, `3`}},
		{`{"type": "number", "minimum": 0.25, "exclusiveMaximum": 1}`, []string{`0.25`, `0.5`, `0.3`, `0.99999`}, []string{`0.249`, `1`, `1.0`, `-0.5`, `0.2`, `0`, `2`}},
		{`{"type": "number", "minimum": -1e2}`, []string{`-100`, `-99.9`, `12345.6`, `-100.0`, `0`}, []string{`-100.1`, `-101`, `-1000`}},
		{`{"type": "number", "exclusiveMinimum": 5, "maximum": 5.5}`, []string{`5.1`, `5.5`, `5.50`, `5.0001`}, []string{`5`, `5.0`, `5.51`, `6`}},
		{`{"minimum": 5, "type": "number", "exclusiveMinimum": true}`, []string{`5.1`}, []string{`5`}},
		{`{"oneOf": [{"type": "number"}, {"type": "integer"}]}`, []string{`1.5`, `-0.5`}, []string{`1`, `1.0`, `1e0`, `-0`}},
		{`{"oneOf": [{"type": "string"}, {"enum": ["a", "b", 1]}, {"pattern": "^c", "type": "string"}]}`, []string{`"d"`, `1`, `"ab"`, `""`},
			[]string{`"a"`, `"\u0062"`, `"c"`, `2`}},
		{`{"oneOf": [{"enum": [1, 2, [3]]}, {"const": 2.0}, {"type": ["null", "boolean"]}, {"const": true}]}`, []string{`1`, `[3]`, `null`, `false`},
			[]string{`2`, `2.0`, `true`}},
		{`{"type": "string", "oneOf": [{"minLength": 2}, {"maxLength": 4}]}`, []string{`"a"`, `"abcde"`}, []string{`"abc"`, `1`}},
		{`{"type": "integer", "multipleOf": 7, "minimum": -20}`, []string{`0`, `7`, `-14`, `70`, `700000007`}, []string{`1`, `-21`, `7.0`, `17`}},
		{`{"type": "number", "multipleOf": 0.25, "allOf": [{"multipleOf": 0.1}]}`, []string{`0.5`, `-1.50`, `3`, `2.0`}, []string{`0.25`, `0.1`, `1.75`}},
		{`{"enum": [1, 2.5, 4, "x"], "multipleOf": 2}`, []string{`4`, `"x"`}, []string{`1`, `2.5`}},
		{`{"oneOf": [{"multipleOf": 2, "type": "integer"}, {"multipleOf": 3, "type": "number"}]}`, []string{`2`, `3`, `3.0`, `-9`, `4`}, []string{`6`, `6.0`, `0`, `1`}},
		{`{"type": "string", "format": "ipv6"}`, []string{`"::"`, `"::1"`, `"2001:db8::8:800:200c:417a"`, `"1:2:3:4:5:6:7:8"`, `"1::"`},
			[]string{`":"`, `"1:2"`, `"1::2::3"`, `"12345::"`, `"1:2:3:4:5:6:7:8:9"`, `":1"`}},
		{`{"const": -2.0}`, []string{`-2`}, []string{`2`, `-2.00`}},
		{`true`, []string{`1`, `{"a":[]}`}, []string{`{`}},
		{`{"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a", "type": "null", "definitions": {"a": {"type": "integer"}}}`,
			[]string{`1`}, []string{`null`}},
		{`{"type": "object", "properties": {"a/b": {"$ref": "#/properties/c~0~1%25"}, "c~/%": {"type": "null"}}}`, []string{`{"a/b":null}`}, []string{`{"a/b":1}`}},
		{`{"uniqueItems": false, "not": false, "minProperties": 0, "type": "array"}`, []string{`[1,1]`}, []string{`{}`}},
		{`{"type": "string", "multipleOf": 3, "contains": {}, "uniqueItems": true}`, []string{`"x"`}, []string{`3`}},
	} {
		texts(t, schema(c.schema), c.yes, c.no)
	}
}

func TestSchemasRefused(t *testing.T) {
	for _, c := range []struct {
		schema, at, keyword string
		kind                error
	}{
		{`{"properties": {"a/b": {"not": {"type": "null"}}}}`, "/properties/a~1b", "not", ErrUnsupported},
		{`{"items": {"uniqueItems": true}}`, "/items", "uniqueItems", ErrUnsupported},
		{`{"type": "integer", "multipleOf": 0}`, "", "multipleOf", ErrInvalid},
		{`{"type": "number", "multipleOf": 1e9}`, "", "multipleOf", ErrTooLarge},
		{`{"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}`, "", "oneOf", ErrUnsupported},
		{`{"$ref": "#"}`, "", "$ref", ErrUnsupported},
		{`{"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"allOf": [{"$ref": "#"}]}}}`, "/$defs/a/allOf/0", "$ref", ErrUnsupported},
		{`{"$ref": "https://example.org/x"}`, "", "$ref", ErrUnsupported},
		{`{"$ref": "#/$defs/x"}`, "", "$ref", ErrInvalid},
		{`{"properties": {"a": {"type": "strin"}}}`, "/properties/a", "type", ErrInvalid},
		{`{"properties": {"a": 1}}`, "/properties/a", "", ErrInvalid},
		{`{"pattern": "(?=a)"}`, "", "pattern", ErrUnsupported},
		{`{"type": "string", "pattern": "\\bword"}`, "", "pattern", ErrUnsupported},
		{`{"type": "string", "format": "regex"}`, "", "format", ErrUnsupported},
		{`{"type": "string", "pattern": "a{1,100000}"}`, "", "pattern", ErrTooLarge},
		{`{"type": "string", "pattern": "^a", "minLength": 524288}`, "", "minLength", ErrTooLarge},
		{`{"type": "object", "properties": {"a": {"type": "array", "items": {"patternProperties": {"x": {}}}}}}`,
			"/properties/a/items", "patternProperties", ErrUnsupported},
		{`false`, "", "", ErrInvalid},
		{`{"type": "integer", "minimum": 3, "maximum": 2}`, "", "", ErrInvalid},
		{`{"type": "string", "const": 1}`, "", "", ErrInvalid},
		{`{"type": "array", "prefixItems": [{}, {}], "minItems": 2, "maxItems": 1}`, "", "", ErrInvalid},
		{`{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}`, "", "", ErrInvalid},
		{`{"type": "object", "properties": {"a": false}, "required": ["a"]}`, "", "", ErrInvalid},
		{`{"type": "string", "pattern": "^a$", "minLength": 2}`, "", "", ErrInvalid},
		{`{"minimum": 1e500}`, "", "minimum", ErrTooLarge},
		{`{"minLength": -1}`, "", "minLength", ErrInvalid},
	} {
		_, err := Compile(schema(c.schema), Limits{})
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, c.kind) || e.At != c.at || e.Keyword != c.keyword {
			t.Errorf("%s: %v: want %v, %q at %q", c.schema, err, c.kind, c.keyword, c.at)
		}
	}
}

// TestDigest: a digest is of what a Spec says, not of how it is spaced.
func TestDigest(t *testing.T) {
	a, b := compile(t, schema(`{"type": "null"}`)), compile(t, schema(" {\"type\":\n\"null\"}"))
	if a.Digest() != b.Digest() {
		t.Error("white space changes the digest")
	}
	if c := compile(t, Spec{Schema: json.RawMessage(`{"type":"null"}`), Indent: true}); c.Digest() == a.Digest() {
		t.Error("the digest leaves Indent out")
	}
}
