package files

import (
	"os"
	"sync"
	"syscall"
	"time"
)

// Followed is what was read of some files. Whoever asks for it gets what they hold now: they are read again when one of them was written or
// replaced. If that cannot be used, what was read before stays, and the reason is reported once, however often it is asked for. Safe
// for concurrent use.
type Followed[T any] struct {
	paths   []string
	read    func() (T, error)
	refused func(why error) // may be nil
	again   time.Duration   // after which what could not be used is read again, though it has not changed: the process was out of files

	mu    sync.Mutex
	now   T
	marks []mark // of the files when they were last read
	said  string // what was wrong then
	tried time.Time
}

// Follow reads files with read, and returns what it has read. refused gets the reason why later ones cannot be used; it is called from Now
// and must not call it. Errors: those of read.
func Follow[T any](read func() (T, error), refused func(why error), paths ...string) (*Followed[T], error) {
	f := &Followed[T]{paths: paths, read: read, refused: refused, again: time.Second, marks: marksOf(paths)}
	var err error
	f.now, err = read()
	return f, err
}

// Now returns what the files hold, or held when they could last be used.
func (f *Followed[T]) Now() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	marks := marksOf(f.paths) // before they are read: what is written meanwhile counts as new the next time
	if same(marks, f.marks) && (f.said == "" || time.Since(f.tried) < f.again) {
		return f.now
	}
	f.marks, f.tried = marks, time.Now()
	next, err := f.read()
	if err == nil {
		f.now, f.said = next, ""
		return next
	}
	if why := err.Error(); why != f.said {
		if f.said = why; f.refused != nil {
			f.refused(err)
		}
	}
	return f.now
}

// mark tells one state of a file from another; the zero mark: there is no file that can be seen.
type mark struct {
	device, inode uint64
	changed       time.Time
	size          int64
	mode          os.FileMode
}

func marksOf(paths []string) []mark {
	out := make([]mark, len(paths))
	for i, path := range paths {
		st, err := os.Stat(path)
		if err != nil {
			continue
		}
		out[i] = mark{changed: st.ModTime(), size: st.Size(), mode: st.Mode()}
		if of, ok := st.Sys().(*syscall.Stat_t); ok {
			out[i].device, out[i].inode = uint64(of.Dev), of.Ino
		}
	}
	return out
}

func same(a, b []mark) bool {
	for i := range a {
		if a[i].device != b[i].device || a[i].inode != b[i].inode || !a[i].changed.Equal(b[i].changed) || a[i].size != b[i].size ||
			a[i].mode != b[i].mode {
			return false
		}
	}
	return true
}
