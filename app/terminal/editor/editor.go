// Package editor reads messages from a terminal: a line editor with history, completion, pasted text and messages of several lines.
package editor

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// ErrInterrupted is what Read returns for Ctrl-C.
var ErrInterrupted = errors.New("interrupted")

// Editor reads messages. One goroutine at a time may use it. The terminal is in raw mode while Read runs, and at no other time.
type Editor struct {
	In       *os.File                     // a terminal
	Out      io.Writer                    // it too
	Prompt   string                       // of columns one byte wide
	Open     func(text string) bool       // Enter begins another line of this text; nil: never
	Complete func(before string) []string // what may stand in place of all before the cursor; nil: nothing
	Size     func() (columns, rows int)   // of the terminal; nil: asks it
	History  []string                     // what Up fetches, oldest first

	text    []rune
	at      int    // the cursor stands before text[at]
	row     int    // of the cursor, below the first drawn
	entry   int    // of the history that is shown; len(History): none
	draft   string // what was typed before the history was shown
	pending []byte // input that is not a whole key yet
	pasting bool
}

const (
	pasteOn, pasteOff = "\x1b[?2004h", "\x1b[?2004l"
	more              = "... "  // begins further lines
	maxText           = 4 << 20 // bytes of a message
	tick              = 100     // milliseconds between looks at the context and the terminal's size
)

// Read returns the next message. Errors: io.EOF for Ctrl-D in an empty line, ErrInterrupted, with what was typed until then, ctx's cause,
// and those of the terminal.
func (e *Editor) Read(ctx context.Context) (text string, err error) {
	fd := int(e.In.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return "", err
	}
	defer func() {
		_, _ = io.WriteString(e.Out, pasteOff+"\r\n") // a terminal that is gone says so when it is read
		err = errors.Join(err, term.Restore(fd, before))
	}()
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	e.text, e.at, e.row, e.entry, e.draft = nil, 0, 0, len(e.History), ""
	_, _ = io.WriteString(e.Out, pasteOn)
	columns := 0
	for draw := true; ; {
		if now, _ := e.size(); now != columns {
			columns, draw = now, true
		}
		if draw && !e.pasting {
			if err := e.draw(); err != nil {
				return "", err
			}
		}
		draw, err = e.wait(fd)
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-continued: // the shell has set the terminal as it likes it
			if _, err := term.MakeRaw(fd); err != nil {
				return "", err
			}
			_, _ = io.WriteString(e.Out, pasteOn)
			e.row, draw = 0, true
		default:
		}
		if err != nil {
			return "", err
		}
		done, err := e.keys(func() { suspend(fd, before) })
		if done || err != nil {
			text, e.at = string(e.text), len(e.text)
			return text, errors.Join(err, e.draw())
		}
	}
}

// suspend stops this program as Ctrl-Z does elsewhere; SIGCONT puts the terminal into raw mode again.
func suspend(fd int, before *term.State) {
	_ = term.Restore(fd, before)
	_ = syscall.Kill(0, syscall.SIGTSTP)
}

func (e *Editor) size() (columns, rows int) {
	if e.Size != nil {
		return e.Size()
	}
	columns, rows, err := term.GetSize(int(e.In.Fd()))
	if err != nil || columns < 8 || rows < 1 {
		return 80, 24
	}
	return columns, rows
}

