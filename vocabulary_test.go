package tandem

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestIdentity(t *testing.T) {
	parts := IdentityParts{"9f3ac2d1e8b746057f21c0aa5d3e9b84", "51c03bd2", "0f6e1c77", "q8_0", 1}
	i := parts.Identity()
	if want := Identity("9f3ac2d1e8b746057f21c0aa5d3e9b84-51c03bd2-0f6e1c77-q8_0-a1"); i != want {
		t.Errorf("%s: want %s", i, want)
	}
	if back, ok := i.Parts(); back != parts || !ok {
		t.Errorf("parts %v, %v: want %v", back, ok, parts)
	}
	for want, change := range map[string]func(p *IdentityParts){
		"":                             func(*IdentityParts) {},
		"tensors":                      func(p *IdentityParts) { p.Tensors = "0" },
		"shape and arithmetic":         func(p *IdentityParts) { p.Shape, p.Arithmetic = "0", 12 },
		"rope":                         func(p *IdentityParts) { p.Rope = "0" },
		"tensors and rope and KV type": func(p *IdentityParts) { p.Tensors, p.Rope, p.KV = "0", "0", "f16" },
		"form":                         func(p *IdentityParts) { p.KV = "f16-more" },
	} {
		other := parts
		change(&other)
		if got := i.Difference(other.Identity()); got != want {
			t.Errorf("%s and %s differ in %q: want %q", i, other.Identity(), got, want)
		}
	}
	for _, bad := range []Identity{"", "x", "a-b-c-d-e", "a-b-c-d-ax", "a-b-c-d-1", "-----"} {
		if p, ok := bad.Parts(); ok {
			t.Errorf("%q has parts %v", bad, p)
		}
	}
}

func TestValidName(t *testing.T) {
	for name, ok := range map[string]bool{"": true, "a-1": true, strings.Repeat("x", MaxIdentity): true,
		strings.Repeat("x", MaxIdentity+1): false,
		"a b":                              false, "a\nb": false, "ü": false, "\x7f": false} {
		if err := ValidName("identity", name); (err == nil) != ok || err != nil && KindOf(err) != Invalid {
			t.Errorf("%.20q: error %v", name, err)
		}
	}
}

func TestRefusal(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{Errorf(OpIdentity, Unavailable, "x"), "identity"},
		{fmt.Errorf("more: %w", Errorf(OpVocabulary, Unavailable, "x")), "vocabulary"},
		{Errorf(OpProtocol, Unavailable, "x"), "protocol"},
		{Errorf(OpIdentity, Invalid, "x"), ""},
		{Errorf("generate", Unavailable, "x"), ""},
		{errors.New("identity"), ""},
		{nil, ""},
	} {
		if got := Refusal(c.err); got != c.want {
			t.Errorf("%v is a refusal of %q: want %q", c.err, got, c.want)
		}
	}
}
