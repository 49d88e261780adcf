package bodies

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/services/public/ask"
)

// offer is what a body of the Responses API says beside the options.
type offer struct {
	Asked
	instructions string
	choice       choice
	told         map[[2]string]string // the model's name of a tool, by the client's namespace and name
	thought      []string             // thoughts of the assistant's turn that comes next
}

// Asked is what an answer of the Responses API needs to know of its request.
type Asked struct {
	Tools map[string]Offered // tools by the names that the model knows
	Echo  Echo
}

// Offered is a tool as its client knows it.
type Offered struct {
	Name, Namespace string
	Custom          bool // it takes a text: the argument "input" of a function
}

// Echo is what an answer repeats of its request.
type Echo struct {
	Reasoning struct {
		Effort  *string `json:"effort"`
		Summary *string `json:"summary"`
	} `json:"reasoning"`
	Text struct {
		Format Format `json:"format"`
	} `json:"text"`
	Metadata     json.RawMessage `json:"metadata"`
	Instructions json.RawMessage `json:"instructions"`
	MaxTokens    *int            `json:"max_output_tokens"`
	Parallel     bool            `json:"parallel_tool_calls"`
	ToolChoice   json.RawMessage `json:"tool_choice"`
	Tools        json.RawMessage `json:"tools"`
	Temperature  *float64        `json:"temperature"`
	TopP         *float64        `json:"top_p"`
}

// Format is the form that the answer is to have.
type Format struct {
	Type        string          `json:"type"`
	Name        string          `json:"name,omitempty"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`
	Strict      *bool           `json:"strict,omitempty"`
}

// Responses reads a body of /v1/responses, without a memory of earlier answers. Errors as Chat's.
func Responses(body io.Reader, d ask.Defaults, l Limits) (*ask.Request, Asked, error) {
	c := begin(responses, ask.Chat, d, l)
	c.turns.field = "input"
	c.offer = offer{Asked: Asked{Tools: map[string]Offered{}}, told: map[[2]string]string{}}
	c.offer.Echo.Metadata, c.offer.Echo.ToolChoice = json.RawMessage("{}"), json.RawMessage(`"auto"`)
	r, err := c.read(body, d, "", (*call).responds)
	return r, c.offer.Asked, err
}

// responds completes a body of the Responses API.
func (c *call) responds() (err error) {
	o, e := &c.offer, &c.offer.Echo
	if e.Parallel = c.Parallel; c.Said("max_tokens") != "" && c.MaxTokens != ask.ToTheEnd {
		e.MaxTokens = new(c.MaxTokens)
	}
	if c.Said("temperature") != "" {
		e.Temperature = new(c.Sampling.Temperature)
	}
	if c.Said("top_p") != "" {
		e.TopP = new(c.Sampling.TopP)
	}
	if err := c.choose(); err != nil {
		return err
	}
	said, f := o.instructions, &e.Text.Format
	if err := c.form("text.format", f.Type, "text.format.schema", f.Schema); err != nil {
		return err
	}
	if f.Type == "" {
		f.Type = "text"
	}
	first := c.turns.last() != nil && c.turns.all[0].Role == "system"
	switch {
	case said != "" && first: // what stands for the system at the beginning is one message
		c.turns.join()
		c.turns.all[0].Content = said + "\n\n" + c.turns.all[0].Content
	case said != "":
		c.turns.system(said)
	}
	if c.turns.last() == nil {
		return bad("input", "input has nothing to answer: want a string, or an array with at least one message")
	}
	c.Messages, err = c.turns.messages(c.limits.Text, o.name)
	return err
}

// name returns the name by which the model knows a tool of the client's.
func (o *offer) name(namespace, name string) string {
	if told, ok := o.told[[2]string{namespace, name}]; ok {
		return told
	}
	return name
}

