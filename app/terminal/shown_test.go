package terminal

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestShown(t *testing.T) {
	for s, want := range map[string]string{"": "", "model-7b.Q4_K_M": "model-7b.Q4_K_M", "größer 模型": "größer 模型", "a\x1b[31mb": `"a\x1b[31mb"`,
		"a\nb": `"a\nb"`, "a\tb": `"a\tb"`, "\u202eabc": `"\u202eabc"`, "\xff": `"\xff"`, "\u009b1m": `"\u009b1m"`, "a\u00a0b": `"a\u00a0b"`} {
		if got := Shown(s); got != want {
			t.Errorf("Shown(%q) = %q: want %q", s, got, want)
		}
	}
	var out bytes.Buffer
	text := "line\tone\nesc \x1b]0;x\a csi \u009b2J rtl \u202e end\r\n"
	if n, err := (Printable{&out}).Write([]byte(text)); n != len(text) || err != nil {
		t.Errorf("wrote %d of %d: %v", n, len(text), err)
	}
	if got, want := out.String(), "line\tone\nesc \\x1b]0;x\\a csi \\u009b2J rtl \\u202e end\\r\n"; got != want {
		t.Errorf("printed %q: want %q", got, want)
	}
	if got := OneLine("tandem: a\x1b[2Jb\nc\u009bd"); strings.ContainsFunc(got, Dangerous) || strings.Contains(got, "\n") {
		t.Errorf("one line: %q", got)
	}
}

func TestHarmless(t *testing.T) {
	for in, want := range map[string]string{
		"plain text\n\twith é 世界": "plain text\n\twith é 世界",
		"\x1b[2J\x1b]0;title\x07": "␛[2J␛]0;title␇",
		"a\rb\x08c\x00\x7f":       "a␍b␈c␀␡",
		"\u009b31m\u0085":         "\ufffd31m\ufffd",
		"\u202egnp.exe\u2066":     "\ufffdgnp.exe\ufffd",
	} {
		if got := Harmless(in); got != want {
			t.Errorf("%q becomes %q: want %q", in, got, want)
		}
	}
}

// TestPrintJSON: a line of JSON has the same values and nothing that a terminal obeys.
func TestPrintJSON(t *testing.T) {
	var out strings.Builder
	const said = "a\x1b[2J\u009b2J\x7f\u202eb<é\u2028"
	if err := PrintJSON(&out, said); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil || got != said {
		t.Errorf("%q, error %v: want %q", got, err, said)
	}
	if line := strings.TrimSuffix(out.String(), "\n"); strings.ContainsFunc(line, Dangerous) || !strings.Contains(line, "<é") {
		t.Errorf("%q", line)
	}
}
