package terminal

import (
	"strings"
	"testing"
	"time"
)

func TestProgress(t *testing.T) {
	steps := func(terminal bool, since time.Duration) string {
		var out strings.Builder
		p := NewProgress(&out, "loading m")
		p.terminal, p.start = terminal, time.Now().Add(-since)
		for done := int64(10); done <= 100; done += 10 {
			p.Step(done<<20, 100<<20)
		}
		p.End()
		return out.String()
	}
	if got := steps(false, 0); got != "" {
		t.Errorf("a short load shows %q", got)
	}
	if got, want := steps(false, time.Second), "10 30 50 80 100"; strings.Join(percents(got), " ") != want {
		t.Errorf("lines of %v percent: want %s", percents(got), want)
	}
	if got := steps(true, time.Second); !strings.HasPrefix(got, "\rloading m:  10 % of 100.0 MiB") ||
		!strings.HasSuffix(got, "100 % of 100.0 MiB\r\x1b[K") || strings.Contains(got, "\n") {
		t.Errorf("on a terminal: %q", got)
	}
}

// percents returns the numbers before "%" of lines.
func percents(lines string) (all []string) {
	for line := range strings.Lines(lines) {
		_, rest, _ := strings.Cut(line, ": ")
		n, _, _ := strings.Cut(rest, " ")
		all = append(all, n)
	}
	return all
}
