package oai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

const maxNames = 16

func readSpeculation(c *Call, name string, raw json.RawMessage) error {
	s := &c.speculation
	one := ""
	err := object(name, raw, func(field string, raw json.RawMessage) error {
		full := join(name, field)
		if isNull(raw) {
			return nil
		}
		switch field {
		case "enabled":
			s.Enabled = new(bool)
			return readBool(full, raw, s.Enabled)
		case "max_width":
			return readInt32(full, raw, &s.Nodes)
		case "max_depth":
			return readInt32(full, raw, &s.Depth)
		case "max_branches":
			return readInt32(full, raw, &s.Width)
		case "strategy":
			s.Strategy = new(string)
			return readText(full, raw, s.Strategy)
		case "vote":
			s.Vote = new(string)
			return readText(full, raw, s.Vote)
		case "drafter":
			return readText(full, raw, &one)
		case "drafters":
			return readNames(full, raw, &s.Drafters)
		case "without":
			return readNames(full, raw, &s.Without)
		case "report":
			return readBool(full, raw, &c.Request.Report)
		}
		return unsupported(full, "unknown field %.100q: tandem does not support it", full)
	})
	if err == nil && one != "" {
		if len(s.Drafters) > 0 {
			return bad(join(name, "drafter"), "%s.drafter and %s.drafters: want one of them", name, name)
		}
		s.Drafters = []string{one}
	}
	return err
}

// readInt32 reads an integer into a new *to.
func readInt32(name string, raw json.RawMessage, to **int32) error {
	n := 0
	err := readInt(name, raw, &n)
	*to = new(int32(n))
	return err
}

// readNames reads an array of names, at least one.
func readNames(name string, raw json.RawMessage, to *[]string) error {
	err := array(name, raw, maxNames, func(i int, raw json.RawMessage) error {
		var s string
		err := readText(element(name, i), raw, &s)
		*to = append(*to, s)
		return err
	})
	return err
}

func element(name string, i int) string { return fmt.Sprintf("%s[%d]", name, i) }

// compact returns raw without white space outside of strings.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}

// list words alternatives.
func list(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	return strings.Join(values[:len(values)-1], ", ") + " or " + values[len(values)-1]
}
