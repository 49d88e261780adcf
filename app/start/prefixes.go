package start

import (
	"path/filepath"
	"strconv"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/processes/cache"
	"github.com/tandem-llm/tandem/processes/cache/prefixes"
	"github.com/tandem-llm/tandem/processes/settings"
)

// PrefixPages returns --prefix-cache in pages, as verifier.Config and drafter.Config take it: 0 for auto, -1 for off. Errors: Invalid.
func PrefixPages(p settings.Prefixes) (int, error) {
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

// PrefixFiles returns where a verifier keeps long prefixes on disk. Limit 0: nowhere.
func PrefixFiles(p settings.PrefixStore, of settings.CacheFolder) (prefixes.Config, error) {
	if p.PrefixStore.Bytes() == 0 {
		return prefixes.Config{}, nil
	}
	c, err := OpenCache(of)
	if err != nil {
		return prefixes.Config{}, err
	}
	return prefixes.Config{Dir: PrefixFolder(c), Limit: p.PrefixStore.Bytes(), Age: p.PrefixAge}, nil
}

// PrefixFolder returns the folder of the files with prefixes in a cache.
func PrefixFolder(c *cache.Cache) string { return filepath.Join(c.Folder(), "prefixes") }

// OpenCache returns the cache of those settings. It makes no folder yet.
func OpenCache(c settings.CacheFolder) (*cache.Cache, error) {
	dir, err := CacheDir(c.CacheDir)
	if err != nil {
		return nil, err
	}
	return cache.New(dir, int64(c.CacheLimit)), nil
}

// KeepIn returns c with the path of the cache's folder; "" for a user without one, of whom nothing is kept.
func KeepIn(c settings.CacheDir) settings.CacheDir {
	dir, err := CacheDir(c)
	if err != nil {
		dir = ""
	}
	return settings.CacheDir{Cache: dir}
}

// CacheDir returns the path of the cache's folder, the user's default one if c names none.
func CacheDir(c settings.CacheDir) (string, error) {
	if c.Cache == "" {
		return cache.Dir()
	}
	return filepath.Abs(c.Cache)
}
