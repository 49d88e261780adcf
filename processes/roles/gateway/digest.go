package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem/modelfile/files"
)

// fileDigest is the SHA-256 of the bytes of a model's files, in their order. It is computed in the background, once for each state of the
// files: name says which that is, by device, inode, size and time of the last change. Until it is known, a digest of name stands in for it.
// Safe for concurrent use.
type fileDigest struct {
	paths  []string
	folder string // where digests are kept; "" for nowhere
	name   string
	known  atomic.Pointer[string]
}

const (
	keptDigests = "digests.json" // an object of digests by names
	mostDigests = 128
	mostKept    = 64 << 10 // bytes of it
	digestStep  = 1 << 20  // bytes that are read at once; as much time as that takes is left to others
	digestLook  = time.Second / 4
)

// newFileDigest returns that of a model's files, which is known if the folder has it.
func newFileDigest(folder string, paths ...string) *fileDigest {
	d := &fileDigest{paths: paths, folder: folder}
	for _, path := range paths {
		st, err := os.Stat(path)
		if err != nil {
			continue // whoever loads it says so
		}
		d.name += fmt.Sprintf("%d %d", st.Size(), st.ModTime().UnixNano())
		if of, ok := st.Sys().(*syscall.Stat_t); ok {
			d.name += fmt.Sprintf(" %d %d", of.Dev, of.Ino)
		}
		d.name += "\n"
	}
	if kept := d.kept()[d.name]; len(kept) == hex.EncodedLen(sha256.Size) {
		d.known.Store(&kept)
	}
	return d
}

// begin computes it in the background, and returns what ends that.
func (d *fileDigest) begin(ctx context.Context, loading func() string) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.compute(ctx, loading)
	}()
	return func() {
		cancel()
		<-done
	}
}

// Hex returns the digest, or what stands in for it: 64 characters each.
func (d *fileDigest) Hex() string {
	if known := d.known.Load(); known != nil {
		return *known
	}
	stand := sha256.Sum256([]byte(d.name))
	return hex.EncodeToString(stand[:])
}

// kept returns the digests in the folder. It takes none from a folder in which others could write.
func (d *fileDigest) kept() map[string]string {
	all := map[string]string{}
	if d.folder == "" || files.Trusted(d.folder) != nil {
		return all
	}
	if raw, err := files.ReadFile(filepath.Join(d.folder, keptDigests), mostKept); err != nil || json.Unmarshal(raw, &all) != nil {
		return map[string]string{}
	}
	return all
}

// compute reads the files once loading returns "", unless the digest is known, and keeps it. It ends with ctx, and at files that cannot be
// read or change meanwhile: then the stand-in stays.
func (d *fileDigest) compute(ctx context.Context, loading func() string) {
	for loading() != "" && d.known.Load() == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(digestLook):
		}
	}
	h, buf := sha256.New(), make([]byte, digestStep)
	for _, path := range d.paths {
		if d.known.Load() != nil || hashFile(ctx, h, path, buf) != nil {
			return
		}
	}
	if newFileDigest("", d.paths...).name != d.name {
		return
	}
	sum := hex.EncodeToString(h.Sum(nil))
	d.known.Store(&sum)
	if d.folder == "" || os.MkdirAll(d.folder, 0o700) != nil || files.Trusted(d.folder) != nil {
		return
	}
	all := d.kept()
	if len(all) >= mostDigests {
		clear(all)
	}
	all[d.name] = sum
	if raw, err := json.Marshal(all); err == nil {
		_ = files.Replace(filepath.Join(d.folder, keptDigests), raw) // it is computed again
	}
}

// hashFile adds a file to h.
func hashFile(ctx context.Context, h io.Writer, path string, buf []byte) error {
	f, err := files.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		began := time.Now()
		n, err := f.Read(buf)
		_, _ = h.Write(buf[:n])
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Since(began)):
		}
	}
}
