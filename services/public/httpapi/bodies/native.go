package bodies

import (
	"fmt"
	"io"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
)

// nativeBody is what a body of llama.cpp's server says beside the options.
type nativeBody struct {
	Native
	prompt, prefix string // texts of an infill
	choices        int    // n_cmpl; 0: not said
	post           bool   // post_sampling_probs
}

// Native is what an answer of llama.cpp's API needs to know of its request.
type Native struct {
	Fields []string // fields of the answer to send; nil: all
	Tokens bool     // the answer has the tokens
	Probs  int      // how many of the likeliest tokens are told beside each
	Times  bool     // each piece of a stream has timings
}

const (
	mostFields = 64  // names in response_fields, and bytes of a text in logit_bias
	mostFiles  = 256 // files in input_extra
	mostTop    = 20  // largest n_probs

	randomSeed = 1<<32 - 1 // llama.cpp's word for a random seed, beside -1
)

// NativeCompletion reads a body of /completion, Infill one of /infill: what stands in its prompt continues input_prefix. Errors as Chat's.
func NativeCompletion(body io.Reader, d ask.Defaults, l Limits) (*ask.Request, Native, error) {
	c := begin(native, ask.Completion, d, l)
	c.ParseSpecial = true // clients render templates by themselves
	r, err := c.read(body, d, "prompt", (*call).natives)
	return r, c.native.Native, err
}

// Infill reads a body of /infill.
func Infill(body io.Reader, d ask.Defaults, l Limits) (*ask.Request, Native, error) {
	c := begin(infill, ask.Completion, d, l)
	c.Gap = true
	r, err := c.read(body, d, "", func(c *call) error {
		for _, side := range []struct{ name, is string }{{"input_prefix", "before the gap"}, {"input_suffix", "behind the gap"}} {
			if c.Said(side.name) == "" {
				return bad(side.name, "%s is missing: want the text %s", side.name, side.is)
			}
		}
		c.Prompts = []ask.Prompt{{Text: c.native.prefix + c.native.prompt}}
		return c.natives()
	})
	return r, c.native.Native, err
}

// natives completes a body of either path.
func (c *call) natives() error {
	if c.native.choices != 0 {
		c.N = c.native.choices
	}
	if c.native.post && c.native.Probs > 0 {
		return unsupported("post_sampling_probs", "post_sampling_probs is not supported: log-probabilities are the model's own")
	}
	return nil
}

func infillOnly(_ *call, name string, s *source) error {
	if asks(s.raw(maxSmall)) {
		return unsupported(name, "%s is not supported here: want /infill", name)
	}
	return nil
}

// readGapSide returns the reader of a text beside the gap.
func readGapSide(at func(*call) *string) reader {
	return func(c *call, name string, s *source) (err error) {
		if s.kind() != "a string" {
			return bad(name, "%s is no text: want a string", name)
		}
		*at(c), err = readLong(name, s)
		return err
	}
}

// readFiles reads input_extra.
func readFiles(c *call, name string, s *source) error {
	want := fmt.Sprintf("an array of at most %d objects with filename and text", mostFiles)
	if s.kind() != "an array" {
		return bad(name, "%s is not %s", name, want)
	}
	return s.array(name, maxNested+1, func(i int) error {
		f, there := tandem.Excerpt{Name: "tmp"}, false // as llama.cpp's server calls it
		at := element(name, i)
		err := s.lenient(at, readers{"filename": s.textAt(&f.Name), "text": func(full string) error {
			there = true
			return s.longAt(&f.Text)(full)
		}})
		switch {
		case err != nil:
			return err
		case i == mostFiles:
			return bad(name, "%s has more than %d files: want %s", name, mostFiles, want)
		case !there:
			return bad(at+".text", "%s.text is missing: want the text of a file", at)
		}
		c.Files = append(c.Files, f)
		return nil
	})
}

// notBelow reads a number with another reader; below 0 it means 0: the likeliest token.
func notBelow(read reader) reader {
	return func(c *call, name string, s *source) error {
		err := read(c, name, s)
		c.Sampling.Temperature = max(c.Sampling.Temperature, 0)
		return err
	}
}

// readNativeTopK reads how many of the likeliest tokens may be drawn; below 0: all.
func readNativeTopK(c *call, name string, s *source) error {
	err := readInt(name, s, &c.Sampling.TopK)
	c.Sampling.TopK = max(c.Sampling.TopK, 0)
	return err
}

