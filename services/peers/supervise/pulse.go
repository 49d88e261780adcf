package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PulseFD is the file descriptor of the memory in which a child shows its progress.
const PulseFD = 4

// The memory is a sealed file of one page. Its first line of 64 bytes is written by the supervisor, except the
// number of beats; each further line is a beat of the child's. All words are read and written as atomics.
const (
	pulseBytes = 4096
	lineBytes  = 64
	maxBeats   = pulseBytes/lineBytes - 1
	nameBytes  = lineBytes - 3*8

	wordBeats, wordRestarts, wordKills = 0, 1, 2 // of the first line
	wordDone, wordTime, wordRows       = 0, 1, 2 // of a beat; its name follows
)

type page []byte

func (p page) word(line, i int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&p[line*lineBytes+8*i]))
}

func (p page) name(line int) []byte { return p[(line+1)*lineBytes-nameBytes : (line+1)*lineBytes] }

// newPage makes the memory of one child, with the counts of its predecessors' restarts. The caller closes the file once the child
// has it, and gives the page back by release.
func newPage(restarts, kills int) (page, *os.File, error) {
	fd, err := unix.MemfdCreate("tandem-pulse", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("memory file: %w", err)
	}
	file := os.NewFile(uintptr(fd), "pulse")
	p, err := func() (page, error) {
		if err := unix.Ftruncate(fd, pulseBytes); err != nil {
			return nil, err
		}
		// A child that truncated the file would crash its readers.
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
			return nil, err
		}
		return unix.Mmap(fd, 0, pulseBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("memory file: %w", err), file.Close())
	}
	p.word(0, wordRestarts).Store(uint64(restarts))
	p.word(0, wordKills).Store(uint64(kills))
	return p, file, nil
}

func (p page) release() { _ = unix.Munmap(p) }

// beat is the state of one beat of a child.
type beat struct {
	name string
	done uint64        // operations finished
	rows int           // of the pass that runs; 0 = none
	time time.Duration // that it is expected to take; 0 = not known
}

// beats returns the child's beats, with whatever values the child wrote.
func (p page) beats() []beat {
	out := make([]beat, min(p.word(0, wordBeats).Load(), maxBeats))
	for i := range out {
		name, _, _ := bytes.Cut(p.name(i+1), []byte{0})
		out[i] = beat{name: string(name), done: p.word(i+1, wordDone).Load(), rows: int(p.word(i+1, wordRows).Load()),
			time: time.Duration(p.word(i+1, wordTime).Load())}
	}
	return out
}

// Pulse is where a child shows its supervisor that it makes progress. Safe for concurrent use. A process without a supervisor has a
// nil Pulse.
type Pulse struct {
	page page
	mu   sync.Mutex
}

// OpenPulse returns the pulse behind fd, without beats; 0 means that there is none. fd stays open: a process that begins anew, on another
// device, opens it again.
func OpenPulse(fd int) (*Pulse, error) {
	if fd == 0 {
		return nil, nil
	}
	p, err := unix.Mmap(fd, 0, pulseBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("memory of the supervisor on descriptor %d: %w", fd, err)
	}
	unix.CloseOnExec(fd)
	pulse := &Pulse{page: p}
	pulse.page.word(0, wordBeats).Store(0)
	return pulse, nil
}

// Restarts returns how often this process was restarted, and how many of these restarts were because it hung.
func (p *Pulse) Restarts() (all, hung int64) {
	return int64(p.page.word(0, wordRestarts).Load()), int64(p.page.word(0, wordKills).Load())
}

// Beat adds a beat, nil if there is no room. From then on its owner must finish something about once in an Interval, except during a
// pass announced by Expect. If it finishes nothing for GroupConfig.Hang the child is killed.
func (p *Pulse) Beat(name string) *Beat {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.page.word(0, wordBeats).Load()
	if n >= maxBeats {
		return nil
	}
	clear(p.page[(int(n)+1)*lineBytes:][:lineBytes]) // of a beat before the pulse was opened again
	copy(p.page.name(int(n)+1), name)
	p.page.word(0, wordBeats).Store(n + 1)
	return &Beat{p.page, int(n) + 1}
}

// Beat is one goroutine's part of a Pulse, such as that of a model's owner. It implements owner.Pulse. A nil Beat does nothing.
type Beat struct {
	page page
	line int
}

// Finished tells that an operation has ended, or that there was none to do for an Interval.
func (b *Beat) Finished() {
	if b != nil {
		b.page.word(b.line, wordRows).Store(0)
		b.page.word(b.line, wordDone).Add(1)
	}
}

// Goes tells that the running operation makes progress, such as a pass that has read another part of its weights from a disk. It does not
// end the operation.
func (b *Beat) Goes() {
	if b != nil {
		b.page.word(b.line, wordDone).Add(1)
	}
}

// Expect tells that a pass of that many rows begins, and how long it should take; 0 if unknown.
func (b *Beat) Expect(rows int, time time.Duration) {
	if b != nil {
		b.page.word(b.line, wordTime).Store(uint64(max(time, 0)))
		b.page.word(b.line, wordRows).Store(uint64(rows))
	}
}
