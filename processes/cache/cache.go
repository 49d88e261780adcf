// Package cache keeps files that tandem has made from others and can make again, such as the demo's model, in one folder of
// the user. The folder's size is bounded, processes share it, and its contents are never trusted.
//
//	DIR/KIND/NAME-HASH/NAME           the file
//	                  /entry.json     what it was made from, its size and its digest
//	                  /.tandem-entry  marks the folder as an entry, and is its lock
//
// Get finds an entry or makes it. These hold, whichever processes run or are killed meanwhile:
//
//  1. A file that Get returns had, when it was checked, the size and digest that its maker wrote down: a file that was cut short,
//     or that somebody else put there, is made again.
//  2. A file appears under its name when it is complete and on the disk (written under another name, synced, renamed), and entry.json
//     after it. A process that dies in between leaves an entry that fails its check.
//  3. A process holds an entry's lock alone to make or remove it, and shares it to use it, until Entry.Close. So no process makes
//     what another is making, and none removes what another uses. A lock ends with its process.
//  4. Before an entry is made, the least recently used ones are removed until it fits below the limit. Folders without the mark
//     are neither counted nor removed: other tools keep things in the same folder.
//
// Checking reads the whole file, about a second for 2 GB: whoever loads it reads it anyway, and then finds it in memory.
package cache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

const op = "cache"

// Models is the kind of whole model files. Each kind is a folder of its own.
const Models = "models"

// Packed is the kind of files of packed weights (kernels/stream), which have checksums of their own.
const Packed = "packed"

// kinds lists all kinds: a new one is added here.
var kinds = []string{Models, Packed}

const (
	lockName  = ".tandem-entry"
	infoName  = "entry.json"
	partName  = "part" // the file while it is made
	maxInfo   = 64 << 10
	version   = 1         // the layout's: an entry of another version is made again
	spareDisk = 128 << 20 // bytes that must be left on the disk
)

// Cache is a folder of entries. Safe for concurrent use, also by several processes.
type Cache struct {
	dir   string
	limit int64
}

// Dir returns the default folder: tandem in $XDG_CACHE_HOME or, without that, in ~/.cache. Errors: Invalid if there is neither.
func Dir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", tandem.Errorf(op, tandem.Invalid, "no folder for the cache: %w: want --cache DIR", err)
	}
	return filepath.Join(base, "tandem"), nil
}

// New returns the cache in dir, which need not be there yet, for at most limit bytes.
func New(dir string, limit int64) *Cache { return &Cache{dir: dir, limit: limit} }

// Folder returns the folder of the cache.
func (c *Cache) Folder() string { return c.dir }

// Limit returns the most bytes that its entries may take.
func (c *Cache) Limit() int64 { return c.limit }

// Request names a file, and says how to make it.
type Request struct {
	Kind string // such as Models
	File string // name of the file, for people: no path
	From string // everything that decides its bytes: what it is made from, how, and the version of the maker

	Size int64                                        // bytes that it will have, at most
	Make func(ctx context.Context, path string) error // writes the file at path, which is not there yet
	// Check says what is wrong with the file, in place of a digest of all of it, for files that are checked as they are read. Nil: the
	// digest.
	Check func(path string) error
	Tell  func(what string)                     // gets messages about waits and problems; may be nil
	Step  func(doing string, done, total int64) // gets the progress of checking, in bytes; may be nil
	// Waited is called whenever another process that makes the file has written more of it; may be nil. A process that hangs while it makes
	// the file is waited for in silence, so that whoever watches this one can tell.
	Waited func()

	space func(path string) (free int64, memory bool, err error) // free bytes at a path; nil: Space
}

// Entry is a file in use. Its file stays as it is until Close.
type Entry struct {
	Path string
	Made bool // this call has made the file

	lock *lock
	dir  string // folder of a temporary entry, removed at the end
}

// Close ends the use. Closing twice is no error.
func (e *Entry) Close() error {
	if e.lock != nil {
		e.lock.release()
		e.lock = nil
	}
	if e.dir == "" {
		return nil
	}
	err := os.RemoveAll(e.dir)
	e.dir = ""
	return err
}

// Unwritable is the error of a cache that cannot keep anything, as on a read-only file system, or below a folder that another user can
// change.
type Unwritable struct {
	Dir string
	Err error
}

func (u *Unwritable) Error() string {
	return fmt.Sprintf("the cache %s cannot be written: %v", u.Dir, u.Err)
}
func (u *Unwritable) Unwrap() error { return u.Err }

// Get returns the file. It makes it if there is none or if its check fails. Close must be called on the entry. Errors: *Unwritable;
// Exhausted if it does not fit below the limit or on the disk; those of Make and of ctx.
func (c *Cache) Get(ctx context.Context, r Request) (*Entry, error) {
	dir := c.entryDir(r)
	for {
		l, err := share(ctx, dir, r.tell, r.waited)
		if err != nil {
			return nil, c.unwritable(err)
		}
		if l != nil {
			if err := r.check(ctx, dir); err == nil {
				return &Entry{Path: filepath.Join(dir, r.File), lock: l}, nil
			} else if ctx.Err() != nil {
				l.release()
				return nil, err
			}
			l.release()
		}
		entry, err := c.create(ctx, dir, r)
		if err != nil || entry != nil {
			return entry, err
		}
	}
}

// Find returns the file if it is there and passes its check. It never waits: a file that another process makes just now is not there. why
// is nil if there is none, else it says what is wrong with it.
func (c *Cache) Find(r Request) (e *Entry, why error) {
	dir := c.entryDir(r)
	if err := files.Trusted(dir); err != nil {
		return nil, c.unwritable(err)
	}
	l := try(dir, syscall.LOCK_SH)
	if l == nil {
		return nil, nil
	}
	if why = r.check(context.Background(), dir); why == nil {
		return &Entry{Path: filepath.Join(dir, r.File), lock: l}, nil
	}
	l.release()
	if errors.Is(why, errNone) {
		why = nil
	}
	return nil, why
}

