// Package owner gives a model and its sequences to one goroutine, and lets other goroutines run functions
// there.
package owner

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
)

// Work is what an owner does besides the functions it is given, all on its goroutine. Step, Last and Pulse may be nil.
type Work struct {
	// Step does a bounded piece of work, such as one pass, and reports whether there may be more. It is
	// called repeatedly while it returns true, and after any function.
	Step func() bool
	// Fault is called after a panic in Step, Tick or a posted function, with an error of tandem.Panicked.
	Fault func(error)
	// Tick is called about every Every while there is nothing to do, and between steps.
	Tick  func()
	Every time.Duration
	// Last is called once, after everything else.
	Last func()
	// Pulse is told of the owner's progress.
	Pulse Pulse
}

// Pulse shows an owner's progress to the outside. It is called on the owner's goroutine and must not block.
type Pulse interface {
	// Finished is called after each function, step, tick and pass, and about once a second while there is nothing to do.
	Finished()
	// Expect is called before a pass of that many rows, with the time it should take, 0 if unknown.
	Expect(rows int, time time.Duration)
}

const beat = time.Second

// Owner is a goroutine that runs functions in the order they were given, and
// steps of work between them. Safe for concurrent use.
type Owner struct {
	work Work
	wake chan struct{} // holds one token if the queue may not be empty or stopped is set
	done chan struct{}

	mu      sync.Mutex
	queue   []func()
	stopped bool
}

// New returns an owner. Posted functions wait for Start.
func New(w Work) *Owner {
	return &Owner{work: w, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// Start begins the goroutine, once. Stop ends it.
func (o *Owner) Start() { go o.run() }

// Post queues fn and returns at once; false if the owner has stopped and fn will not run.
func (o *Owner) Post(fn func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped {
		return false
	}
	o.queue = append(o.queue, fn)
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return true
}

// Do runs fn on the owner's goroutine and returns its error. If ctx ends before fn begins, fn never runs.
// A panic in fn comes back as an Internal error with its stack; Unavailable if the owner has stopped.
func (o *Owner) Do(ctx context.Context, fn func() error) error {
	var claimed atomic.Bool // by the owner to run fn, or by the caller to give it up
	result := make(chan error, 1)
	posted := o.Post(func() {
		if claimed.CompareAndSwap(false, true) {
			result <- Guard(fn)
		}
	})
	if !posted {
		return tandem.Errorf("owner", tandem.Unavailable, "shutting down")
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		if claimed.CompareAndSwap(false, true) {
			return tandem.Errorf("owner", tandem.KindOf(ctx.Err()), "given up while waiting for a pass to end: %w", ctx.Err())
		}
		return <-result
	}
}

// Stop runs the queued functions, then Last, and waits for the goroutine to end, no longer than ctx. It
// may be called more than once.
func (o *Owner) Stop(ctx context.Context) error {
	o.mu.Lock()
	o.stopped = true
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
	select {
	case <-o.done:
		return nil
	case <-ctx.Done():
		return tandem.Errorf("owner", tandem.KindOf(ctx.Err()), "a pass is still running: %w", ctx.Err())
	}
}

func (o *Owner) run() {
	defer close(o.done)
	if o.work.Last != nil {
		defer func() { o.check(Guard(func() error { o.work.Last(); return nil })) }()
	}
	ticker := time.NewTicker(o.work.Every)
	defer ticker.Stop()
	var idle <-chan time.Time
	if o.work.Pulse != nil {
		beats := time.NewTicker(beat)
		defer beats.Stop()
		idle = beats.C
	}
	for {
		queue, stopped := o.take()
		for _, fn := range queue {
			o.check(Guard(func() error { fn(); return nil }))
			o.Finished()
		}
		if stopped {
			return
		}
		more := false
		if o.work.Step != nil {
			o.check(Guard(func() error { more = o.work.Step(); return nil }))
		}
		o.Finished()
		if more {
			select {
			case <-ticker.C:
				o.tick()
			default:
			}
			continue
		}
		select {
		case <-o.wake:
		case <-ticker.C:
			o.tick()
		case <-idle: // the loop goes round once
		}
	}
}

// Expect tells the pulse that a pass begins; Finished that it, or another piece of work, has ended. Both must be called on the
// owner's goroutine.
func (o *Owner) Expect(rows int, time time.Duration) {
	if o.work.Pulse != nil {
		o.work.Pulse.Expect(rows, time)
	}
}

// Finished: see Expect.
func (o *Owner) Finished() {
	if o.work.Pulse != nil {
		o.work.Pulse.Finished()
	}
}

func (o *Owner) take() ([]func(), bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	queue := o.queue
	o.queue = nil
	return queue, o.stopped
}

func (o *Owner) tick() {
	o.check(Guard(func() error { o.work.Tick(); return nil }))
	o.Finished()
}

func (o *Owner) check(err error) {
	if err != nil {
		o.work.Fault(err)
	}
}

// Guard runs fn and returns its error, or that of its panic (tandem.Panicked).
func Guard(fn func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = tandem.Panicked("owner", r)
		}
	}()
	return fn()
}
