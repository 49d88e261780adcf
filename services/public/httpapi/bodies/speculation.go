package bodies

import (
	"github.com/tandem-llm/tandem/services/public/conversation"
)

const maxNames = 16

func readSpeculation(c *call, name string, from *source) error {
	s := c.Speculation
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
			before, other := s.Nodes, c.Said("nodes")
			c.Say("nodes", full)
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
			return readBool(full, from, &c.Report)
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

// readKwargs reads an object of variables of the chat template. Those that it does not read are ignored.
func readKwargs(c *call, name string, s *source) error {
	left := conversation.MostVariables
	return s.object(name, func(key string) error {
		full := join(name, key)
		if err := conversation.Settable(full, key); err != nil {
			return err
		}
		if s.limits.Reads != nil && !s.limits.Reads(key) {
			return s.unknown(full, full)
		}
		raw := s.raw(left)
		if left -= len(raw) + len(key); left < 0 {
			return bad(name, "%s has more than %d bytes", name, conversation.MostVariables)
		}
		c.Variables.Set(key, raw)
		return nil
	})
}

func readThinking(c *call, name string, s *source) error {
	if !s.limits.reads("enable_thinking") {
		return s.unknown(name, name)
	}
	on := false
	if err := readBool(name, s, &on); err != nil {
		return err
	}
	c.Variables.Think(on)
	return nil
}

// readEffort reads how long the model should think. "none" asks what enable_thinking: false asks, where the template reads that alone.
func readEffort(c *call, name string, s *source) error {
	if !s.limits.reads("reasoning_effort") && !s.limits.reads("enable_thinking") && !s.limits.Strict {
		return s.unknown(name, name)
	}
	effort := ""
	if err := readText(name, s, &effort); err != nil {
		return err
	}
	switch {
	case c.Variables.Effort(effort, s.limits.reads):
	case s.limits.Strict:
		return unsupported(name, "%s is %.50q: the chat template does not read it, only \"none\" is supported", name, effort)
	default:
		s.limits.ignore(name)
	}
	return nil
}
