package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/processes/cache"
	"github.com/tandem-llm/tandem/processes/cache/prefixes"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/public/access"
)

type cacheCmd struct {
	List  cacheListCmd  `cmd:"" default:"withargs" help:"List what is in the cache."`
	Clear cacheClearCmd `cmd:"" help:"Remove all files that are not in use, and prefixes."`
}

type cacheListCmd struct {
	settings.CacheFolder
	output
}

type cacheClearCmd struct {
	settings.CacheFolder
	Tenant  []string `help:"Remove the prefixes of this tenant alone: its name as 'tandem cache' prints it, or its key. May be repeated." placeholder:"NAME|KEY" sep:"none" setting:"-"`
	APIKeys string   `name:"api-keys" help:"Remove the prefixes of the tenants alone whose keys are in this file." placeholder:"FILE" setting:"-"`
	output
}

// cacheResult is what the cache commands print.
type cacheResult struct {
	Folder  string       `json:"folder"`
	Limit   int64        `json:"limit_bytes"`
	Bytes   int64        `json:"bytes"`   // of the entries
	Entries []cache.Item `json:"entries"` // the last used first
	Removed []cache.Item `json:"removed,omitempty"`

	Prefixes        []prefixes.Use `json:"prefixes,omitempty"` // of --prefix-store, by tenant; not in Bytes
	RemovedPrefixes []prefixes.Use `json:"removed_prefixes,omitempty"`
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
	kept, err := start.OpenCache(c.CacheFolder)
	if err != nil {
		return err
	}
	entries, err := kept.List()
	if err != nil {
		return err
	}
	r := newCacheResult(kept, entries)
	if r.Prefixes, err = prefixes.List(start.PrefixFolder(kept)); err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(a.stdout, r)
	}
	w := tabwriter.NewWriter(terminal.Printable{To: a.stdout}, 0, 0, 2, ' ', 0)
	for _, e := range entries {
		use := "last used " + e.Used.Local().Format(time.DateTime)
		if e.InUse {
			use = "in use"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", terminal.Shown(e.Kind), or(terminal.Shown(e.File), "(unfinished)"), memory.Bytes(e.Bytes), use)
	}
	for _, u := range r.Prefixes {
		fmt.Fprintf(w, "prefixes\t%s\t%s\tlast used %s\n", terminal.Shown(u.Tenant), memory.Bytes(u.Bytes),
			u.Used.Local().Format(time.DateTime))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "%s of at most %s in %s\n", memory.Bytes(r.Bytes), memory.Bytes(r.Limit), terminal.Shown(r.Folder))
	return err
}

// Run clears the cache.
func (c *cacheClearCmd) Run(a *app) error {
	kept, err := start.OpenCache(c.CacheFolder)
	if err != nil {
		return err
	}
	tenants, err := c.tenants(start.PrefixFolder(kept))
	if err != nil {
		return err
	}
	var r cacheResult
	if len(tenants) == 0 {
		removed, left, err := kept.Clear()
		if err != nil {
			return tandem.Errorf("", tandem.Unavailable, "%w", err)
		}
		r = newCacheResult(kept, left)
		r.Removed = append([]cache.Item{}, removed...)
	}
	if r.RemovedPrefixes, err = prefixes.Clear(start.PrefixFolder(kept), tenants...); err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(a.stdout, r)
	}
	n, freed := len(r.Removed), int64(0)
	for _, e := range r.Removed {
		freed += e.Bytes
	}
	for _, u := range r.RemovedPrefixes {
		n, freed = n+u.Files, freed+u.Bytes
	}
	line := fmt.Sprintf("removed %d, %s, from %s", n, memory.Bytes(freed), terminal.Shown(kept.Folder()))
	if len(r.Entries) > 0 {
		line += fmt.Sprintf("; %d in use, %s", len(r.Entries), memory.Bytes(r.Bytes))
	}
	_, err = fmt.Fprintln(a.stdout, line)
	return err
}

// tenants returns the folders, in the prefix store in dir, of the tenants whose prefixes are to be removed; none: everything is.
func (c *cacheClearCmd) tenants(dir string) (folders []string, err error) {
	var all []string
	if c.APIKeys != "" {
		if all, err = start.ReadKeys("--api-keys", c.APIKeys); err != nil {
			return nil, err
		}
	}
	keys, err := access.New(append(all, c.Tenant...))
	if err != nil {
		return nil, err
	}
	if keys != nil {
		if folders, err = prefixes.Folders(dir, keys.Tenants()); err != nil {
			return nil, err
		}
	}
	return append(folders, c.Tenant...), nil
}
