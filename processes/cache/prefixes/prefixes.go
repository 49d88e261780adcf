// Package prefixes keeps pages of keys and values, and states of recurrent layers, of long beginnings of texts in files, so that they are
// there again after a restart. It knows neither models nor devices: a page is bytes that belong to tokens.
//
//	DIR/secret              random, of this folder alone
//	   /TENANT/NAME.page    the keys and values of one page
//	          /NAME.state   the states of recurrent layers behind the page
//
// NAME is a keyed hash of the tokens of the page and of all before it, and of what else decides the bytes (Config.Model). So equal
// beginnings are one file, and files of other models are never found, only removed when they are old. These hold, whatever happens:
//
//  1. A file appears under its name when it is complete. It is not synced: what a crash of the system leaves fails its check.
//  2. Nothing is used that fails its check. Such a file is removed, and a line says why.
//  3. Where clients have keys, contents are encrypted, and TENANT and NAME tell nothing without the key. What decides all three is derived
//     from the folder's secret and from the tenant's name, which comes from the key. The name is not on the disk, and the secret is nowhere
//     else: who has one of them alone, such as a name from a log or a trace, opens nothing.
//  4. Files are 0600 in folders of 0700. The total is bounded: the tenant with most bytes gives up its least recently used file first.
//
// Several processes may use one folder: the files are the only truth, and one that another process has removed is not there.
package prefixes

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/processes/cache"
)

const op = "prefix store"

// Everyone is the folder of the tenant "": of all clients where there are no keys.
const Everyone = "everyone"

// Config says what a Store keeps and where.
type Config struct {
	Dir   string        // the folder; need not be there yet
	Limit int64         // bytes of all files together
	Age   time.Duration // files that were not used for longer are removed; 0: never
	Model string        // names everything that decides the bytes that belong to tokens
	Page  int           // tokens of a page
	Log   *slog.Logger

	space func(path string) (free int64, memory bool, err error) // free bytes at a path; nil: cache.Space
	clock func() (wall time.Time, ran time.Duration)             // the wall clock, and one that nobody sets; nil: wallAndRan
}

// Store is a folder of prefixes. Safe for concurrent use.
type Store struct {
	cfg    Config
	secret []byte

	mu      sync.Mutex
	total   int64     // bytes of all files: at the last look at the folder, with what was written since
	resumes time.Time // nothing is written before; after a fault of the disk

	looked atomic.Pointer[moment] // when the folder was last swept
}

const (
	sweepEvery = time.Hour
	pauseFor   = time.Minute // without writing, after a fault of the disk
	spareDisk  = 128 << 20   // bytes that must be left on the disk
)

// Open returns the store in a folder, which it makes if need be. It removes what is too old or too much, and what dead processes have left.
// Errors: Invalid for a folder that another user could change; Unavailable if it cannot be made.
func Open(c Config) (*Store, error) {
	if c.space == nil {
		c.space = cache.Space
	}
	if c.clock == nil {
		c.clock = wallAndRan
	}
	if err := ownFolder(c.Dir); err != nil {
		return nil, err
	}
	s := &Store{cfg: c}
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.secret, err = makeSecret(c); err != nil {
		return nil, err
	}
	return s, s.sweep(0)
}

// ownFolder makes sure that dir is a folder of this user that nobody else can look into or replace.
func ownFolder(dir string) error {
	if err := files.Private(dir); err != nil {
		kind := tandem.Unavailable
		if errors.Is(err, files.ErrUntrusted) {
			kind = tandem.Invalid
		}
		return tandem.Errorf(op, kind, "%w", err)
	}
	return nil
}

// Tenant is what a store keeps of one tenant. Safe for concurrent use.
type Tenant struct {
	store  *Store
	dir    string
	names  []byte // key of the hashes in names
	secret []byte // the keys of files are made from it; nil: they are not encrypted
}

