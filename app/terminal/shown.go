// Package terminal writes to terminals: names and texts out of files so that a terminal obeys nothing in them, progress, and results.
package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Shown returns a name, key or path that may come out of a file, for a terminal: unchanged, or quoted if it holds anything that is not
// printable, such as an escape sequence or a line break.
func Shown(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	return strconv.Quote(s)
}

// AllShown returns Shown of each, with commas between them.
func AllShown(all []string) string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = Shown(s)
	}
	return strings.Join(out, ", ")
}

// Printable passes lines and tables on to a terminal. It writes control characters, except line breaks and tabs, as escapes. It is for text
// with many names out of files; Shown is for a single name. A rune must not be split between two writes.
type Printable struct{ To io.Writer }

// Write implements io.Writer.
func (p Printable) Write(b []byte) (int, error) {
	clean := strings.ToValidUTF8(string(b), "\uFFFD")
	if strings.ContainsFunc(clean, Dangerous) {
		var out strings.Builder
		for _, r := range clean {
			if Dangerous(r) {
				out.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
			} else {
				out.WriteRune(r)
			}
		}
		clean = out.String()
	}
	if _, err := io.WriteString(p.To, clean); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Dangerous reports whether a terminal may take r for more than a character: a control character except line break and tab, or one that
// turns the direction of text.
func Dangerous(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r))
}

// OneLine returns s for one line of a terminal: trimmed, with a space in place of each line break, tab and Dangerous character.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || Dangerous(r) {
			return ' '
		}
		return r
	}, strings.TrimSpace(s))
}

// Harmless returns text without anything that a terminal would obey: control characters become their Unicode pictures,
// marks that change the direction of writing U+FFFD. Line ends and tabs stay.
func Harmless(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < ' ':
			return '␀' + r
		case r == 0x7f:
			return '␡'
		case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r), r == '\u2028', r == '\u2029':
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// On returns a model's text as it may be written to w: Harmless if w is a terminal, else unchanged.
func On(w io.Writer, text string) string {
	if f, ok := w.(*os.File); ok && Is(f) {
		return Harmless(text)
	}
	return text
}

// Coloured reports whether w is a terminal whose user allows colours (no-color.org).
func Coloured(w io.Writer) bool {
	f, isFile := w.(*os.File)
	return isFile && Is(f) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// Is reports whether f is a terminal: a character device that is not /dev/null.
func Is(f *os.File) bool {
	st, err := f.Stat()
	if err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(st, null)
}

// PrintJSON prints v as one line of JSON, in which characters that a terminal would obey are escaped. Errors: v's encoding, and w's.
func PrintJSON(w io.Writer, v any) error {
	var line strings.Builder
	e := json.NewEncoder(&line)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range line.String() { // Go escapes those below a space
		if Dangerous(r) {
			fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}
