package stream

import (
	"sync"
	"sync/atomic"
	"time"
)

// ring is the memory of streamed stages: slots of equal size. Readers fill it stage after stage, pass after pass, as long as there is a
// free slot, also while nothing computes.
//
// Stages are numbered through all passes: number k is stage order[k % len(order)], in slot k % len(slots).
type ring struct {
	order []int  // the streamed stages, as a pass reads them
	slots []slot //
	feed  feed
	count *counters

	mu       sync.Mutex
	changed  sync.Cond
	first    int  // number of the oldest stage whose slot is not free: the next to be acquired
	holds    bool // a stage is acquired
	next     int  // number of the stage that is read, or will be next
	block    int  // its next block
	inFlight int
	paused   bool
	closed   bool
	err      error // of a reader; it stays
	readers  sync.WaitGroup
}

type slot struct {
	mem  []byte
	left int // blocks that are not there yet
}

// feed brings the bytes of stages. Safe for concurrent use.
type feed interface {
	// readers returns how many may call at a time.
	readers() int
	// blocks returns in how many blocks a stage is read.
	blocks(stage int) int
	// block reads block i of a stage into its place in the stage's memory, with the reader's own buffers, and returns how many bytes it
	// has read.
	block(stage, i int, mem []byte, own *scratch) (int64, error)
	// compare compares a weight of a stage in the stage's memory with its checksums.
	compare(stage int, e extent, mem []byte) error
	// sums returns the checksums of a weight of a stage, outside of Go's heap; nil: there are none.
	sums(stage int, e extent) []uint32
	// rows reads and checks a group of rows of an embedding into its place in the matrix's memory.
	rows(l *lookup, group int, own *scratch) (int64, error)
	// expert reads and checks an expert's part of a weight into its region, of l.cost bytes: to l.phase(number) there.
	expert(l *lookup, number int, region []byte, own *scratch) (int64, error)
}

// counters say how much was read and how long that took.
type counters struct {
	read, waited atomic.Int64 // bytes; nanoseconds for which passes waited

	mu    sync.Mutex
	reads int           // in progress
	begun time.Time     // since when there are some
	busy  time.Duration // for which there were
}

// begin counts a read that begins.
func (c *counters) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reads++; c.reads == 1 {
		c.begun = time.Now()
	}
}

// end counts the end of a read of n bytes.
func (c *counters) end(n int64) {
	c.read.Add(n)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reads--; c.reads == 0 {
		c.busy += time.Since(c.begun)
	}
}

// busyFor returns how long at least one read has been in progress.
func (c *counters) busyFor() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reads > 0 {
		return c.busy + time.Since(c.begun)
	}
	return c.busy
}

// start starts so many readers.
func (r *ring) start(readers int) {
	r.changed.L = &r.mu
	for range readers {
		r.readers.Go(r.read)
	}
}

// read reads blocks until the ring is closed or a read fails.
func (r *ring) read() {
	own := new(scratch)
	defer own.free()
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		for !r.closed && r.err == nil && (r.paused || r.next >= r.first+len(r.slots)) {
			r.changed.Wait()
		}
		if r.closed || r.err != nil {
			return
		}
		number, block := r.next, r.block
		stage, s := r.order[number%len(r.order)], &r.slots[number%len(r.slots)]
		blocks := r.feed.blocks(stage)
		if block == 0 {
			s.left = blocks
		}
		if r.block++; r.block == blocks {
			r.next, r.block = r.next+1, 0
		}
		r.inFlight++
		r.mu.Unlock()
		r.count.begin()
		n, err := r.feed.block(stage, block, s.mem, own)
		r.count.end(n)
		r.mu.Lock()
		r.inFlight--
		if err != nil && r.err == nil {
			r.err = err
		}
		if s.left--; s.left == 0 || err != nil || r.inFlight == 0 {
			r.changed.Broadcast()
		}
	}
}

// acquire waits until a streamed stage is there, the at-th of a pass, and returns its memory.
func (r *ring) acquire(at int) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if skip := (at - r.first%len(r.order) + len(r.order)) % len(r.order); skip > 0 {
		r.skip(skip) // the last pass was not run to its end
	}
	s := &r.slots[r.first%len(r.slots)]
	begun := time.Now()
	for r.err == nil && !r.closed && (r.next <= r.first || s.left > 0) {
		r.changed.Wait()
	}
	r.count.waited.Add(int64(time.Since(begun)))
	if r.err != nil {
		return nil, r.err
	}
	if r.closed {
		return nil, errClosed
	}
	r.holds = true
	return s.mem, nil
}

// skip gives up the next n stages. Readers may still be writing to their slots, so they are waited for.
func (r *ring) skip(n int) {
	r.paused = true
	for r.inFlight > 0 {
		r.changed.Wait()
	}
	r.paused = false
	if r.first += n; r.next < r.first {
		r.next, r.block = r.first, 0
	}
	r.changed.Broadcast()
}

// release frees the slot of the stage that was acquired last.
func (r *ring) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holds {
		r.holds = false
		r.first++
		r.changed.Broadcast()
	}
}

// held returns the memory of the stage that is acquired.
func (r *ring) held() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.slots[r.first%len(r.slots)].mem
}

// full waits until all slots are filled.
func (r *ring) full() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.err == nil && !r.closed && (r.next < r.first+len(r.slots) || r.inFlight > 0) {
		r.changed.Wait()
	}
	return r.err
}

// close ends the readers.
func (r *ring) close() {
	r.mu.Lock()
	r.closed = true
	r.changed.Broadcast()
	r.mu.Unlock()
	r.readers.Wait()
}
