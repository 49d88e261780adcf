package open

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// A draft with states that has no output matrix multiplies by its target's, often the largest of all. On one machine both processes map it
// from one memory file: Shared. The target packs it and puts it there; the draft loads everything else meanwhile, and then waits for it.

// output returns the bytes of the output matrix, if a target can lend it or a draft with states borrows it as a whole; else 0.
func (p *Planned) output() int64 {
	w := p.Weights.Head
	if w == kernels.None || !p.Matrices[w].Whole() || p.Draft != nil && p.Draft.Borrows() == nil {
		return 0
	}
	if x := &p.Pass.Program.Weights[w]; x.Layout == kernels.Groups16 {
		return int64(x.Bytes())
	}
	return 0
}

// lends reports whether l is a target that puts its output matrix where drafts find it.
func (l *Loaded) lends() bool {
	s := l.Options.Shared
	return s != nil && s.Output && l.Draft == nil
}

// lending tells drafts, until end is called, that the target is there and will lend.
func (l *Loaded) lending() (end func()) {
	if unlock, err := lock(l.Options.Shared.File, l.Options, 0); err == nil {
		return unlock
	}
	return func() {}
}

// lend puts the packed output matrix into memory that is empty, and maps it from there in place of its own. After an error it has it still.
func (l *Loaded) lend() error {
	f, i := l.Options.Shared.File, l.Image
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return err
	}
	if seals == 0 {
		if err = l.fillLent(f); err != nil {
			err = errors.Join(err, f.Truncate(0)) // so that no draft waits
		}
		_, sealed := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, shareSeals)
		if err = errors.Join(err, sealed); err != nil {
			return err
		}
	}
	if i == nil {
		return errUnlent
	}
	at, err := find(f, i.told.Key, &l.Matrices[l.Weights.Head])
	if err != nil {
		return err
	}
	from, to := i.store.Place(l.Weights.Head)
	return i.store.Map(f.Fd(), at, from, to)
}

var errUnlent = errors.New("its output matrix does not lie in the processor's memory as a draft reads it")

// fillLent writes the output matrix and its description.
func (l *Loaded) fillLent(f *os.File) error {
	if err := f.Truncate(0); err != nil || l.Image == nil || l.output() == 0 {
		return errors.Join(err, errUnlent)
	}
	i, w := l.Image, l.Weights.Head
	from, to := i.store.Place(w)
	t := i.told
	t.Matrices = slices.DeleteFunc(slices.Clone(t.Matrices), func(m imageMatrix) bool { return m.At != from })
	t.Matrices[0].At = 0
	to0 := io.NewOffsetWriter(f, 0)
	if _, err := to0.Write(i.bytes[from:to]); err != nil {
		return err
	}
	return t.write(to0)
}

// find returns where in a full memory file a matrix lies. The file's key must begin with key.
func find(f *os.File, key string, m *tensors.Matrix) (at int64, err error) {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return 0, err
	}
	if seals != shareSeals {
		return 0, fmt.Errorf("the memory file has the seals %#x: want %#x", seals, shareSeals)
	}
	t, size, err := readTable(f, 0)
	switch {
	case err != nil:
		return 0, err
	case !strings.HasPrefix(t.Key, key) || t.Layout != kernels.LayoutVersion:
		return 0, errors.New("the target's file has changed since, or another release made it")
	}
	want := imageMatrix{m.Tensor.Name, m.Kind(), m.Rows, m.Cols(), 0}
	for _, x := range t.Matrices {
		at := x.At
		if x.At = 0; x == want && at >= 0 && int64(at) <= size-m.Packed() {
			return int64(at), nil
		}
	}
	return 0, fmt.Errorf("it has no matrix %q of %d rows", want.Name, want.Rows)
}

// borrows returns the target's output matrix if a draft is to map it whole, nil if not, and why it cannot.
func (p *Planned) borrows() (m *tensors.Matrix, why error) {
	if p.Draft == nil {
		return nil, nil
	}
	m = p.Draft.Borrows()
	d, lendable := p.Device.(kernels.Lendable)
	switch {
	case m == nil:
	case !m.Whole():
		why = fmt.Errorf("it knows %d of its target's %d outputs", m.Rows, m.Tensor.Shape[1])
	case p.Options.Lender != nil:
		why = p.Options.Lender.lendsTo(p, m)
	case p.Options.Shared == nil:
		m = nil
	case !lendable:
		why = fmt.Errorf("%s wants its bytes in another order", p.Device.About().Name)
	default:
		why = d.Borrows()
	}
	return m, why
}

