package hub

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// accessible is access(2).
func accessible(path string, mode uint32) error { return unix.Access(path, mode) }

// Writable refuses a name in whose store nothing can be written, before anything is asked of a server. Errors: Unavailable.
func (c Config) Writable(n Name) error {
	root, folders := c.Own, []string{n.webFolder()}
	switch n.Source {
	case Hugging:
		root, folders = c.HubCache, []string{filepath.Join(n.repoFolder(), "blobs"), filepath.Join(n.repoFolder(), "snapshots"),
			filepath.Join(n.repoFolder(), receiptFolder), filepath.Join(".locks", n.repoFolder())}
	case Ollama:
		root, folders = c.writableStore(), []string{"blobs", filepath.Dir(c.manifestPath(n)), receiptFolder}
	}
	for _, dir := range folders {
		dir = filepath.Join(root, dir)
		for _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir); _, err = os.Stat(dir) {
			dir = filepath.Dir(dir) // it is made there
		}
		f, err := os.CreateTemp(dir, ".tandem-*.incomplete") // access(2) knows nothing of quotas, and tells root what it wants to hear
		if err != nil {
			return unwritable(err)
		}
		if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
			return unwritable(err)
		}
	}
	return nil
}

// Progress gets how many bytes of how many are there; waits is true while another process fetches them.
type Progress func(done, total int64, waits bool)

// Fetch fetches what the plan names into the store, unless it is there, and returns it. A file that another process is fetching is waited
// for. After an error, or a kill, the next Fetch of the same files goes on where this one ended. Errors: Corrupt if the bytes are not those
// that the server has named, or are no sound GGUF file; Exhausted if the disk is full; those of Plan.
func (c Config) Fetch(ctx context.Context, p *Plan, progress Progress) (f Found, err error) {
	if err := os.MkdirAll(p.Store, 0o755); err != nil {
		return f, unwritable(err)
	}
	dir, err := os.OpenRoot(p.Store)
	if err != nil {
		return f, unwritable(err)
	}
	defer dir.Close()
	if err := p.claim(dir); err != nil {
		return f, unwritable(err)
	}
	before := int64(0)
	for i := range p.wants {
		w := &p.wants[i]
		if err := p.one(ctx, dir, w, func(done int64, waits bool) { progress(before+done, p.Size, waits) }); err != nil {
			return f, err
		}
		before += w.blob.size
	}
	if err := p.publish(dir); err != nil {
		return f, unwritable(err)
	}
	f, ok, err := c.Find(p.Name)
	if err == nil && !ok {
		err = tandem.Errorf(op, tandem.Unavailable, "%s was fetched, and is gone: another process has removed it", p.Name)
	}
	return f, err
}

// below returns a path below the store as a path below the receipt's folder.
func (p *Plan) below(at string) string {
	return strings.TrimPrefix(strings.TrimPrefix(at, p.root), string(filepath.Separator))
}

// claim writes the receipt: what is not there yet, and what tandem has fetched for other names. It comes before the first byte, so that
// whatever a kill leaves behind can be removed.
func (p *Plan) claim(dir *os.Root) error {
	root := filepath.Join(p.Store, p.root)
	ours := map[string]bool{}
	for _, r := range receipts(root) {
		for _, blob := range r.Blobs {
			ours[blob] = true
		}
	}
	var blobs []string
	for _, w := range p.wants {
		blobs = append(blobs, w.at)
	}
	for _, s := range p.small {
		blobs = append(blobs, s.at)
	}
	for _, at := range blobs {
		if _, err := os.Stat(filepath.Join(p.Store, at)); err != nil || ours[p.below(at)] {
			p.receipt.Blobs = append(p.receipt.Blobs, p.below(at))
		}
	}
	if _, err := os.Lstat(filepath.Join(root, p.receipt.Link)); err == nil && len(p.receipt.Blobs) == 0 {
		return nil // another program's
	}
	p.receipt.Pulled = time.Now().UTC().Truncate(time.Second)
	if err := dir.MkdirAll(filepath.Join(p.root, receiptFolder), 0o755); err != nil {
		return err
	}
	b, err := json.Marshal(p.receipt)
	if err != nil {
		return err
	}
	return put(dir, file{filepath.Join(p.root, receiptPath(p.receipt.Link)), b})
}

