package public

import (
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
)

const (
	defaultStall = 30 * time.Second
	stallEvents  = 32 // about a kilobyte
)

// pace measures how long a client keeps its output waiting.
type pace struct {
	stall  time.Duration
	watch  *time.Timer   // runs while a send does
	waited time.Duration // for the latest sends
	sends  int           // events that took so long, fewer than stallEvents
}

// paced runs a generation and returns its error, or its panic as one. Unread output waits in the transport, which holds 64 KiB of a stream;
// beyond that a send waits, and the generator handles that. A client that reads next to nothing is given up: the generation runs in a
// goroutine beside the call, whose return ends the stream and with it the waiting send.
func paced(stall time.Duration, generate func(*pace) error) error {
	stalled := make(chan struct{})
	p := &pace{stall: stall, watch: time.AfterFunc(stall, sync.OnceFunc(func() { close(stalled) }))}
	p.watch.Stop()
	done := make(chan error, 1)
	go func() {
		var err error
		defer func() {
			if p := recover(); p != nil { // gRPC's recovery does not cover this goroutine
				err = tandem.Panicked(op, p)
			}
			done <- err
		}()
		err = generate(p)
	}()
	select {
	case err := <-done:
		return err
	case <-stalled:
		return p.stalled()
	}
}

// take calls send, which waits while the client takes nothing.
func (p *pace) take(send func() error) error {
	if p.sends++; p.sends == stallEvents {
		p.sends, p.waited = 0, 0
	}
	begun := time.Now()
	p.watch.Reset(p.stall - p.waited)
	err := send()
	p.watch.Stop()
	if p.waited += time.Since(begun); err != nil && p.waited >= p.stall {
		return p.stalled()
	}
	return err
}

// stalled is the error of a client that was given up.
func (p *pace) stalled() error {
	return tandem.Errorf(op, tandem.Deadline, "the client kept its output waiting for %v: want %d events taken in that time", p.stall,
		stallEvents)
}
