package oai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

const maxNames = 16

func readSpeculation(c *Call, name string, from *source) error {
	s := &c.speculation
	one := ""
	err := from.object(name, func(field string) error {
		full := join(name, field)
		if from.isNull() {
			from.skip()
			return nil
		}
		switch field {
		case "enabled":
			s.Enabled = new(bool)
			return readBool(full, from, s.Enabled)
		case "max_nodes", "max_width": // the second is the old name, an alias
			before, other := s.Nodes, c.nodesName
			c.nodesName = full
			if err := readInt32(full, from, &s.Nodes); err != nil || before == nil || *before == *s.Nodes {
				return err
			}
			return bad(full, "%s and %s say different things: want one of them", full, other)
		case "max_depth":
			return readInt32(full, from, &s.Depth)
		case "max_branches":
			return readInt32(full, from, &s.Width)
		case "strategy":
			s.Strategy = new(string)
			return readText(full, from, s.Strategy)
		case "vote":
			s.Vote = new(string)
			return readText(full, from, s.Vote)
		case "drafter":
			return readText(full, from, &one)
		case "drafters":
			return readNames(full, from, &s.Drafters)
		case "without":
			return readNames(full, from, &s.Without)
		case "report":
			return readBool(full, from, &c.Request.Report)
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
func readInt32(name string, s *source, to **int32) error {
	n := 0
	err := readInt(name, s, &n)
	*to = new(int32(n))
	return err
}

// readNames reads an array of names, at least one.
func readNames(name string, s *source, to *[]string) error {
	return s.array(name, maxNames, func(i int) error {
		var one string
		err := readText(element(name, i), s, &one)
		*to = append(*to, one)
		return err
	})
}

func element(name string, i int) string { return fmt.Sprintf("%s[%d]", name, i) }

// compact returns raw without white space outside of strings.
func compact(raw []byte) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}

// list returns alternatives as text.
func list(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	return strings.Join(values[:len(values)-1], ", ") + " or " + values[len(values)-1]
}
