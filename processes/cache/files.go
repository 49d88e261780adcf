package cache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

const leafBytes = 4 << 20 // that are hashed at a time

// digest returns the size of a file and its digest: SHA-256 over the hashes of its 4 MiB pieces, computed on all cores. step is
// called from several goroutines, one at a time.
func digest(ctx context.Context, path string, step func(done, total int64)) (size int64, sum string, err error) {
	f, err := files.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, "", err
	}
	size = st.Size()
	leaves := make([][sha256.Size]byte, (size+leafBytes-1)/leafBytes)
	var (
		next  atomic.Int64
		wg    sync.WaitGroup
		mu    sync.Mutex // guards what follows
		done  int64
		first error
	)
	for range min(runtime.GOMAXPROCS(0), len(leaves)) {
		wg.Go(func() {
			buf := make([]byte, leafBytes)
			for {
				i := next.Add(1) - 1
				if i >= int64(len(leaves)) {
					return
				}
				n, err := f.ReadAt(buf[:min(leafBytes, size-i*leafBytes)], i*leafBytes)
				if err == nil || errors.Is(err, io.EOF) {
					err = ctx.Err()
				}
				leaves[i] = sha256.Sum256(buf[:n]) // a file that is shortened meanwhile gets another digest
				mu.Lock()
				if done += int64(n); err == nil {
					step(done, size)
				} else if first == nil {
					first = err
					next.Store(int64(len(leaves)))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if first != nil {
		return 0, "", first
	}
	h := sha256.New()
	for i := range leaves {
		h.Write(leaves[i][:])
	}
	return size, hex.EncodeToString(h.Sum(nil)), nil
}

// syncFile writes a file or folder through to the disk.
func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// cleanEntry removes everything from an entry but its lock.
func cleanEntry(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	err = os.Remove(filepath.Join(dir, infoName)) // first: without it the rest is not an entry
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	for _, e := range entries {
		if e.Name() != lockName && e.Name() != infoName {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// removeEntry removes an entry whose lock the caller holds alone.
func removeEntry(dir string) error {
	if err := cleanEntry(dir); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, lockName)); err != nil {
		return err
	}
	err := os.Remove(dir)
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrNotExist) { // without a mark it is anybody's: somebody makes it anew
		return nil
	}
	return err
}

// Space returns how many bytes are free for this user where path is, or will be, and whether they are memory (tmpfs).
func Space(path string) (free int64, memory bool, err error) {
	var st syscall.Statfs_t
	for {
		err = syscall.Statfs(path, &st)
		if !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ENOTDIR) || path == filepath.Dir(path) {
			break
		}
		path = filepath.Dir(path)
	}
	if err != nil {
		return 0, false, tandem.Errorf(op, tandem.Unavailable, "free space of %s: %w", path, err)
	}
	const tmpfs, ramfs = 0x01021994, 0x858458f6
	kind := int64(uint32(st.Type))
	return int64(st.Bavail) * int64(st.Bsize), kind == tmpfs || kind == ramfs, nil
}

// notWritable reports whether err says that nothing can be written there, or nothing that stays as it is.
func notWritable(err error) bool {
	return slices.ContainsFunc([]error{fs.ErrPermission, fs.ErrNotExist, files.ErrUntrusted, syscall.EROFS, syscall.ENOTDIR},
		func(known error) bool { return errors.Is(err, known) })
}
