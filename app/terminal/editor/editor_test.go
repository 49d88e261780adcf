package editor

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKeys types keys and looks at the message.
func TestKeys(t *testing.T) {
	for keys, want := range map[string]string{
		"abc\r": "abc", "abc\x7f\x7fd\r": "ad", "ab\x1b[D\x1b[Dx\r": "xab", "ab\x01x\x05y\r": "xaby", "one two\x17\r": "one ",
		"one two\x1bb\x0b\r": "one ", "日本\x1b[Dx\r": "日x本", "e\u0301\x7f\r": "e", "a\x15b\r": "b", "a\\\rb\r": "a\nb",
		"\"\"\"a\rb\"\"\"\r": "\"\"\"a\nb\"\"\"", "\x1b[200~x\r\ny\rz\x1b[201~!\r": "x\ny\nz!", "\x1b[A\r": "new", "\x1b[A\x1b[A\r": "old",
		"d\x1b[A\x1b[B\r": "d", "\x1bOA\r": "new", "\x1b[99;5uq\r": "q", "/s\t\r": "/set ", "a\x1b\rb\r": "a\nb",
	} {
		e := &Editor{Out: io.Discard, History: []string{"old", "new"}, Size: func() (int, int) { return 20, 5 },
			Open:     func(s string) bool { return strings.HasPrefix(s, `"""`) && !strings.HasSuffix(s[3:], `"""`) },
			Complete: func(string) []string { return []string{"/set"} }}
		e.entry = len(e.History)
		done := false
		for _, b := range []byte(keys) { // a byte at a time, so that no key comes whole
			var err error
			e.pending = append(e.pending, b)
			if done, err = e.keys(func() {}); err != nil {
				t.Fatalf("%q: %v", keys, err)
			}
			if err := e.draw(); err != nil {
				t.Fatal(err)
			}
		}
		if got := string(e.text); got != want || !done {
			t.Errorf("%q gives %q, done %v: want %q", keys, got, done, want)
		}
	}
	for keys, want := range map[string]error{"x\x03": ErrInterrupted, "\x04": io.EOF} {
		e := &Editor{Out: io.Discard, pending: []byte(keys)}
		if _, err := e.keys(func() {}); !errors.Is(err, want) {
			t.Errorf("%q: %v", keys, err)
		}
	}
	stopped := 0
	e := &Editor{Out: io.Discard, pending: []byte("\x1a")}
	if _, err := e.keys(func() { stopped++ }); err != nil || stopped != 1 {
		t.Errorf("Ctrl-Z: %v, stopped %d times", err, stopped)
	}
}

// TestRows: wide characters take two columns, marks none, and escapes are shown as pictures.
func TestRows(t *testing.T) {
	for _, tc := range []struct {
		text        string
		want        string
		row, column int
	}{
		{"abc", ">>> abc", 0, 7},
		{"日本語", ">>> 日本|語", 1, 2},
		{"e\u0301", ">>> e\u0301", 0, 5},
		{"abcde", ">>> abcde|", 1, 0},
		{"a\nb", ">>> a|... b", 1, 5},
		{"\x1b[2J", ">>> ␛[2J", 0, 8},
	} {
		e := &Editor{Prompt: ">>> "}
		e.set(tc.text, "")
		rows, row, column := e.rows(9)
		if got := strings.Join(rows, "|"); got != tc.want || row != tc.row || column != tc.column {
			t.Errorf("%q is drawn as %q, cursor at %d, %d: want %+v", tc.text, got, row, column, tc)
		}
	}
	var out strings.Builder
	e := &Editor{Out: &out, Size: func() (int, int) { return 20, 3 }}
	e.set(strings.Repeat("x\n", 9)+"end", "")
	if err := e.draw(); err != nil || strings.Count(out.String(), "\r\n") != 2 || !strings.Contains(out.String(), "end") {
		t.Errorf("of ten rows on three: %v, %q", err, out.String())
	}
}

// TestHistory: what is kept is there again, for the owner alone, and bounded.
func TestHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "history")
	e := &Editor{}
	for _, s := range []string{"a\nb", "a\nb", "c", strings.Repeat("x", maxEntry+1)} {
		if err := e.Keep(path, s); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Load(path)
	if err != nil || strings.Join(got, "|") != "a\nb|c" {
		t.Errorf("%q, %v", got, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: want mode 0600", st, err)
	}
	if err := keep(path, make([]string, 2*maxEntries)); err != nil {
		t.Fatal(err)
	}
	if got, err = Load(path); err != nil || len(got) != maxEntries {
		t.Errorf("%d entries, %v", len(got), err)
	}
	if data, err := os.ReadFile(path); err != nil || strings.Count(string(data), "\n") != maxEntries {
		t.Errorf("the file was not shortened: %v", err)
	}
	if _, err := Load(os.DevNull); err == nil {
		t.Error("a device is read")
	}
}
