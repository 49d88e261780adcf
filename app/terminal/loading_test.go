package terminal

import (
	"strings"
	"testing"
)

// TestLoading: two processes that load are one line on a terminal, which other lines pass and which goes in the end.
func TestLoading(t *testing.T) {
	var out strings.Builder
	l := &Loading{to: &out, done: map[string]string{}}
	for _, step := range []struct{ line, want string }{
		{"verifier: loading big: 0 % of 1.0 GiB\n", "\r\x1b[Kloading: verifier 0 % of 1.0 GiB"},
		{"drafter: loading a: b: 50 % of 10.0 MiB\n", "\r\x1b[Kloading: verifier 0 % of 1.0 GiB, drafter 50 % of 10.0 MiB"},
		{"verifier: a warning\n", "\r\x1b[Kverifier: a warning\n\r\x1b[Kloading: verifier 0 % of 1.0 GiB, drafter 50 % of 10.0 MiB"},
		{"drafter: loading a: b: 100 % of 10.0 MiB\n", "\r\x1b[Kloading: verifier 0 % of 1.0 GiB, drafter 100 % of 10.0 MiB"},
		{"verifier: loading big: 100 % of 1.0 GiB\n", "\r\x1b[K"},
		{"gateway: serves\n", "gateway: serves\n"},
		{"verifier: loading big: 25 % of 1.0 GiB\n", "\r\x1b[Kloading: verifier 25 % of 1.0 GiB"}, // started again
	} {
		out.Reset()
		if n, err := l.Write([]byte(step.line)); n != len(step.line) || err != nil || out.String() != step.want {
			t.Errorf("%q writes %q, %d, %v: want %q", step.line, out.String(), n, err, step.want)
		}
	}
	out.Reset()
	if Close(l); out.String() != "\r\x1b[K" {
		t.Errorf("at the end: %q", out.String())
	}
	if w := NewLoading(&out); w != &out {
		t.Errorf("without a terminal lines go to %v", w)
	}
}
