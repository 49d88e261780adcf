package cache

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// lock is a shared or exclusive lock on an entry: flock on the entry's mark, which ends with the process. The mark is removed
// with its entry, so a lock counts only if the mark is still the file that was locked.
type lock struct {
	file *os.File
	path string
}

// pollTime is the time between two attempts at a lock that others hold, since a waiting flock cannot be cancelled.
const pollTime = 50 * time.Millisecond

// share locks the entry in dir against removal. It returns nil if there is none. While it waits, grown is called when the file that another
// process makes there is written.
func share(ctx context.Context, dir string, tell func(string), grown func()) (*lock, error) {
	l, err := acquire(ctx, dir, os.O_RDONLY, syscall.LOCK_SH, tell, grown)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return l, err
}

// own locks the entry in dir, which may be new, for the caller alone.
func own(ctx context.Context, dir string, tell func(string), grown func()) (*lock, error) {
	return acquire(ctx, dir, os.O_RDWR|os.O_CREATE, syscall.LOCK_EX, tell, grown)
}

// tryOwn is own for an entry that nobody uses; nil if somebody does, or there is none.
func tryOwn(dir string) *lock { return try(dir, syscall.LOCK_EX) }

// try locks the entry in dir as `how` says; nil if somebody's lock does not allow that, or there is no entry.
func try(dir string, how int) *lock {
	f, err := os.Open(filepath.Join(dir, lockName))
	if err != nil {
		return nil
	}
	l := &lock{f, f.Name()}
	if syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB) != nil || !l.current() {
		f.Close()
		return nil
	}
	return l
}

func acquire(ctx context.Context, dir string, flags, how int, tell func(string), grown func()) (*lock, error) {
	if err := files.Trusted(dir); err != nil {
		return nil, err
	}
	path, last := filepath.Join(dir, lockName), written(dir)
	for polls := 0; ; {
		f, err := os.OpenFile(path, flags, 0o600)
		if errors.Is(err, fs.ErrNotExist) && flags&os.O_CREATE != 0 { // the folder went with the entry
			if err = os.MkdirAll(dir, 0o700); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		l := &lock{f, path}
		for {
			err = syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
			if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
				break
			}
			if now := written(dir); now != last {
				last = now
				grown()
			}
			if polls++; polls == 3 { // not at once: List holds each lock for a moment
				tell("waiting for another tandem that makes or uses " + filepath.Base(dir))
			}
			select {
			case <-time.After(pollTime):
			case <-ctx.Done():
				f.Close()
				return nil, ctx.Err()
			}
		}
		if err != nil {
			f.Close()
			return nil, tandem.Errorf(op, tandem.Unavailable, "locking %s: %w: want a file system with locks: --cache DIR", path, err)
		}
		if l.current() {
			if err := files.Trusted(dir); err != nil { // another user may have made it meanwhile
				f.Close()
				return nil, err
			}
			return l, nil
		}
		f.Close()
	}
}

// written returns when the file that is being made in dir was last written, in nanoseconds of Unix time, 0 if there is none.
func written(dir string) int64 {
	st, err := os.Stat(filepath.Join(dir, partName))
	if err != nil {
		return 0
	}
	return st.ModTime().UnixNano()
}

// current reports whether the mark is still the file that was locked.
func (l *lock) current() bool {
	here, err1 := l.file.Stat()
	there, err2 := os.Stat(l.path)
	return err1 == nil && err2 == nil && os.SameFile(here, there)
}

// downgrade turns an exclusive lock into a shared one. It reports false, and ends the lock, if the entry was removed in between.
func (l *lock) downgrade() bool {
	for {
		err := syscall.Flock(int(l.file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err == nil && l.current() {
			return true
		}
		l.release()
		return false
	}
}

// release ends the lock.
func (l *lock) release() { l.file.Close() }
