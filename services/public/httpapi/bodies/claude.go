package bodies

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// Attribution begins a system block that Claude Code changes with every request. It says who asks, not what, and would cost the whole
// prompt's prefill each turn.
const Attribution = "x-anthropic-billing-header:"

// claude is what a body of Anthropic's Messages says beside the options.
type claude struct{ system string }

// Messages reads a body of Anthropic's /v1/messages. Errors as Chat's; *oai.Error for a thread.
func Messages(body io.Reader, d ask.Defaults, l Limits) (*ask.Request, error) {
	return begin(messages, ask.Chat, d, l).read(body, d, "", (*call).claudes)
}

// claudes completes a body of the Messages API.
func (c *call) claudes() (err error) {
	switch {
	case len(c.turns.all) == 0:
		return bad("messages", "messages is missing or empty: want at least one message")
	case c.Said("max_tokens") == "" && !c.limits.CountOnly:
		return bad("max_tokens", "max_tokens is missing: want 1 or more")
	}
	system := c.claude.system
	if system != "" {
		c.turns.system(system)
	}
	c.Request.Messages, err = c.turns.messages(c.limits.Text, nil)
	return err
}

func readClaudeMost(c *call, name string, s *source) error {
	n := 0
	if err := readInt(name, s, &n); err != nil {
		return err
	}
	if n < 1 {
		return bad(name, "%s is %d: want 1 or more", name, n)
	}
	return c.most(name, n)
}

// block is one part of a content.
type block struct {
	kind, text, thinking, id, name, toolUse, title string
	input, source, raw                             json.RawMessage
	content                                        []block // the parts of a tool's result; else raw has it
	isError                                        bool
}

// readBlocks reads a content: a string, or blocks.
func readBlocks(at, path string, s *source) (out []block, err error) {
	switch s.kind() {
	case "a string":
		text, err := readLong(at, s)
		return []block{{kind: "text", text: text}}, err
	case "an array":
	case "null":
		s.skip()
		return nil, nil
	default:
		return nil, bad(at, "%s is %s: want a string or an array of content blocks", at, s.show())
	}
	path += "[]"
	err = s.array(at, maxNested+1, func(i int) error {
		var b block
		at := element(at, i)
		err := s.fields(at, path, readers{"type": s.textAt(&b.kind), "text": s.longAt(&b.text),
			"thinking": s.longAt(&b.thinking), "id": s.textAt(&b.id), "name": s.textAt(&b.name), "input": s.jsonAt(&b.input),
			"tool_use_id": s.textAt(&b.toolUse), "is_error": s.boolAt(&b.isError), "title": s.longAt(&b.title),
			"source": s.jsonAt(&b.source), "signature": nil, "content": func(full string) (err error) {
				if b.kind == "tool_result" {
					b.content, err = readBlocks(full, path+".content", s)
					return err
				}
				return s.jsonAt(&b.raw)(full)
			}})
		if err == nil && b.kind == "tool_result" && b.raw != nil { // its type came behind
			inner := newSource(strings.NewReader(string(b.raw)), s.limits)
			b.content, err = readBlocks(join(at, "content"), path+".content", inner)
			err = inner.outcome(err)
		}
		out = append(out, b)
		return err
	})
	return out, err
}

func readSystem(c *call, name string, s *source) error {
	blocks, err := readBlocks(name, name, s)
	if err != nil {
		return err
	}
	blocks = slices.DeleteFunc(blocks, func(b block) bool {
		drop := !c.limits.KeepAttribution && strings.HasPrefix(b.text, Attribution)
		if drop {
			c.limits.ignore("system." + strings.TrimSuffix(Attribution, ":"))
		}
		return drop
	})
	c.claude.system, err = c.texts(name, blocks, true)
	return err
}

// readClaudeMessages reads the conversation.
func readClaudeMessages(c *call, name string, s *source) error {
	return s.array(name, maxNested+1, func(i int) error {
		at, role := element(name, i), ""
		var blocks []block
		err := s.fields(at, name+"[]", readers{"role": s.textAt(&role), "content": func(full string) (err error) {
			blocks, err = readBlocks(full, name+"[].content", s)
			return err
		}})
		if err != nil || s.err != nil && s.peek() == 0 {
			return err
		}
		switch role {
		case "user":
			return c.user(at, blocks)
		case "assistant":
			return c.assistant(at, blocks)
		case "system": // in the middle: few templates take that, and at the front it would change what is cached
			text, err := c.texts(at+".content", blocks, true)
			if last := c.turns.last(); last != nil && last.Role == "user" {
				c.turns.say("\n\n", text)
			} else {
				c.turns.add(at, conversation.Message{Role: "user", Content: text})
			}
			return err
		}
		return bad(at+".role", "%s.role is %.50q: want \"user\" or \"assistant\"", at, role)
	})
}

// texts joins the texts of blocks. own: the client can leave out what is none, so that is refused.
func (c *call) texts(at string, blocks []block, own bool) (string, error) {
	var all []string
	for i, b := range blocks {
		text, err := c.textOf(&b, element(at, i), own)
		if err != nil {
			return "", err
		}
		if text != "" {
			all = append(all, text)
		}
	}
	return strings.Join(all, "\n"), nil
}

