// Package console is a conversation on a terminal: what tandem run reads, does and prints.
package console

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"github.com/tandem-llm/tandem/app/terminal"
)

// Interrupts holds what Ctrl-C does instead of ending the program. Safe for concurrent use.
type Interrupts struct{ now atomic.Pointer[func()] }

// Set makes Taken call f until restore is called. It replaces what was set before.
func (i *Interrupts) Set(f func()) (restore func()) {
	i.now.Store(&f)
	return func() { i.now.Store(nil) }
}

// Taken calls the function that is set, and reports whether there is one.
func (i *Interrupts) Taken() bool {
	f := i.now.Load()
	if f != nil {
		(*f)()
	}
	return f != nil
}

// Looks of a terminal's text.
const (
	drafted = "\x1b[36m" // cyan
	dim     = "\x1b[2m"
	red     = "\x1b[31m"
	reset   = "\x1b[0m"
)

// console prints a conversation: answers on out, everything about them on err.
type console struct {
	out, err io.Writer
	colour   bool // out shows colours
	look     bool // err does
	thinks   bool // a thought is being shown
	broken   bool // and its last line has not ended
}

func newConsole(out, err io.Writer) console {
	return console{out: out, err: err, colour: terminal.Coloured(out), look: terminal.Coloured(err)}
}

// print prints text of the model, as drafted or as the target's own.
func (c console) print(text string, byDraft bool) error {
	text = terminal.Harmless(text)
	if byDraft && c.colour && text != "" {
		text = drafted + text + reset
	}
	_, err := io.WriteString(c.out, text)
	return err
}

// think prints a piece of a thought, on err: it is no part of the answer.
func (c *console) think(text string) error {
	c.thinks, c.broken = true, !strings.HasSuffix(text, "\n")
	_, err := io.WriteString(c.err, c.dimmed(terminal.Harmless(text)))
	return err
}

// endThought ends the last line of a thought; an empty line separates the answer.
func (c *console) endThought() {
	if c.thinks && c.broken {
		fmt.Fprintln(c.err)
	}
	if c.thinks {
		fmt.Fprintln(c.err)
	}
	c.thinks = false
}

// endAnswer ends the last line of an answer.
func (c console) endAnswer(text string) {
	if !strings.HasSuffix(text, "\n") {
		fmt.Fprintln(c.out)
	}
}

func (c console) dimmed(text string) string {
	if !c.look {
		return text
	}
	return dim + text + reset
}

// note prints a remark about the conversation. It may contain names of models and errors.
func (c console) note(format string, args ...any) {
	fmt.Fprintln(c.err, c.dimmed(terminal.Harmless(fmt.Sprintf(format, args...))))
}

// alarm prints a remark that must not be missed.
func (c console) alarm(format string, args ...any) {
	text := terminal.Harmless(fmt.Sprintf(format, args...))
	if c.look {
		text = red + text + reset
	}
	fmt.Fprintln(c.err, text)
}

// progress shows a line that the next call replaces ("": removes), if the terminal can.
func (c console) progress(format string, args ...any) {
	if c.look {
		fmt.Fprint(c.err, "\r\x1b[K"+dim+fmt.Sprintf(format, args...)+reset)
	}
}

// tell prints what is wrong with a line; the conversation goes on.
func (c console) tell(err error) error {
	c.note("%s", terminal.OneLine(err.Error()))
	return nil
}
