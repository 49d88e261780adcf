package stream

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/sum"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// File is an open packed file.
type File interface {
	io.ReaderAt
	Close() error // of the file; reads that are under way end with an error
}

// Fault is a packed or model file that cannot be read, or whose bytes are not those that were written: the pass has no result.
type Fault struct {
	File string
	At   int64 // byte
	Err  error
}

func (f *Fault) Error() string {
	return fmt.Sprintf("streamed weights: %s cannot be read at byte %d: %v", f.File, f.At, f.Err)
}

func (f *Fault) Unwrap() error { return f.Err }

var (
	errChanged = errors.New("its bytes have changed since it was made: checksum")
	errCut     = errors.New("it ends there: somebody has cut it")
	errClosed  = errors.New("stream: the weights are closed")
)

// openDirect opens a file past the system's page cache, or, where the file system refuses that (direct false), as usual.
func openDirect(path string) (f *os.File, direct bool, err error) {
	if f, err = files.OpenFile(path, unix.O_DIRECT); err == nil {
		b, err := allocate(page, false)
		if err == nil {
			_, err = f.ReadAt(b, 0)
			release(b)
		}
		if err == nil {
			return f, true, nil
		}
		f.Close()
	}
	f, err = files.Open(path)
	return f, false, err
}

// packed is the feed from a packed file.
type packed struct {
	path   string
	file   File
	direct bool
	table  *table
	first  map[kernels.W]int // per weight of a stage: the number of its first checksum
	looks  map[kernels.W]int
	all    []uint32 // checksums
}

func newPacked(path string, t *table, sums []uint32, stages []stage, looks []*lookup) *packed {
	f := &packed{path: path, table: t, all: sums, first: map[kernels.W]int{}, looks: map[kernels.W]int{}}
	n := 0
	for _, s := range stages {
		for _, e := range s.weights {
			f.first[e.w] = n
			n += e.groups
		}
	}
	for _, l := range looks {
		f.looks[l.w] = n
		n += l.groups
	}
	return f
}

func (f *packed) readers() int { return readers }

func (f *packed) blocks(stage int) int { return blocksOf(f.table.Stages[stage].Bytes) }

// span returns where block i of an extent lies in it.
func span(bytes int64, i int) (from, to int64) {
	from = int64(i) * blockBytes
	return from, min(from+blockBytes, bytes)
}

func (f *packed) block(stage, i int, mem []byte, _ *scratch) (int64, error) {
	s := &f.table.Stages[stage]
	from, to := span(s.Bytes, i)
	if err := f.readAt(mem[from:to], s.At+from); err != nil {
		return 0, err
	}
	return to - from, nil
}

func (f *packed) sums(_ int, e extent) []uint32 { return f.all[f.first[e.w]:][:e.groups] }

// compare finds the first group whose checksum differs.
func (f *packed) compare(stage int, e extent, mem []byte) error {
	group := e.size / int64(e.groups)
	for i, want := range f.sums(stage, e) {
		if at := e.at + group*int64(i); sum.Of(mem[at:at+group]) != want {
			return &Fault{f.path, f.table.Stages[stage].At + at, errChanged}
		}
	}
	return nil
}

// expert reads whole pages: the region has room for what lies before and behind.
func (f *packed) expert(l *lookup, number int, region []byte, _ *scratch) (int64, error) {
	from := l.home + l.group*int64(number)
	low, high := from&^(page-1), pages(from+l.group)
	if err := f.readAt(region[:high-low], low); err != nil {
		return 0, err
	}
	if sum.Of(region[from-low:][:l.group]) != f.all[f.looks[l.w]+number] {
		return high - low, &Fault{f.path, from, errChanged}
	}
	return high - low, nil
}

// rows reads whole pages. Where they hold bytes of other groups too, they are read aside: a group that is there has been checked, and
// nothing may be written over it.
func (f *packed) rows(l *lookup, group int, own *scratch) (n int64, err error) {
	dst := l.bytes()[l.group*int64(group):][:l.group]
	from := l.home + l.group*int64(group) // in the file
	var read sum.Sum
	if from%page == 0 && l.group%page == 0 {
		if err := f.readAt(dst, from); err != nil {
			return 0, err
		}
		n = l.group
		read.Add(dst)
	} else {
		for at, end := from, from+l.group; at < end; {
			low := at &^ (page - 1)
			high := min(low+asideBytes, pages(end))
			buf, err := own.aligned(high - low)
			if err != nil {
				return n, err
			}
			if err := f.readAt(buf, low); err != nil {
				return n, err
			}
			part := buf[at-low : min(high, end)-low]
			read.Add(part)
			copy(dst[at-from:], part)
			n, at = n+high-low, high
		}
	}
	if read.Value() != f.all[f.looks[l.w]+group] {
		return n, &Fault{f.path, from, errChanged}
	}
	return n, nil
}

