package files

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// Replace writes a small file for this user alone (mode 0600), as a whole: whoever reads path finds what was there before or all of b, also
// after a crash. If path is a link, the link is replaced. The folder must be there. After an error path is as it was, and nothing is left
// beside it. Errors: *fs.PathError, *os.LinkError.
func Replace(path string, b []byte) error { return write(path, b, os.Rename) }

// New is Replace for a path at which there is nothing yet; else its error is fs.ErrExist.
func New(path string, b []byte) error { return write(path, b, os.Link) }

// write writes b beside path, and has put give it that name.
func write(path string, b []byte, put func(from, to string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync() // a rename may reach the disk before the bytes do
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = put(f.Name(), path)
	}
	return err
}

// Overwrite is Replace that needs no room on a disk which is full: if b fits into what is at path already, it is written there, and filled
// up with newlines, so that no block is given up. Whoever reads at that moment may find a part of it.
func Overwrite(path string, b []byte) error {
	err := Replace(path, b)
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	f, opened := os.OpenFile(path, os.O_WRONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if opened != nil {
		return err
	}
	defer f.Close()
	st, failed := f.Stat()
	if failed != nil || !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 || st.Size() < int64(len(b)) {
		return err
	}
	_, err = f.WriteAt(append(bytes.Clone(b), bytes.Repeat([]byte{'\n'}, int(st.Size())-len(b))...), 0)
	return err
}
