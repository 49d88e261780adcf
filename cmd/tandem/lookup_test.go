package main

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/access"
)

// TestEarlierTextsFlag: earlier texts are kept for clients with keys, or when a number asks for it, and not while nothing else of ended
// sessions is kept.
func TestEarlierTextsFlag(t *testing.T) {
	keys, err := access.New([]string{"one", "two"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		says          string
		keyed, public int // tokens; -1: refused
	}{{"auto", 1 << 20, 0}, {"", 0, 0}, {"off", 0, 0}, {"4096", 4096, 4096}, {"100", -1, -1}, {"-1", -1, -1},
		{"much", -1, -1}, {"99999999999", -1, -1}} {
		for _, of := range []*access.Keys{keys, nil} {
			want := c.keyed
			if of == nil {
				want = c.public
			}
			got, err := lookupFlags{Lookup: true, EarlierTexts: c.says}.earlier(of)
			if want < 0 && tandem.KindOf(err) != tandem.Invalid || want >= 0 && (err != nil || got != want) {
				t.Errorf("%q, keys %v: %d, %v: want %d", c.says, of != nil, got, err, want)
			}
		}
	}
	if _, err := (lookupFlags{EarlierTexts: "4096"}).earlier(keys); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("without lookup: %v", err)
	}
	for _, c := range []struct {
		flags lookupFlags
		cache string
		none  bool
		want  string // "": refused
	}{
		{lookupFlags{true, "auto"}, "auto", false, "--earlier-texts=auto"}, {lookupFlags{true, ""}, "", false, "--earlier-texts=auto"},
		{lookupFlags{true, "4096"}, "8192", false, "--earlier-texts=4096"},
		{lookupFlags{true, "auto"}, "off", false, "--earlier-texts=off"},
		{lookupFlags{true, "4096"}, "off", false, ""}, {lookupFlags{false, "auto"}, "auto", false, "--no-lookup"},
		{lookupFlags{true, "auto"}, "auto", true, "--no-lookup"},
	} {
		got, err := c.flags.args(prefixFlags{c.cache}, c.none)
		if c.want == "" && tandem.KindOf(err) != tandem.Invalid || c.want != "" && (err != nil || !slices.Equal(got, []string{c.want})) {
			t.Errorf("%+v, cache %s, none %v: %q, %v: want %q", c.flags, c.cache, c.none, got, err, c.want)
		}
	}
}
