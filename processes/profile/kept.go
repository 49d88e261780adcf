package profile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// Kept are the costs of passes that processes have measured while they serve, so that the next start need not measure them:
//
//	CACHE/costs/BOX.json         a plan without tables; BOX is Box.ID
//	               .lock         held by the process of this box that measures
//	               .earned.json  a plan that holds what drafts brought to answers alone
//	      GPUBOX.placed.json     a plan that holds where targets and drafts were found to be fastest; GPUBOX is a Box with its GPU
//
// Unlike a plan's, they are behind one context, and no user asked for them. The zero value keeps nothing. Safe for concurrent use, also by
// several processes.
type Kept struct {
	Cache   string // the cache's folder; "": nothing is kept
	Version string // of the program: costs of another one do not count
	GPU     string // the GPUs and their driver, for what is placed; "": none
}

// Turn is the right of a process to measure. At most one process of a box has it.
type Turn struct {
	of   Kept
	lock *os.File // nil: nothing is kept, and nobody is asked
}

// file returns the path of the file with that ending.
func (k Kept) file(ending string) string {
	return filepath.Join(k.Cache, "costs", k.box(ending).ID()+ending)
}

// box returns the box that the file with that ending is of.
func (k Kept) box(ending string) Box {
	b := ThisBox()
	if ending == placedFile {
		b.GPU = k.GPU
	}
	return b
}

// Costs returns what is kept of what. Errors: Stale if there is nothing of it, as after another version; Corrupt for a file that is
// damaged, of another box, or that another user can write; Unavailable for one that cannot be read. Then it is measured anew.
func (k Kept) Costs(what What) ([]tandem.Cost, error) {
	p, err := k.read(".json")
	if err != nil {
		return nil, err
	}
	return p.Costs(ThisBox(), k.Version, what)
}

func (k Kept) read(ending string) (*Plan, error) {
	none := tandem.Errorf(op, tandem.Stale, "nothing of it is kept")
	if k.Cache == "" {
		return nil, none
	}
	path := k.file(ending)
	if err := files.Trusted(filepath.Dir(path)); err != nil {
		return nil, corrupt("%w", err)
	}
	switch st, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, none
	case err == nil && st.Mode().Perm()&0o022 != 0:
		return nil, corrupt("%s has mode %04o, so that others could write it: want 0600", path, st.Mode().Perm())
	}
	p, err := Read(path)
	if err == nil && (p.Machine == nil || p.Machine.Box != k.box(ending)) {
		err = corrupt("%s: it was measured on another machine", path)
	}
	return p, err
}

// Turn takes the right to measure; false while another process of this box has it. The caller must End it. Errors: Unavailable where
// nothing can be kept; then it is true, and the turn keeps nothing.
func (k Kept) Turn() (t *Turn, ok bool, err error) {
	if k.Cache == "" {
		return &Turn{}, true, nil
	}
	path := k.file(".lock")
	if err = files.Private(filepath.Dir(path)); err == nil {
		t = &Turn{of: k}
		t.lock, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0o600)
	}
	if err != nil {
		return &Turn{}, true, tandem.Errorf(op, tandem.Unavailable, "%w", err)
	}
	switch err := syscall.Flock(int(t.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR):
		t.End()
		return nil, false, nil
	case err != nil: // a file system without locks
		t.End()
		return &Turn{}, true, tandem.Errorf(op, tandem.Unavailable, "locking %s: %w", path, err)
	}
	return t, true, nil
}

// Keep writes costs, in place of earlier ones of the same what; those that were written first go when there are too many. A file that
// cannot be used is replaced. Errors: Corrupt for impossible costs, Unavailable for a file that cannot be written.
func (t *Turn) Keep(what What, costs []tandem.Cost) error {
	if t.lock == nil {
		return nil
	}
	p, err := t.of.read(".json")
	if err != nil {
		p = &Plan{}
	}
	p = (&Plan{Machine: p.Machine}).Begin(ThisBox(), t.of.Version)
	p.Time(Subject{What: what, Points: Points(costs)})
	m := p.Machine
	m.Subjects = m.Subjects[max(0, len(m.Subjects)-mostSubjects):]
	m.Measured = time.Now().UTC().Truncate(time.Second)
	return p.Write(t.of.file(".json"))
}

// End gives the right back.
func (t *Turn) End() {
	if t.lock != nil {
		t.lock.Close()
	}
}
