package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// Item is an entry as List shows it.
type Item struct {
	Kind  string    `json:"kind"`
	File  string    `json:"file"`  // "" for the remains of a process that died
	From  string    `json:"from"`  // what it was made from, and how
	Path  string    `json:"path"`  // of its folder
	Bytes int64     `json:"bytes"` // of all files in it
	Made  time.Time `json:"made"`
	Used  time.Time `json:"used"` // last
	InUse bool      `json:"in_use"`
}

// List returns all entries, the most recently used first. A cache whose folder does not exist has none.
func (c *Cache) List() ([]Item, error) {
	var items []Item
	for _, kind := range kinds {
		folder := filepath.Join(c.dir, kind)
		entries, err := os.ReadDir(folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, tandem.Errorf(op, tandem.Unavailable, "listing %s: %w", folder, files.Reason(err))
		}
		for _, e := range entries {
			if item, ok := describe(kind, filepath.Join(folder, e.Name())); ok {
				items = append(items, item)
			}
		}
	}
	slices.SortFunc(items, func(a, b Item) int { return cmp.Or(b.Used.Compare(a.Used), cmp.Compare(a.Path, b.Path)) })
	return items, nil
}

// describe returns the entry in a folder, if there is one.
func describe(kind, dir string) (item Item, ok bool) {
	mark, err := os.Lstat(filepath.Join(dir, lockName))
	if err != nil || !mark.Mode().IsRegular() {
		return item, false
	}
	item = Item{Kind: kind, Path: dir, Used: mark.ModTime(), Made: mark.ModTime()}
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		if st, err := f.Info(); err == nil {
			item.Bytes += st.Size()
		}
	}
	if i, err := readInfo(dir); err == nil {
		item.File, item.From, item.Made = i.File, i.From, i.Made
		if st, err := os.Stat(filepath.Join(dir, infoName)); err == nil {
			item.Used = st.ModTime()
		}
	}
	if l := tryOwn(dir); l != nil {
		l.release()
	} else {
		item.InUse = true
	}
	return item, true
}

// Clear removes all entries that are not in use. It returns the removed ones and those left. Errors: *Unwritable.
func (c *Cache) Clear() (removed, left []Item, err error) {
	items, err := c.List()
	if err != nil {
		return nil, nil, err
	}
	for _, item := range items {
		gone, err := remove(item)
		if err != nil {
			return removed, left, c.unwritable(err)
		}
		if gone {
			removed = append(removed, item)
		} else {
			item.InUse = true
			left = append(left, item)
		}
	}
	return removed, left, nil
}

// remove removes an entry, unless somebody uses it.
func remove(item Item) (gone bool, err error) {
	l := tryOwn(item.Path)
	if l == nil {
		_, err := os.Stat(item.Path)
		return errors.Is(err, fs.ErrNotExist), nil
	}
	defer l.release()
	return true, removeEntry(item.Path)
}

// makeRoom removes entries, the least recently used first, until r fits below the limit. It returns an error if r cannot fit there
// or on the disk. dir, r's own entry, stays.
func (c *Cache) makeRoom(dir string, r Request) error {
	if r.Size > c.limit {
		return tandem.Errorf(op, tandem.Exhausted, "%s takes %s, and the cache %s may hold %s: want a larger --cache-limit",
			r.File, size(r.Size), c.dir, size(c.limit))
	}
	items, err := c.List()
	if err != nil {
		return err
	}
	total, stays := r.Size, r.Size
	for _, item := range items {
		if item.Path == dir {
			continue
		}
		if total += item.Bytes; item.InUse {
			stays += item.Bytes
		}
	}
	if stays > c.limit {
		return tandem.Errorf(op, tandem.Exhausted,
			"%s takes %s, and the cache %s may hold %s, of which %s are in use: want a larger --cache-limit",
			r.File, size(r.Size), c.dir, size(c.limit), size(stays-r.Size))
	}
	for _, item := range slices.Backward(items) {
		if total <= c.limit {
			break
		}
		if item.Path == dir {
			continue
		}
		gone, err := remove(item)
		if err != nil {
			return c.unwritable(err)
		}
		if gone {
			total -= item.Bytes
			r.tell(fmt.Sprintf("removed %s (%s, last used %s): the cache may hold %s", filepath.Base(item.Path), size(item.Bytes),
				item.Used.Format(time.DateOnly), size(c.limit)))
		}
	}
	return r.fits(c.dir)
}

// fits returns an error if the disk of path has no room for the file.
func (r *Request) fits(path string) error {
	space := Space
	if r.space != nil {
		space = r.space
	}
	free, _, err := space(path)
	if err != nil {
		return err
	}
	if free < r.Size+spareDisk {
		return tandem.Errorf(op, tandem.Exhausted,
			"%s takes %s (and %s must stay free), and the disk of %s has %s free: want another place, --cache DIR",
			r.File, size(r.Size), size(spareDisk), path, size(free))
	}
	return nil
}

// Temporary makes a file in a new folder below parent; the entry's Close removes both. It is for a program whose cache is
// Unwritable. Errors: as Get's.
func Temporary(ctx context.Context, parent string, r Request) (*Entry, error) {
	if err := r.fits(parent); err != nil {
		return nil, err
	}
	if err := files.Trusted(parent); err != nil {
		return nil, &Unwritable{parent, err}
	}
	dir, err := os.MkdirTemp(parent, "tandem-cache-")
	if err != nil {
		if notWritable(err) {
			return nil, &Unwritable{parent, files.Reason(err)}
		}
		return nil, tandem.Errorf(op, tandem.Unavailable, "%w", err)
	}
	e := &Entry{Path: filepath.Join(dir, r.File), Made: true, dir: dir}
	if err := r.Make(ctx, e.Path); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// size formats a number of bytes: "1.5 GiB".
func size(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
