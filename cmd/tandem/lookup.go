package main

import (
	"strconv"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/access"
)

// lookupFlags are about the drafter without a model, which is in the gateway's process.
type lookupFlags struct {
	Lookup       bool   `help:"Draft from the text itself, beside the draft models." default:"true" negatable:""`
	EarlierTexts string `help:"Let lookup find what stood in earlier texts of the same tenant: auto (with keys, in the latest 1048576 tokens), off, or the most tokens to keep, also without keys. Each key has an equal part; a token takes 12 bytes of the gateway's memory." default:"auto" placeholder:"auto|off|TOKENS"`
}

const (
	autoEarlier  = 1 << 20 // tokens of earlier texts
	leastEarlier = 1 << 10
	mostEarlier  = 1 << 30
)

// earlier returns how many tokens of earlier texts are kept for clients with those keys.
func (f lookupFlags) earlier(keys *access.Keys) (int, error) {
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

// args returns the flags for the gateway of a group with that prefix cache, which has no drafter at all if none is set.
func (f lookupFlags) args(cache prefixFlags, none bool) ([]string, error) {
	if none || !f.Lookup {
		return []string{"--no-lookup"}, nil
	}
	if cache.PrefixCache == "off" { // nothing of ended sessions is kept
		if f.EarlierTexts != "" && f.EarlierTexts != "auto" && f.EarlierTexts != "off" {
			return nil, tandem.Errorf("", tandem.Invalid,
				"--earlier-texts %.50s with --prefix-cache off, which keeps nothing of ended sessions: want one of them", f.EarlierTexts)
		}
		return []string{"--earlier-texts=off"}, nil
	}
	return []string{"--earlier-texts=" + or(f.EarlierTexts, "auto")}, nil
}