// Folders returns the names of the tenants' folders in the store in dir, "" for a tenant that can have none because the store has no secret
// yet. The names tell nothing of the tenants or their keys. Errors: Invalid for a secret that cannot be used.
func Folders(dir string, tenants []string) ([]string, error) {
	secret, err := readSecret(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	names := make([]string, len(tenants))
	for i, t := range tenants {
		if err == nil || t == "" {
			names[i] = folder(secret, t)
		}
	}
	return names, nil
}

func folder(secret []byte, tenant string) string {
	if tenant == "" {
		return Everyone
	}
	return hex.EncodeToString(derive(secret, tenant, "folder", 16))
}

// derive makes a key of n bytes for one use from the store's secret and a tenant's name.
func derive(secret []byte, tenant, use string, n int) []byte {
	key, err := hkdf.Key(sha256.New, []byte(tenant), secret, "tandem prefixes 2 "+use, n)
	if err != nil {
		panic(err) // only for lengths beyond 8,160 bytes
	}
	return key
}

// Tenant returns the part of the store of a tenant: what tandem.Opening calls so.
func (s *Store) Tenant(name string) *Tenant {
	t := &Tenant{store: s, dir: filepath.Join(s.cfg.Dir, folder(s.secret, name)), names: derive(s.secret, name, "names", 32)}
	if name != "" {
		t.secret = derive(s.secret, name, "contents", 32)
	}
	return t
}

// Name names a page and all before it.
type Name [sha256.Size]byte

// Names returns the names of all whole pages of a text, in order.
func (t *Tenant) Names(tokens []tandem.Token) []Name {
	var last Name
	h := hmac.New(sha256.New, t.names)
	h.Write([]byte(t.store.cfg.Model))
	h.Sum(last[:0])
	page := t.store.cfg.Page
	names := make([]Name, 0, len(tokens)/page)
	buf := make([]byte, 0, 4*page)
	for ; len(tokens) >= page; tokens = tokens[page:] {
		buf = buf[:0]
		for _, x := range tokens[:page] {
			buf = binary.LittleEndian.AppendUint32(buf, uint32(x))
		}
		h.Reset()
		h.Write(last[:])
		h.Write(buf)
		h.Sum(last[:0])
		names = append(names, last)
	}
	return names
}

// Kind says what of a page a file holds.
type Kind string

const (
	Page  Kind = "page"  // the keys and values of its positions, in all layers
	State Kind = "state" // the states of recurrent layers behind its last position
)

func (t *Tenant) path(n Name, k Kind) string {
	return filepath.Join(t.dir, hex.EncodeToString(n[:])+"."+string(k))
}

// Has reports whether there is such a file that is not too old. Its contents may still fail their check.
func (t *Tenant) Has(n Name, k Kind) bool {
	st, err := os.Lstat(t.path(n, k))
	return err == nil && !t.store.old(st)
}

// Used notes when page i of a text, and what belongs to it, was last used. Earlier pages count as used later, so that a text is removed
// from its end.
func (t *Tenant) Used(n Name, i int, at time.Time) {
	at = at.Add(-time.Duration(i) * time.Millisecond)
	for _, k := range []Kind{Page, State} {
		_ = os.Chtimes(t.path(n, k), at, at) // there may be none, or no right to: then it is removed earlier
	}
}

// Holds returns the most pages, of so many bytes each, that one text may keep: with more they would push each other out.
func (s *Store) Holds(page int) int { return int(s.cfg.Limit * 3 / 4 / sizeOf(page)) }

// Write keeps data as the file of a name. data may be overwritten. at is when it was last used, i its page's number in the text: see Used.
// Errors: Exhausted if the disk is full; Unavailable if it cannot be written to, and for a while after either. A line says so, once.
func (t *Tenant) Write(n Name, k Kind, data []byte, i int, at time.Time) error {
	s := t.store
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Before(s.resumes) {
		return tandem.Errorf(op, tandem.Unavailable, "not written to since a fault")
	}
	err := s.makeRoom(sizeOf(len(data)))
	if err == nil {
		err = t.write(n, k, data, at.Add(-time.Duration(i)*time.Millisecond))
	}
	if err != nil {
		s.resumes = now.Add(pauseFor)
		s.cfg.Log.Warn("prefixes are not kept for now", "folder", s.cfg.Dir, "error", err)
	}
	return err
}

// makeRoom makes sure that n more bytes fit below the limit and on the disk. The caller holds s.mu.
func (s *Store) makeRoom(n int64) error {
	if _, ran := s.cfg.clock(); s.total+n > s.cfg.Limit || ran-s.looked.Load().ran > sweepEvery {
		if err := s.sweep(n); err != nil {
			return err
		}
	}
	free, _, err := s.cfg.space(s.cfg.Dir)
	if err == nil && free < n+spareDisk {
		err = tandem.Errorf(op, tandem.Exhausted, "%d MiB are free on the disk: want %d MiB to be left", free>>20, spareDisk>>20)
	}
	return err
}
