// Package bodies reads the bodies of the HTTP APIs: bytes become an ask.Request while they arrive. table.go says which field of which API
// means what. A field that occurs twice, or asks for an answer of another meaning than tandem can give, is refused by name.
package bodies

import (
	"bytes"
	"cmp"
	"io"
	"slices"
	"strconv"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// Limits bound what is kept of a body, and say what becomes of fields without an effect.
type Limits struct {
	Text    int               // bytes of one prompt, or of all messages
	Tokens  int               // positions of a session; a prompt needs fewer
	Vocab   int               // for ids of tokens that continue an earlier answer
	Whole   bool              // a prompt may have all positions: nothing is generated
	Strict  bool              // refuse fields that would be ignored
	Ignored func(name string) // is called with the name of each field that is ignored, perhaps several times; may be nil

	Reads  func(name string) bool           // whether the chat template reads a variable; nil: not known
	Encode func(text string) []tandem.Token // splits a text of llama.cpp's logit_bias

	KeepAttribution bool // leave the block of Attribution in
	CountOnly       bool // the body asks for the number of its tokens: max_tokens may be missing

	Nested func(n int64) // is told how many objects and arrays in arrays were read of a body that is put together of them; may be nil

	numbers bool // numbers in arrays count as values: for an API whose lists are no prompts
}

// most returns how many tokens a prompt may have.
func (l Limits) most() int {
	if l.Whole {
		return l.Tokens
	}
	return l.Tokens - 1
}

// ignore notes a field that is ignored.
func (l Limits) ignore(name string) {
	if l.Ignored != nil {
		l.Ignored(name)
	}
}

// reads reports whether the chat template reads a variable.
func (l Limits) reads(name string) bool { return l.Reads != nil && l.Reads(name) }

// call is a body under way.
type call struct {
	*ask.Request
	api    api
	limits Limits
	strict bool // the server is strict; limits.Strict is for OpenAI's bodies alone

	ignored string // the first field without an effect, of other APIs

	bestOf int   // best_of, in completions
	turns  turns // messages, in other APIs than OpenAI's
	claude claude
	ollama ollamaBody
	native nativeBody
	offer  offer // tools, in the Responses API
}

// Chat reads a body of /v1/chat/completions; d fills in what it leaves out. Errors: Invalid and Unsupported, with the field; *oai.Error
// for a text beyond the limits; those of body.
func Chat(body io.Reader, d ask.Defaults, l Limits) (*ask.Request, error) {
	return begin(chats, ask.Chat, d, l).read(body, d, "messages", (*call).openAIs)
}

// Completion reads a body of /v1/completions.
func Completion(body io.Reader, d ask.Defaults, l Limits) (*ask.Request, error) {
	return begin(completions, ask.Completion, d, l).read(body, d, "prompt", (*call).openAIs)
}

// begin returns a call of nothing.
func begin(of api, kind ask.Kind, d ask.Defaults, l Limits) *call {
	c := &call{Request: ask.New(kind, d), api: of, limits: l, strict: l.Strict}
	if c.OptionName = optionName; of&(openAI|other) == 0 {
		c.limits.Strict, c.limits.numbers = false, true
		c.limits.Ignored = c.first(l.Ignored)
	}
	c.turns.field = "messages"
	return c
}

// read reads a body, in which the needed field must be present, and checks it; done completes what it asks for.
func (c *call) read(body io.Reader, d ask.Defaults, needed string, done func(*call) error) (*ask.Request, error) {
	s := newSource(body, c.limits)
	err := c.fields(s, needed)
	if err == nil && s.err == nil {
		s.peek()
	}
	if err = s.outcome(err); err == nil {
		err = done(c)
	}
	if err == nil {
		err = c.Check(d, c.limits.ignore)
	}
	return c.Request, cmp.Or(err, c.strictly())
}

// first returns a function that remembers the first name that it is called with, and tells it.
func (c *call) first(told func(string)) func(string) {
	return func(name string) {
		c.ignored = or(c.ignored, name)
		if told != nil {
			told(name)
		}
	}
}

// strictly refuses a field without an effect in a body of another API than OpenAI's, if the server is strict.
func (c *call) strictly() error {
	if !c.strict || c.ignored == "" {
		return nil
	}
	return unsupported(c.ignored, "%s has no effect here: leave it out, this server is strict about fields", c.ignored)
}

// fields reads the fields of a body.
func (c *call) fields(s *source, needed string) error {
	if kind := s.kind(); kind != "an object" {
		return bad("", "the body is %s: want a JSON object", kind)
	}
	missing := needed != ""
	err := s.object("", func(name string) error {
		missing = missing && (name != needed || s.isNull())
		return c.field(name, name, s)
	})
	if err == nil && missing {
		err = bad(needed, "%s is missing", needed)
	}
	return err
}

// field reads one field; full is its place. A field that is null counts as missing.
func (c *call) field(full, name string, s *source) error {
	f := lineOf(c.api, name, c.strict)
	switch {
	case f == nil && c.api&openAI == 0:
		if err := c.nearly(full, name); err != nil {
			return err
		}
		fallthrough
	case f == nil:
		return s.unknown(full, full)
	case s.isNull():
		s.skip()
		return nil
	}
	err := f.read(c, full, s)
	if err == nil && f.option != "" {
		c.Say(f.option, full)
	}
	return err
}

// nearly refuses a name that is another one of the API's in other capitals, which a filter in front of this server may read as that.
func (c *call) nearly(full, name string) error {
	if c.api&(other|ollamaVectors) != 0 {
		return nil
	}
	for known := range lines[c.api] {
		if err := misspelt(full, name, known); err != nil {
			return err
		}
	}
	return nil
}

// openAIs checks what OpenAI's bodies alone say.
func (c *call) openAIs() error {
	switch {
	case c.Said("best_of") != "" && c.bestOf != c.N:
		return unsupported("best_of", "best_of is %d and n %d: want the same, every choice is returned", c.bestOf, c.N)
	case c.Said("stream_options") != "" && !c.Stream && c.strict:
		return bad("stream_options", "stream_options is there without stream: want \"stream\": true")
	case c.Said("stream_options") != "" && !c.Stream:
		c.limits.ignore("stream_options")
	}
	return nil
}

// optionName returns the name of an option of tandem.Request in bodies that do not say it.
func optionName(option string) string {
	switch option {
	case "depth":
		return "speculation.max_depth"
	case "width":
		return "speculation.max_branches"
	case "nodes":
		return "speculation.max_nodes"
	case "strategy", "vote", "drafters", "without":
		return "speculation." + option
	case "repeat_last":
		return "repeat_last_n"
	}
	return option
}

// readMost reads the largest number of tokens to generate, which has several names. -1 and -2 are llama.cpp's for no limit.
func readMost(c *call, name string, s *source) error {
	n := 0
	if err := readInt(name, s, &n); err != nil {
		return err
	}
	if n == -1 || n == -2 {
		n = ask.ToTheEnd
	} else if n < 1 {
		return bad(name, "%s is %d: want 1 or more, or -1 for the end of the context", name, n)
	}
	return c.most(name, n)
}

// most sets the largest number of tokens to generate.
func (c *call) most(name string, n int) error {
	if before := c.Said("max_tokens"); before != "" && n != c.MaxTokens {
		return bad(name, "%s and %s say different things: want one of them", name, before)
	}
	c.MaxTokens = n
	return nil
}

func text(at func(*call) *string) reader {
	return func(c *call, name string, s *source) error { return readText(name, s, at(c)) }
}

func long(at func(*call) *string) reader {
	return func(c *call, name string, s *source) (err error) {
		*at(c), err = readLong(name, s)
		return err
	}
}

func integer(at func(*call) *int) reader {
	return func(c *call, name string, s *source) error { return readInt(name, s, at(c)) }
}

func float(at func(*call) *float64) reader {
	return func(c *call, name string, s *source) error { return readFloat(name, s, at(c)) }
}

func boolean(at func(*call) *bool) reader {
	return func(c *call, name string, s *source) error { return readBool(name, s, at(c)) }
}

func skip(_ *call, _ string, s *source) error {
	s.skip()
	return nil
}

// only returns a reader that accepts only these values, which ask for what tandem does anyway.
func only(values ...string) reader {
	return func(_ *call, name string, s *source) error {
		raw := s.raw(maxSmall)
		if slices.Contains(values, compact(raw)) {
			return nil
		}
		return unsupported(name, "%s is %s: only %s is supported", name, show(raw), list(values))
	}
}

// none returns a reader of a field that is not supported; these of its values ask for nothing and are accepted.
func none(values ...string) reader {
	return func(_ *call, name string, s *source) error {
		if slices.Contains(values, compact(s.raw(maxSmall))) {
			return nil
		}
		return unsupported(name, "%s is not supported: leave it out", name)
	}
}

// asks reports whether a value asks for something.
func asks(raw []byte) bool {
	return !slices.Contains([]string{"", "null", `""`, "[]", "{}", "false"}, string(bytes.TrimSpace(raw)))
}

const maxLabel = 512 // bytes

func label(_ *call, name string, s *source) error {
	var text string
	if err := readText(name, s, &text); err != nil {
		return err
	}
	if len(text) > maxLabel {
		return bad(name, "%s has %d bytes: want at most %d", name, len(text), maxLabel)
	}
	return nil
}

// readTopK reads how many of the likeliest tokens may be drawn; -1 is all of them, in llama.cpp, vLLM and SGLang.
func readTopK(c *call, name string, s *source) error {
	err := readInt(name, s, &c.Sampling.TopK)
	if c.Sampling.TopK == -1 {
		c.Sampling.TopK = 0
	}
	return err
}

func readSeedOption(c *call, name string, s *source) error {
	seed, said, err := readSeed(name, s)
	if c.api&natives != 0 && seed == randomSeed {
		said = false
	}
	if c.Sampling.Seed = seed; said {
		c.Say("seed", name)
	}
	return err
}

// readStop reads one sequence or an array of them. Empty ones stop nothing.
func readStop(c *call, name string, s *source) error {
	one := func(name string) error {
		if s.isNull() {
			s.skip()
			return nil
		}
		var text string
		err := readText(name, s, &text)
		if text != "" && !slices.Contains(c.Stop, text) {
			c.Stop = append(c.Stop, text)
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
func readBias(c *call, name string, s *source) error {
	c.Sampling.Bias = nil // the defaults' map must not change
	err := s.object(name, func(id string) error {
		t, err := strconv.ParseInt(id, 10, 32)
		if err != nil || strconv.FormatInt(t, 10) != id {
			return bad(name, "%s names token %.50q: want the id of a token", name, id)
		}
		var add float64
		if err := readFloat(join(name, id), s, &add); err != nil {
			return err
		}
		c.Sampling.Bias = append(c.Sampling.Bias, tandem.Bias{Token: tandem.Token(t), Add: float32(add)})
		return nil
	})
	sortBias(c)
	return err
}

func sortBias(c *call) {
	slices.SortFunc(c.Sampling.Bias, func(a, b tandem.Bias) int { return int(a.Token) - int(b.Token) })
}

func readStreamOptions(c *call, name string, s *source) error {
	c.Say(name, name)
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
func readWindow(c *call, name string, s *source) error {
	err := readInt(name, s, &c.Sampling.RepeatLast)
	if c.Sampling.RepeatLast == -1 {
		c.Sampling.RepeatLast = tandem.MaxRepeatLast
	}
	return err
}

// readLegacyLogprobs reads how many of the likeliest tokens to tell beside each token: true is none of them, false no log-probability.
func readLegacyLogprobs(c *call, name string, s *source) error {
	if s.kind() == "a boolean" {
		return readBool(name, s, &c.Sampling.Logprobs)
	}
	c.Sampling.Logprobs = true
	return readInt(name, s, &c.Sampling.TopLogprobs)
}

// tooLarge is the error of a text that is longer than may be kept.
func tooLarge(param, what string, n, most int) error {
	e := oai.Refusal(413, "prompt_too_large", "%s has %d bytes: at most %d allowed", what, n, most)
	e.Param = param
	return e
}
