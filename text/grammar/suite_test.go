package grammar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// spoken are the keywords that this room speaks, and what stands below each: nothing of schemas, a schema, or several.
var spoken = map[string]int{"type": 0, "required": 0, "enum": 0, "const": 0, "pattern": 0, "minLength": 0, "maxLength": 0, "minItems": 0,
	"maxItems": 0, "minimum": 0, "maximum": 0, "exclusiveMinimum": 0, "exclusiveMaximum": 0, "multipleOf": 0,
	"$ref": 0, "format": 0, "$schema": 0, "$id": 0,
	"title": 0, "description": 0, "default": 0, "examples": 0, "$comment": 0, "additionalProperties": 1, "propertyNames": 1, "items": 1,
	"properties": 2, "$defs": 2, "definitions": 2, "prefixItems": 3, "additionalItems": 1, "anyOf": 3, "oneOf": 3, "allOf": 3}

// keywords adds the keywords of a schema to found. It returns false if there is one that is not spoken.
func keywords(schema any, found map[string]bool) bool {
	all, _ := schema.(map[string]any)
	for keyword, v := range all {
		below, known := spoken[keyword]
		ref, isText := v.(string)
		if found[keyword] = true; keyword == "$ref" && !isText {
			return false
		}
		named := keyword == "format" && !slices.Contains([]string{"date", "time", "date-time", "uuid", "email", "uri"}, ref)
		meta := keyword == "$schema" && !strings.Contains(ref, "://json-schema.org/")
		if !known || named || meta || keyword == "$ref" && ref != "#" && !strings.HasPrefix(ref, "#/") {
			return false
		}
		parts := []any{}
		switch v := v.(type) {
		case map[string]any:
			if below == 1 {
				parts = append(parts, v)
			} else if below == 2 {
				parts = slices.AppendSeq(parts, maps.Values(v))
			}
		case []any:
			if below == 3 || keyword == "items" {
				parts = v
			}
		}
		for _, part := range parts {
			if !keywords(part, found) {
				return false
			}
		}
	}
	return true
}

// forms returns the texts that say v: with members in every order, and integers without a fraction.
func forms(v any) []string {
	const most = 5000
	join := func(before []string, between string, next []string) (out []string) {
		for _, a := range before {
			for _, b := range next {
				if len(out) < most {
					out = append(out, a+between+b)
				}
			}
		}
		return out
	}
	switch v := v.(type) {
	case []any:
		out := []string{"["}
		for i, part := range v {
			out = join(out, strings.Repeat(", ", min(i, 1)), forms(part))
		}
		return join(out, "", []string{"]"})
	case map[string]any:
		out := []string{}
		var add func(so []string, left []string)
		add = func(so []string, left []string) {
			if len(left) == 0 {
				out = append(out, join(so, "", []string{"}"})...)
			}
			for i, key := range left {
				first := strings.Repeat(", ", min(1, len(v)-len(left)))
				add(join(join(so, first, []string{quote(key) + ": "}), "", forms(v[key])), slices.Delete(slices.Clone(left), i, i+1))
			}
		}
		add([]string{"{"}, slices.Collect(maps.Keys(v)))
		return out
	case json.Number:
		if d := readDecimal(v.String()); d.part == "" {
			return []string{d.String(), v.String()}
		}
		return []string{v.String()}
	case string:
		return []string{quote(v)}
	default:
		text, _ := json.Marshal(v)
		return []string{string(text)}
	}
}

// TestOfficialSuite feeds the official test suite's values to the grammars of its schemas.
func TestOfficialSuite(t *testing.T) {
	folder := os.Getenv("TANDEM_JSON_SCHEMA_SUITE")
	if cache, err := os.UserCacheDir(); folder == "" && err == nil {
		folder = filepath.Join(cache, "tandem", "json-schema-suite")
	}
	for draft, says := range map[string]string{"draft2020-12": "", "draft7": "http://json-schema.org/draft-07/schema#"} {
		t.Run(draft, func(t *testing.T) {
			files, _ := filepath.Glob(filepath.Join(folder, draft, "*.json"))
			if len(files) == 0 {
				t.Skipf("the official JSON Schema test suite is not in %s: test/scripts/json-schema-suite gets it", folder)
			}
			var s suite
			for _, file := range files {
				s.file(t, file, says)
			}
			s.report(t)
		})
	}
}

// suite counts tests by keyword: all of its schemas, and those that were taken.
type suite struct {
	all, spoken, taken int
	by                 map[string]*[2]int
	refused            map[string]int
}

func (s *suite) file(t *testing.T, file, says string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var groups []struct {
		Description string
		Schema      json.RawMessage
		Tests       []struct {
			Description string
			Data        json.RawMessage
			Valid       bool
		}
	}
	if err := json.Unmarshal(text, &groups); err != nil {
		t.Fatal(err)
	}
	for _, group := range groups {
		s.all += len(group.Tests)
		found := map[string]bool{}
		if !keywords(decode(group.Schema), found) {
			continue
		}
		if object, ok := bytes.CutPrefix(group.Schema, []byte("{")); ok && says != "" && !found["$schema"] {
			comma := ","
			if string(bytes.TrimSpace(object)) == "}" {
				comma = ""
			}
			group.Schema = fmt.Appendf(nil, `{"$schema": %q%s%s`, says, comma, object)
		}
		s.spoken += len(group.Tests)
		g, err := Compile(Spec{Schema: group.Schema}, Limits{})
		var e *Error
		if errors.As(err, &e) && e.Why != "no text satisfies it" {
			s.refuse(e.Keyword+": "+e.Why, len(group.Tests))
		}
		for _, test := range group.Tests {
			all := forms(decode(test.Data))
			took := err == nil && slices.ContainsFunc(all, func(form string) bool { return takes(t, g, form) })
			if took && !test.Valid {
				t.Errorf("%s, %s, %s: %s is taken for %s", filepath.Base(file), group.Description, test.Description, test.Data,
					group.Schema)
			}
			right := took == test.Valid && (err == nil || e.Why == "no text satisfies it")
			if right {
				s.taken++
			} else if err == nil {
				s.refuse(fmt.Sprintf("%s of %s", test.Data, group.Schema), 1)
			}
			for keyword := range found {
				s.count(keyword, right)
			}
		}
	}
}

func decode(text json.RawMessage) (v any) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		panic(err)
	}
	return v
}

func (s *suite) refuse(why string, tests int) {
	if s.refused == nil {
		s.refused = map[string]int{}
	}
	s.refused[why] += tests
}

func (s *suite) count(keyword string, right bool) {
	if s.by == nil {
		s.by = map[string]*[2]int{}
	}
	if s.by[keyword] == nil {
		s.by[keyword] = new([2]int)
	}
	s.by[keyword][0]++
	if right {
		s.by[keyword][1]++
	}
}

func (s *suite) report(t *testing.T) {
	t.Logf("of %d tests %d have schemas of the keywords that are spoken; %d of these are taken, %.1f %%", s.all, s.spoken, s.taken,
		100*float64(s.taken)/float64(s.spoken))
	for _, keyword := range slices.Sorted(maps.Keys(s.by)) {
		t.Logf("%-22s %3d of %3d", keyword, s.by[keyword][1], s.by[keyword][0])
	}
	for _, why := range slices.Sorted(maps.Keys(s.refused)) {
		t.Logf("%d tests: %s", s.refused[why], why)
	}
	if s.taken*100 < s.spoken*95 {
		t.Error("less than 95 % are taken")
	}
}
