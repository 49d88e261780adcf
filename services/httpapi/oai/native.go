package oai

import (
	"encoding/json"

	"github.com/tandem-llm/tandem"
)

// Tokenize is a body of llama.cpp's /tokenize.
type Tokenize struct {
	Content      string
	AddSpecial   bool // the tokens that the model wants around a text
	ParseSpecial bool // control tokens that are written in the text are those tokens
	WithPieces   bool
}

// Detokenize is a body of /detokenize.
type Detokenize struct{ Tokens []tandem.Token }

// ApplyTemplate is a body of /apply-template.
type ApplyTemplate struct{ Messages []Message }

// ReadTokenize decodes a body of /tokenize.
func ReadTokenize(body []byte) (t Tokenize, err error) {
	t.ParseSpecial = true
	err = fields(body, "content", map[string]func(string, json.RawMessage) error{
		"content":       func(name string, raw json.RawMessage) error { return readText(name, raw, &t.Content) },
		"add_special":   func(name string, raw json.RawMessage) error { return readBool(name, raw, &t.AddSpecial) },
		"parse_special": func(name string, raw json.RawMessage) error { return readBool(name, raw, &t.ParseSpecial) },
		"with_pieces":   func(name string, raw json.RawMessage) error { return readBool(name, raw, &t.WithPieces) },
	})
	return t, err
}

// ReadDetokenize decodes a body of /detokenize.
func ReadDetokenize(body []byte) (d Detokenize, err error) {
	err = fields(body, "tokens", map[string]func(string, json.RawMessage) error{
		"tokens": func(name string, raw json.RawMessage) (err error) {
			d.Tokens, err = ReadTokens(name, raw)
			return err
		},
	})
	return d, err
}

// ReadApplyTemplate decodes a body of /apply-template.
func ReadApplyTemplate(body []byte) (a ApplyTemplate, err error) {
	err = fields(body, "messages", map[string]func(string, json.RawMessage) error{
		"messages": func(name string, raw json.RawMessage) (err error) {
			a.Messages, err = messages(name, raw)
			return err
		},
	})
	return a, err
}

// fields reads a body of these fields, of which one must be there.
func fields(body []byte, needed string, known map[string]func(string, json.RawMessage) error) error {
	if err := check(body); err != nil {
		return err
	}
	missing := true
	err := object("", body, func(name string, raw json.RawMessage) error {
		f, ok := known[name]
		if !ok {
			return unsupported(name, "unknown field %.100q: tandem does not support it", name)
		}
		missing = missing && name != needed
		return f(name, raw)
	})
	if err == nil && missing {
		err = bad(needed, "%s is missing", needed)
	}
	return err
}

// Piece is a token with how it is written: a string, or an array of bytes where they are no UTF-8.
type Piece struct {
	ID    tandem.Token `json:"id"`
	Piece any          `json:"piece"`
}

// NewPiece returns a token as /tokenize tells it.
func NewPiece(t tandem.Token, w Word) Piece {
	if string(w.Bytes) == w.Text {
		return Piece{t, w.Text}
	}
	return Piece{t, ints(w.Bytes)}
}
