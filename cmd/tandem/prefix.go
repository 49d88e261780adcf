package main

import (
	"strconv"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// prefixFlags bound what is kept of sessions that have ended.
type prefixFlags struct {
	PrefixCache string `help:"Reuse the KV cache of ended sessions for later ones of the same tenant with an equal prefix: auto (in KV memory that no session needs), off, or the most tokens to keep in each model's cache." default:"auto" placeholder:"auto|off|TOKENS"`
}

// pages returns the bound in pages, as verifier.Config and drafter.Config take it.
func (p prefixFlags) pages() (int, error) {
	switch p.PrefixCache {
	case "auto", "":
		return 0, nil
	case "off":
		return -1, nil
	}
	n, err := strconv.ParseInt(p.PrefixCache, 10, 32)
	if err != nil || n < kernels.PageRows {
		return 0, tandem.Errorf("", tandem.Invalid, "--prefix-cache %.50s: want auto, off, or a number of tokens, at least %d",
			p.PrefixCache, kernels.PageRows)
	}
	return int(n / kernels.PageRows), nil
}
