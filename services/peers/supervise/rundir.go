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

	"github.com/tandem-llm/tandem/modelfile/files"
)

const (
	dirPrefix = "tandem-"
	lockName  = "lock"
	lockBytes = 4096
	mostNamed = 1000 // directories of a name
	// longestName leaves room for the longest socket name below a run directory: sun_path holds 107 bytes.
	longestName = 107 - len("/drafter-shm.sock")
)

// RunDir is a private directory for the sockets and files of one group of processes. Its owner holds
// a lock on a file in it for as long as it lives, so that a directory whose owner was killed can be
// told from one in use. It also holds a lock on the directory itself, which cleaners of temporary directories respect
// (systemd-tmpfiles(8)).
type RunDir struct {
	Path  string
	note  string // see Note; "": none
	named bool   // see NamedDir
	lock  *os.File
	self  *os.File // the directory
}

// NewRunDir makes a directory of mode 0700 below base ("" = the temporary directory) and removes those
// that dead owners left there. Close removes it.
func NewRunDir(base string) (*RunDir, error) {
	base, err := trusted(base)
	if err != nil {
		return nil, err
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

// trusted returns the path of base ("" = the temporary directory), in which no other user can replace anything.
func trusted(base string) (string, error) {
	if base == "" {
		base = os.TempDir()
	}
	base, err := filepath.Abs(base)
	if err != nil {
		return "", fmt.Errorf("run directory: %w", err)
	}
	if err := files.Trusted(base); err != nil {
		return "", fmt.Errorf("run directory: %w (choose another with --run-dir or TMPDIR)", err)
	}
	return base, nil
}

// NamedDir is NewRunDir for a directory that has the same name each time: name, or name-2 and so on while living owners have it. While one
// is made or removed, base is locked: else a directory could be removed that another process has just made again.
func NamedDir(base, name string) (*RunDir, error) {
	base, err := trusted(base)
	if err != nil {
		return nil, err
	}
	defer locked(base)()
	for n := 1; ; n++ {
		d := &RunDir{Path: filepath.Join(base, name), named: true}
		if n > 1 {
			d.Path += "-" + strconv.Itoa(n)
		}
		removeDead(d.Path)
		if err = os.Mkdir(d.Path, 0o700); err == nil {
			err = d.claim()
		}
		switch {
		case err == nil:
			return d, nil
		case !errors.Is(err, fs.ErrExist) || n == mostNamed:
			d.release()
			return nil, fmt.Errorf("run directory: %w", cause(err, d.Path))
		}
	}
}

// locked locks a directory until unlock, if its file system can.
func locked(dir string) (unlock func()) {
	f, err := os.Open(dir)
	if err != nil {
		return func() {}
	}
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	return func() { _ = f.Close() }
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
	if d.named {
		defer locked(filepath.Dir(d.Path))()
	}
	err := errors.Join(remove(d.Path), d.release())
	if d.note != "" && err == nil {
		_ = os.Remove(d.note)
		_ = os.Remove(filepath.Dir(d.note)) // if it was the last
	}
	return err
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
		if !runDir(e.Name()) || !e.IsDir() {
			continue
		}
		removeDead(filepath.Join(base, e.Name()))
	}
}

// removeDead removes a run directory whose owner is dead.
func removeDead(dir string) {
	if os.Remove(dir) == nil { // it was empty
		return
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer f.Close()
	var st syscall.Stat_t
	mine := syscall.Fstat(int(f.Fd()), &st) == nil && int(st.Uid) == os.Getuid() && (st.Size == lockBytes || st.Size == 0)
	if mine && syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		_ = remove(dir)
	}
}

// Note keeps d's path in a folder of notes until Close. Before, the run directories of that folder's notes whose owners are dead are
// removed, wherever they are: a sweep sees only those beside its own. A folder that cannot be written to, or that others can, has no notes.
func (d *RunDir) Note(folder string) {
	if os.MkdirAll(folder, 0o700) != nil || files.Trusted(folder) != nil {
		return
	}
	notes, _ := os.ReadDir(folder)
	for _, e := range notes {
		note := filepath.Join(folder, e.Name())
		dir, err := os.Readlink(note)
		if err != nil || !runDir(filepath.Base(dir)) {
			continue
		}
		removeDead(dir)
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(note)
		}
	}
	if note := filepath.Join(folder, filepath.Base(d.Path)); os.Symlink(d.Path, note) == nil {
		d.note = note
	}
}

// runDir reports whether NewRunDir gives such names.
func runDir(name string) bool {
	number, ok := strings.CutPrefix(name, dirPrefix)
	_, err := strconv.ParseUint(number, 10, 64)
	return ok && err == nil
}

// cause reduces a path error to the directory asked for and the reason.
func cause(err error, base string) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return fmt.Errorf("%s: %w", base, errno)
	}
	return err
}