// choose sets the choice among the tools, whose names for the model are known at the end.
func (c *call) choose() error {
	o := &c.offer
	switch x := o.choice; {
	case x.kind == "" && x.name == "":
		return nil
	case x.kind == "allowed_tools":
		for _, t := range x.tools {
			if name := o.name(t.namespace, t.name); o.Tools[name] != (Offered{}) {
				c.Choice.Only = append(c.Choice.Only, name)
			}
		}
		if len(c.Choice.Only) > 0 {
			return c.Choice.Mode("tool_choice.mode", or(x.mode, "auto"))
		}
		return nil
	case x.name != "":
		c.Choice.Only, c.Choice.Must = []string{o.name(x.namespace, x.name)}, true
		return nil
	default:
		return unsupported("tool_choice.type", "tool_choice.type is %.50q: want \"function\", \"custom\" or \"allowed_tools\"", x.kind)
	}
}

func readOfferedChoice(c *call, name string, s *source) error {
	raw, err := s.taking(maxSmall, func() (err error) {
		switch s.kind() {
		case "an object":
			c.offer.choice, err = readChoice(name, s)
			c.offer.choice.kind = or(c.offer.choice.kind, "\x00")
			return err
		case "a string":
			mode := ""
			if err := readText(name, s, &mode); err != nil || mode == "" {
				return err
			}
			return c.Choice.Mode(name, mode)
		}
		if raw := s.raw(maxSmall); asks(raw) {
			return bad(name, "%s is not a string or an object", name)
		}
		return nil
	})
	if err == nil && s.cut {
		return bad(name, "%s has more than %d bytes: want fewer names of tools", name, maxSmall)
	}
	if asks(raw) {
		c.offer.Echo.ToolChoice = bytes.Clone(raw)
	}
	return err
}

// readOffered reads the tools: functions, those of namespaces, and custom ones as functions of a text.
func readOffered(c *call, name string, s *source) error {
	var all []tool
	raw, err := s.taking(s.limits.Text, func() (err error) {
		all, err = toolsIn(name, name, s)
		return err
	})
	if err == nil && s.cut {
		err = tooLarge(name, name, s.limits.Text, s.limits.Text)
	}
	if err != nil {
		return err
	}
	c.offer.Echo.Tools = bytes.Clone(raw)
	for _, t := range all {
		switch {
		case t.offers():
			c.offers(t, "")
		case t.kind == "namespace":
			for _, inner := range t.inner {
				if inner.offers() {
					c.offers(inner, t.name)
				} else {
					c.limits.ignore("tools[].tools[].type=" + inner.kind)
				}
			}
		default:
			c.limits.ignore("tools[].type=" + t.kind)
		}
	}
	return nil
}

// offers reports whether a tool is one that the model can be told of.
func (t *tool) offers() bool {
	return t.name != "" && (t.kind == "function" || t.kind == "custom" || t.kind == "")
}

// toolsIn reads tools as the Responses API writes them.
func toolsIn(at, path string, s *source) (all []tool, err error) {
	err = s.array(at, maxNested+1, func(i int) error {
		var t tool
		err := s.fields(element(at, i), path+"[]", readers{"type": s.textAt(&t.kind), "name": s.textAt(&t.name),
			"description": s.longAt(&t.description), "parameters": s.jsonAt(&t.schema), "format": s.jsonAt(&t.format),
			"tools": func(full string) (err error) {
				t.inner, err = toolsIn(full, path+"[].tools", s)
				return err
			}})
		all = append(all, t)
		return err
	})
	return all, err
}

// offers offers a tool to the model.
func (c *call) offers(t tool, namespace string) {
	name := t.name
	if _, taken := c.offer.Tools[name]; taken && namespace != "" {
		name = namespace + "__" + name
	}
	c.offer.Tools[name] = Offered{t.name, namespace, t.kind == "custom"}
	c.offer.told[[2]string{namespace, t.name}] = name
	c.Tools = append(c.Tools, t.asked(name))
}

// remembers refuses what needs a memory of earlier answers.
func remembers(_ *call, name string, s *source) error {
	if asks(s.raw(maxSmall)) {
		return unsupported(name, "%s is not supported, this server keeps no answers: send all items as input", name)
	}
	return nil
}

