package files

import (
	"errors"
	"os"
	"path/filepath"
)

// Replace writes a small file for this user alone (mode 0600), as a whole: whoever reads path finds what was there before or all of b, also
// after a crash. If path is a link, the link is replaced. The folder must be there. After an error path is as it was, and nothing is left
// beside it. Errors: *fs.PathError, *os.LinkError.
func Replace(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync() // a rename may reach the disk before the bytes do
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