// lendsTo returns why a draft in l's process does not multiply by l's output matrix, which is m to it; nil: it can.
func (l *Loaded) lendsTo(p *Planned, m *tensors.Matrix) error {
	w := l.Weights.Head
	_, lendable := p.Device.(kernels.Lendable)
	_, streamed := l.Store.(kernels.FileStore)
	_, near := l.Store.(kernels.ImageStore)
	switch {
	case streamed:
		return errors.New("its target's weights are read from the disk")
	case !lendable || l.Device != p.Device && !near:
		return errUnlent
	case l.Matrices[w].Tensor.Name != m.Tensor.Name || !l.Matrices[w].Whole():
		return errors.New("its target has another")
	}
	return nil
}

// pack makes the weights of matrices ready; of is the target's file, of a draft with states.
func (l *Loaded) pack(matrices []tensors.Matrix, to tensors.Filling, of *gguf.File) error {
	m, why := l.borrows()
	if l.Apart = why; m != nil && why == nil {
		all := to
		if to.Lookup = slices.Clone(to.Lookup); !slices.Contains(to.Lookup, m.Tensor) {
			to.Lookup = append(to.Lookup, m.Tensor)
		}
		if err := tensors.Fill(matrices[:len(matrices)-1], to, l.Options.Progress); err != nil {
			return err
		}
		if l.Apart = l.borrow(m, of); l.Apart == nil {
			l.Mapped = int64(l.Pass.Program.Weights[l.Weights.Head].Bytes())
			return nil
		}
		if err := memory.Free().Fits(l.Path, memory.Footprint{Weights: l.Footprint.Output}); err != nil {
			return err
		}
		to, to.Cache, to.Lookup, to.Add = all, nil, nil, func(*gguf.Tensor, int, []byte) {} // these were added
	}
	return tensors.Fill(matrices, to, l.Options.Progress)
}

// borrow has passes read the last weight, m, from the target's memory.
func (l *Loaded) borrow(m *tensors.Matrix, of *gguf.File) error {
	store, ok := l.Store.(kernels.Borrower)
	if !ok {
		return fmt.Errorf("%s borrows no weights", l.Device.About().Name)
	}
	if t := l.Options.Lender; t != nil {
		return store.Share(l.Weights.Head, t.Store, t.Weights.Head)
	}
	f := l.Options.Shared.File
	stamp, err := of.Stamp()
	if err == nil {
		err = l.await(f)
	}
	if err != nil {
		return err
	}
	at, err := find(f, stamp+" ", m)
	if err != nil {
		return err
	}
	if l.lent, err = unix.Mmap(int(f.Fd()), at, int(m.Packed()), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("the system refuses to map %d bytes at %d: %w", m.Packed(), at, err)
	}
	if l.Options.Lock {
		if err = unix.Mlock(l.lent); err != nil {
			err = fmt.Errorf("lock memory: %w", err)
		}
	}
	if err == nil {
		err = store.Lend(l.Weights.Head, l.lent)
	}
	if err != nil {
		_ = unix.Munmap(l.lent)
		l.lent = nil
	}
	return err
}

// await waits until a target has filled f, for as long as it does so, and for a while if none does.
func (l *Loaded) await(f *os.File) error {
	patience := cmp.Or(l.Options.Shared.Patience, 10*time.Second)
	for since := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
		if err != nil || seals != 0 {
			return err
		}
		held := unix.Flock_t{Type: unix.F_WRLCK}
		if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &held); err == nil && held.Type != unix.F_UNLCK {
			since = time.Now()
		}
		if time.Since(since) > patience {
			return fmt.Errorf("no target has put it there in %v", patience)
		}
		if l.Options.Progress != nil {
			l.Options.Progress(0, l.Footprint.Output)
		}
	}
}
