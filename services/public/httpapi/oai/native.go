package oai

import (
	"io"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// Tokenize is a body of llama.cpp's /tokenize.
type Tokenize struct {
	Content      string
	AddSpecial   bool // the tokens that the model wants around a text
	ParseSpecial bool // control tokens written in the text become those tokens
	WithPieces   bool
}

// Detokenize is a body of /detokenize.
type Detokenize struct{ Tokens []tandem.Token }

// ReadTokenize decodes a body of /tokenize. Errors as ReadChat's.
func ReadTokenize(body io.Reader, l Limits) (t Tokenize, err error) {
	t.ParseSpecial = true
	err = fields(body, l, "content", map[string]func(string, *source) error{
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

// ReadDetokenize decodes a body of /detokenize.
func ReadDetokenize(body io.Reader, l Limits) (d Detokenize, err error) {
	err = fields(body, l, "tokens", map[string]func(string, *source) error{
		"tokens": func(name string, s *source) (err error) {
			d.Tokens, _, err = readTokens(name, s, maxPromptTokens)
			return err
		},
	})
	return d, err
}

// fields reads a body with these fields; the needed one must be present. Fields that would change what a model reads are refused here too.
func fields(body io.Reader, l Limits, needed string, known map[string]func(string, *source) error) error {
	return read(body, l, needed, func(name string) func(string, *source) error {
		if f := foreign[name]; known[name] == nil && f != nil && !l.Strict {
			return func(name string, s *source) error { return f(nil, name, s) }
		}
		return known[name]
	})
}

// Piece is a token and its text: a string, or an array of bytes if they are not UTF-8.
type Piece struct {
	ID    tandem.Token `json:"id"`
	Piece any          `json:"piece"`
}

// NewPiece returns a token in /tokenize's form.
func NewPiece(t tandem.Token, w Word) Piece {
	if utf8.Valid(w.Bytes) {
		return Piece{t, w.Text}
	}
	return Piece{t, ints(w.Bytes)}
}
