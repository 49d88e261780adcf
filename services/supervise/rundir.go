package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/tandem-llm/tandem/files"
)

const (
	dirPrefix = "tandem-"
	lockName  = "lock"
	lockBytes = 4096
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
	d := new(RunDir)
	err = untilClaimed(func() (err error) {
		d.release()
		if d.Path, err = os.MkdirTemp(base, dirPrefix); err != nil {
			return err
		}
		return d.claim()
	})
	if err != nil {
		if d.Path != "" {
			d.Close()
		}
		return nil, fmt.Errorf("run directory: %w (choose a writable one with --run-dir or TMPDIR)", cause(err, base))
	}
	if len(d.Path) > longestName {
		d.Close()
		return nil, fmt.Errorf("run directory: path %q has %d bytes, and a unix socket in it allows %d: choose a shorter one with "+
			"--run-dir or TMPDIR", d.Path, len(d.Path), longestName)
	}
	return d, nil
}

// untilClaimed tries again, a few times, if another process's sweep was faster than try's claim.
func untilClaimed(try func() error) (err error) {
	for range 10 {
		err = try()
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
	}
	return err
}

// claim writes and locks the lock file. Writing a page also shows early that the directory is full. Until the file is locked, a sweep may
// take the directory for one whose owner was killed: the error is then fs.ErrNotExist or syscall.EWOULDBLOCK.
func (d *RunDir) claim() error {
	f, err := os.OpenFile(filepath.Join(d.Path, lockName), os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	d.lock = f
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}
	if _, err = f.Write(make([]byte, lockBytes)); err != nil {
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
	err = untilClaimed(func() error {
		if err := os.Mkdir(d.Path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		d.release()
		return d.claim()
	})
	if err != nil {
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
	return errors.Join(remove(d.Path), d.release())
}

// remove removes a run directory, its lock file last: if it breaks off, the next sweep goes on.
func remove(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.Name() != lockName {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// sweep removes the run directories in base whose owners are dead. An owner can be killed before it has written its lock file, so an empty
// directory and one with an unlocked empty lock file go as well; a living owner that is overtaken so makes another.
func sweep(base string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return // NewRunDir reports what is wrong with base
	}
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), dirPrefix)
		if _, err := strconv.ParseUint(number, 10, 64); !ok || err != nil || !e.IsDir() {
			continue
		}
		dir := filepath.Join(base, e.Name())
		if os.Remove(dir) == nil { // it was empty
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|syscall.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		var st syscall.Stat_t
		mine := syscall.Fstat(int(f.Fd()), &st) == nil && int(st.Uid) == os.Getuid() && (st.Size == lockBytes || st.Size == 0)
		if mine && syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = remove(dir)
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
