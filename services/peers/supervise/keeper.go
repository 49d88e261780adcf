package supervise

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// keeper owns one Spec's process from Start to Stop.
type keeper struct {
	g     *Group
	spec  Spec
	ready chan<- error  // gets the first start's result, of one that is not late
	stop  chan struct{} // closed by end
	done  chan struct{} // closed when run returns
	once  sync.Once
	asked atomic.Bool // somebody has asked for a new process

	mu  sync.Mutex
	now *child // the process that lives, nil when there is none

	starts, kills int // so far, of its processes; kills because they hung. Run's, and those of the thread that starts them
}

// hung is the death of a child that hung.
type hung struct{ what string }

func (h hung) Error() string { return h.what }

const (
	firstPause = 50 * time.Millisecond // between a start that failed and the next; doubles
	mostPause  = 5 * time.Second       // of a child that others need
	sparePause = 30 * time.Second      // of another
)

// run starts the process, again and again if the spec says so, until stopped or given up.
func (k *keeper) run() {
	defer close(k.done)
	if k.spec.Late {
		select {
		case <-k.g.others:
		case <-k.stop:
			return
		}
	}
	c, err := k.serving()
	if err != nil && c != nil && c.mayStart() && k.spec.Restart && !k.stopped() {
		k.again(err)
		c, err = k.serving()
	}
	if !k.spec.Late {
		k.ready <- err
	}
	if err != nil {
		if k.spec.Late && !k.stopped() {
			k.g.say("tandem", fmt.Sprintf("%s does not start (%v): answers go on without it", k.spec.Name, err))
		}
		return
	}
	for delay := time.Duration(0); ; delay = longer(delay, mostPause) {
		died := k.live(c)
		if k.stopped() {
			return
		}
		if !k.spec.Restart {
			k.over(c, died)
			return
		}
		asked := k.asked.Swap(false)
		if asked || c.age() > 5*time.Second {
			delay = 0
		}
		if !asked {
			k.again(died)
		}
		if c = k.restart(delay); c == nil {
			return
		}
	}
}

// over tells of the end of a process that is not restarted.
func (k *keeper) over(c *child, died error) {
	switch ended := k.spec.Ended; {
	case ended == nil:
		k.g.fail(fmt.Errorf("%s ended: %w", k.spec.Name, died))
	case c.cmd.ProcessState.Success():
		ended(nil)
	default:
		ended(died)
	}
}

// serving starts the process and waits until it is ready. With an error, the child has ended, or is nil if there was none.
func (k *keeper) serving() (*child, error) {
	c, err := k.start()
	if err == nil {
		err = k.awaitReady(c)
	}
	if err != nil {
		k.reap(c)
	}
	return c, err
}

// restart starts the process after delay, and with growing pauses until it is ready; nil if it was stopped or given up.
func (k *keeper) restart(delay time.Duration) *child {
	most := mostPause
	if k.spec.Spare {
		most = sparePause
	}
	said := ""
	for begun := time.Now(); k.pause(delay); delay = longer(delay, most) {
		c, err := k.serving()
		switch {
		case err == nil && said != "":
			k.g.say("tandem", k.spec.Name+" runs again")
			return c
		case err == nil:
			return c
		case k.stopped():
			return nil
		case !k.spec.Spare && time.Since(begun) >= k.g.cfg.GiveUp:
			k.g.fail(fmt.Errorf("%s could not be started again for %v: %w", k.spec.Name, k.g.cfg.GiveUp, err))
			return nil
		case errors.As(err, new(hung)):
			k.again(err)
		case err.Error() != said:
			said = err.Error()
			k.g.say("tandem", fmt.Sprintf("%s cannot be started again (%s): trying on, with pauses of up to %v", k.spec.Name, said, most))
		}
	}
	return nil
}

// longer returns the pause after one of d.
func longer(d, most time.Duration) time.Duration { return min(max(2*d, firstPause), most) }

// again reports that the process is restarted, and why.
func (k *keeper) again(why error) {
	if errors.As(why, new(hung)) {
		k.g.say("tandem", fmt.Sprintf("%s hung and was killed (%v): starting it again", k.spec.Name, why))
		return
	}
	k.g.say("tandem", fmt.Sprintf("%s died (%v): starting it again", k.spec.Name, why))
}

