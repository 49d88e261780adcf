// Package files opens files that a user has named, and says which folders can be trusted. It opens regular files only: opening a pipe waits
// until another process opens its other end, and a device may do anything. It trusts no folder in which another user could replace files.
// It also writes small files of the program's own, each as a whole.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Irregular is the error for something that is no regular file.
type Irregular struct{ Mode fs.FileMode }

func (i *Irregular) Error() string {
	what := "no regular file"
	switch {
	case i.Mode.IsDir():
		what = "a directory"
	case i.Mode&fs.ModeNamedPipe != 0:
		what = "a pipe"
	case i.Mode&fs.ModeSocket != 0:
		what = "a socket"
	case i.Mode&fs.ModeDevice != 0:
		what = "a device"
	}
	return "it is " + what + ": want a regular file"
}

// Open opens the regular file at path, or /dev/null, for reading, also by way of links. It does not wait. Errors: *fs.PathError, which
// wraps *Irregular if path is no regular file.
func Open(path string) (*os.File, error) { return OpenFile(path, 0) }

// OpenFile is Open with further flags of open(2), such as O_DIRECT.
func OpenFile(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY|flags, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() && !null(st) {
		err = &fs.PathError{Op: "open", Path: path, Err: &Irregular{st.Mode()}}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// null reports whether st is that of /dev/null, which people give as an empty file: character device 1, 3 on Linux.
func null(st fs.FileInfo) bool {
	of, ok := st.Sys().(*syscall.Stat_t)
	return ok && st.Mode()&fs.ModeCharDevice != 0 && of.Rdev == 1<<8|3
}

// ReadFile returns the contents of the regular file at path. Errors: those of Open, and for a file of more than most bytes.
func ReadFile(path string, most int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("it has more than %d bytes", most)}
	}
	return b, err
}

// Reason strips the operation and path from an error of package os, for messages that name them already.
func Reason(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}
