package bodies

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/text/grammar"
)

// ollamaBody is what a body of Ollama's says beside the options.
type ollamaBody struct {
	Ollama
	prompt, system string
	raw            bool
	keep           json.RawMessage
	think          string // the name of a field that speaks to the template; "" for none
}

// Ollama is what an answer of Ollama's API needs to know of its request.
type Ollama struct {
	Load   bool           // the body asks for no text: Ollama's way to load a model, or to let it go
	Stay   bool           // and the model stays
	Before []tandem.Token // tokens of an earlier answer, which this one continues
}

// OllamaChat reads a body of /api/chat, OllamaGenerate one of /api/generate: a chat with one message or, if raw or with a suffix, a text to
// continue. Errors as Chat's.
func OllamaChat(body io.Reader, d ask.Defaults, l Limits) (*ask.Request, Ollama, error) {
	return readOllama(ollamaChat, (*call).ollamaChat, body, d, l)
}

// OllamaGenerate reads a body of /api/generate.
func OllamaGenerate(body io.Reader, d ask.Defaults, l Limits) (*ask.Request, Ollama, error) {
	return readOllama(ollamaText, (*call).ollamaText, body, d, l)
}

func readOllama(of api, done func(*call) error, body io.Reader, d ask.Defaults, l Limits) (*ask.Request, Ollama, error) {
	c := begin(of, ask.Chat, d, l)
	c.Stream = true
	r, err := c.read(body, d, "", done)
	return r, c.ollama.Ollama, err
}

// ollamaChat completes a body of /api/chat.
func (c *call) ollamaChat() (err error) {
	if len(c.turns.all) == 0 {
		c.load()
		return nil
	}
	c.keeps()
	c.Messages, err = c.turns.messages(c.limits.Text, nil)
	return err
}

// ollamaText completes a body of /api/generate.
func (c *call) ollamaText() (err error) {
	o := &c.ollama
	switch bare := o.raw || c.Suffix != ""; {
	case o.prompt == "" && c.Suffix == "":
		c.load()
		return nil
	case bare && len(o.Before) > 0:
		return unsupported("context", "context is there with raw or a suffix: want one of them")
	case bare && o.system != "":
		return unsupported("system", "system needs the chat template: leave it out with raw or a suffix")
	case bare:
		c.keeps()
		if c.Kind, c.Prompts = ask.Completion, []ask.Prompt{{Text: o.prompt}}; o.think != "" {
			c.limits.ignore(o.think)
		}
		return nil
	}
	c.keeps()
	if o.system != "" {
		c.turns.add("system", conversation.Message{Role: "system", Content: o.system})
	}
	c.turns.add("prompt", conversation.Message{Role: "user", Content: o.prompt})
	c.turns.field = "prompt"
	c.Messages, err = c.turns.messages(c.limits.Text, nil)
	return err
}

// load says what a body asks for that asks for no text.
func (c *call) load() {
	var seconds float64
	var text string
	raw := c.ollama.keep
	gone := json.Unmarshal(raw, &seconds) == nil && len(raw) > 0 && seconds == 0
	if json.Unmarshal(raw, &text) == nil && text != "" {
		d, err := time.ParseDuration(text)
		gone = err == nil && d == 0
	}
	c.ollama.Load, c.ollama.Stay, c.Tools, c.Choice = true, !gone, nil, ask.Choice{}
}

// keeps notes that keep_alive has no effect beside a question: the model stays.
func (c *call) keeps() {
	if asks(c.ollama.keep) {
		c.limits.ignore("keep_alive")
	}
}

func readOllamaModel(c *call, name string, s *source) error {
	err := readText(name, s, &c.Model)
	c.Model = strings.TrimSuffix(c.Model, ":latest")
	return err
}