// live waits for c's end, kills c if it hangs, and returns why it ended.
func (k *keeper) live(c *child) error {
	every := k.g.cfg.Hang / looks
	tick := time.NewTicker(every)
	defer tick.Stop()
	w, q := watch{hang: k.g.cfg.Hang}, queued{pid: c.cmd.Process.Pid}
	for {
		select {
		case <-c.ended:
			k.clear(c)
			return c.cause()
		case <-tick.C:
			// Also while it is to end: a child stopped by a signal would use up the grace time.
			if what := w.look(c.pulse.beats(), every, q.waited); what != "" {
				if stopped(q.pid) {
					what += "; a signal had stopped it"
				}
				k.kills++
				k.reap(c)
				return hung{what}
			}
		}
	}
}

// clear forgets c, which has ended.
func (k *keeper) clear(c *child) {
	k.set(nil)
	c.pulse.release()
}

// reap kills c, if there is one, and waits for its end.
func (k *keeper) reap(c *child) {
	if c == nil {
		return
	}
	c.signal(syscall.SIGKILL)
	<-c.ended
	k.clear(c)
}

// awaitReady waits until c says that it is ready, ends, is stopped, or is silent for longer than Stall, counted
// in ticks as watch does.
func (k *keeper) awaitReady(c *child) error {
	every, silent := k.g.cfg.Stall/looks, time.Duration(0)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case line, open := <-c.words:
			if !open {
				<-c.ended
				if c.wasReady() { // and died at once: nobody may have read the word
					return nil
				}
				return c.cause()
			}
			if line == "ready" {
				return nil
			}
			silent = 0
		case <-k.stop:
			return errors.New(k.spec.Name + " was stopped while it started")
		case <-tick.C:
			if silent += every; silent >= k.g.cfg.Stall {
				k.kills++
				return hung{fmt.Sprintf("%s is not ready: nothing heard from it for %v", k.spec.Name, k.g.cfg.Stall)}
			}
		}
	}
}

// pause waits for d; false if stopped meanwhile.
func (k *keeper) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return !k.stopped()
	case <-k.stop:
		return false
	}
}

func (k *keeper) stopped() bool {
	select {
	case <-k.stop:
		return true
	default:
		return false
	}
}

// end stops the process and the keeper. Safe to call more than once, also at the same time.
func (k *keeper) end(force context.Context) {
	k.once.Do(func() { close(k.stop) })
	k.kill(syscall.SIGTERM)
	grace := time.NewTimer(k.g.cfg.Grace)
	defer grace.Stop()
	select {
	case <-k.done:
		return
	case <-grace.C:
	case <-force.Done():
	}
	k.kill(syscall.SIGKILL)
	<-k.done
}

// kill signals the living process, if there is one.
func (k *keeper) kill(sig syscall.Signal) {
	if c := k.living(); c != nil {
		c.signal(sig)
	}
}

func (k *keeper) living() *child {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

func (k *keeper) set(c *child) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now = c
}

// start starts the spec's program once, on the spawning thread.
func (k *keeper) start() (*child, error) {
	type result struct {
		c   *child
		err error
	}
	out := make(chan result, 1)
	k.g.spawn <- func() {
		k.mu.Lock() // so that end sees either no process or all of it
		defer k.mu.Unlock()
		if k.stopped() {
			out <- result{nil, errors.New(k.spec.Name + " was stopped before it started")}
			return
		}
		if before := k.g.cfg.Before; before != nil {
			if err := before(); err != nil {
				out <- result{nil, fmt.Errorf("starting %s: %w", k.spec.Name, err)}
				return
			}
		}
		c, err := startChild(k.g, k.spec, k.starts, k.kills)
		k.now = c
		k.starts++
		out <- result{c, err}
	}
	r := <-out
	return r.c, r.err
}

// exitReason describes the end of a process.
func exitReason(err error) string {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "exit status 0"
	case errors.As(err, &exit):
		return exit.Error()
	}
	return err.Error()
}