func readInstructions(c *call, name string, s *source) error {
	raw, err := s.taking(s.limits.Text, func() error {
		parts, err := readParts(name, name, s)
		if err == nil {
			c.offer.instructions, err = textsOf(name, parts, nil)
		}
		return err
	})
	if err == nil && s.cut {
		return tooLarge(name, name, s.limits.Text, s.limits.Text)
	}
	c.offer.Echo.Instructions = bytes.Clone(raw)
	return err
}

func readReasoning(c *call, name string, s *source) error {
	return s.fields(name, name, readers{"effort": func(full string) error {
		raw, err := s.taking(maxSmall, func() error { return readEffort(c, full, s) })
		if text := ""; err == nil && json.Unmarshal(raw, &text) == nil {
			c.offer.Echo.Reasoning.Effort = &text
		}
		return err
	}})
}

func readTextFormat(c *call, name string, s *source) error {
	return s.fields(name, name, readers{"format": func(full string) error {
		f := &c.offer.Echo.Text.Format
		return s.fields(full, full, readers{"type": s.textAt(&f.Type), "name": s.textAt(&f.Name),
			"description": s.longAt(&f.Description), "schema": s.jsonAt(&f.Schema), "strict": func(full string) error {
				f.Strict = new(bool)
				return readBool(full, s, f.Strict)
			}})
	}})
}

// mostMetadata is the size of metadata that comes back, in bytes: sixteen pairs of OpenAI's longest names and values are less.
const mostMetadata = 64 << 10

func readMetadata(c *call, name string, s *source) error {
	kind := s.kind()
	raw := s.raw(mostMetadata)
	switch {
	case !asks(raw):
	case kind != "an object" || s.cut:
		return bad(name, "%s is %.50s: want an object of at most %d bytes", name, raw, mostMetadata)
	default:
		c.offer.Echo.Metadata = bytes.Clone(raw)
	}
	return nil
}

// readStore notes that no answer is kept.
func readStore(_ *call, name string, s *source) error {
	on := false
	err := readBool(name, s, &on)
	if on {
		s.limits.ignore(name)
	}
	return err
}

func readTruncation(_ *call, name string, s *source) error {
	how := ""
	err := readText(name, s, &how)
	if how != "" && how != "disabled" {
		s.limits.ignore(name)
	}
	return err
}

// part is one part of a content of the Responses API.
type respondPart struct{ kind, text, refusal, filename string }

// readParts reads a content: a string, or parts.
func readParts(at, path string, s *source) (parts []respondPart, err error) {
	switch s.kind() {
	case "a string":
		text, err := readLong(at, s)
		return []respondPart{{text: text}}, err
	case "an array":
	default:
		if raw := s.raw(maxSmall); asks(raw) {
			return nil, bad(at, "%s is %s: want a string or an array of parts", at, show(raw))
		}
		return nil, nil
	}
	err = s.array(at, maxNested+1, func(i int) error {
		var p respondPart
		err := s.fields(element(at, i), path+"[]", readers{"type": s.textAt(&p.kind), "text": s.longAt(&p.text),
			"refusal": s.longAt(&p.refusal), "filename": s.textAt(&p.filename), "annotations": nil, "logprobs": nil})
		parts = append(parts, p)
		return err
	})
	return parts, err
}

// textsOf joins the texts of parts by line breaks, with instead for parts that are none; nil: they are refused.
func textsOf(at string, parts []respondPart, instead func(respondPart) string) (string, error) {
	var all []string
	for i, p := range parts {
		switch {
		case p.kind == "" || slices.Contains(textTypes, p.kind):
			all = append(all, p.text+p.refusal)
		case instead != nil:
			all = append(all, instead(p))
		default:
			at := element(at, i)
			return "", unsupported(at+".type", "%s.type is %.50q: only text is supported", at, p.kind)
		}
	}
	return strings.Join(all, "\n"), nil
}