// readOllamaMessages reads the conversation.
func readOllamaMessages(c *call, name string, s *source) error {
	return s.array(name, conversation.Most, func(i int) error {
		at := element(name, i)
		var m conversation.Message
		var images json.RawMessage
		var calls []conversation.ToolCall
		tool := ""
		err := s.fields(at, name+"[]", readers{"role": s.textAt(&m.Role), "content": s.longAt(&m.Content),
			"thinking": s.longAt(&m.Reasoning), "images": s.jsonAt(&images), "tool_name": s.textAt(&tool), "name": s.textAt(&m.Name),
			"tool_call_id": s.textAt(&m.ToolCallID), "tool_calls": func(full string) (err error) {
				calls, err = readOllamaCalls(full, name+"[].tool_calls[]", i, s)
				return err
			}})
		switch m.Name = cmp.Or(tool, m.Name); {
		case err != nil:
			return err
		case asks(images) && m.Role != "tool" && m.Role != "assistant":
			return unsupported(at+".images", "%s.images is not supported: leave it out", at)
		case asks(images):
			c.limits.ignore("messages[].images")
			m.Content = strings.TrimPrefix(m.Content+"\n"+instead("images"), "\n")
		}
		if m.Role != "tool" {
			m.Name, m.ToolCallID = "", ""
		}
		c.turns.add(at, m).calls = calls
		return nil
	})
}

// readOllamaCalls reads the calls of message i.
func readOllamaCalls(at, path string, i int, s *source) (calls []conversation.ToolCall, err error) {
	err = s.array(at, maxNested, func(k int) error {
		id, tool := "", ""
		var arguments json.RawMessage
		err := s.fields(element(at, k), path, readers{"id": s.textAt(&id), "function": func(full string) error {
			return s.fields(full, path+".function", readers{"name": s.textAt(&tool), "arguments": s.jsonAt(&arguments)})
		}})
		calls = append(calls, sentCall(cmp.Or(id, fmt.Sprintf("call%02d%03d", i%100, k%1000)), tool, arguments))
		return err
	})
	return calls, err
}

func readOllamaTemplate(_ *call, name string, s *source) error {
	text, err := readLong(name, s)
	if err == nil && text != "" {
		err = unsupported(name, "template is not supported: the model's own is used, or none with \"raw\": true")
	}
	return err
}

func readOllamaContext(c *call, name string, s *source) error {
	if kind := s.kind(); kind != "an array" {
		if raw := s.raw(maxSmall); asks(raw) {
			return bad(name, "%s is %s: want an array", name, show(raw))
		}
		return nil
	}
	ids, n, err := readTokens(name, s, c.limits.most())
	if err == nil && n > c.limits.most() {
		err = bad(name, "%s has %d tokens: want at most %d", name, n, c.limits.most())
	}
	for i, t := range ids {
		if err == nil && (t < 0 || int(t) >= c.limits.Vocab) {
			err = bad(element(name, i), "%s is %d: vocabulary has %d", element(name, i), t, c.limits.Vocab)
		}
	}
	c.ollama.Before = ids
	return err
}

// readOllamaFormat reads "json" or a JSON Schema.
func readOllamaFormat(c *call, name string, s *source) error {
	raw, err := s.json(name, name, s.limits.Text)
	switch text := compact(raw); {
	case err != nil || !asks(raw):
		return err
	case text == `"json"`:
		return c.constrain(name, grammar.Spec{Object: true})
	case text[0] != '{':
		return bad(name, "%s is %s: want \"json\" or a JSON Schema", name, show(raw))
	}
	return c.constrain(name, grammar.Spec{Schema: raw})
}

func readKeepAlive(c *call, name string, s *source) error { return s.jsonAt(&c.ollama.keep)(name) }

// readOllamaThink reads whether the model thinks, or how long: "low", "medium", "high".
func readOllamaThink(c *call, name string, s *source) error {
	switch s.kind() {
	case "a boolean":
		c.ollama.think = name
		return readThinking(c, name, s)
	case "a string":
		c.ollama.think = name
		return readEffort(c, name, s)
	}
	if raw := s.raw(maxSmall); asks(raw) {
		return bad(name, "%s is %s: want true, false or a string", name, show(raw))
	}
	return nil
}

// readOllamaOptions reads the options, which have their names of other APIs.
func readOllamaOptions(c *call, name string, s *source) error {
	outer := c.api
	c.api = inOptions
	defer func() { c.api = outer }()
	return s.object(name, func(field string) error { return c.field(join(name, field), field, s) })
}

// readOllamaWindow reads the window that a body asks for. It must not be larger than the model's.
func readOllamaWindow(c *call, name string, s *source) error {
	n, err := windowIn(name, s)
	c.Most = n
	return err
}

