package hub

import (
	"context"
	"encoding/binary"
	"errors"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// transfer fetches one file into a folder. It consists of two files there:
//
//	NAME.tandem.incomplete   the bytes; as long as the file from the beginning, with holes
//	NAME.tandem.pieces       a line that says which file it is, then a record for each piece that was written, with its checksum
//
// A piece is written, and then its record. Whoever goes on after a kill, or after the machine has lost power, reads the pieces again that
// have records, and keeps those whose checksums are right. Neither the length of a file nor the order in which a disk has written matters.
//
// Workers take runs of missing pieces. One whose connection breaks or stalls asks again for the rest of its run. One more goroutine follows
// with the digest.
type transfer struct {
	s        *session
	b        *blob
	dir      *os.Root // of the store
	at       string   // path of the finished file in it
	progress func(done int64)
	write    func(f *os.File, b []byte, off int64) (int, error) // WriteAt; tests have a full disk
	sum      hash.Hash                                          // gets the file's bytes in their order; nil: the server names no digest

	part, records *os.File
	came          chan struct{} // a piece has come; holds one

	mu    sync.Mutex
	have  []bool // by piece
	taken []bool // had, or being fetched
	left  int    // pieces that nobody has taken
	done  int64  // bytes that are there
}

const (
	connections = 4       // at once, to one server: more gain little and are taken amiss
	pieceBytes  = 1 << 20 // of the unit that is there or missing: a kill loses at most one a connection
	minRun      = 4       // pieces of one request
	maxRun      = 64
	recordBytes = 12 // number of the piece, checksum of its bytes, checksum of these two
	spareDisk   = 256 << 20
	writePieces = 16 // after as many the disk is told to write
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func partPath(at string) string    { return at + ".tandem.incomplete" }
func recordsPath(at string) string { return at + ".tandem.pieces" }

// pieces returns how many pieces a file has.
func (b *blob) pieces() int { return int((b.size + pieceBytes - 1) / pieceBytes) }

// span returns the bytes of a piece.
func (b *blob) span(i int) (from, to int64) {
	from = int64(i) * pieceBytes
	return from, min(from+pieceBytes, b.size)
}

// run fetches what is missing, from several connections if the server sends parts. known is the beginning of the file, if it was read
// already. The caller holds the file's lock. Errors: Exhausted if the disk is full, and those of the session; what was fetched stays.
func (t *transfer) run(ctx context.Context, known []byte, ranged bool) (err error) {
	if err := t.resume(); err != nil {
		return unwritable(err)
	}
	defer func() {
		err = errors.Join(err, t.records.Close(), t.part.Close())
		if full := (*diskError)(nil); errors.As(err, &full) {
			err = unwritable(full.err)
		}
	}()
	for i := range t.have {
		if from, to := t.b.span(i); !t.have[i] && to <= int64(len(known)) {
			if err := t.put(i, known[from:to]); err != nil {
				return err
			}
		}
	}
	t.taken, t.left = append([]bool(nil), t.have...), 0
	for _, have := range t.have {
		if !have {
			t.left++
		}
	}
	if err := t.room(); err != nil {
		return err
	}
	workers := connections
	if !ranged {
		workers = 1
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	all.Go(func() {
		if err := t.follow(ctx); err != nil {
			stop(err)
		}
	})
	for range workers {
		all.Go(func() {
			for {
				from, to, ok := t.take(ranged)
				if !ok {
					return
				}
				if err := t.fetch(ctx, from, to); err != nil {
					stop(err)
					return
				}
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return t.part.Sync()
}

// follow reads the pieces in their order, each once it and those before it are there, into the digest, and has the disk write them: when
// the last one comes, little is left to be done.
func (t *transfer) follow(ctx context.Context) error {
	buf := make([]byte, pieceBytes)
	for i := range t.have {
		for !t.has(i) {
			select {
			case <-t.came:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		from, to := t.b.span(i)
		if i%writePieces == writePieces-1 { // a hint: run ends with Sync
			_ = unix.SyncFileRange(int(t.part.Fd()), to-writePieces*pieceBytes, writePieces*pieceBytes, unix.SYNC_FILE_RANGE_WRITE)
		}
		if t.sum == nil {
			continue
		}
		if _, err := t.part.ReadAt(buf[:to-from], from); err != nil {
			return &diskError{err}
		}
		t.sum.Write(buf[:to-from])
	}
	return nil
}

func (t *transfer) has(i int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.have[i]
}

// resume opens both files, and finds out which pieces are there.
func (t *transfer) resume() (err error) {
	t.have, t.came = make([]bool, t.b.pieces()), make(chan struct{}, 1)
	const flags = os.O_RDWR | os.O_CREATE | syscall.O_NOFOLLOW
	if t.part, err = t.dir.OpenFile(partPath(t.at), flags, 0o644); err != nil {
		return err
	}
	if t.records, err = t.dir.OpenFile(recordsPath(t.at), flags, 0o644); err != nil {
		return errors.Join(err, t.part.Close())
	}
	err = t.part.Truncate(t.b.size)
	if err == nil {
		err = t.check()
	}
	if err != nil {
		return errors.Join(err, t.records.Close(), t.part.Close())
	}
	return nil
}

// check keeps the pieces whose records and checksums are right, and writes the records of these anew.
func (t *transfer) check() error {
	title := t.b.identity() + "\n"
	all, err := io.ReadAll(io.LimitReader(t.records, int64(len(title)+4*recordBytes*len(t.have))))
	if err != nil {
		return err
	}
	kept := []byte(title)
	if len(all) >= len(title) && string(all[:len(title)]) == title {
		buf := make([]byte, pieceBytes)
		for all = all[len(title):]; len(all) >= recordBytes; all = all[recordBytes:] {
			i, sum, ok := readRecord(all)
			if !ok || i >= len(t.have) || t.have[i] {
				continue
			}
			from, to := t.b.span(i)
			if _, err := t.part.ReadAt(buf[:to-from], from); err != nil || crc32.Checksum(buf[:to-from], castagnoli) != sum {
				continue
			}
			t.have[i] = true
			t.done += to - from
			kept = append(kept, all[:recordBytes]...)
		}
	}
	if err := t.records.Truncate(0); err != nil { // a kill between here and the next line loses the pieces, and nothing else
		return err
	}
	if _, err := t.write(t.records, kept, 0); err != nil {
		return err
	}
	_, err = t.records.Seek(0, io.SeekEnd)
	return err
}

func record(i int, sum uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(i))
	b = binary.LittleEndian.AppendUint32(b, sum)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func readRecord(b []byte) (i int, sum uint32, ok bool) {
	return int(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint32(b[4:]),
		crc32.Checksum(b[:8], castagnoli) == binary.LittleEndian.Uint32(b[8:])
}

// room refuses a file for which the disk has no room.
func (t *transfer) room() error {
	free, err := freeBytes(t.part)
	if need := t.b.size - t.done; err == nil && free < need+spareDisk {
		return tandem.Errorf(op, tandem.Exhausted, "%s: %d MiB are to be fetched, and the disk of %s has %d MiB free: want %d", t.s.what,
			need>>20, t.dir.Name(), free>>20, (need+spareDisk)>>20)
	}
	return nil
}

// freeBytes returns how much a user may write to the disk of a file.
func freeBytes(f *os.File) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// take returns a run of missing pieces for a worker: shorter ones towards the end, so that all end at about the same time. Without ranges
// it is one run to the last missing piece. ok is false if nothing is left.
func (t *transfer) take(ranged bool) (from, to int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left == 0 {
		return 0, 0, false
	}
	most := max(minRun, min(maxRun, t.left/(2*connections)))
	for t.taken[from] {
		from++
	}
	for to = from; to < len(t.taken) && (!ranged || to-from < most && !t.taken[to]); to++ {
		if !t.taken[to] {
			t.left--
		}
		t.taken[to] = true
	}
	return from, to, true
}

// fetch fetches the pieces from to to, to excluded.
func (t *transfer) fetch(ctx context.Context, from, to int) error {
	r := retries{s: t.s}
	for from < to {
		at := from
		err := t.stream(ctx, &from, to)
		if from > at {
			r.progress()
		}
		if err == nil {
			continue
		}
		if errors.As(err, new(*diskError)) {
			return err
		}
		if err := r.wait(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

// stream reads pieces by one request. from goes on with each that is written.
func (t *transfer) stream(ctx context.Context, from *int, to int) error {
	ctx, beat, end := stalling(ctx, t.s.stall)
	defer end()
	first, _ := t.b.span(*from)
	_, last := t.b.span(to - 1)
	body, _, err := t.s.open(ctx, t.b, first, last, beat)
	if err != nil {
		return err
	}
	defer body.Close()
	buf := make([]byte, pieceBytes)
	for ; *from < to; *from++ {
		a, b := t.b.span(*from)
		if _, err := io.ReadFull(beating{body, beat}, buf[:b-a]); err != nil {
			return cause(ctx, err)
		}
		if t.have[*from] { // of a server that sends no parts
			continue
		}
		if err := t.put(*from, buf[:b-a]); err != nil {
			return err
		}
	}
	return nil
}

// diskError is an error of writing.
type diskError struct{ err error }

func (d *diskError) Error() string { return d.err.Error() }
func (d *diskError) Unwrap() error { return d.err }

// put writes a piece, and then its record.
func (t *transfer) put(i int, b []byte) error {
	from, _ := t.b.span(i)
	if _, err := t.write(t.part, b, from); err != nil {
		return &diskError{err}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := t.records.Write(record(i, crc32.Checksum(b, castagnoli))); err != nil {
		return &diskError{err}
	}
	t.have[i] = true
	t.done += int64(len(b))
	select {
	case t.came <- struct{}{}:
	default:
	}
	if t.progress != nil {
		t.progress(t.done)
	}
	return nil
}

// unwritable returns the error of a store that cannot be written.
func unwritable(err error) error {
	kind, hint := tandem.Unavailable, ""
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		kind, hint = tandem.Exhausted, "; what was fetched stays, and the next pull goes on there"
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission):
		hint = "; another folder is named by HF_HUB_CACHE, or OLLAMA_MODELS for Ollama's names"
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		return tandem.Errorf(op, kind, "the store cannot be written: %s %s: %w%s", path.Op, path.Path, files.Reason(err), hint)
	}
	return tandem.Errorf(op, kind, "the store cannot be written: %w%s", err, hint)
}

// recorded returns how many bytes of a file another process has fetched, by the length of its records: for showing alone.
func recorded(dir *os.Root, at string, b *blob) int64 {
	st, err := dir.Stat(recordsPath(at))
	if err != nil {
		return 0
	}
	return min(b.size, max(0, st.Size()-int64(len(b.identity())+1))/recordBytes*pieceBytes)
}
