package stop

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// cutAt is what stops are to do, by a search of the whole text.
func cutAt(text string, sequences []string) (kept, stopped string) {
	kept = text
	for _, q := range sequences {
		if i := strings.Index(text, q); i >= 0 && (stopped == "" || i < len(kept) || i == len(kept) && len(q) < len(stopped)) {
			kept, stopped = text[:i], q
		}
	}
	return kept, stopped
}

func TestStops(t *testing.T) {
	for _, test := range []struct {
		name      string
		sequences []string
		pieces    []string
		out       []string // of each piece; the last is what the end brings
		stopped   string
	}{
		{"none", nil, []string{"ab", "", "c"}, []string{"ab", "", "c", ""}, ""},
		{"within a piece", []string{"\n\n"}, []string{"a\n\nb"}, []string{"a"}, "\n\n"},
		{"across a border", []string{"END"}, []string{"xE", "N", "D!"}, []string{"x", "", ""}, "END"},
		{"a beginning that comes to nothing", []string{"END"}, []string{"xE", "N", "x"}, []string{"x", "", "ENx", ""}, ""},
		{"a beginning at the end", []string{"END"}, []string{"xE", "N"}, []string{"x", "", "EN"}, ""},
		{"overlaps itself", []string{"aab"}, []string{"a", "a", "a", "b"}, []string{"", "", "a", ""}, "aab"},
		{"begins first, complete later", []string{"b", "abc"}, []string{"xa", "b", "c"}, []string{"x", "", ""}, "abc"},
		{"might have begun first", []string{"b", "abc"}, []string{"xa", "b", "d"}, []string{"x", "", "a"}, "b"},
		{"might have begun first, at the end", []string{"b", "abc"}, []string{"xa", "b"}, []string{"x", "", "a"}, "b"},
		{"the shortest of a place", []string{"abc", "ab"}, []string{"xabc"}, []string{"x"}, "ab"},
		{"later, inside the one that might have been", []string{"abcd", "bc", "c"}, []string{"abc", "e"}, []string{"", "a"}, "bc"},
		{"all of it", []string{"a"}, []string{"a"}, []string{""}, "a"},
		{"characters of several bytes", []string{"é!"}, []string{"é", "é", "!"}, []string{"", "é", ""}, "é!"},
	} {
		s := New(test.sequences)
		var got []string
		stopped := false
		for _, p := range test.pieces {
			if stopped {
				break
			}
			var out string
			out, stopped = s.Next(p)
			got = append(got, out)
		}
		if !stopped {
			out, _ := s.End()
			got = append(got, out)
		}
		if !slices.Equal(got, test.out) || s.Text() != test.stopped {
			t.Errorf("%s: passed on %q, stopped by %q: want %q, %q", test.name, got, s.Text(), test.out, test.stopped)
		}
	}
}

// TestStopsDoNotDependOnPieces: however a text is cut into pieces, it ends where a search of all of it says,
// nothing is held back that no sequence can begin in, and what comes is valid UTF-8.
func TestStopsDoNotDependOnPieces(t *testing.T) {
	few := rapid.StringOfN(rapid.SampledFrom([]rune("aab\néx")), 0, 60, -1)
	rapid.Check(t, func(t *rapid.T) {
		text := few.Draw(t, "text")
		var sequences []string
		for range rapid.IntRange(0, tandem.MostStops).Draw(t, "sequences") {
			sequences = append(sequences, rapid.StringOfN(rapid.SampledFrom([]rune("aab\né")), 1, 5, -1).Draw(t, "sequence"))
		}
		want, by := cutAt(text, sequences)
		s := New(sequences)
		got, taken, stopped := "", "", false
		for rest := text; rest != "" && !stopped; {
			n := rapid.IntRange(0, min(len(rest), 7)).Draw(t, "piece")
			for n < len(rest) && !utf8.RuneStart(rest[n]) {
				n++
			}
			var out string
			out, stopped = s.Next(rest[:n])
			taken, rest = taken+rest[:n], rest[n:]
			if got += out; !utf8.ValidString(out) {
				t.Fatalf("%q is passed on", out)
			}
			if held := taken[len(got):]; !stopped && held != "" && !slices.ContainsFunc(sequences, func(q string) bool {
				return strings.HasPrefix(q, held) || strings.HasPrefix(held, q) || s.found >= 0
			}) {
				t.Fatalf("%q is held back of %q", held, taken)
			}
		}
		if !stopped {
			out, _ := s.End()
			got += out
		}
		if got != want || s.Text() != by {
			t.Fatalf("text %q with %q ends as %q by %q: want %q, %q", text, sequences, got, s.Text(), want, by)
		}
	})
}
