package editor

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	wide "golang.org/x/text/width"

	"github.com/tandem-llm/tandem/app/terminal"
)

// width returns how many columns a terminal shows r in.
func width(r rune) int {
	switch {
	case r == '\n':
		return 1 // never shown: so that the cursor stops there
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) && !unicode.Is(unicode.Bidi_Control, r):
		return 0
	}
	if k := wide.LookupRune(r).Kind(); k == wide.EastAsianWide || k == wide.EastAsianFullwidth {
		return 2
	}
	return 1
}

// rows returns the prompt and the text as rows of a terminal, and where the cursor stands.
func (e *Editor) rows(columns int) (rows []string, row, column int) {
	var now strings.Builder
	now.WriteString(e.Prompt)
	x := len(e.Prompt)
	end := func(begin string) {
		rows = append(rows, now.String())
		now.Reset()
		now.WriteString(begin)
		x = len(begin)
	}
	for i, r := range e.text {
		if r != '\n' && x+width(r) > columns {
			end("")
		}
		if i == e.at {
			row, column = len(rows), x
		}
		switch r {
		case '\n':
			end(more)
		case '\t':
			now.WriteByte(' ')
			x++
		default:
			now.WriteString(terminal.Harmless(string(r)))
			x += width(r)
		}
	}
	if x >= columns {
		end("")
	}
	if e.at == len(e.text) {
		row, column = len(rows), x
	}
	return append(rows, now.String()), row, min(column, columns-1)
}

// draw shows prompt, text and cursor in place of what it showed before; of a text of more rows than the terminal has, those at the cursor.
func (e *Editor) draw() error {
	columns, height := e.size()
	rows, row, column := e.rows(columns)
	first := max(0, row-height+1)
	rows = rows[first:min(len(rows), first+height)]
	row -= first
	var out strings.Builder
	if e.row > 0 {
		fmt.Fprintf(&out, "\x1b[%dA", e.row)
	}
	out.WriteString("\r\x1b[J" + strings.Join(rows, "\r\n") + "\r")
	if up := len(rows) - 1 - row; up > 0 {
		fmt.Fprintf(&out, "\x1b[%dA", up)
	}
	if column > 0 {
		fmt.Fprintf(&out, "\x1b[%dC", column)
	}
	e.row = row
	_, err := io.WriteString(e.Out, out.String())
	return err
}