// one fetches a file unless it is there.
func (p *Plan) one(ctx context.Context, dir *os.Root, w *want, progress func(done int64, waits bool)) error {
	for _, path := range []string{w.at, w.lock} {
		if err := dir.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return unwritable(err)
		}
	}
	release, err := locked(ctx, dir, w.lock, func() { progress(recorded(dir, w.at, w.blob), true) })
	if err != nil {
		return err
	}
	defer release()
	if st, err := os.Stat(filepath.Join(p.Store, w.at)); err == nil && st.Size() == w.blob.size {
		progress(w.blob.size, false)
		return nil
	}
	t := &transfer{s: p.s, b: w.blob, dir: dir, at: w.at, write: (*os.File).WriteAt, progress: func(done int64) { progress(done, false) },
		sum: w.blob.hash()}
	if testWrite != nil {
		t.write = testWrite
	}
	if err := t.run(ctx, w.head.data, w.head.data == nil || w.head.ranged); err != nil {
		return err
	}
	if err := p.check(dir, w, t.sum); err != nil {
		return errors.Join(err, dir.Remove(partPath(w.at)), dir.Remove(recordsPath(w.at)))
	}
	err = dir.Rename(partPath(w.at), w.at)
	if err == nil {
		err = syncFolder(dir, filepath.Dir(w.at))
	}
	if err != nil {
		return unwritable(err)
	}
	_ = dir.Remove(recordsPath(w.at)) // it is of no use, and does no harm
	return nil
}

// testWrite is what tests put in place of os.File.WriteAt: a disk that is full. It is nil in the program.
var testWrite func(f *os.File, b []byte, off int64) (int, error)

// hash returns what computes the file's digest, nil if its server names none.
func (b *blob) hash() hash.Hash {
	switch kind, _, _ := strings.Cut(b.digest, ":"); kind {
	case "sha256":
		return sha256.New()
	case "git":
		sum := sha1.New()
		fmt.Fprintf(sum, "blob %d\x00", b.size)
		return sum
	}
	return nil
}

// check compares the digest of the fetched bytes, and then parses their header.
func (p *Plan) check(dir *os.Root, w *want, sum hash.Hash) error {
	if sum != nil {
		if got := hex.EncodeToString(sum.Sum(nil)); got != hexOf(w.blob.digest) {
			return lie("%s: %s was fetched with the digest %s, and its server had named %s: it has been removed", p.s.what, w.shown, got,
				hexOf(w.blob.digest))
		}
	}
	f, err := dir.Open(partPath(w.at))
	if err != nil {
		return unwritable(err)
	}
	defer f.Close()
	if _, err := gguf.Header(f, w.blob.size, w.shown); err != nil {
		return tandem.Errorf(op, tandem.Corrupt, "%s was fetched, and is no model file: it has been removed: %w", p.s.what, err)
	}
	return nil
}

// publish gives what was fetched its names: first links, and last the file that says what the name means now.
func (p *Plan) publish(dir *os.Root) error {
	for _, s := range p.small {
		if b, err := dir.ReadFile(s.at); err == nil && bytes.Equal(b, s.b) {
			continue
		}
		if err := put(dir, s); err != nil {
			return err
		}
	}
	for _, w := range p.wants {
		if err := linked(dir, w); err != nil {
			return err
		}
	}
	for _, l := range p.last {
		if err := put(dir, l); err != nil {
			return err
		}
	}
	return nil
}

// put writes a small file of the store as a whole.
func put(dir *os.Root, f file) error {
	if err := dir.MkdirAll(filepath.Dir(f.at), 0o755); err != nil {
		return err
	}
	part := fmt.Sprintf("%s.tandem-%x.incomplete", f.at, rand.Uint64())
	out, err := dir.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = out.Write(f.b)
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err == nil {
		err = dir.Rename(part, f.at)
	}
	if err != nil {
		_ = dir.Remove(part)
	}
	return err
}

// linked makes the link of a file in a snapshot, relative as the hub's clients make it.
func linked(dir *os.Root, w want) error {
	if w.link == "" {
		return nil
	}
	to, err := filepath.Rel(filepath.Dir(w.link), w.at)
	if err == nil {
		err = dir.MkdirAll(filepath.Dir(w.link), 0o755)
	}
	if err != nil {
		return err
	}
	if now, err := dir.Readlink(w.link); err == nil && now == to {
		return nil
	}
	if err := dir.Remove(w.link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := dir.Symlink(to, w.link); err != nil && !errors.Is(err, fs.ErrExist) { // another process made it
		return err
	}
	return syncFolder(dir, filepath.Dir(w.link))
}

// syncFolder makes sure that names in a folder are on the disk.
func syncFolder(dir *os.Root, path string) error {
	f, err := dir.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

const lockPoll = 100 * time.Millisecond // a flock that waits cannot be cancelled

// locked takes the lock at path as the hub's clients do (flock), which ends with the process. waits is called as long as another process
// has it.
func locked(ctx context.Context, dir *os.Root, path string, waits func()) (release func(), err error) {
	for {
		f, err := dir.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o664)
		if err != nil {
			return nil, unwritable(err)
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		here, err1 := f.Stat()
		there, err2 := dir.Stat(path)
		switch current := err1 == nil && err2 == nil && os.SameFile(here, there); {
		case err == nil && current:
			return func() { f.Close() }, nil
		case err != nil && !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			f.Close()
			return nil, tandem.Errorf(op, tandem.Unavailable, "locking %s: %w: want a file system with locks", path, err)
		}
		busy := err != nil
		f.Close()
		if !busy {
			continue // it was removed and made again
		}
		waits()
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
