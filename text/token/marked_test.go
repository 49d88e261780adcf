package token

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestMarked: a grammar knows a control token by its name between two bytes 0 and every other token by what it prints; what Mark makes of a
// text becomes the tokens that EncodeWithControl makes of it.
func TestMarked(t *testing.T) {
	v, err := Open("../../models/gopher-19m-q8_0.gguf")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for id := range v.Size() {
		b, ok := v.AppendMarked(nil, tandem.Token(id))
		switch {
		case v.kinds[id] == control || v.kinds[id] == unknown:
			if want := bracket + string(v.AppendWritten(nil, tandem.Token(id))) + bracket; !ok || string(b) != want {
				t.Errorf("token %d: %q: want %q", id, b, want)
			}
			names[string(v.AppendWritten(nil, tandem.Token(id)))] = true
		case strings.Contains(v.prints[id], bracket):
			if ok {
				t.Errorf("token %d: %q is known", id, b)
			}
		case string(b) != v.prints[id]:
			t.Errorf("token %d: %q: want %q", id, b, v.prints[id])
		}
	}
	if _, ok := v.AppendMarked(nil, tandem.Token(v.Size())); ok {
		t.Error("a token outside the vocabulary is known")
	}
	for name := range names {
		text := "a " + name + name + " b"
		want := slices.Concat(v.EncodeNext("a "), v.EncodeWithControl(name, false), v.EncodeWithControl(name, false), v.EncodeNext(" b"))
		if marked := v.Mark(text); marked != "a "+bracket+name+bracket+bracket+name+bracket+" b" {
			t.Errorf("%q is marked %q", text, marked)
		} else if got := v.EncodeMarked(marked, false); !slices.Equal(got, want) {
			t.Errorf("%q: %v: want %v", text, got, want)
		}
	}
	if got := v.EncodeMarked("func main", true); len(got) > 0 && !slices.Equal(got, v.EncodeNext("func main")[:len(got)]) {
		t.Errorf("%v are no beginning of a longer text's tokens", got)
	}
	if got := v.EncodeMarked("ab"+bracket+"none"+bracket+"c", false); !slices.Equal(got, v.EncodeNext("ab")) {
		t.Errorf("behind a control token that is not there: %v", got)
	}
}
