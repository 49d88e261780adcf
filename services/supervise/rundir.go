package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/tandem-llm/tandem/files"
)

const (
	dirPrefix = "tandem-"
	lockName  = "lock"
	// longestName leaves room for the longest socket name below a run directory: sun_path holds 107 bytes.
	longestName = 107 - len("/drafter-shm.sock")
)

// RunDir is a private directory for the sockets and files of one group of processes. Its owner holds
// a lock on a file in it for as long as it lives, so that a directory whose owner was killed can be
// told from one in use. It also holds a lock on the directory itself, which cleaners of temporary directories respect
// (systemd-tmpfiles(8)).
type RunDir struct {
	Path string
	lock *os.File
	self *os.File // the directory
}

// NewRunDir makes a directory of mode 0700 below base ("" = the temporary directory) and removes those
// that dead owners left there. Close removes it.
func NewRunDir(base string) (*RunDir, error) {
	if base == "" {
		base = os.TempDir()
	}
	base, err := filepath.Abs(base)
	if err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	if err := files.Trusted(base); err != nil {
		return nil, fmt.Errorf("run directory: %w (choose another with --run-dir or TMPDIR)", err)
	}
	sweep(base)
	path, err := os.MkdirTemp(base, dirPrefix)
	if err != nil {
		return nil, fmt.Errorf("run directory: %w (choose a writable one with --run-dir or TMPDIR)", cause(err, base))
	}
	d := &RunDir{Path: path}
	if err := d.claim(); err != nil {
		d.Close()
		return nil, fmt.Errorf("run directory: %w (choose another with --run-dir or TMPDIR)", cause(err, base))
	}
	if len(path) > longestName {
		d.Close()
		return nil, fmt.Errorf("run directory: path %q has %d bytes, and a unix socket in it allows %d: choose a shorter one with "+
			"--run-dir or TMPDIR", path, len(path), longestName)
	}
	return d, nil
}

// claim writes and locks the lock file. Writing a page also shows early that the directory is full.
func (d *RunDir) claim() error {
	f, err := os.OpenFile(filepath.Join(d.Path, lockName), os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	d.lock = f
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}
	if _, err = f.Write(make([]byte, 4096)); err != nil {
		return err
	}
	if d.self, err = os.Open(d.Path); err != nil {
		return err
	}
	_ = syscall.Flock(int(d.self.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) // some file systems cannot
	return nil
}

// Restore makes the directory again if somebody has removed it, and reports whether it did. What was in it is not restored.
func (d *RunDir) Restore() (restored bool, err error) {
	if _, err := os.Lstat(filepath.Join(d.Path, lockName)); !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := os.Mkdir(d.Path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, fmt.Errorf("run directory: %w", cause(err, d.Path))
	}
	d.release()
	if err := d.claim(); err != nil {
		return false, fmt.Errorf("run directory: %w", cause(err, d.Path))
	}
	return true, nil
}

// release gives up the locks.
func (d *RunDir) release() (err error) {
	for _, f := range []*os.File{d.lock, d.self} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	d.lock, d.self = nil, nil
	return err
}

// File returns the path of a file in the directory.
func (d *RunDir) File(name string) string { return filepath.Join(d.Path, name) }

// Close removes the directory and what is in it.
func (d *RunDir) Close() error {
	return errors.Join(os.RemoveAll(d.Path), d.release())
}

// sweep removes the run directories in base whose owners are dead. A directory that has no lock file
// yet may be in the making and is left alone.
func sweep(base string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return // NewRunDir reports what is wrong with base
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), dirPrefix) {
			continue
		}
		dir := filepath.Join(base, e.Name())
		f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|syscall.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		var st syscall.Stat_t
		mine := syscall.Fstat(int(f.Fd()), &st) == nil && int(st.Uid) == os.Getuid() && st.Size == 4096
		if mine && syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			os.RemoveAll(dir)
		}
		f.Close()
	}
}

// cause reduces a path error to the directory asked for and the reason.
func cause(err error, base string) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return fmt.Errorf("%s: %w", base, errno)
	}
	return err
}
