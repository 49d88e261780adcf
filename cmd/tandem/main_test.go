package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

func TestParseTokens(t *testing.T) {
	got, err := parseTokens("1, 22,333")
	if err != nil || !slices.Equal(got, []tandem.Token{1, 22, 333}) {
		t.Errorf("tokens %v, %v", got, err)
	}
	for _, bad := range []string{"", ",", "1,x", "-1", "1.5", "99999999999"} {
		if got, err := parseTokens(bad); err == nil || tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%q: tokens %v, error %v: want Invalid", bad, got, err)
		}
	}
}

func TestReport(t *testing.T) {
	for _, tc := range []struct {
		err  error
		line string
		code int
	}{
		{nil, "", 0},
		{tandem.Errorf("gguf", tandem.Invalid, "bad\nvalue\x1b[31m"), "tandem: gguf: bad value [31m\n", 2},
		{tandem.Errorf("", tandem.Corrupt, "damaged"), "tandem: damaged\n", 1},
		{os.ErrClosed, "tandem: file already closed\n", 1},
	} {
		var out strings.Builder
		if code := report(&out, tc.err); code != tc.code || out.String() != tc.line {
			t.Errorf("%v: code %d, %q: want %d, %q", tc.err, code, out.String(), tc.code, tc.line)
		}
	}
}

// TestNoMutex: what needs a lock decides something, and belongs in a room.
func TestNoMutex(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`\bsync\.(RW)?(Mutex|Locker|Cond|Map)\b`).Match(text) {
			t.Errorf("%s holds a lock: move what it guards to a room", name)
		}
	}
}