// textOf returns what a block says; of what is no text in results of tools and in earlier answers, see instead.
func (c *call) textOf(b *block, at string, own bool) (string, error) {
	switch b.kind {
	case "text", "":
		return b.text, nil
	case "tool_reference", "redacted_thinking", "compaction": // a tool that was found is among the tools
		c.limits.ignore("messages[].content[]." + b.kind)
		return "", nil
	case "document":
		var source struct{ Type, Data string }
		if _ = json.Unmarshal(b.source, &source); source.Type == "text" {
			return strings.TrimSpace(b.title + "\n" + source.Data), nil
		}
	case "search_result", "container_upload":
	default:
		if own && !strings.HasSuffix(b.kind, "_tool_result") && !strings.HasSuffix(b.kind, "_tool_use") {
			return "", unsupported(at+".type", "%s.type is %.50q: only text is supported", at, b.kind)
		}
	}
	c.limits.ignore("messages[].content[]." + b.kind)
	holds := []string{b.title, b.text, b.name, heldIn(b.source), heldIn(b.raw)}
	if asks(b.input) {
		holds = append(holds, string(b.input))
	}
	return instead(b.kind, holds...), nil
}

// user adds a user's message: results of tools become messages of their own, before its text.
func (c *call) user(at string, blocks []block) error {
	var said []block
	for i, b := range blocks {
		if b.kind != "tool_result" {
			said = append(said, b)
			continue
		}
		text, err := c.texts(fmt.Sprintf("%s.content[%d].content", at, i), b.content, false)
		if err != nil {
			return err
		}
		if b.isError && text == "" {
			text = "error"
		}
		c.turns.add(at, conversation.Message{Role: "tool", Content: text, ToolCallID: b.toolUse})
	}
	text, err := c.texts(at+".content", said, true)
	if err != nil {
		return err
	}
	if text != "" || len(said) > 0 || len(blocks) == 0 {
		c.turns.add(at, conversation.Message{Role: "user", Content: text})
	}
	return nil
}

// assistant adds an assistant's message.
func (c *call) assistant(at string, blocks []block) (err error) {
	t := turn{}
	var said []block
	var thoughts []string
	for i, b := range blocks {
		switch b.kind {
		case "thinking":
			thoughts = append(thoughts, b.thinking)
		case "tool_use":
			if b.name == "" {
				field := fmt.Sprintf("%s.content[%d].name", at, i)
				return bad(field, "%s is missing: want the name of the tool that was called", field)
			}
			t.calls = append(t.calls, sentCall(b.id, b.name, b.input))
		default:
			said = append(said, b)
		}
	}
	t.Content, err = c.texts(at+".content", said, false)
	c.turns.add(at, conversation.Message{Role: "assistant", Content: t.Content, Reasoning: strings.Join(thoughts, "")}).calls = t.calls
	return err
}

func readClaudeTools(c *call, name string, s *source) error {
	return s.array(name, maxNested+1, func(i int) error {
		var t tool
		at := element(name, i)
		err := s.fields(at, name+"[]", readers{"type": s.textAt(&t.kind), "name": s.textAt(&t.name),
			"description": s.longAt(&t.description), "input_schema": s.jsonAt(&t.schema), "strict": s.boolAt(&t.strict)})
		switch {
		case err != nil:
			return err
		case t.kind != "" && t.kind != "custom" && len(t.schema) == 0: // what Anthropic's servers carry out
			c.limits.ignore("tools[].type=" + t.kind)
		case t.name == "":
			return bad(at+".name", "%s.name is missing: want the tool's name", at)
		default:
			t.kind = "function"
			c.Tools = append(c.Tools, t.asked(t.name))
		}
		return nil
	})
}

func readClaudeChoice(c *call, name string, s *source) error {
	kind, tool, single := "", "", false
	err := s.fields(name, name, readers{"type": s.textAt(&kind), "name": s.textAt(&tool),
		"disable_parallel_tool_use": s.boolAt(&single)})
	switch {
	case err != nil:
		return err
	case kind == "tool":
		c.Choice.Only, c.Choice.Must = []string{tool}, true
	case kind == "any" || kind == "auto" || kind == "none":
		_ = c.Choice.Mode(name, kind) // it is one of the words
	default:
		return bad("tool_choice.type", "tool_choice.type is %.50q: want \"auto\", \"any\", \"tool\" or \"none\"", kind)
	}
	if single {
		c.Parallel = false
		c.Say("parallel_tool_calls", "parallel_tool_calls")
	}
	return nil
}

func readClaudeThinking(c *call, name string, s *source) error {
	kind := ""
	err := s.fields(name, name, readers{"type": s.textAt(&kind)})
	switch {
	case err != nil || kind == "adaptive":
	case s.limits.reads("enable_thinking"):
		c.Variables.Think(kind == "enabled")
	default:
		s.limits.ignore("thinking.type")
	}
	return err
}

func readOutputConfig(c *call, name string, s *source) error {
	return s.fields(name, name, readers{
		"effort": func(full string) error { return readEffort(c, full, s) },
		"format": func(full string) error { return readOutputFormat(c, full, s) }})
}

// readOutputFormat reads {"type": "json_schema", "schema": …}.
func readOutputFormat(c *call, name string, s *source) error {
	kind, schema := "", json.RawMessage(nil)
	if err := s.fields(name, name, readers{"type": s.textAt(&kind), "schema": s.jsonAt(&schema)}); err != nil {
		return err
	}
	return c.form(name, kind, name+".schema", schema)
}

// readThread refuses a thread: the client's library sends the whole history after this answer.
func readThread(_ *call, name string, s *source) error {
	if !asks(s.raw(maxSmall)) {
		return nil
	}
	e := oai.Refusal(http.StatusBadRequest, "thread_unsupported_request", "thread is not supported: send all messages")
	e.Param = name
	return e
}
