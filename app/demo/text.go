package demo

import (
	"fmt"
	"io"
	"strings"
)

// Text is the view for pipes, files and narrow terminals: one text after the other, as it comes.
type Text struct {
	To     io.Writer
	Colour bool

	ended bool // the last thing written was a line's end
}

// Begin implements View.
func (v *Text) Begin(way Way) error {
	v.ended = true
	_, err := fmt.Fprintf(v.To, "--- %s\n", way)
	return err
}

// Show implements View.
func (v *Text) Show(p Piece) error {
	if p.Text == "" {
		return nil
	}
	v.ended = strings.HasSuffix(p.Text, "\n")
	_, err := io.WriteString(v.To, paint(p.Text, p.From, v.Colour))
	return err
}

// End implements View.
func (v *Text) End(Generation) error {
	if v.ended {
		return nil
	}
	_, err := io.WriteString(v.To, "\n")
	return err
}

// Finish implements View.
func (v *Text) Finish(r *Result) error {
	_, err := io.WriteString(v.To, "---\n"+strings.Join(r.Summary(), "\n")+"\n")
	return err
}

// Quiet shows nothing; the caller prints the result.
type Quiet struct{}

// Begin implements View.
func (Quiet) Begin(Way) error { return nil }

// Show implements View.
func (Quiet) Show(Piece) error { return nil }

// End implements View.
func (Quiet) End(Generation) error { return nil }

// Finish implements View.
func (Quiet) Finish(*Result) error { return nil }

// looks are the ECMA-48 sequences of each origin: the prompt is faint, a draft's guesses are cyan, as in the other commands.
var looks = [...]string{FromPrompt: "\x1b[2m", FromTarget: "", FromDraft: "\x1b[36m"}

const plainLook = "\x1b[0m"

// paint gives text the look of its origin, if there are colours.
func paint(text string, from Origin, colour bool) string {
	if !colour || looks[from] == "" {
		return text
	}
	return looks[from] + text + plainLook
}