// create makes the entry unless another process has made it meanwhile. It returns nil if the caller has to look again.
func (c *Cache) create(ctx context.Context, dir string, r Request) (*Entry, error) {
	l, err := own(ctx, dir, r.tell, r.waited)
	if err != nil {
		return nil, c.unwritable(err)
	}
	made, why := false, r.check(ctx, dir)
	if err = ctx.Err(); why != nil && err == nil {
		if !errors.Is(why, errNone) {
			r.tell(fmt.Sprintf("%s is made again: %v", r.File, why))
		}
		if err = c.fill(ctx, dir, r); err == nil {
			err = ctx.Err()
		}
		made = true
	}
	if err != nil {
		if made || errors.Is(why, errNone) {
			removeEntry(dir) // nothing is left of it; if that fails, the next cleans up
		}
		l.release()
		return nil, err
	}
	if !l.downgrade() {
		return nil, nil // somebody has removed it just now
	}
	return &Entry{Path: filepath.Join(dir, r.File), Made: made, lock: l}, nil
}

// fill makes the file by rule 2. The caller holds the lock alone.
func (c *Cache) fill(ctx context.Context, dir string, r Request) error {
	if err := cleanEntry(dir); err != nil {
		return c.unwritable(err)
	}
	if err := c.makeRoom(dir, r); err != nil {
		return err
	}
	part, file := filepath.Join(dir, partName), filepath.Join(dir, r.File)
	if err := r.Make(ctx, part); err != nil {
		return err
	}
	i := info{Version: version, File: r.File, From: r.From, Made: time.Now().UTC().Truncate(time.Second)}
	var err error
	if i.Bytes, i.Digest, err = r.digest(ctx, part); err != nil {
		return err
	}
	r.step("saving", 0, i.Bytes)
	if err := errors.Join(syncFile(part), os.Rename(part, file), syncFile(dir)); err != nil {
		return tandem.Errorf(op, tandem.Unavailable, "saving %s: %w", file, err)
	}
	return i.write(dir)
}

// errNone says that there is no entry, or only half of one.
var errNone = errors.New("there is none")

// check says why the entry in dir is not what r wants.
func (r *Request) check(ctx context.Context, dir string) error {
	i, err := readInfo(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return errNone
	} else if err != nil {
		return err
	}
	if i.Version != version || i.File != r.File || i.From != r.From {
		return errors.New("another release made it, or of something else")
	}
	size, sum, err := r.digest(ctx, filepath.Join(dir, r.File))
	if err != nil {
		return fmt.Errorf("it cannot be read: %w", files.Reason(err))
	}
	if size != i.Bytes {
		return fmt.Errorf("it has %d bytes instead of %d", size, i.Bytes)
	}
	if sum != i.Digest {
		return errors.New("its bytes have changed")
	}
	now := time.Now()
	_ = os.Chtimes(filepath.Join(dir, infoName), now, now) // when it was last used; a read-only cache has nothing to remove
	return nil
}

// digest returns a file's size and its digest, "" if the request has a check of its own, which the file has passed then.
func (r *Request) digest(ctx context.Context, path string) (size int64, sum string, err error) {
	if r.Check == nil {
		return digest(ctx, path, func(done, total int64) { r.step("checking", done, total) })
	}
	st, err := os.Stat(path)
	if err == nil {
		err = r.Check(path)
	}
	if err != nil {
		return 0, "", err
	}
	return st.Size(), "", nil
}

func (r *Request) waited() {
	if r.Waited != nil {
		r.Waited()
	}
}

func (r *Request) tell(what string) {
	if r.Tell != nil {
		r.Tell(what)
	}
}

func (r *Request) step(doing string, done, total int64) {
	if r.Step != nil {
		r.Step(doing, done, total)
	}
}

// entryDir returns the folder of the entry. Its name has the file's name, for readers, and a hash of all that decides the bytes.
func (c *Cache) entryDir(r Request) string {
	sum := sha256.Sum256([]byte(r.From))
	stem := strings.TrimSuffix(r.File, filepath.Ext(r.File))
	return filepath.Join(c.dir, r.Kind, stem+"-"+hex.EncodeToString(sum[:4]))
}

// unwritable makes err an *Unwritable if it says that the file system cannot be written to.
func (c *Cache) unwritable(err error) error {
	if notWritable(err) {
		return &Unwritable{c.dir, files.Reason(err)}
	}
	return err
}

// info is entry.json. The file's modification time is the time of the entry's last use.
type info struct {
	Version int       `json:"version"`
	File    string    `json:"file"`
	From    string    `json:"from"`
	Bytes   int64     `json:"bytes"`
	Digest  string    `json:"digest"`
	Made    time.Time `json:"made"`
}

func readInfo(dir string) (i info, err error) {
	path := filepath.Join(dir, infoName)
	b, err := files.ReadFile(path, maxInfo)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		err = errors.New("its description is damaged")
	}
	if err == nil && json.Unmarshal(b, &i) != nil {
		err = errors.New("its description is damaged")
	}
	return i, err
}

// write writes entry.json as a whole.
func (i info) write(dir string) error {
	b, err := json.Marshal(i)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, infoName)
	temporary := path + ".part"
	if err = os.WriteFile(temporary, append(b, '\n'), 0o600); err == nil {
		err = errors.Join(syncFile(temporary), os.Rename(temporary, path), syncFile(dir))
	}
	if err != nil {
		return tandem.Errorf(op, tandem.Unavailable, "saving %s: %w", path, err)
	}
	return nil
}
