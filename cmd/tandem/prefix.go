package main

import (
	"strconv"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/settings"
)

// prefixPages returns the bound in pages, as verifier.Config and drafter.Config take it.
func prefixPages(p settings.Prefixes) (int, error) {
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