// rate reads the blocks from byte first on in turn for about long, and returns the bytes per second.
func (f *packed) rate(first int64, long time.Duration) (float64, error) {
	var (
		next, read atomic.Int64
		wg         sync.WaitGroup
		once       sync.Once
		failed     error
	)
	blocks := (f.table.Bytes - first) / blockBytes
	if blocks == 0 {
		return 0, &Fault{f.path, 0, errors.New("it is too small for a measurement")}
	}
	begun := time.Now()
	for range readers {
		wg.Go(func() {
			own := new(scratch)
			defer own.free()
			b, err := own.aligned(blockBytes)
			for err == nil && time.Since(begun) < long {
				i := next.Add(1) - 1
				if err = f.readAt(b, first+i%blocks*blockBytes); err == nil {
					read.Add(blockBytes)
				}
			}
			if err != nil {
				once.Do(func() { failed = err })
			}
		})
	}
	wg.Wait()
	return float64(read.Load()) / time.Since(begun).Seconds(), failed
}

// readAt fills b. A read that stops early is continued.
func (f *packed) readAt(b []byte, at int64) error {
	for len(b) > 0 {
		n, err := f.file.ReadAt(b, at)
		if n > 0 && !f.direct {
			forget(f.file, at, int64(n))
		}
		b, at = b[n:], at+int64(n)
		switch {
		case len(b) == 0:
		case errors.Is(err, io.EOF):
			return &Fault{f.path, at, errCut}
		case err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN):
			return &Fault{f.path, at, reason(err)}
		case err == nil && n == 0:
			return &Fault{f.path, at, io.ErrNoProgress}
		}
	}
	return nil
}

// forget drops what was read or written from the system's page cache.
func forget(f any, at, n int64) {
	if file, ok := f.(*os.File); ok {
		_ = unix.Fadvise(int(file.Fd()), at, n, unix.FADV_DONTNEED)
	}
}

// reason returns an error without its operation and path.
func reason(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// writer writes a packed file.
type writer struct {
	*weights
	src      kernels.Source
	table    *table
	layout   *packed
	file     *os.File
	direct   bool
	progress func(done, total int64)
	done     int64
	looked   map[*lookup]*sum.Sum // of the group of rows that is written
}

// write makes the packed file at path, which is not there yet, and leaves the resident stages in memory. The header is written last,
// so that a file that is cut off is no packed file.
func (w *weights) write(ctx context.Context, path string, src kernels.Source, t *table, progress func(done, total int64)) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_DIRECT, 0o600)
	direct := err == nil
	if errors.Is(err, unix.EINVAL) {
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	}
	if err != nil {
		return err
	}
	filled := *t
	out := &writer{weights: w, src: src, table: &filled, layout: newPacked(path, &filled, make([]uint32, len(t.Sums)/8), w.stages, w.looks),
		file: f, direct: direct, progress: progress, looked: map[*lookup]*sum.Sum{}}
	err = out.all(ctx)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

func (w *writer) all(ctx context.Context) error {
	// Space that is missing is known now. Some file systems cannot say.
	if err := unix.Fallocate(int(w.file.Fd()), 0, 0, w.table.Bytes); errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return err
	}
	live := &live{weights: w.weights, src: w.src}
	for i := range w.stages {
		if err := w.stage(ctx, live, i); err != nil {
			return err
		}
	}
	for i, l := range w.looks {
		if err := w.look(ctx, live, l, w.table.Looked[i]); err != nil {
			return err
		}
	}
	sums := make([]byte, 0, 4*len(w.layout.all))
	for _, s := range w.layout.all {
		sums = binary.LittleEndian.AppendUint32(sums, s)
	}
	w.table.Sums = hex.EncodeToString(sums)
	if err := w.file.Sync(); err != nil {
		return err
	}
	header := w.table.header()
	buf, err := allocate(pages(int64(len(header))), false)
	if err != nil {
		return err
	}
	defer release(buf)
	copy(buf, header)
	if err := w.write(buf, 0); err != nil {
		return err
	}
	return w.file.Sync()
}

// stage packs a stage in its memory, or that of the first slot, and writes it.
func (w *writer) stage(ctx context.Context, live *live, i int) error {
	s := &w.stages[i]
	if s.size == 0 {
		return nil
	}
	mem := w.memoryOf(i)
	if err := w.fillStage(ctx, live, i, mem); err != nil {
		return err
	}
	if pad := s.weights[len(s.weights)-1]; pad.at+pad.size < s.size {
		clear(mem[pad.at+pad.size : s.size])
	}
	at := w.table.Stages[i].At
	for b := range w.layout.blocks(i) {
		from, to := span(s.size, b)
		if err := w.write(mem[from:to], at+from); err != nil {
			return err
		}
		w.tell(to - from)
	}
	for _, e := range s.weights {
		group := e.size / int64(e.groups)
		for g := range e.groups {
			w.layout.all[w.layout.first[e.w]+g] = sum.Of(mem[e.at+group*int64(g):][:group])
		}
	}
	for k, l := range w.looks {
		if row := w.table.Looked[k]; !row.Own && row.At >= at && row.At < at+s.size {
			w.sumGroups(l, 0, mem[row.At-at:][:l.group*int64(l.groups)])
		}
	}
	return nil
}

