package token

import (
	"slices"
	"strings"
	"testing"
)

// TestEncodeGuarded takes a vocabulary with control tokens: without spans the result is EncodeWithControl's. Text that others
// wrote is encoded by Encode, also if it only completes a control token.
func TestEncodeGuarded(t *testing.T) {
	v := newDraft("▁", "▁one", "two", "▁three", "o", "n", "e").vocab(t)
	control := v.Piece(v.bos)
	if len(v.EncodeWithControl(control, false)) != 1 || len(v.Encode(control, false)) < 2 {
		t.Fatalf("%q is to be a control token", control)
	}
	text := "one " + control + "two" + control + " three"
	first, second := strings.Index(text, control), strings.LastIndex(text, control)
	half := len(control) / 2
	for _, tc := range []struct {
		name  string
		spans []Span
		want  int // control tokens
	}{
		{"nothing", nil, 2},
		{"everything", []Span{{0, len(text)}}, 0},
		{"the first", []Span{{first, first + len(control)}}, 1},
		{"a part of the second", []Span{{second + half, second + half + 1}}, 1},
		{"the text between them", []Span{{first + len(control), second}}, 2},
		{"beyond the end", []Span{{second, len(text) + 9}}, 1},
	} {
		got := v.EncodeGuarded(text, tc.spans)
		n := 0
		for _, id := range got {
			if id == v.bos {
				n++
			}
		}
		if n != tc.want {
			t.Errorf("%s guarded: %d control tokens in %v, want %d", tc.name, n, got, tc.want)
		}
		if tc.name == "nothing" && !slices.Equal(got, v.EncodeWithControl(text, false)) {
			t.Errorf("nothing guarded: %v, want %v", got, v.EncodeWithControl(text, false))
		}
		if tc.name == "everything" && !slices.Equal(got, v.Encode(text, false)) {
			t.Errorf("everything guarded: %v, want %v", got, v.Encode(text, false))
		}
	}
	if got := v.EncodeGuarded("", nil); len(got) != 0 {
		t.Errorf("no text: %v, want nothing", got)
	}
}
