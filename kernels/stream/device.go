// Package stream is a device whose weights do not all fit into memory: some stages of a program stay there, the others come from a ring
// that is read ahead, pass after pass (LLMCad's memory wall). The bits are those of the device that computes.
//
// Weights are read from a packed file, in the layout of the kernels, past the system's page cache. Its blocks have checksums, and each read
// is checked, so a file that is cut, changed or unreadable is an error of the pass, and never a wrong number.
package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tandem-llm/tandem/kernels"
)

const name = "stream"

// Config says how weights are streamed.
type Config struct {
	Memory int64 // bytes for weights: resident stages, the ring, and rows of the embedding
	// Pack packs rows of a matrix as the device wants them: see kernels.Store.Pack.
	Pack func(dst []byte, m kernels.Weight, row int, src []byte) error
	// Keep returns the path of the file that r describes, which it finds or makes, or "" if it can keep none: then every pass packs
	// what it streams. The file stays until free is called. Nil: none is kept.
	Keep func(ctx context.Context, r Request) (path string, free func() error, err error)
	// Open opens the packed file for reading; nil: past the page cache if the file system can do that.
	Open func(path string) (File, error)
	// Tell gets a line about how weights are streamed; may be nil.
	Tell func(line string)
}

// Request describes a packed file.
type Request struct {
	Model string // name of the model's file
	Key   string // what decides the file's bytes
	Bytes int64  // of the file
	Check func(path string) error
	Make  func(ctx context.Context, path string, progress func(done, total int64)) error
	// Waited is called whenever another process that makes the file has got further.
	Waited func()
}

// Device computes on another device, with streamed weights.
type Device struct {
	kernels.Device
	config Config
	gone   chan struct{}

	mu   sync.Mutex
	err  error
	all  []*weights
	last kernels.StreamStats
}

var (
	_ kernels.ThreadSetter = (*Device)(nil)
	_ kernels.Streamer     = (*Device)(nil)
	_ kernels.RouteReader  = (*runner)(nil)
)

// New returns a device that computes on d, which wants weights in Groups16.
func New(d kernels.Device, c Config) *Device {
	return &Device{Device: d, config: c, gone: make(chan struct{})}
}

// Near implements kernels.Streamer.
func (d *Device) Near() kernels.Device { return d.Device }

// SetThreads implements kernels.ThreadSetter.
func (d *Device) SetThreads(n int) error {
	if t, ok := d.Device.(kernels.ThreadSetter); ok {
		return t.SetThreads(n)
	}
	return &kernels.Unsupported{Device: name, What: fmt.Sprintf("choice of %d threads", n)}
}

// Close closes the device that computes, if it can be closed.
func (d *Device) Close() {
	if c, ok := d.Device.(interface{ Close() }); ok {
		c.Close()
	}
}

// Gone is closed when weights can no longer be read; Lost says why. Passes then fail.
func (d *Device) Gone() <-chan struct{} { return d.gone }

// Lost says why the device is gone.
func (d *Device) Lost() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

func (d *Device) lose(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = err
		close(d.gone)
	}
}

// Footprint returns what p takes, with the weights' share of memory. Errors: also *kernels.TooSmall.
func (d *Device) Footprint(p *kernels.Program) (f kernels.Footprint, err error) {
	q, _ := divided(p)
	if f, err = d.Device.Footprint(q); err != nil {
		return f, err
	}
	w, err := layOut(q, d.config)
	if err != nil {
		return f, err
	}
	f.Weights = w.Bytes()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = w.sizes()
	return f, nil
}

// NewWeights returns a kernels.FileStore.
func (d *Device) NewWeights(p *kernels.Program) (kernels.Store, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	q, _ := divided(p)
	w, err := layOut(q, d.config)
	if err != nil {
		return nil, err
	}
	w.lost = d.lose
	if err := w.allocate(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, w)
	return w, nil
}

// StreamStats implements kernels.Streamer.
func (d *Device) StreamStats() (s kernels.StreamStats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.all) == 0 {
		return d.last
	}
	for _, w := range d.all {
		one := w.sizes()
		s.Resident, s.Ring, s.Streamed = s.Resident+one.Resident, s.Ring+one.Ring, s.Streamed+one.Streamed
		s.Ringed += one.Ringed
		s.Experts, s.AllExperts, s.RowExperts = s.Experts+one.Experts, s.AllExperts+one.AllExperts, s.RowExperts+one.RowExperts
		s.Read += w.count.read.Load()
		s.Waited += time.Duration(w.count.waited.Load())
		s.Busy += w.count.busyFor()
		s.ReadExperts += w.expert.read.Load()
		s.Layers = append(s.Layers, w.expert.stats()...)
	}
	for _, l := range s.Layers {
		s.Used, s.Missed, s.Foretold, s.Guessed = s.Used+l.Used, s.Missed+l.Missed, s.Foretold+l.Foretold, s.Guessed+l.Guessed
	}
	return s
}

func (w *weights) sizes() kernels.StreamStats {
	s := kernels.StreamStats{Resident: w.budget.held, Ring: int64(w.budget.slots) * w.budget.slot, Streamed: w.budget.streamed,
		Ringed: w.budget.streamed}
	if len(w.expert.all) > 0 {
		_, whole, bytes, row := w.expert.sizes()
		s.Experts, s.AllExperts, s.RowExperts = w.expert.memory, bytes, row
		s.Streamed += int64(float64(row) * (1 - float64(w.expert.memory)/float64(whole)))
	}
	return s
}

