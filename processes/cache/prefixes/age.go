package prefixes

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Files keep the wall clock's time of their last use, because it outlives processes. A step of that clock must not make them old, so the
// folder also keeps when it was last looked at (the time of the file .clock). Where the wall clock has gone further since then than time
// has passed, or has gone back, the times of all files are moved by the difference. What passes while no process has the store open counts
// up to half of Config.Age.
const (
	clockFile = ".clock"
	slack     = time.Minute // steps below are not looked for
)

// moment is when a store looked at its folder.
type moment struct {
	wall time.Time
	ran  time.Duration // time on a clock that nobody sets
}

var started = time.Now()

// wallAndRan is what Config.clock is but in tests.
func wallAndRan() (wall time.Time, ran time.Duration) {
	return time.Now().Round(0), time.Since(started)
}

// now returns the time of the last look and what has passed since.
func (s *Store) now() time.Time {
	_, ran := s.cfg.clock()
	at := s.looked.Load()
	return at.wall.Add(ran - at.ran)
}

// old reports whether a file was not used for too long.
func (s *Store) old(st fs.FileInfo) bool {
	return s.cfg.Age > 0 && s.now().Sub(st.ModTime()) > s.cfg.Age
}

// look notes that the folder is looked at now. It returns by how much the times of its files have to be moved; done is to be called when
// they were. Meanwhile no other process looks. A folder that cannot keep the time of a look has none.
func (s *Store) look() (now time.Time, move time.Duration, done func()) {
	wall, ran := s.cfg.clock()
	before := s.looked.Swap(&moment{wall, ran})
	none := func() {}
	if s.cfg.Age == 0 {
		return wall, 0, none
	}
	path := filepath.Join(s.cfg.Dir, clockFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return wall, 0, none
	}
	done = func() {
		_ = os.Chtimes(path, wall, wall)
		_ = f.Close()
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX) != nil {
		return wall, 0, done
	}
	st, err := f.Stat()
	if err != nil {
		return wall, 0, done
	}
	if st.Size() == 0 { // just made
		_, _ = f.Write([]byte{'\n'})
		return wall, 0, done
	}
	passed, gone := s.cfg.Age/2, wall.Sub(st.ModTime())
	if before != nil {
		passed = ran - before.ran
	}
	switch {
	case gone < -slack:
		move = gone
	case gone > passed+slack:
		move = gone - passed
	}
	return wall, move, done
}
