// Package owner gives a model and its sequences to one goroutine, and everybody else a way to have
// things done there.
package owner

import (
	"context"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
)

// Work is what an owner does besides the functions it is given. All of it runs on the owner's goroutine.
type Work struct {
	// Step does a bounded piece of what there is to do, such as one pass, and reports whether there may
	// be more. It is called again and again while it returns true, and after any function.
	Step func() bool
	// Fault takes what a panic in Step, Tick or a posted function left: an Internal error with the stack.
	Fault func(error)
	// Tick is called about every Every while there is nothing to do, and between steps.
	Tick  func()
	Every time.Duration
	// Last is called once, after everything else.
	Last func()
}

// Owner is a goroutine that runs functions in the order they were given, and
// steps of work between them. Safe for concurrent use.
type Owner struct {
	work Work
	wake chan struct{} // holds one token if there may be something in queue, or stopped is set
	done chan struct{}

	mu      sync.Mutex
	queue   []func()
	stopped bool
}

// Start starts an owner. Stop ends it.
func Start(w Work) *Owner {
	o := &Owner{work: w, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go o.run()
	return o
}

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

// Stop lets what was queued run, then Last, and waits for the goroutine to end, no longer than ctx. It
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
	defer func() { o.check(Guard(func() error { o.work.Last(); return nil })) }()
	ticker := time.NewTicker(o.work.Every)
	defer ticker.Stop()
	for {
		queue, stopped := o.take()
		for _, fn := range queue {
			o.check(Guard(func() error { fn(); return nil }))
		}
		if stopped {
			return
		}
		more := false
		o.check(Guard(func() error { more = o.work.Step(); return nil }))
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
		}
	}
}

func (o *Owner) take() ([]func(), bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	queue := o.queue
	o.queue = nil
	return queue, o.stopped
}

func (o *Owner) tick() { o.check(Guard(func() error { o.work.Tick(); return nil })) }

func (o *Owner) check(err error) {
	if err != nil {
		o.work.Fault(err)
	}
}

// Guard runs fn and returns its error, or an Internal error with the stack if it panicked.
func Guard(fn func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = tandem.Errorf("owner", tandem.Internal, "panic: %v\n%s", r, debug.Stack())
		}
	}()
	return fn()
}
