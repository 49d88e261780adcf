package main

import (
	"path/filepath"
	"strconv"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/processes/cache"
	"github.com/tandem-llm/tandem/processes/cache/prefixes"
	"github.com/tandem-llm/tandem/processes/settings"
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

// prefixFiles returns where a verifier keeps long prefixes on disk; without Limit: nowhere.
func prefixFiles(p settings.PrefixStore, of cacheFlags) (prefixes.Config, error) {
	if p.PrefixStore.Bytes() == 0 {
		return prefixes.Config{}, nil
	}
	c, err := of.open()
	if err != nil {
		return prefixes.Config{}, err
	}
	return prefixes.Config{Dir: prefixFolder(c), Limit: p.PrefixStore.Bytes(), Age: p.PrefixAge}, nil
}

// prefixFolder returns the folder of the files with prefixes in a cache.
func prefixFolder(c *cache.Cache) string { return filepath.Join(c.Folder(), "prefixes") }
