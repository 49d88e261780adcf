package gguf

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem"
)

// part is one file, on disk or, with file nil, in memory.
type part struct {
	path     string // as errors show it
	src      io.ReaderAt
	size     int64 // when it was opened
	file     *os.File
	modified time.Time // when it was opened
}

// readAt fills dst from byte off of the file on; what names the thing read, for messages.
func (p *part) readAt(dst []byte, off int64, what string) error {
	n, err := p.src.ReadAt(dst, off)
	switch {
	case n == len(dst):
		return p.unchanged(off, what)
	case errors.Is(err, io.EOF):
		return tandem.Errorf(op, tandem.Corrupt,
			"%s: %s: the file ends at byte %d, it had %d when it was opened: somebody has shortened it",
			p.path, what, off+int64(n), p.size)
	}
	return tandem.Errorf(op, tandem.Unavailable, "%s: %s: reading at byte %d: %w", p.path, what, off+int64(n), err)
}

// unchanged refuses a file that was written to since it was opened: what was read may mix old and new bytes.
func (p *part) unchanged(off int64, what string) error {
	if p.file == nil {
		return nil
	}
	st, err := p.file.Stat()
	if err != nil {
		return tandem.Errorf(op, tandem.Unavailable, "%s: %s: reading at byte %d: %w", p.path, what, off, err)
	}
	if st.Size() != p.size || !st.ModTime().Equal(p.modified) {
		return tandem.Errorf(op, tandem.Corrupt,
			"%s: %s: the file was written to while it was read at byte %d: want a file that stays as it is",
			p.path, what, off)
	}
	return nil
}

// forget drops bytes from the system's page cache. It is only advice: pages that others use stay. The cache has pieces of up to 2 MiB,
// which go only as a whole; so those that end in the bytes go too.
func (p *part) forget(off, n int64) {
	const piece = 2 << 20
	if p.file != nil {
		from := off &^ (piece - 1)
		_ = unix.Fadvise(int(p.file.Fd()), from, off+n-from, unix.FADV_DONTNEED)
	}
}

func (p *part) close() error {
	if p.file == nil {
		return nil
	}
	err := p.file.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// settled is how long a file must have been left alone for its stamp to tell every later change: longer than a tick of the system's clock.
const settled = 100 * time.Millisecond

// Stamp returns a text that tells the files' present contents from later ones without reading them: each file's device, inode, size, and
// times of the last write and of the last change, which no program can set back. Errors: a file was written just now, or lies in memory.
func (f *File) Stamp() (string, error) {
	var all []byte
	for _, p := range f.parts {
		var st unix.Stat_t
		if p.file == nil {
			return "", tandem.Errorf(op, tandem.Unsupported, "%s lies in memory", p.path)
		}
		if err := unix.Fstat(int(p.file.Fd()), &st); err != nil {
			return "", tandem.Errorf(op, tandem.Unavailable, "%s: %w", p.path, err)
		}
		if time.Since(time.Unix(st.Ctim.Unix())) < settled {
			return "", tandem.Errorf(op, tandem.Unavailable, "%s was written just now", p.path)
		}
		all = fmt.Appendf(all, "%d:%d:%d:%d:%d/", st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
	}
	return string(all), nil
}
