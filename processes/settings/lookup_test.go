package settings

import (
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestEarlierTextsFlag: earlier texts are kept for clients with keys, or when a number asks for it.
func TestEarlierTextsFlag(t *testing.T) {
	for _, c := range []struct {
		says          string
		keyed, public int // tokens; -1: refused
	}{{"auto", 1 << 20, 0}, {"", 0, 0}, {"off", 0, 0}, {"4096", 4096, 4096}, {"100", -1, -1}, {"-1", -1, -1},
		{"much", -1, -1}, {"99999999999", -1, -1}} {
		for _, of := range []int{2, 0} {
			want := c.keyed
			if of == 0 {
				want = c.public
			}
			got, err := LookupDrafts{Lookup: true, EarlierTexts: c.says}.Earlier(of)
			if want < 0 && tandem.KindOf(err) != tandem.Invalid || want >= 0 && (err != nil || got != want) {
				t.Errorf("%q, %d tenants: %d, %v: want %d", c.says, of, got, err, want)
			}
		}
	}
	if _, err := (LookupDrafts{EarlierTexts: "4096"}).Earlier(2); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("without lookup: %v", err)
	}
}
