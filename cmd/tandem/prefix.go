package main

import (
	"strconv"

	"github.com/tandem-llm/tandem"
)

// prefixFlags bound what is kept of sessions that have ended.
type prefixFlags struct {
	PrefixCache string `help:"Keep what ended sessions have computed for later ones of the same tenant that begin alike: auto, in KV memory that no session needs; off; or a number, of tokens at most in each model's cache." default:"auto" placeholder:"auto|off|TOKENS"`
}

// pages returns the bound as verifier.Config and drafter.Config have it.
func (p prefixFlags) pages() (int, error) {
	switch p.PrefixCache {
	case "auto", "":
		return 0, nil
	case "off":
		return -1, nil
	}
	n, err := strconv.ParseInt(p.PrefixCache, 10, 32)
	if err != nil || n < kvPageRows {
		return 0, tandem.Errorf("", tandem.Invalid, "--prefix-cache %.50s: want auto, off, or a number of tokens, at least %d", p.PrefixCache, kvPageRows)
	}
	return int(n / kvPageRows), nil
}
