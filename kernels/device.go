package kernels

import (
	"fmt"
	"time"
)

// Device is a processor, or several that act as one, with the memory that it computes from. Whoever makes a Device
// chooses where things run; everything else is handed one. Its methods may be called from several goroutines.
type Device interface {
	// About describes the device.
	About() About
	// Layout names the order in which the device wants weights of a type; "" for a type that it does not compute with.
	Layout(t Type) Layout
	// Footprint returns the memory that p will take, before any of it is allocated. Errors: as for Compile.
	Footprint(p *Program) (Footprint, error)
	// NewWeights returns memory for all weights of p, which stay resident. Errors: not enough memory.
	NewWeights(p *Program) (Store, error)
	// NewCache returns a KV cache of so many pages. The system may provide its memory later: see Cache.Populate. Errors:
	// *Unsupported for a shape that the device cannot keep; not enough memory.
	NewCache(shape KVShape, pages int) (Cache, error)
	// Compile makes p ready to run with weights and a cache of this device; c is nil for a program without a cache. Both belong
	// to the caller and must outlive the Runner. Errors: the first mistake in the program (Program.Check); *Unsupported, naming
	// what the device cannot do; not enough memory.
	Compile(p *Program, w Weights, c Cache) (Runner, error)
	// NewProbe returns a probe of the device's limits, which the caller closes. It reads that many bytes over and over: they should far
	// exceed the processor's caches.
	NewProbe(bytes int) (Probe, error)
}

// About tells what a device is.
type About struct {
	Name    string // of the kind of device: "cpu"
	Kernels string // which of its kernels it uses: "avx512"
	Threads int    // used by a pass, the caller's included; 0 for a device without threads
}

func (a About) String() string {
	return fmt.Sprintf("%s (%s, %d threads)", a.Name, a.Kernels, a.Threads)
}

// ThreadSetter is a Device whose number of threads can change.
type ThreadSetter interface {
	Device
	// SetThreads makes later passes use n threads; it waits for the running pass to end. After an error nothing has changed.
	SetThreads(n int) error
}

// Losable is a Device that can be lost while it is in use, such as a GPU.
type Losable interface {
	// Gone is closed once the device is lost; nil for one that cannot be.
	Gone() <-chan struct{}
	// Lost returns why the device can compute no more; nil as long as it can.
	Lost() error
}

// Coupler is a Device that can run the two halves of a divided pass together with another device, in the same memory.
type Coupler interface {
	Device
	// Couple returns a Couple that runs left halves on one device and right halves on the other; the Coupler is one of the two. Errors:
	// what they lack for sharing memory. nil without an error if the Coupler knows nothing of the other's kind.
	Couple(left, right Device) (Couple, error)
}

// Couple runs pairs of programs at the same time, on two devices that share buffers, blocks of attention, and a cache. Each side has
// activations of its own. The two programs have the same Buffers, Parts, Activations and Stages, and the same number of Meets. What one
// side writes, the other may read or write only after both have come to the next Meet.
type Couple interface {
	// Layout names the order of weights that both read; "" for a type that one of them does not compute with.
	Layout(t Type) Layout
	// Footprint returns what both halves of p take: weights and cache once. Errors: as for Device.
	Footprint(p, left, right *Program) (Footprint, error)
	// NewWeights returns memory for all weights of p, which both halves read. Errors: as for Device.
	NewWeights(p *Program) (Store, error)
	// NewCache returns a KV cache that both halves read and write. Errors: as for Device.
	NewCache(shape KVShape, pages int) (Cache, error)
	// Compile makes both halves of p ready, with the weights of p. The Runner's Row, Top and Part are the left's.
	Compile(p, left, right *Program, w Weights, c Cache) (Runner, error)
	// Close ends what waits for work. The devices stay open.
	Close()
}

