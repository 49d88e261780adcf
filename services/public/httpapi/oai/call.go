package oai

import (
	crand "crypto/rand"
	"encoding/binary"
	"encoding/json"
	"io"
	"slices"
	"strconv"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/conversation"
)

// MostChoices is how many generations one body may ask for: prompts times n.
const MostChoices = 16

// Call is a decoded body of /v1/chat/completions or /v1/completions.
type Call struct {
	Chat         bool
	Model        string // "" if the body names none
	Messages     []conversation.Message
	Prompts      []Prompt         // of completions
	Suffix       string           // of completions: the text behind what is to be filled in; "" for none
	Gap          bool             // of completions: something is to be filled in although Suffix may be ""
	Files        []tandem.Excerpt // that stand in front of such a prompt
	ParseSpecial bool             // of completions: control tokens written in a prompt become those tokens
	N            int              // choices for each prompt
	Stream       bool
	IncludeUsage bool
	Request      tandem.Request // without a prompt; its seed is the first choice's

	maxName     string            // what the body calls MaxTokens; "" if it does not say it
	nodesName   string            // what it calls the nodes of a tree, likewise
	names       map[string]string // of fields, as Limits.Names
	seeded      bool
	top         bool // top_logprobs was given
	window      bool // repeat_last_n was given
	noWindow    bool // as 0: no token is penalised
	wholeText   bool // repetition_penalty was given
	bestOf      int
	options     bool                 // stream_options was given
	speculation tandemv1.Speculation // as gRPC has it
	variables   variables            // of a chat's template
	tools       json.RawMessage      // a JSON array of functions that the model may call
	custom      map[string]bool      // those of them that take a text
	choice      conversation.ToolChoice
	parallel    bool // several calls in one answer
	says        bool // parallel_tool_calls was given
	goesOn      bool // the last message is the beginning of the answer
	opens       bool // the template begins the answer
}

// FillIn reports whether what stands between a prompt and Suffix is asked for.
func (c *Call) FillIn() bool { return c.Suffix != "" || c.Gap }

// Conversation returns what a chat's prompt is made of.
func (c *Call) Conversation() conversation.Conversation {
	return conversation.Conversation{Messages: c.Messages, Variables: c.variables.Variables(), Tools: c.tools, Custom: c.custom,
		Single: !c.parallel, Must: c.choice.Must}.Ended()
}

// Prompt is a text, or tokens taken as they are.
type Prompt struct {
	Text   string
	Tokens []tandem.Token // nil for a text
	Chars  int            // characters of it, for the caller to count
}

// ReadChat decodes a body of /v1/chat/completions; d fills in what it leaves out. Errors: Invalid and Unsupported,
// with the field; *Error for a text beyond the limits; those of body.
func ReadChat(body io.Reader, d ask.Defaults, l Limits) (*Call, error) {
	return readCall(body, &Call{Chat: true}, chatOnly, "messages", d, l)
}

// ReadCompletion decodes a body of /v1/completions.
func ReadCompletion(body io.Reader, d ask.Defaults, l Limits) (*Call, error) {
	return readCall(body, &Call{}, completionOnly, "prompt", d, l)
}

func readCall(body io.Reader, c *Call, own map[string]reader, needed string, d ask.Defaults, l Limits) (*Call, error) {
	c.N, c.bestOf, c.parallel, c.opens = 1, unset, true, true
	c.Request = tandem.Request{MaxTokens: d.MaxTokens, Sampling: d.Sampling}
	err := read(body, l, needed, func(name string) func(string, *source) error {
		if f := c.variables.reader(name); f != nil && c.Chat {
			return f
		}
		f := readerOf(name, own, l.Strict)
		if f == nil {
			return nil
		}
		return func(name string, s *source) error { return f(c, name, s) }
	})
	if err == nil {
		err = c.finish(d, l)
	}
	c.names = l.Names
	return c, rename(err, l.Names)
}

// unset is an integer that no body can contain.
const unset = -1 << 40

