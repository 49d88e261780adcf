package main

import (
	"fmt"
	"io"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/text/token"
)

type tokenizeCmd struct {
	Model     string  `help:"GGUF file whose tokenizer to use (default: the shipped target)." placeholder:"FILE" setting:"-"`
	Text      *string `help:"Text; default: stdin, byte for byte." setting:"-"`
	NoSpecial bool    `help:"Add no begin-of-text token." setting:"-"`
	output
}

// Run prints the tokens of a text.
func (c *tokenizeCmd) Run(a *app) error {
	path, err := find.Target(c.Model)
	if err != nil {
		return err
	}
	vocab, err := token.Open(path)
	if err != nil {
		return err
	}
	for _, note := range vocab.Notes() {
		fmt.Fprintln(a.stderr, "tandem: "+note)
	}
	var text string
	if c.Text != nil {
		text = *c.Text
	} else if text, err = readAll(a.stdin, "stdin"); err != nil {
		return err
	}
	tokens := vocab.Encode(text, !c.NoSpecial)
	if c.JSON {
		pieces := make([]string, len(tokens))
		for i, t := range tokens {
			pieces[i] = vocab.Piece(t)
		}
		return terminal.PrintJSON(a.stdout, struct {
			Tokens []tandem.Token `json:"tokens"`
			Pieces []string       `json:"pieces"`
		}{append([]tandem.Token{}, tokens...), pieces})
	}
	for _, t := range tokens {
		if _, err := fmt.Fprintf(a.stdout, "%d\t%q\n", t, vocab.Piece(t)); err != nil {
			return err
		}
	}
	return nil
}

// readAll reads r to its end, at most as many bytes as a prompt may have.
func readAll(r io.Reader, name string) (string, error) {
	most := int64(tandem.DefaultLimits.PromptBytes)
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	switch {
	case err != nil:
		return "", tandem.Errorf("", tandem.Invalid, "%s: %w", name, files.Reason(err))
	case int64(len(b)) > most:
		return "", tandem.Errorf("", tandem.Invalid, "%s has more than %d bytes", name, most)
	}
	return string(b), nil
}
