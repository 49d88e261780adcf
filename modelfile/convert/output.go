package convert

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// create makes the file at out, of size bytes: write fills a temporary file beside it, which is renamed
// when complete and removed on an error.
func create(in, out string, size int64, force bool, write func(io.Writer) error) error {
	if err := checkOut(in, out, force); err != nil {
		return err
	}
	if free, ok := freeBytes(filepath.Dir(out)); ok && size > free {
		return tandem.Errorf(op, tandem.Exhausted,
			"%q would have %d bytes, and %d are free there: want a place with more room, or a smaller model", out, size, free)
	}
	f, err := os.CreateTemp(filepath.Dir(out), "."+filepath.Base(out)+".*.tmp")
	if err != nil {
		return outError(out, size, err)
	}
	defer os.Remove(f.Name()) // after the renaming it does not exist
	defer f.Close()
	// Reserving the space finds a full disk now, not after minutes. A file system that cannot reserve returns
	// another error: there a write fails when the disk is full.
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EFBIG) {
		return outError(out, size, err)
	}
	if err := write(f); err != nil {
		return outError(out, size, err)
	}
	if err := errors.Join(f.Chmod(0o644), f.Close()); err != nil {
		return outError(out, size, err)
	}
	if err := checkOut(in, out, force); err != nil {
		return err // somebody else made it meanwhile
	}
	if err := os.Rename(f.Name(), out); err != nil {
		return outError(out, size, err)
	}
	return nil
}

// freeBytes returns what may still be written to a folder's file system; ok is false if it does not tell.
func freeBytes(dir string) (n int64, ok bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Blocks == 0 {
		return 0, false
	}
	return int64(st.Bavail) * st.Bsize, true
}

// checkOut refuses a path that must not be written to.
func checkOut(in, out string, force bool) error {
	if out == "" {
		return tandem.Errorf(op, tandem.Invalid, "the path of the output is empty: want that of a file to make")
	}
	st, err := os.Lstat(out)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return outError(out, 0, err)
	}
	if !st.Mode().IsRegular() {
		return tandem.Errorf(op, tandem.Invalid, "%q is there and is no regular file (%s): want the path of a file to make", out,
			st.Mode().Type())
	}
	if source, err := os.Stat(in); err == nil && os.SameFile(st, source) {
		return tandem.Errorf(op, tandem.Invalid, "%q is the input: want another path for the output", out)
	}
	if !force {
		return tandem.Errorf(op, tandem.Invalid, "%q is there already: want another path, or --force to replace it", out)
	}
	return nil
}

// outError names the file and says what to do about a full disk.
func outError(out string, size int64, err error) error {
	var known *tandem.Error
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		return tandem.Errorf(op, tandem.Exhausted, "writing %q: %w: want room for %d bytes", out, files.Reason(err), size)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOTDIR),
		errors.Is(err, syscall.ENAMETOOLONG),
		errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EINVAL):
		return tandem.Errorf(op, tandem.Invalid, "%q cannot be written: %w", out, files.Reason(err))
	case errors.As(err, &known):
		return err // of the input, or stopped
	}
	return tandem.Errorf(op, tandem.Unavailable, "writing %q: %w", out, err)
}
