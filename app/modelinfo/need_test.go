package modelinfo

import (
	"strings"
	"testing"
)

// TestNeed: a model runs here if all of it fits into memory, or streamed; the line says which, and what each pass reads.
func TestNeed(t *testing.T) {
	for says, n := range map[string]Need{": runs here": {Fits: true}, ": does not fit": {},
		"streamed, each pass reads 3.0 GiB from the disk": {PerPass: 3 << 30}} {
		if got := n.String(); !strings.HasSuffix(got, says) || n.Runs() == strings.Contains(says, "not") {
			t.Errorf("%+v: %q, runs %v: want %q", n, got, n.Runs(), says)
		}
	}
}
