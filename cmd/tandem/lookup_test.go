package main

import (
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/public/access"
)

// TestEarlierTextsFlag: earlier texts are kept for clients with keys, or when a number asks for it.
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
			got, err := earlierTexts(settings.LookupDrafts{Lookup: true, EarlierTexts: c.says}, of)
			if want < 0 && tandem.KindOf(err) != tandem.Invalid || want >= 0 && (err != nil || got != want) {
				t.Errorf("%q, keys %v: %d, %v: want %d", c.says, of != nil, got, err, want)
			}
		}
	}
	if _, err := earlierTexts(settings.LookupDrafts{EarlierTexts: "4096"}, keys); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("without lookup: %v", err)
	}
}