// Fitter is a Device that adapts to each model: for example, it gives another device as many layers as fit into that device's memory.
type Fitter interface {
	Device
	// Fit returns a device for p with a KV cache of so many pages, and for the programs that share p's weights. It allocates nothing. The
	// result may be fitted to another program, as the Fitter itself. Errors: as for Footprint; not enough memory.
	Fit(p *Program, pages int) (Device, error)
}

// MemoryOwner is a Device with memory of its own, apart from the processor's: see Footprint.Own.
type MemoryOwner interface {
	Device
	// Free returns how many bytes of that memory are free, and the name of the device that it belongs to.
	Free() (bytes int64, of string, err error)
}

// Footprint is what a program takes of memory, in bytes: of the processor's (Space) and of the device's own (Own).
type Footprint struct {
	Space
	Own Space
}

// Space is what a program takes of one memory, in bytes.
type Space struct {
	Weights int64 // of all stages
	Page    int64 // of one page of the KV cache, all layers
	Buffers int64 // of the Runner, with passes of any width
	States  int64 // slots and records of recurrent layers, part of the cache
	Logits  int64 // of Buffers: for rows with logits, as many as a pass may have
	Block   int64 // beside Buffers: results of attention, at most, for each 256 positions that the rows of a pass see
}

// With returns the sum of both.
func (f Footprint) With(o Footprint) Footprint {
	return Footprint{f.Space.with(o.Space), f.Own.with(o.Own)}
}

func (s Space) with(o Space) Space {
	return Space{s.Weights + o.Weights, s.Page + o.Page, s.Buffers + o.Buffers, s.States + o.States, s.Logits + o.Logits, s.Block + o.Block}
}

// Total returns what s takes with a KV cache of so many pages.
func (s Space) Total(pages int) int64 { return s.Weights + int64(pages)*s.Page + s.Buffers + s.States }

// OutOfMemory is the error for memory that a device does not have.
type OutOfMemory struct {
	Device       string
	Wanted, Free int64 // bytes
}

func (e *OutOfMemory) Error() string {
	return fmt.Sprintf("%s: no memory for %d MB; %d MB are free", e.Device, (e.Wanted+1<<20-1)>>20, e.Free>>20)
}

