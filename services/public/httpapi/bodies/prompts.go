package bodies

import (
	"cmp"
	"io"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// maxPromptTokens bounds what is read of a prompt in tokens before the context is looked at.
const maxPromptTokens = 1 << 20

// readPrompts reads a string, an array of strings, an array of token ids or an array of such arrays.
func readPrompts(c *call, name string, s *source) (err error) {
	c.Prompts, err = promptsIn(name, s, ask.MostChoices, "prompt")
	return err
}

// promptsIn reads one of the forms of prompts, at most so many of them.
func promptsIn(name string, s *source, most int, what string) (all []ask.Prompt, err error) {
	switch s.kind() {
	case "a string":
		p, err := readPrompt(name, name, s)
		return []ask.Prompt{p}, err
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
		return []ask.Prompt{{Tokens: ids}}, fits(name, n, s.limits)
	case len(all) == 0:
		return nil, bad(name, "%s is an empty array: want at least one %s", name, what)
	}
	return all, nil
}

// readPrompt reads one prompt of a field.
func readPrompt(field, name string, s *source) (p ask.Prompt, err error) {
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
		return oai.InputTooLong(field, n, true, l.Tokens)
	}
	return oai.TooLong(field, n, true, l.Tokens)
}

// plain reads a body whose fields are these alone; the needed one, "" for none, must be present. Fields that would change what a model
// reads are refused here too.
func (c *call) plain(body io.Reader, needed string, known map[string]func(name string, s *source) error) error {
	s, missing := newSource(body, c.limits), needed != ""
	if kind := s.kind(); kind != "an object" {
		return s.outcome(bad("", "the body is %s: want a JSON object", kind))
	}
	err := s.object("", func(name string) error {
		switch read := known[name]; {
		case read != nil && s.isNull():
			s.skip()
			return nil
		case read != nil:
			missing = missing && name != needed
			return read(name, s)
		}
		for right := range known {
			if err := misspelt(name, name, right); err != nil && c.api != other {
				return err
			}
		}
		return c.field(name, name, s)
	})
	if err == nil && missing {
		err = bad(needed, "%s is missing", needed)
	}
	return cmp.Or(s.outcome(err), c.strictly())
}

// plain reads a body that asks for no text.
func plain(body io.Reader, l Limits, needed string, known map[string]func(name string, s *source) error) error {
	return begin(other, 0, ask.Defaults{}, l).plain(body, needed, known)
}

// Embedding reads a body of /v1/embeddings; base64 says that vectors are wanted as bytes of f32, not as numbers. Errors as Chat's.
func Embedding(body io.Reader, l Limits) (e *ask.Request, base64 bool, err error) {
	l.Whole = true
	e = &ask.Request{Kind: ask.Embedding}
	err = plain(body, l, "input", map[string]func(string, *source) error{
		"model": func(name string, s *source) error { return readText(name, s, &e.Model) },
		"input": func(name string, s *source) (err error) {
			e.Prompts, err = promptsIn(name, s, tandem.MostInputs, "text")
			return err
		},
		"encoding_format": func(name string, s *source) error {
			form := ""
			if err := readText(name, s, &form); err != nil {
				return err
			}
			if base64 = form == "base64"; !base64 && form != "float" {
				return bad(name, "%s is %.50q: want float or base64", name, form)
			}
			return nil
		},
		"dimensions": func(name string, s *source) error {
			if err := readInt(name, s, &e.Dimensions); err != nil {
				return err
			}
			if e.Dimensions < 1 {
				return bad(name, "%s is %d: want at least 1", name, e.Dimensions)
			}
			return nil
		},
	})
	for i, p := range e.Prompts {
		if err == nil && p.Text == "" && len(p.Tokens) == 0 {
			err = bad("input", "text %d of input is empty: want at least one character or token", i)
		}
	}
	return e, base64, err
}

// Tokenize is a body of llama.cpp's /tokenize.
type Tokenize struct {
	Content      string
	AddSpecial   bool // the tokens that the model wants around a text
	ParseSpecial bool // control tokens written in the text become those tokens
	WithPieces   bool
}

// ReadTokenize reads a body of /tokenize. Errors as Chat's.
func ReadTokenize(body io.Reader, l Limits) (t Tokenize, err error) {
	t.ParseSpecial = true
	err = plain(body, l, "content", map[string]func(string, *source) error{
		"content": func(name string, s *source) (err error) {
			t.Content, err = readLong(name, s)
			return err
		},
		"add_special":   func(name string, s *source) error { return readBool(name, s, &t.AddSpecial) },
		"parse_special": func(name string, s *source) error { return readBool(name, s, &t.ParseSpecial) },
		"with_pieces":   func(name string, s *source) error { return readBool(name, s, &t.WithPieces) },
	})
	return t, err
}

// ReadDetokenize reads a body of /detokenize.
func ReadDetokenize(body io.Reader, l Limits) (tokens []tandem.Token, err error) {
	err = plain(body, l, "tokens", map[string]func(string, *source) error{
		"tokens": func(name string, s *source) (err error) {
			tokens, _, err = readTokens(name, s, maxPromptTokens)
			return err
		},
	})
	return tokens, err
}
