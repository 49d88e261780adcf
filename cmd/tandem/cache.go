package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/cache"
	"github.com/tandem-llm/tandem/engine"
)

// cacheFlags say where tandem keeps what it makes.
type cacheFlags struct {
	Cache      string   `help:"Folder for files that tandem makes and can make again (default: tandem in $XDG_CACHE_HOME or ~/.cache)." placeholder:"DIR"`
	CacheLimit byteSize `help:"Largest size of that folder; the least recently used files are removed first." default:"8GiB" placeholder:"SIZE"`
}

// open returns the cache.
func (c cacheFlags) open() (*cache.Cache, error) {
	dir, err := c.Cache, error(nil)
	if dir == "" {
		dir, err = cache.Dir()
	} else {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return nil, err
	}
	return cache.New(dir, int64(c.CacheLimit)), nil
}

// byteSize is a number of bytes, written like 500MiB or 8GiB.
type byteSize int64

var byteUnits = []struct {
	name  string
	bytes float64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"B", 1}, {"", 1}}

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *byteSize) UnmarshalText(text []byte) error {
	for _, u := range byteUnits {
		number, has := cutSuffixFold(string(text), u.name)
		if !has {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if n *= u.bytes; err != nil || !(n >= 0 && n < 1<<60) {
			break
		}
		*b = byteSize(n)
		return nil
	}
	return tandem.Errorf("", tandem.Invalid, "%q is no size: want bytes, or a number with KiB, MiB, GiB or TiB", text)
}

// String implements fmt.Stringer.
func (b byteSize) String() string { return engine.Bytes(int64(b)) }

func cutSuffixFold(s, suffix string) (before string, found bool) {
	at := len(s) - len(suffix)
	if at < 0 || !strings.EqualFold(s[at:], suffix) {
		return s, false
	}
	return s[:at], true
}

type cacheCmd struct {
	List  cacheListCmd  `cmd:"" default:"withargs" help:"List what is in the cache."`
	Clear cacheClearCmd `cmd:"" help:"Remove all files that no process uses."`
}

type cacheListCmd struct {
	cacheFlags
	output
}

type cacheClearCmd struct {
	cacheFlags
	output
}

// cacheResult is what the cache commands print.
type cacheResult struct {
	Folder  string       `json:"folder"`
	Limit   int64        `json:"limit_bytes"`
	Bytes   int64        `json:"bytes"`   // of the entries
	Entries []cache.Item `json:"entries"` // the last used first
	Removed []cache.Item `json:"removed,omitempty"`
}

func newCacheResult(c *cache.Cache, entries []cache.Item) cacheResult {
	r := cacheResult{Folder: c.Folder(), Limit: c.Limit(), Entries: append([]cache.Item{}, entries...)}
	for _, e := range entries {
		r.Bytes += e.Bytes
	}
	return r
}

// Run lists the cache.
func (c *cacheListCmd) Run(a *app) error {
	kept, err := c.open()
	if err != nil {
		return err
	}
	entries, err := kept.List()
	if err != nil {
		return err
	}
	r := newCacheResult(kept, entries)
	if c.JSON {
		return printJSON(a.stdout, r)
	}
	w := tabwriter.NewWriter(printable{a.stdout}, 0, 0, 2, ' ', 0)
	for _, e := range entries {
		use := "last used " + e.Used.Local().Format(time.DateTime)
		if e.InUse {
			use = "in use"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", shown(e.Kind), or(shown(e.File), "(unfinished)"), engine.Bytes(e.Bytes), use)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "%s of at most %s in %s\n", engine.Bytes(r.Bytes), engine.Bytes(r.Limit), shown(r.Folder))
	return err
}

// Run clears the cache.
func (c *cacheClearCmd) Run(a *app) error {
	kept, err := c.open()
	if err != nil {
		return err
	}
	removed, left, err := kept.Clear()
	if err != nil {
		return tandem.Errorf("", tandem.Unavailable, "%w", err)
	}
	r := newCacheResult(kept, left)
	r.Removed = append([]cache.Item{}, removed...)
	if c.JSON {
		return printJSON(a.stdout, r)
	}
	var freed int64
	for _, e := range removed {
		freed += e.Bytes
	}
	line := fmt.Sprintf("removed %d, %s, from %s", len(removed), engine.Bytes(freed), shown(r.Folder))
	if len(left) > 0 {
		line += fmt.Sprintf("; %d in use, %s", len(left), engine.Bytes(r.Bytes))
	}
	_, err = fmt.Fprintln(a.stdout, line)
	return err
}