// wait waits for a tick or input, which it adds to pending. It reports whether there was any.
func (e *Editor) wait(fd int) (bool, error) {
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(ready, tick)
	if errors.Is(err, unix.EINTR) || err == nil && n == 0 {
		if string(e.pending) == "\x1b" { // the key Escape alone
			e.pending = nil
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	b := make([]byte, 4096)
	n, err = e.In.Read(b)
	e.pending = append(e.pending, b[:n]...)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return true, err
}

// keys obeys the whole keys of pending. done: the message is complete; later keys stay for the next.
func (e *Editor) keys(stop func()) (done bool, err error) {
	for len(e.pending) > 0 {
		key, n := next(e.pending)
		if n == 0 {
			return false, nil
		}
		e.pending = e.pending[n:]
		if e.pasting {
			e.paste(key)
			continue
		}
		switch key {
		case "\r", "\n":
			if !e.enter() {
				return true, nil
			}
		case "\x03":
			return false, ErrInterrupted
		case "\x04":
			if len(e.text) == 0 {
				return false, io.EOF
			}
			e.cut(e.at, e.at+1)
		case "\x1a":
			stop()
		case "\t":
			e.complete()
		default:
			e.edit(key)
		}
	}
	return false, nil
}

// enter reports whether the message goes on in another line.
func (e *Editor) enter() bool {
	if e.at > 0 && e.at == len(e.text) && e.text[e.at-1] == '\\' {
		e.cut(e.at-1, e.at)
	} else if e.Open == nil || !e.Open(string(e.text)) {
		return false
	}
	e.insert("\n")
	return true
}

// paste takes a key of pasted text: no key but the end is obeyed.
func (e *Editor) paste(key string) {
	switch key {
	case "\x1b[201~":
		e.pasting = false
		e.set(strings.ReplaceAll(strings.ReplaceAll(string(e.text[:e.at]), "\r\n", "\n"), "\r", "\n"), string(e.text[e.at:]))
	default:
		e.insert(key)
	}
}

// next returns the first key of b and its length: a character or an escape sequence; 0 if it is not whole.
func next(b []byte) (key string, n int) {
	if b[0] != 0x1b {
		if !utf8.FullRune(b) {
			return "", 0
		}
		r, n := utf8.DecodeRune(b)
		return string(r), n
	}
	switch {
	case len(b) < 2:
		return "", 0
	case b[1] == 'O':
		if len(b) < 3 {
			return "", 0
		}
		return "\x1b[" + string(b[2:3]), 3
	case b[1] != '[':
		return string(b[:2]), 2
	}
	for i := 2; i < len(b); i++ {
		if b[i] >= 0x40 && b[i] <= 0x7e {
			return string(b[:i+1]), i + 1
		}
	}
	return "", 0
}

// edit obeys a key that changes the text or moves the cursor, as readline's users know them.
func (e *Editor) edit(key string) {
	switch key {
	case "\x1b[200~":
		e.pasting = true
	case "\x01", "\x1b[H", "\x1b[1~", "\x1b[7~":
		e.at = e.lineStart()
	case "\x05", "\x1b[F", "\x1b[4~", "\x1b[8~":
		e.at = e.lineEnd()
	case "\x02", "\x1b[D":
		e.at = max(0, e.at-1)
		for e.at > 0 && width(e.text[e.at]) == 0 {
			e.at--
		}
	case "\x06", "\x1b[C":
		e.at = e.after(e.at)
	case "\x1bb", "\x1b[1;5D", "\x1b[1;3D":
		e.at = e.wordStart()
	case "\x1bf", "\x1b[1;5C", "\x1b[1;3C":
		e.at = e.wordEnd()
	case "\x7f", "\x08":
		e.cut(e.at-1, e.at)
	case "\x1b[3~":
		e.cut(e.at, e.after(e.at))
	case "\x15":
		e.cut(e.lineStart(), e.at)
	case "\x0b":
		e.cut(e.at, e.lineEnd())
	case "\x17", "\x1b\x7f":
		e.cut(e.wordStart(), e.at)
	case "\x1bd":
		e.cut(e.at, e.wordEnd())
	case "\x1b\r", "\x1b\n":
		e.insert("\n")
	case "\x0c":
		_, _ = io.WriteString(e.Out, "\x1b[H\x1b[2J")
		e.row = 0
	case "\x10", "\x1b[A":
		e.recall(-1)
	case "\x0e", "\x1b[B":
		e.recall(+1)
	default:
		if key[0] >= ' ' {
			e.insert(key)
		}
	}
}

// recall shows the entry of the history that is by further from the one shown.
func (e *Editor) recall(by int) {
	to := e.entry + by
	if to < 0 || to > len(e.History) {
		return
	}
	if e.entry == len(e.History) {
		e.draft = string(e.text)
	}
	e.entry = to
	if to == len(e.History) {
		e.set(e.draft, "")
	} else {
		e.set(e.History[to], "")
	}
}

// complete puts what all completions have in common in place of the text before the cursor, and lists them if that is nothing new.
func (e *Editor) complete() {
	if e.Complete == nil {
		return
	}
	before := string(e.text[:e.at])
	all := e.Complete(before)
	if len(all) == 0 {
		return
	}
	common := all[0]
	for _, s := range all[1:] {
		for !strings.HasPrefix(s, common) {
			common = common[:len(common)-1]
		}
	}
	if len(all) == 1 && !strings.HasSuffix(common, "/") {
		common += " "
	}
	if len(common) > len(before) {
		e.set(strings.ToValidUTF8(common, ""), string(e.text[e.at:]))
		return
	}
	_, _ = io.WriteString(e.Out, "\r\n"+strings.Join(all, "  ")+"\r\n")
	e.row = 0
}

// set makes the text before and after the cursor.
func (e *Editor) set(before, after string) {
	e.text = []rune(before + after)
	e.at = utf8.RuneCountInString(before)
}

func (e *Editor) insert(s string) {
	if len(e.text)+len(s) > maxText {
		return
	}
	r := []rune(s)
	e.text = append(e.text, r...)
	copy(e.text[e.at+len(r):], e.text[e.at:])
	copy(e.text[e.at:], r)
	e.at += len(r)
}

func (e *Editor) cut(from, to int) {
	if from, to = max(from, 0), min(to, len(e.text)); from < to {
		e.text, e.at = append(e.text[:from], e.text[to:]...), from
	}
}

// after returns the place behind the character at i, with the marks that belong to it.
func (e *Editor) after(i int) int {
	for i++; i < len(e.text) && width(e.text[i]) == 0; i++ {
	}
	return min(i, len(e.text))
}

func (e *Editor) lineStart() int {
	i := e.at
	for i > 0 && e.text[i-1] != '\n' {
		i--
	}
	return i
}

func (e *Editor) lineEnd() int {
	i := e.at
	for i < len(e.text) && e.text[i] != '\n' {
		i++
	}
	return i
}

func (e *Editor) wordStart() int {
	i := e.at
	for i > 0 && unicode.IsSpace(e.text[i-1]) {
		i--
	}
	for i > 0 && !unicode.IsSpace(e.text[i-1]) {
		i--
	}
	return i
}

func (e *Editor) wordEnd() int {
	i := e.at
	for i < len(e.text) && unicode.IsSpace(e.text[i]) {
		i++
	}
	for i < len(e.text) && !unicode.IsSpace(e.text[i]) {
		i++
	}
	return i
}