// readPredict reads the largest number of tokens to generate. 0 generates one, as llama.cpp's server does: clients that warm up the cache
// send it.
func readPredict(c *call, name string, s *source) error {
	if n, ok := s.digits(); ok {
		return c.most(name, max(n, 1))
	}
	return readMost(c, name, s)
}

func readProbs(c *call, name string, s *source) error {
	if err := readInt(name, s, &c.native.Probs); err != nil {
		return err
	}
	if n := c.native.Probs; n < 0 || n > mostTop {
		return bad(name, "%s is %d: want 0 to %d", name, n, mostTop)
	}
	c.Sampling.Logprobs, c.Sampling.TopLogprobs = c.native.Probs > 0, c.native.Probs
	return nil
}

func readFieldNames(c *call, name string, s *source) error {
	if s.kind() != "an array" {
		return bad(name, "%s is %s: want an array of at most %d names", name, s.show(), mostFields)
	}
	return s.array(name, mostFields, func(i int) error {
		c.native.Fields = append(c.native.Fields, "")
		return readText(element(name, i), s, &c.native.Fields[i])
	})
}

// readNativeBias reads logit_bias: an object as in completions, in which a text may stand for its tokens, or an array of pairs. false
// forbids a token.
func readNativeBias(c *call, name string, s *source) error {
	out := map[tandem.Token]float64{}
	add := func(at string, tokens []tandem.Token) error {
		x := -100.0
		if raw := s.kind(); raw == "a boolean" {
			if on := false; readBool(at, s, &on) != nil || on {
				return bad(name, "%s adds true: want a number, or false", name)
			}
		} else if err := readFloat(at, s, &x); err != nil {
			return err
		}
		for _, t := range tokens {
			out[t] = x
		}
		return nil
	}
	tokens := func(text string) ([]tandem.Token, error) {
		if len(text) > mostFields {
			return nil, bad(name, "%s names %.50q: want the id of a token, or a text of at most %d bytes", name, text, mostFields)
		}
		return c.limits.Encode(text), nil
	}
	err := error(nil)
	switch s.kind() {
	case "an object":
		err = s.object(name, func(key string) error {
			var id int
			if strings.Trim(key, "0123456789") != "" || key == "" {
				all, err := tokens(key)
				if err != nil {
					return err
				}
				return add(join(name, key), all)
			}
			if _, err := fmt.Sscan(strings.TrimLeft(key[:len(key)-1], "0")+key[len(key)-1:], &id); err != nil || id > 1<<31-1 {
				return bad(name, "%s names %.50q: want the id of a token, or a text of at most %d bytes", name, key, mostFields)
			}
			return add(join(name, key), []tandem.Token{tandem.Token(id)})
		})
	case "an array":
		err = s.array(name, maxNested+1, func(i int) error { return c.pair(name, element(name, i), s, tokens, add) })
	default:
		return bad(name, "%s is %s: want an object, or an array of pairs", name, s.show())
	}
	c.Sampling.Bias = nil
	for t, x := range out {
		c.Sampling.Bias = append(c.Sampling.Bias, tandem.Bias{Token: t, Add: float32(x)})
	}
	sortBias(c)
	return err
}

// pair reads a token or a text, and what to add.
func (c *call) pair(name, at string, s *source, tokens func(string) ([]tandem.Token, error),
	add func(string, []tandem.Token) error) error {
	var of []tandem.Token
	n := 0
	err := s.array(at, 3, func(k int) (err error) {
		n++
		switch {
		case k > 1:
			s.skip()
			return nil
		case k == 1:
			return add(at, of)
		case s.kind() == "a string":
			text := ""
			if err := readText(at, s, &text); err != nil {
				return err
			}
			of, err = tokens(text)
			return err
		}
		if s.kind() != "a number" {
			return bad(name, "%s names %.50s: want the id of a token, or a text of at most %d bytes", name, s.show(), mostFields)
		}
		id := 0
		err = readInt(at, s, &id)
		of = []tandem.Token{tandem.Token(id)}
		return err
	})
	if err == nil && n != 2 {
		err = bad(name, "%s has %d elements: want a token and what to add", at, n)
	}
	return err
}

