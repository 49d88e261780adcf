package terminal

import (
	"strings"
	"testing"
	"time"
)

// TestRate: a line each minute says how fast a task goes and when it will end, of this run alone.
func TestRate(t *testing.T) {
	var out strings.Builder
	r := NewRate(&out, "tokens")
	at := r.start
	r.now = func() time.Time { return at }
	r.Step(1000, 1000, 0.5)
	for range 4 {
		at = at.Add(30 * time.Second)
		r.Step(1000+int(at.Sub(r.start).Seconds())*2, 1000, 0.5+at.Sub(r.start).Seconds()/600)
	}
	r.End()
	want := "1120 tokens, 60 %, 2 tokens/s, 4m0s left\n1240 tokens, 70 %, 2 tokens/s, 3m0s left\n"
	if out.String() != want {
		t.Errorf("%q: want %q", out.String(), want)
	}
	out.Reset()
	r.terminal = true
	at = at.Add(time.Second)
	r.Step(1300, 1000, 0.75)
	r.End()
	if got := out.String(); !strings.HasPrefix(got, "\r1300 tokens, 75 %") || !strings.HasSuffix(got, "\x1b[K\r\x1b[K") {
		t.Errorf("on a terminal %q", got)
	}
}