// finish checks fields against each other.
func (c *Call) finish(d ask.Defaults, l Limits) error {
	prompts := max(len(c.Prompts), 1)
	switch {
	case c.N < 1 || c.N > MostChoices:
		return bad("n", "n is %d: want 1 to %d", c.N, MostChoices)
	case c.N*prompts > MostChoices:
		return bad("n", "n is %d for %d prompts: want at most %d choices in all", c.N, prompts, MostChoices)
	case c.Suffix != "" && c.ParseSpecial:
		return bad("parse_special", "parse_special is true with a suffix: want one of them, the markers for infill are added anyway")
	case c.Suffix != "" && slices.ContainsFunc(c.Prompts, func(p Prompt) bool { return p.Tokens != nil }):
		return bad("suffix", "suffix is there with a prompt of token ids: want a prompt that is a text")
	case c.bestOf != unset && c.bestOf != c.N:
		return unsupported("best_of", "best_of is %d and n %d: want the same, every choice is returned", c.bestOf, c.N)
	case c.options && !c.Stream && l.Strict:
		return bad("stream_options", "stream_options is there without stream: want \"stream\": true")
	case c.top && !c.Request.Sampling.Logprobs:
		return bad("top_logprobs", "top_logprobs is there without logprobs: want \"logprobs\": true")
	}
	if c.options && !c.Stream {
		l.ignore("stream_options")
	}
	if err := c.offer(l); err != nil {
		return err
	}
	if c.goesOn || !c.opens {
		field, value := "continue_final_message", c.goesOn
		if !c.opens {
			field, value = "add_generation_prompt", false
		}
		if err := conversation.CanContinue(c.Messages, field, value); err != nil {
			return err
		}
	}
	if p := &c.Request.Sampling; p.TopP == 0 { // the likeliest tokens that together have any probability: one
		p.TopP, p.TopK = 1, 1
	}
	if c.wholeText && !c.window {
		c.Request.Sampling.RepeatLast = tandem.MaxRepeatLast
	}
	if c.noWindow {
		c.Request.Sampling.RepeatPenalty = 1
	}
	if c.Request.MaxTokens == ToTheEnd && !c.Request.IgnoreEOS {
		c.Request.Repeats = d.Repeats
	}
	if d.MaxOutput > 0 && (c.Request.MaxTokens == ToTheEnd || c.Request.MaxTokens > d.MaxOutput) {
		c.Request.MaxTokens = d.MaxOutput
	}
	switch {
	case c.seeded:
	case d.Seed != nil:
		c.Request.Sampling.Seed = *d.Seed
	default:
		c.Request.Sampling.Seed = randomSeed()
	}
	return c.InItsWords(d.Speculate(&c.Request, &c.speculation))
}

// randomSeed returns a seed that also JavaScript can send back: with those of the other choices it stays below 2⁵³.
func randomSeed() uint64 {
	var b [8]byte
	_, _ = crand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:]) >> 12
}

// ToTheEnd is the MaxTokens of a request whose answer may go on to the end of the context.
const ToTheEnd = 0

// readMost reads the largest number of tokens to generate, which has several names. -1 and -2 are llama.cpp's for no limit.
func readMost(c *Call, name string, s *source) error {
	n := 0
	if err := readInt(name, s, &n); err != nil {
		return err
	}
	if n == -1 || n == -2 {
		n = ToTheEnd
	} else if n < 1 {
		return bad(name, "%s is %d: want 1 or more, or -1 for the end of the context", name, n)
	}
	if c.maxName != "" && n != c.Request.MaxTokens {
		return bad(name, "%s and %s say different things: want one of them", name, c.maxName)
	}
	c.Request.MaxTokens, c.maxName = n, name
	return nil
}

func text(at func(*Call) *string) reader {
	return func(c *Call, name string, s *source) error { return readText(name, s, at(c)) }
}

func integer(at func(*Call) *int) reader {
	return func(c *Call, name string, s *source) error { return readInt(name, s, at(c)) }
}

func float(at func(*Call) *float64) reader {
	return func(c *Call, name string, s *source) error { return readFloat(name, s, at(c)) }
}

func boolean(at func(*Call) *bool) reader {
	return func(c *Call, name string, s *source) error { return readBool(name, s, at(c)) }
}

const maxLabel = 512 // bytes

func label(_ *Call, name string, s *source) error {
	var text string
	if err := readText(name, s, &text); err != nil {
		return err
	}
	if len(text) > maxLabel {
		return bad(name, "%s has %d bytes: want at most %d", name, len(text), maxLabel)
	}
	return nil
}

// readStop reads one sequence or an array of them. Empty ones stop nothing.
func readStop(c *Call, name string, s *source) error {
	one := func(name string) error {
		if s.isNull() {
			s.skip()
			return nil
		}
		var text string
		err := readText(name, s, &text)
		if text != "" && !slices.Contains(c.Request.Stop, text) {
			c.Request.Stop = append(c.Request.Stop, text)
		}
		return err
	}
	switch s.kind() {
	case "a string":
		return one(name)
	case "an array":
		return s.array(name, tandem.MostStops, func(i int) error { return one(element(name, i)) })
	}
	return bad(name, "%s is %s: want a string or an array of at most %d", name, s.show(), tandem.MostStops)
}