func windowIn(name string, s *source) (n int, err error) {
	if err := readInt(name, s, &n); err != nil {
		return 0, err
	}
	if n > s.limits.Tokens {
		return 0, bad(name, "%s is %d: this server has a context of %d; start it with --ctx %d", name, n, s.limits.Tokens, n)
	}
	return n, nil
}

// readOllamaMost reads the largest number of tokens to generate; below 1 is no limit.
func readOllamaMost(c *call, name string, s *source) error {
	n := 0
	if err := readInt(name, s, &n); err != nil || n < 1 {
		return err
	}
	if err := c.most(name, n); err != nil {
		return err
	}
	c.Say("max_tokens", name)
	return nil
}

// OllamaEmbed reads a body of /api/embed; older: of /api/embeddings. No prompts are Ollama's way to load a model. Errors as Chat's.
func OllamaEmbed(body io.Reader, l Limits, older bool) (*ask.Request, error) {
	e := &ask.Request{Kind: ask.Embedding, Most: l.Tokens, Cut: true}
	c := begin(ollamaVectors, ask.Embedding, ask.Defaults{}, l)
	c.Request, c.limits.Whole, c.limits.Text = e, true, math.MaxInt32 // a long text is cut
	add := func(name string, s *source) error {
		text, err := readLong(name, s)
		if text != "" {
			e.Prompts = append(e.Prompts, ask.Prompt{Text: text})
		}
		return err
	}
	known := map[string]func(string, *source) error{"prompt": add,
		"model": func(name string, s *source) error { return readOllamaModel(c, name, s) },
		"dimensions": func(name string, s *source) error {
			err := readInt(name, s, &e.Dimensions)
			if err == nil && e.Dimensions < 0 {
				err = bad(name, "%s is %d: want at least 1", name, e.Dimensions)
			}
			return err
		},
		"options": func(name string, s *source) error {
			return s.fields(name, name, readers{"num_ctx": func(full string) error {
				n, err := windowIn(full, s)
				if n > 0 {
					e.Most = n
				}
				return err
			}})
		}}
	if !older {
		delete(known, "prompt")
		known["truncate"] = func(name string, s *source) error { return readBool(name, s, &e.Cut) }
		known["input"] = func(name string, s *source) error {
			return ollamaInputs(e, name, s, func(name string) error { return add(name, s) })
		}
	}
	return e, c.plain(body, "", known)
}

// ollamaInputs reads a text, or a list of texts.
func ollamaInputs(e *ask.Request, name string, s *source, add func(name string) error) error {
	switch s.kind() {
	case "a string":
		return add(name)
	case "an array":
	default:
		return bad(name, "%s is %s: want a string or a list of strings", name, s.show())
	}
	return s.array(name, maxNested+1, func(i int) error {
		switch n := len(e.Prompts); {
		case i == tandem.MostInputs:
			return bad(name, "%s has more than %d texts", name, tandem.MostInputs)
		case s.kind() != "a string":
			return bad(name, "%s[%d] is no string: want a list of strings", name, i)
		default:
			if err := add(element(name, i)); err != nil || len(e.Prompts) > n || s.peek() == 0 {
				return err
			}
			return bad(name, "%s[%d] is empty: want at least one character", name, i)
		}
	})
}

// Pull is a body of /api/pull or /api/delete.
type Pull struct {
	Name   string
	Stream bool // tell what is done, line by line
}

// OllamaPull reads such a body. Errors: Invalid and Unsupported, with the field; those of body.
func OllamaPull(body io.Reader, l Limits) (Pull, error) {
	p := Pull{Stream: true}
	insecure := false
	name := func(name string, s *source) error { return readText(name, s, &p.Name) }
	err := begin(ollamaVectors, ask.Embedding, ask.Defaults{}, l).plain(body, "", map[string]func(string, *source) error{
		"model": name, "name": name, // of older clients
		"stream":   func(name string, s *source) error { return readBool(name, s, &p.Stream) },
		"insecure": func(name string, s *source) error { return readBool(name, s, &insecure) },
	})
	switch {
	case err != nil:
	case p.Name == "":
		err = bad("model", "model is missing: want a model's name")
	case insecure:
		err = unsupported("insecure", "insecure is true: models come from the configured hub and registry alone")
	}
	return p, err
}