// Bytes formats a size: "1.5 GiB".
func Bytes(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// Weights hands out weights stage by stage, so that they may be resident or come from a ring. A Runner acquires a
// stage before its operations run and releases it afterwards; in between the bytes stay where they are. Calls come from one
// goroutine at a time, stages in order within a pass.
type Weights interface {
	// Acquire waits until the weights of a stage can be read. It returns where each lies, in order of Program.StageWeights and in the
	// layout that the program names. experts, ascending, are those that an earlier stage has chosen for the rows of the pass. Then a
	// weight with experts is returned as one slice for each of them, in this order; the slices need not lie together, and other experts
	// need not be in memory. nil stands for all experts, which lie in one slice.
	Acquire(stage int, experts []int32) ([][]byte, error)
	// Release ends an Acquire of the stage: its bytes may be replaced.
	Release(stage int)
	// Resident reports whether the weights never move, so that a Runner may acquire each stage once for all passes.
	Resident() bool
}

// Checked is Weights whose bytes come from a disk again and again, with checksums (kernels/sum) that a Runner can compare where it reads
// the bytes anyway: a comparison apart from that reads them from memory twice.
type Checked interface {
	Weights
	// Unchecked says that Runners compare Sums: from now on Acquire does not.
	Unchecked()
	// Sums returns the checksums of a stage's weights, in order of Program.StageWeights: one for each GroupRows rows of a weight that a
	// MatMul of the stage reads, nil for others, which Acquire has compared. nil: there are none. They stay where they are until Close, and
	// lie outside of Go's heap.
	Sums(stage int) [][]uint32
	// Wrong returns the error for a weight of an acquired stage whose bytes are not those that Sums are of.
	Wrong(stage int, w W) error
}

// Store is Weights in a device's own memory, filled once before the first pass.
type Store interface {
	Weights
	// Pack takes rows [row, row+n) of a matrix in GGUF layout. row is a multiple of GroupRows; so is n, unless the rows end
	// the matrix. Rows of experts are numbered through; a call begins and ends with such a group of an expert. Calls for
	// different rows may run at the same time.
	Pack(w W, row int, src []byte) error
	Bytes() int64 // of memory that it takes
	// Lock keeps the memory from being paged out.
	Lock() error
	// Close gives the memory back. A second Close does nothing.
	Close()
}

// ImageStore is a Store whose weights lie in one piece of the processor's memory. Its bytes are the same for the same matrices on every
// machine.
type ImageStore interface {
	Store
	// Image returns all weights, in place: valid until Close, and written to before the first pass alone.
	Image() []byte
	// Place returns where a weight lies in Image. Large ones begin at a page of 4,096 bytes.
	Place(w W) (from, to int)
	// Map puts bytes of an open file, from byte at on, in the place of bytes [from, to) of Image, read-only, as memory that all who map the
	// file share. at and from are multiples of a page. The file must have as many bytes, and never fewer. These weights must not be
	// written to afterwards.
	Map(fd uintptr, at int64, from, to int) error
}

// Lendable is a Device whose stores are Borrowers.
type Lendable interface {
	Device
	// Borrows returns why passes do not read weights in memory of the processor that others have filled, in Groups16; nil: they do.
	Borrows() error
}

// Borrower is a Store of which some weights, those that are Lent, lie in memory of others. Before Compile, Lend or Share is called for each
// of these. After an error a weight in Groups16 can be packed.
type Borrower interface {
	Store
	// Lend has passes read a weight in Groups16 from host, all of it, which begins at a page of 4,096 bytes and stays as it is until Close.
	Lend(w W, host []byte) error
	// Share has passes read a weight where from, an open store of the same device or of another on the processor, has its weight of.
	Share(w W, from Store, of W) error
}

// Cache is the KV cache of one model in a device's memory: cells, in pages of PageRows.
type Cache interface {
	Shape() KVShape // of a cell, and of the states of recurrent layers
	Pages() int     // of PageRows cells each
	Bytes() int64   // of memory that all of it takes
	// Copy copies cell src[i] of every layer to cell dst[i], in order of i: a cell just written may be copied again. No pass
	// may be running.
	Copy(dst, src []Cell)
	// CopyStates copies slot src[i] to slot dst[i], all layers, in order of i. No pass may be running.
	CopyStates(dst, src []int32)
	// Populate makes the system provide bytes [from, to) now, so that a lack of memory is an error here and first use
	// costs no page fault. from is a multiple of PopulateBytes. The bytes keep their values.
	Populate(from, to int64) error
	Lock() error // keeps the memory from being paged out
	Close()      // gives it back; a second Close does nothing
}

// HostCache is a Cache whose pages and slots lie in this process's memory, so that they can be kept elsewhere and put back.
type HostCache interface {
	Cache
	// Form names the order of the bytes in pages and slots. Bytes of a cache of the same Layers, Type, States and Form mean the same.
	Form() string
	// Page returns the bytes of a page, in place. The caller may write to those that no pass reads or writes.
	Page(i int32) []byte
	// Slot returns the bytes of a slot, as Page does.
	Slot(i int32) []byte
}

// PopulateBytes is the alignment of the first byte given to Cache.Populate.
const PopulateBytes = 1 << 20

// Runner is a compiled program. It is used by one goroutine at a time.
type Runner interface {
	// Run runs all stages once for the rows of the pass. Every index is checked before anything is written.
	Run(a *Pass) error
	// Start checks a pass and keeps it; then Stage(0), Stage(1) … run it stage by stage, with other devices' parts in
	// between. The caller may change the pass again once its last stage has run.
	Start(a *Pass) error
	// Stage runs stage i of the pass that Start has kept. The caller runs each stage once, in order.
	Stage(i int) error
	// Row returns row i of a buffer, nil if there is none. It holds a result if the last pass had so many rows. The caller may write to
	// it before a pass and between stages: later stages read what it has written. Valid until the next pass.
	Row(b Buf, i int) []float32
	// Top returns what TopK found in wanted row i of the last pass; zero if the pass had no such row. Valid until the next pass.
	Top(i int) Top
	// Part points to the result of AttendBlocks for one row, block and query head. Before JoinBlocks runs, the caller may read it, or
	// write there what another device has computed. Zero if the pass has no such part. Valid until the next pass.
	Part(p Parts, row, block, head int) Part
	// Close frees the runner's memory, including what Row, Top and Part returned. A second Close does nothing.
	Close()
}

// StagesRunner is a Runner that runs several stages of a pass as one, without coming back in between.
type StagesRunner interface {
	Runner
	// Stages does what Stage does for from, from+1 … to-1.
	Stages(from, to int) error
}

// RouteReader is a Runner that tells which experts a pass has used.
type RouteReader interface {
	Runner
	// Chosen returns the experts of a row of the last pass, best first; nil if there is no such row or route. Valid until the next pass.
	Chosen(r Route, row int) []int32
}

// Timer is a Runner that tells where the time of its passes goes.
type Timer interface {
	Runner
	// Time makes later passes add up the time of each operation (true), from zero on, or stop doing so. Errors: not enough memory.
	Time(on bool) error
	// Times returns the sums for each kind of operation, in the order of the program; none unless Time is on.
	Times() []OpTime
}

// LaunchTimer is a Runner whose passes are launches on another processor, each of which takes a while even if it does nothing.
type LaunchTimer interface {
	Runner
	// LeastTime returns how many launches the last pass had, and how long so many launches take that do nothing: it runs them n times
	// and returns the shortest time.
	LeastTime(n int) (launches int, least time.Duration, err error)
}

// OpTime is how long operations of one kind took in all passes together, by thread.
type OpTime struct {
	Kind string          // "matmul q4_k"; the names of operations that a device runs as one are joined: "rope+store"
	Busy []time.Duration // computing
	Wait []time.Duration // waiting for other threads to finish the operation
}

// Top holds the best values of one row by (value descending, id ascending), with the largest value and Σ exp(value-Max) over all;
// NaN counts as -Inf.
type Top struct {
	IDs      []int32
	Logits   []float32
	Max, Sum float32
}

// Part is the attention of one row and query head to one block.
type Part struct {
	Max, Sum *float32  // largest score, and Σ exp(score-Max)
	O        []float32 // Σ exp(score-Max)·value
}

// Limits are a device's highest measured rates. The speed of a pass is reported as a share of them.
type Limits struct {
	ReadBytes float64 // bytes per second read from memory
	IntMACs   float64 // int8 multiply-adds per second
	FloatMACs float64 // f32 fused multiply-adds per second
}

// Max returns the larger value of each limit.
func (l Limits) Max(o Limits) Limits {
	return Limits{max(l.ReadBytes, o.ReadBytes), max(l.IntMACs, o.IntMACs), max(l.FloatMACs, o.FloatMACs)}
}

// Probe measures limits repeatedly, between passes of other work. It owns the memory that it reads, is used by one
// goroutine at a time, and ends with Close.
type Probe interface {
	// Sample measures each limit for about long, in at least one pass of about a millisecond. long should be the duration
	// of what the limits are compared with.
	Sample(long time.Duration) (Limits, error)
	Close() // frees its memory and ends its threads
}

// MeasureLimits takes samples for about `long` and returns the best, so that other work on the machine has little influence.
func MeasureLimits(p Probe, long time.Duration) (best Limits, err error) {
	for start := time.Now(); time.Since(start) < long; {
		l, err := p.Sample(0)
		if err != nil {
			return Limits{}, err
		}
		best = best.Max(l)
	}
	return best, nil
}

// Unsupported is the error for a correct program that uses a feature the device lacks.
type Unsupported struct{ Device, What string }

func (u *Unsupported) Error() string { return u.Device + ": no " + u.What + " on this device yet" }
