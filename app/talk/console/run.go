package console

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/app/terminal/editor"
)

// New returns a conversation that prints answers on out, and everything about them on err. The caller sets its fields.
func New(out, err io.Writer) *Conversation { return &Conversation{console: newConsole(out, err)} }

// Run talks until the input ends, a command ends it, or ctx ends, whose cause it returns. Each line is a message or a command. By
// interrupts, Ctrl-C stops the answer in progress instead of the program.
func (t *Conversation) Run(ctx context.Context, in *os.File, interrupts *Interrupts) error {
	typed := terminal.Is(in)
	if typed {
		what := "a base model, what you write is continued"
		if t.Chat {
			what = "a chat"
		}
		t.note("%s: %s. /help lists the commands; Ctrl-C stops an answer, Ctrl-D ends.", t.Model, what)
		if t.colour {
			fmt.Fprintln(t.err, t.dimmed("Tokens that were drafted and accepted ")+drafted+"look like this"+
				reset+t.dimmed(", the target's own like the rest."))
		}
	}
	next, release := t.messages(in, typed)
	defer release()
	for {
		restore := interrupts.Set(func() { t.note("\nCtrl-D or /bye ends the chat.") })
		line, ok, err := next(ctx)
		restore()
		if err != nil || !ok {
			if !typed && err == nil {
				err = t.failed()
			}
			return err
		}
		answer, stop := context.WithCancel(ctx)
		restore = interrupts.Set(stop)
		bye, err := t.say(answer, line)
		restore()
		stop()
		if gone := context.Cause(ctx); gone != nil {
			return gone
		}
		if err != nil || bye {
			return err
		}
	}
}

// messages returns what reads the next message; its second result is false at the end of the input.
func (t *Conversation) messages(in *os.File, typed bool) (next func(context.Context) (string, bool, error), release func()) {
	if out, is := t.out.(*os.File); typed && is && terminal.Is(out) && os.Getenv("TERM") != "dumb" {
		return t.typed(in, out), func() {}
	}
	lines, release := readLines(in)
	return func(ctx context.Context) (string, bool, error) {
		if typed {
			fmt.Fprint(t.err, prompt)
		}
		return nextMessage(ctx, lines)
	}, release
}

const prompt = ">>> "

// typed returns what reads messages by a line editor. Ctrl-C drops what was typed, and at an empty prompt twice ends the input, as Ctrl-D
// does.
func (t *Conversation) typed(in, out *os.File) func(context.Context) (string, bool, error) {
	e := &editor.Editor{In: in, Out: out, Prompt: prompt, Open: open, Complete: t.complete}
	if t.History != "" {
		var err error
		if e.History, err = editor.Load(t.History); err != nil {
			t.note("no history: %v", err)
			t.History = ""
		}
	}
	return func(ctx context.Context) (string, bool, error) {
		for warned := false; ; {
			text, err := e.Read(ctx)
			switch {
			case errors.Is(err, editor.ErrInterrupted) && (warned || text != ""):
				if text == "" {
					return "", false, nil
				}
				continue
			case errors.Is(err, editor.ErrInterrupted):
				t.note("Ctrl-C again, Ctrl-D or /bye ends the chat.")
				warned = true
				continue
			case errors.Is(err, io.EOF):
				return "", false, nil
			case err != nil:
				return "", false, err
			}
			if strings.TrimSpace(text) != "" {
				if err := e.Keep(t.History, text); err != nil {
					t.note("the history is not kept: %v", err)
					t.History = ""
				}
			}
			return unquoted(text), true, nil
		}
	}
}

// open reports whether a message began with quotes that have not ended.
func open(text string) bool {
	rest, several := strings.CutPrefix(text, quotes)
	return several && !strings.HasSuffix(rest, quotes)
}

// unquoted returns a message without the quotes around it.
func unquoted(text string) string {
	if rest, several := strings.CutPrefix(text, quotes); several {
		return strings.TrimSuffix(rest, quotes)
	}
	return text
}

// maxLine bounds one line of input in bytes.
const maxLine = 4 << 20

// line is one line of input, or why there are no more.
type line struct {
	text string
	err  error
}

// readLines reads lines until the input ends. If release is called before, its goroutine stays in a read of in that cannot be cancelled.
func readLines(in io.Reader) (lines <-chan line, release func()) {
	out, done := make(chan line), make(chan struct{})
	go func() {
		defer close(out)
		s := bufio.NewScanner(in)
		s.Buffer(nil, maxLine)
		for s.Scan() {
			select {
			case out <- line{text: strings.TrimSuffix(s.Text(), "\r")}:
			case <-done:
				return
			}
		}
		if err := s.Err(); err != nil {
			select {
			case out <- line{err: tandem.Errorf("", tandem.Invalid, "stdin: %w", err)}:
			case <-done:
			}
		}
	}()
	return out, func() { close(done) }
}

// quotes marks the begin and the end of a message of several lines.
const quotes = `"""`

// nextMessage returns what the user says next: a line, or several between quotes. ok is false at the end of the input.
func nextMessage(ctx context.Context, lines <-chan line) (text string, ok bool, err error) {
	next := func() (line, bool) {
		select {
		case l, more := <-lines:
			return l, more
		case <-ctx.Done():
			return line{err: context.Cause(ctx)}, true
		}
	}
	l, more := next()
	if l.err != nil || !more {
		return "", false, l.err
	}
	rest, several := strings.CutPrefix(l.text, quotes)
	if !several {
		return l.text, true, nil
	}
	for {
		if before, ended := strings.CutSuffix(rest, quotes); ended {
			return before, true, nil
		}
		if l, more = next(); l.err != nil || !more {
			return rest, l.err == nil, l.err
		}
		rest += "\n" + l.text
	}
}
