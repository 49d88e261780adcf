package tandem_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// wellFormed are the byte sequences of characters, as table 3-7 of the Unicode standard lists them.
var wellFormed = [][][2]byte{
	{{0x00, 0x7f}}, {{0xc2, 0xdf}, {0x80, 0xbf}},
	{{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}}, {{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}},
	{{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}}, {{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}},
	{{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}}, {{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
	{{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}},
}

// byTable decodes b with the table alone.
func byTable(b []byte) string {
	var out strings.Builder
	for len(b) > 0 {
		longest, whole := 1, false
		for _, row := range wellFormed {
			n := 0
			for n < len(row) && n < len(b) && row[n][0] <= b[n] && b[n] <= row[n][1] {
				n++
			}
			longest, whole = max(longest, n), whole || n == len(row)
		}
		if whole {
			out.Write(b[:longest])
		} else {
			out.WriteString("\uFFFD")
		}
		b = b[longest:]
	}
	return out.String()
}

// TestLossy compares with the standard's table, over all short texts of bytes at the borders of its rows.
func TestLossy(t *testing.T) {
	var borders []byte
	for c := range 256 {
		for _, row := range wellFormed {
			for _, r := range row {
				for _, edge := range []int{int(r[0]) - 1, int(r[0]), int(r[1]), int(r[1]) + 1} {
					if edge == c && (len(borders) == 0 || borders[len(borders)-1] != byte(c)) {
						borders = append(borders, byte(c))
					}
				}
			}
		}
	}
	var try func(b []byte, more int)
	try = func(b []byte, more int) {
		if got, want := tandem.Lossy(b), byTable(b); got != want {
			t.Fatalf("% x becomes %q: want %q", b, got, want)
		}
		for _, c := range borders {
			if more > 0 {
				try(append(b[:len(b):len(b)], c), more-1)
			}
		}
	}
	try(nil, 4)
	// what Python's bytes.decode('utf-8', 'replace') gives
	for in, want := range map[string]string{"\xf0\x9f\x98": "\uFFFD", "\xf0\x9f\x98a": "\uFFFDa", "\xf0\x9f\x98\xf0\x9f": "\uFFFD\uFFFD",
		"\xe2\x82": "\uFFFD", "\xed\xa0\x80": "\uFFFD\uFFFD\uFFFD", "\xc0\xaf": "\uFFFD\uFFFD",
		"\xf4\x90\x80\x80":                  "\uFFFD\uFFFD\uFFFD\uFFFD",
		"\xe1\x80\xe2\xf0\x91\x92\xf1\xbfA": "\uFFFD\uFFFD\uFFFD\uFFFDA", "\x80\xbf": "\uFFFD\uFFFD", "\xff": "\uFFFD",
		"\uFFFD\xe2": "\uFFFD\uFFFD"} {
		if got := tandem.Lossy(in); got != want {
			t.Errorf("%q becomes %q: want %q", in, got, want)
		}
	}
}

func FuzzLossy(f *testing.F) {
	f.Add([]byte("a\xf0\x9f\x98b\xed\xa0\x80"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, want := tandem.Lossy(b), byTable(b); got != want || !utf8.ValidString(got) {
			t.Errorf("% x becomes %q: want %q", b, got, want)
		}
	})
}