// sumGroups adds bytes of a matrix, from byte at on, to the checksums of its groups of rows.
func (w *writer) sumGroups(l *lookup, at int64, b []byte) {
	for len(b) > 0 {
		n := min(l.group-at%l.group, int64(len(b)))
		if at%l.group == 0 {
			w.looked[l] = new(sum.Sum)
		}
		w.looked[l].Add(b[:n])
		w.layout.all[w.layout.looks[l.w]+int(at/l.group)] = w.looked[l].Value()
		at, b = at+n, b[n:]
	}
}

// look packs and writes a matrix that is only looked up, a few groups at a time.
func (w *writer) look(ctx context.Context, live *live, l *lookup, row lookedRow) error {
	if !row.Own {
		return nil
	}
	m := &w.prog.Weights[l.w]
	sixteen := int64(m.Each() / ((m.Rows + kernels.GroupRows - 1) / kernels.GroupRows)) // bytes of as many rows
	buf, err := allocate(2*blockBytes+pages(2*sixteen*int64(w.longest(l.w)/kernels.GroupRows+1)), true)
	if err != nil {
		return err
	}
	defer release(buf)
	held, at, done := int64(0), row.At, int64(0)
	own := new(scratch)
	flush := func(n int64) error {
		if err := w.write(buf[:n], at); err != nil {
			return err
		}
		copy(buf, buf[n:max(held, n)])
		held, at = max(held-n, 0), at+n
		w.tell(n)
		return nil
	}
	for i := range w.src.Pieces(l.w) {
		if err := ctx.Err(); err != nil {
			return err
		}
		from, to := w.src.Rows(l.w, i)
		b, err := live.read(l.w, i, own)
		if err != nil {
			return err
		}
		groups := int64((to-from)+kernels.GroupRows-1) / kernels.GroupRows
		part := *m // of one expert or, where whole groups make an expert, of several
		part.Rows, part.Experts = to-from, 0
		dst := buf[held : held+groups*sixteen]
		if err := w.cfg.Pack(dst, part, 0, b); err != nil {
			return err
		}
		w.sumGroups(l, done, dst)
		done += groups * sixteen
		if held += groups * sixteen; held >= blockBytes {
			if err := flush(held &^ (page - 1)); err != nil {
				return err
			}
		}
	}
	clear(buf[held:pages(held)])
	return flush(pages(held))
}

// longest returns the most rows of a piece.
func (w *writer) longest(m kernels.W) (n int) {
	for i := range w.src.Pieces(m) {
		from, to := w.src.Rows(m, i)
		n = max(n, to-from)
	}
	return n
}

// write writes whole pages, which do not stay in the system's page cache.
func (w *writer) write(b []byte, at int64) error {
	if _, err := w.file.WriteAt(b, at); err != nil {
		return err
	}
	if !w.direct {
		if err := unix.Fdatasync(int(w.file.Fd())); err != nil {
			return err
		}
		forget(w.file, at, int64(len(b)))
	}
	return nil
}

func (w *writer) tell(n int64) {
	if w.done += n; w.progress != nil {
		w.progress(w.done, w.table.Bytes)
	}
}

// fillStage brings all blocks of a stage into mem and compares them, on all cores.
func (w *weights) fillStage(ctx context.Context, f feed, stage int, mem []byte) error {
	var (
		next  atomic.Int64
		wg    sync.WaitGroup
		once  sync.Once
		first error
	)
	blocks := f.blocks(stage)
	for range min(max(f.readers(), runtime.NumCPU()), blocks) {
		wg.Go(func() {
			own := new(scratch)
			defer own.free()
			for i := int(next.Add(1)) - 1; i < blocks; i = int(next.Add(1)) - 1 {
				err := ctx.Err()
				if err == nil {
					_, err = f.block(stage, i, mem, own)
				}
				if err != nil {
					once.Do(func() { first = err })
					next.Store(int64(blocks))
				}
			}
		})
	}
	wg.Wait()
	if first != nil {
		return first
	}
	for _, e := range w.stages[stage].weights {
		wg.Go(func() {
			if err := f.compare(stage, e, mem); err != nil {
				once.Do(func() { first = err })
			}
		})
	}
	wg.Wait()
	return first
}