// readBias reads an object of token ids and what to add to their logits.
func readBias(c *Call, name string, s *source) error {
	c.Request.Sampling.Bias = nil // the defaults' map must not change
	err := s.object(name, func(id string) error {
		t, err := strconv.ParseInt(id, 10, 32)
		if err != nil || strconv.FormatInt(t, 10) != id {
			return bad(name, "%s names token %.50q: want the id of a token", name, id)
		}
		var add float64
		if err := readFloat(join(name, id), s, &add); err != nil {
			return err
		}
		c.Request.Sampling.Bias = append(c.Request.Sampling.Bias, tandem.Bias{Token: tandem.Token(t), Add: float32(add)})
		return nil
	})
	slices.SortFunc(c.Request.Sampling.Bias, func(a, b tandem.Bias) int { return int(a.Token) - int(b.Token) })
	return err
}

func readStreamOptions(c *Call, name string, s *source) error {
	c.options = true
	return s.object(name, func(field string) error {
		full := join(name, field)
		switch {
		case s.isNull():
			s.skip()
			return nil
		case field == "include_usage":
			return readBool(full, s, &c.IncludeUsage)
		case field == "include_obfuscation" && s.limits.Strict:
			return only("false")(c, full, s)
		}
		return s.unknown(full, full)
	})
}

// readWindow reads how many of the latest tokens repeat_penalty looks at. As in llama.cpp, 0 is none, and -1 all: the largest window.
func readWindow(c *Call, name string, s *source) error {
	n := 0
	if err := readInt(name, s, &n); err != nil {
		return err
	}
	if c.window, c.noWindow = true, n == 0; n == -1 {
		n = tandem.MaxRepeatLast
	}
	c.Request.Sampling.RepeatLast = n
	return nil
}

// readLegacyLogprobs reads how many of the likeliest tokens to tell beside each token: true is none of them, false no log-probability.
func readLegacyLogprobs(c *Call, name string, s *source) error {
	if s.kind() == "a boolean" {
		return readBool(name, s, &c.Request.Sampling.Logprobs)
	}
	c.Request.Sampling.Logprobs = true
	return readInt(name, s, &c.Request.Sampling.TopLogprobs)
}

// maxPromptTokens bounds what is read of a prompt in tokens before the context is looked at.
const maxPromptTokens = 1 << 20

// readPrompts reads a string, an array of strings, an array of token ids or an array of such arrays.
func readPrompts(c *Call, name string, s *source) (err error) {
	c.Prompts, err = promptsIn(name, s, MostChoices, "prompt")
	return err
}

// promptsIn reads one of the forms of prompts, at most so many of them.
func promptsIn(name string, s *source, most int, what string) (all []Prompt, err error) {
	switch s.kind() {
	case "a string":
		p, err := readPrompt(name, name, s)
		return []Prompt{p}, err
	case "an array":
	default:
		return nil, bad(name, "%s is %s: want a string, an array of strings, an array of token ids, or an array of such", name, s.show())
	}
	first, n := "", 0
	var ids []tandem.Token
	err = s.array(name, maxPromptTokens, func(i int) error {
		kind := s.kind()
		if first = or(first, kind); kind != first {
			return bad(element(name, i), "%s is %s behind %s: want elements of one kind", element(name, i), kind, first)
		}
		if kind == "a number" {
			t, err := readToken(name, i, s)
			if n++; n <= s.limits.most() {
				ids = append(ids, t)
			}
			return err
		}
		if i == most {
			return bad(name, "%s has more than %d %ss", name, most, what)
		}
		p, err := readPrompt(name, element(name, i), s)
		all = append(all, p)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case n > 0:
		return []Prompt{{Tokens: ids}}, fits(name, n, s.limits)
	case len(all) == 0:
		return nil, bad(name, "%s is an empty array: want at least one %s", name, what)
	}
	return all, nil
}

// readLong reads a string as long as a prompt.
func readLong(name string, s *source) (string, error) {
	if s.kind() != "a string" {
		return "", bad(name, "%s is %s: want a string", name, s.show())
	}
	text, n := s.text(s.limits.Text)
	if n > s.limits.Text {
		return "", tooLarge(name, name, n, s.limits.Text)
	}
	return text, nil
}

// readPrompt reads one prompt of a field.
func readPrompt(field, name string, s *source) (p Prompt, err error) {
	switch s.kind() {
	case "a string":
		n := 0
		if p.Text, n = s.text(s.limits.Text); n > s.limits.Text {
			return p, tooLarge(field, "prompt", n, s.limits.Text)
		}
		return p, nil
	case "an array":
		n := 0
		if p.Tokens, n, err = readTokens(name, s, s.limits.most()); err != nil {
			return p, err
		}
		return p, fits(field, n, s.limits)
	}
	return p, bad(name, "%s is %s: want a string or an array of token ids", name, s.show())
}

// fits refuses a prompt of n tokens that is too long.
func fits(field string, n int, l Limits) error {
	switch {
	case n <= l.most():
		return nil
	case l.Whole:
		return InputTooLong(field, n, true, l.Tokens)
	}
	return TooLong(field, n, true, l.Tokens)
}