// readNativePrompt reads prompt: one or several, each a text, tokens, both mixed, or an object with a text.
func readNativePrompt(c *call, name string, s *source) error {
	if kind := s.kind(); kind != "an array" {
		text, err := promptObject(name, s)
		c.Prompts = []ask.Prompt{{Text: text}}
		return err
	}
	m, others := mixed{most: c.limits.most()}, 0 // what is not in m: arrays and objects
	var all []ask.Prompt
	err := s.array(name, maxPromptTokens, func(i int) (err error) {
		p, at := ask.Prompt{}, element(name, i)
		switch s.kind() {
		case "a number":
			return m.number(name, i, s)
		case "a string":
			if p.Text, err = readLong(at, s); err != nil {
				return err
			}
			m.text(p.Text)
		case "an array":
			others++
			inner := mixed{most: c.limits.most()}
			err = inner.read(at, s)
			p = inner.prompt()
		default:
			others++
			p.Text, err = promptObject(at, s)
		}
		if len(all) <= ask.MostChoices {
			all = append(all, p)
		}
		return err
	})
	switch {
	case err != nil || s.err != nil && s.peek() == 0:
		return err
	case m.numbers > 0 && others > 0:
		return bad(name, "%s has numbers beside arrays or objects: want one prompt, or an array of prompts", name)
	case m.numbers > 0:
		c.Prompts = []ask.Prompt{m.prompt()}
		return fits(name, len(m.ids)+m.more, c.limits)
	case len(all) > ask.MostChoices:
		return bad(name, "%s has more than %d prompts", name, ask.MostChoices)
	case len(all) == 0:
		return bad(name, "%s is an empty array: want at least one prompt", name)
	}
	c.Prompts = all
	return nil
}

// mixed is a prompt of token ids and texts under way.
type mixed struct {
	most    int
	numbers int
	more    int            // ids beyond most, which are not kept
	ids     []tandem.Token // tokens, as long as there is no text
	parts   []ask.Part
}

// number reads a token id, element i.
func (m *mixed) number(name string, i int, s *source) error {
	t, err := readToken(name, i, s)
	switch m.numbers++; {
	case err != nil:
		return err
	case m.parts != nil:
		m.parts = append(m.parts, ask.Part{Token: t})
	case len(m.ids) < m.most:
		m.ids = append(m.ids, t)
	default:
		m.more++
	}
	return nil
}

// text adds a text.
func (m *mixed) text(text string) {
	for _, t := range m.ids {
		m.parts = append(m.parts, ask.Part{Token: t})
	}
	m.ids, m.parts = nil, append(m.parts, ask.Part{Text: &text})
}

// read reads an array of texts and token ids.
func (m *mixed) read(at string, s *source) error {
	err := s.array(at, maxPromptTokens, func(i int) error {
		switch s.kind() {
		case "a number":
			return m.number(at, i, s)
		case "a string":
			text, err := readLong(element(at, i), s)
			m.text(text)
			return err
		}
		return bad(element(at, i), "%s is %s: want a text or a token id", element(at, i), s.show())
	})
	if err == nil && m.numbers == 0 && m.parts == nil && s.err == nil {
		err = bad(at, "%s is []: want texts and token ids, at least one", at)
	}
	return err
}

// prompt returns the prompt.
func (m *mixed) prompt() ask.Prompt {
	if m.parts != nil {
		return ask.Prompt{Parts: m.parts}
	}
	return ask.Prompt{Tokens: m.ids}
}

// promptObject reads a prompt that is a text, or an object with one.
func promptObject(at string, s *source) (text string, err error) {
	switch s.kind() {
	case "a string":
		n := 0
		if text, n = s.text(s.limits.Text); n > s.limits.Text {
			return "", tooLarge("prompt", "prompt", n, s.limits.Text)
		}
		return text, nil
	case "an object":
	default:
		return "", bad(at, "%s is %s: want a text, token ids, or an object with prompt_string", at, s.show())
	}
	there := false
	err = s.lenient(at, readers{"prompt_string": func(full string) error {
		there = true
		return s.longAt(&text)(full)
	}, "multimodal_data": func(full string) error {
		if asks(s.raw(maxSmall)) {
			return unsupported(full, "%s is not supported: leave it out", full)
		}
		return nil
	}})
	if err == nil && !there {
		err = bad(at, "%s has no prompt_string: want a text, token ids, or an object with prompt_string", at)
	}
	return text, err
}
