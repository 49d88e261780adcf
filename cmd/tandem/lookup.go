package main

import (
	"strconv"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/public/access"
)

const (
	autoEarlier  = 1 << 20 // tokens of earlier texts
	leastEarlier = 1 << 10
	mostEarlier  = 1 << 30
)

// earlierTexts returns how many tokens of earlier texts are kept for clients with those keys.
func earlierTexts(f settings.LookupDrafts, keys *access.Keys) (int, error) {
	switch {
	case f.EarlierTexts == "off" || f.EarlierTexts == "auto" && keys == nil || f.EarlierTexts == "":
		return 0, nil
	case f.EarlierTexts == "auto":
		return max(autoEarlier, len(keys.Tenants())), nil
	}
	n, err := strconv.ParseInt(f.EarlierTexts, 10, 32)
	if err != nil || n < leastEarlier || n > mostEarlier || int(n) < len(keys.Tenants()) {
		return 0, tandem.Errorf("", tandem.Invalid, "--earlier-texts %.50s: want auto, off, or a number of tokens, %d to %d",
			f.EarlierTexts, max(leastEarlier, len(keys.Tenants())), mostEarlier)
	}
	if !f.Lookup {
		return 0, tandem.Errorf("", tandem.Invalid, "--earlier-texts %d with --no-lookup: nobody would look there", n)
	}
	return int(n), nil
}