// Rate reads a file past the page cache, where that can be done, as packed files are read, for about long, and returns the bytes per
// second.
func Rate(path string, long time.Duration) (float64, error) {
	file, direct, err := openDirect(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return 0, err
	}
	f := &packed{path: path, file: file, direct: direct, table: &table{Bytes: st.Size()}}
	return f.rate(0, long)
}

// ReadRate implements kernels.Streamer.
func (d *Device) ReadRate(long time.Duration) (float64, error) {
	d.mu.Lock()
	all := d.all
	d.mu.Unlock()
	for _, w := range all {
		if f, ok := w.feed.(*packed); ok {
			return f.rate(f.table.Stages[0].At, long)
		}
	}
	return 0, errors.New("stream: there is no packed file to measure the disk with, since every pass packs what it streams: want a cache " +
		"folder that can keep one")
}

// Compile makes p ready with more stages, so that two fit into a small ring.
func (d *Device) Compile(p *kernels.Program, w kernels.Weights, c kernels.Cache) (kernels.Runner, error) {
	mine, ok := w.(*weights)
	if !ok {
		inner, err := d.Device.Compile(p, w, c) // resident ones, as of a side file
		if loan, ok := w.(*kernels.Loan); ok && err == nil {
			return &borrower{inner, loan}, nil
		}
		return inner, err
	}
	q, first := divided(p)
	inner, err := d.Device.Compile(q, w, c)
	if err != nil {
		return nil, err
	}
	r := &runner{Runner: inner, weights: mine, first: first}
	if t, ok := inner.(kernels.Timer); ok {
		return &timed{r, t, 0}, nil
	}
	return r, nil
}

// runner brings the rows of a pass's tokens before it starts.
type runner struct {
	kernels.Runner
	weights *weights
	first   []int // per stage of the caller's program: the first of the divided one
	rows    int   // of the pass
}

// borrower brings the rows of a pass's tokens from weights that are streamed.
type borrower struct {
	kernels.Runner
	loan *kernels.Loan
}

func (b *borrower) Run(a *kernels.Pass) error {
	if err := b.loan.Rows(a.Tokens); err != nil {
		return err
	}
	return b.Runner.Run(a)
}

func (b *borrower) Start(a *kernels.Pass) error {
	if err := b.loan.Rows(a.Tokens); err != nil {
		return err
	}
	return b.Runner.Start(a)
}

// Chosen returns the choice of the device that computes.
func (r *runner) Chosen(of kernels.Route, row int) []int32 {
	if on, ok := r.Runner.(kernels.RouteReader); ok {
		return on.Chosen(of, row)
	}
	return nil
}

func (r *runner) Run(a *kernels.Pass) error {
	if err := r.Start(a); err != nil {
		return err
	}
	for i := range len(r.first) - 1 {
		if err := r.Stage(i); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) Start(a *kernels.Pass) error {
	if len(r.weights.expert.all) > 0 {
		r.rows = a.Rows
		r.weights.expert.begin(a.Tokens)
	}
	if err := r.weights.rows(a.Tokens); err != nil {
		return err
	}
	return r.Runner.Start(a)
}

func (r *runner) Stage(i int) error {
	if i < 0 || i+1 >= len(r.first) {
		return fmt.Errorf("stream: stage %d of %d", i, len(r.first)-1)
	}
	for fine := r.first[i]; fine < r.first[i+1]; fine++ {
		if err := r.Runner.Stage(fine); err != nil {
			return err
		}
		if on, ok := r.Runner.(kernels.RouteReader); ok {
			r.weights.expert.after(fine, r.rows, on)
		}
	}
	return nil
}

// timed adds to the times of operations the time for which passes waited for weights.
type timed struct {
	*runner
	inner kernels.Timer
	since int64
}

func (t *timed) Time(on bool) error {
	t.since = t.weights.count.waited.Load()
	return t.inner.Time(on)
}

func (t *timed) Times() []kernels.OpTime {
	times := t.inner.Times()
	if len(times) == 0 {
		return nil
	}
	read := kernels.OpTime{Kind: "reading weights"}
	for range times[0].Busy {
		read.Busy = append(read.Busy, 0)
		read.Wait = append(read.Wait, time.Duration(t.weights.count.waited.Load()-t.since))
	}
	return append(times, read)
}

func (w *weights) say(format string, args ...any) {
	if w.cfg.Tell != nil {
		w.cfg.Tell(fmt.Sprintf(format, args...))
	}
}

// tell says what is streamed, at what speed, in bytes a second.
func (w *weights) tell(rate float64) {
	const mib = 1 << 20
	p := w.budget
	how := "from the packed file"
	if w.keeps {
		how = "from the model's file, packed anew by every pass"
	}
	if p.streamed > 0 {
		w.say("%d of %d MiB of weights stay in memory, %d MiB are read by each pass %s: "+
			"at %.1f GB/s, as measured now, that is %.3g passes/s",
			p.held/mib, (p.held+p.streamed)/mib, p.streamed/mib, how, rate/1e9, rate/float64(p.streamed))
	}
	if s := w.sizes(); s.AllExperts > 0 {
		w.say("%d of %d MiB of experts have room in memory; the others are read when rows choose them, %s: a row uses %d MiB",
			s.Experts/mib, s.AllExperts/mib, how, s.RowExperts/mib)
	}
}
