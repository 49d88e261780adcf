package ask

// Choice says which tools the model may call, and whether it has to.
type Choice struct {
	Must bool     // it has to call one
	None bool     // it is to call none
	Only []string // the tools that it may call; nil: all
}

// Mode sets what a word asks for: "none", "auto", "required", or "any", which means the same. field is its place in the request.
func (c *Choice) Mode(field, word string) error {
	switch word {
	case "none":
		c.None = true
	case "auto":
	case "required", "any":
		c.Must = true
	default:
		return wrong(field, "%s is %.50q: want \"none\", \"auto\", \"required\" or an object that names a tool", field, word)
	}
	return nil
}

// Offer returns the tools that the model is told of: all of tools, none, or each that the choice names, once. Of two with the same name the
// choice means the first. Errors: Invalid, of the field tool_choice.
func (c Choice) Offer(tools []Tool) ([]Tool, error) {
	switch {
	case c.None || len(tools) == 0 && !c.Must && len(c.Only) == 0:
		return nil, nil
	case len(tools) == 0:
		return nil, wrong("tool_choice", "tool_choice asks for a call and there are no functions in tools: want at least one")
	case len(c.Only) == 0:
		return tools, nil
	}
	first := make(map[string]int, len(tools))
	for i, t := range tools {
		if _, there := first[t.Name]; !there {
			first[t.Name] = i
		}
	}
	var kept []Tool
	taken := map[string]bool{}
	for _, name := range c.Only {
		at, there := first[name]
		if !there {
			return nil, wrong("tool_choice", "tool_choice names %.100q, which is not in tools: want one of %.500s", name,
				listed(tools, first))
		}
		if !taken[name] {
			taken[name] = true
			kept = append(kept, tools[at])
		}
	}
	return kept, nil
}

// listed returns the names of tools in their order, each once, and at most some hundred bytes of them.
func listed(tools []Tool, first map[string]int) (out string) {
	const most = 512
	for i, t := range tools {
		switch {
		case first[t.Name] != i || t.Name == "":
		case len(out) > most:
			return out
		case out != "":
			out += ", " + t.Name
		default:
			out = t.Name
		}
	}
	return out
}
