package open

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem/engine/memory"
)

// Shared is memory for packed weights that processes of one machine have once: a memory file that whoever starts them has made empty
// (NewShared) and hands to each. The first fills it, with what Image.Write writes, and seals it; all map it read-only. A process that is
// started again finds it full, and reads nothing.
//
// A draft with states maps from there what it borrows of its target: see borrow.
type Shared struct {
	File     *os.File
	Output   bool          // the target's output matrix alone lies there, for drafts; the target has its other weights in memory of its own
	Patience time.Duration // how long a draft waits for a target that is not there; 0: ten seconds, in which one that is to be started is
	// Refused is told why the process with that model has weights of its own nevertheless.
	Refused func(model string, why error)
}

// shareSeals say that a memory file is full: nobody can write to it, or change its size or its seals.
const shareSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL

// NewShared makes an empty memory file, which the caller closes.
func NewShared() (*os.File, error) {
	fd, err := unix.MemfdCreate("tandem-weights", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memory file: %w", err)
	}
	return os.NewFile(uintptr(fd), "weights"), nil
}

// Full reports whether others have filled s. A nil Shared is not full.
func (s *Shared) Full() bool {
	if s == nil {
		return false
	}
	seals, err := unix.FcntlInt(s.File.Fd(), unix.F_GET_SEALS, 0)
	return err == nil && seals == shareSeals
}

// Less returns what a target takes of p: not what lies in s already.
func (s *Shared) Less(p memory.Footprint) memory.Footprint {
	switch {
	case !s.Full():
	case s.Output:
		p.Weights -= p.Output
	default:
		p.Weights = p.Beside
	}
	return p
}

// share maps what o.Shared has. If that is empty, it is filled from a kept file, or with weights that are packed (i.told.Digest is set).
// digest is "" if there are none yet. After an error the weights may have any bytes, unless they are packed.
func (i *Image) share(o Options) (digest string, err error) {
	f := o.Shared.File
	unlock, err := lock(f, o, len(i.bytes))
	if err != nil {
		return "", err
	}
	defer unlock()
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err == nil && seals == 0 {
		switch err = f.Truncate(0); { // what a process has left that died while it filled it
		case err != nil:
		case i.told.Digest != "":
			if err = i.write(context.Background(), io.NewOffsetWriter(f, 0)); err != nil {
				break
			}
			fallthrough
		case o.Images != nil && i.kept(o.Images, f) != "":
			seals = shareSeals
			_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
		default:
			return "", nil
		}
	}
	if err != nil {
		return "", err
	}
	if seals != shareSeals {
		return "", fmt.Errorf("the memory file has the seals %#x: want %#x", seals, shareSeals)
	}
	t, err := i.describe(f)
	if err == nil {
		err = i.store.Map(f.Fd(), 0, 0, len(i.bytes))
	}
	if err != nil {
		return "", err
	}
	_ = unix.Madvise(i.bytes, unix.MADV_COLLAPSE) // into huge pages; few systems let shared memory have them
	return t.Digest, nil
}

// lock waits until no other process fills f with so many bytes.
func lock(f *os.File, o Options, bytes int) (unlock func(), err error) {
	l := unix.Flock_t{Type: unix.F_WRLCK}
	for {
		switch err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &l); err {
		case nil:
			return func() {
				l.Type = unix.F_UNLCK
				_ = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &l)
			}, nil
		case unix.EAGAIN, unix.EACCES, unix.EINTR:
		default:
			return nil, err
		}
		if o.Progress != nil {
			o.Progress(0, int64(bytes)) // others make it
		}
		time.Sleep(5 * time.Millisecond)
	}
}
