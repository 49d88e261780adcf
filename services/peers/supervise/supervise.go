// Package supervise keeps child processes of this program running: it starts them together, waits
// until each says that it is ready, restarts those that die or hang, and stops them in order. No child
// outlives the parent, however the parent ends.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Spec describes one child process.
type Spec struct {
	Name    string   // prefix of its lines on stderr, and its name in errors
	Args    []string // arguments after the program's name; never a secret: other users can read them
	Restart bool     // start it again when it dies; otherwise its death is the group's
	Spare   bool     // the others work without it: its restarts are never given up
	Late    bool     // it starts when the others are ready, nobody waits for it, and if it cannot start, the others go on without it
	Weights *os.File // memory that each of its processes gets as WeightsFD; nil: none
}

// GroupConfig configures a Group. Program and Stderr are required; zero fields take the default named beside them.
type GroupConfig struct {
	Program string
	Env     []string                       // the children's environment
	Stderr  io.Writer                      // receives the children's lines
	Line    func(name, line string) string // returns a child's line as it is written; nil: with "name: " before it
	Stall   time.Duration                  // a starting child that says nothing for so long has failed; 0 = 30 s
	Hang    time.Duration                  // a child that is ready hangs if it finishes nothing for so long (see watch); 0 = 5 s
	Grace   time.Duration                  // between SIGTERM and SIGKILL; 0 = 2 s
	GiveUp  time.Duration                  // a child that others need and that cannot start for so long is given up; 0 = 5 minutes
	Before  func() error                   // called before each start, for what a child needs; may be nil
	Heard   func(name, line string)        // called with what a child Tells after "ready", its calls one after the other; nil: dropped
}

func (c GroupConfig) withDefaults() GroupConfig {
	if c.Line == nil {
		c.Line = func(name, line string) string { return name + ": " + line }
	}
	if c.Stall == 0 {
		c.Stall = 30 * time.Second
	}
	if c.Hang == 0 {
		c.Hang = 5 * time.Second
	}
	if c.Grace == 0 {
		c.Grace = 2 * time.Second
	}
	if c.GiveUp == 0 {
		c.GiveUp = 5 * time.Minute
	}
	return c
}

// Group runs child processes.
//
// Design. Every process is started by one goroutine that stays on one OS thread until Stop, because
// the kernel sends a child its death signal when the thread that started it ends, not the process.
// Each child has a process group of its own, so that Ctrl-C at a terminal reaches the parent alone and
// the parent decides the order in which the others end. A child says "ready" on file descriptor 3.
//
// Invariants:
//  1. Between Start and the return of Stop, one keeper goroutine per Spec owns that Spec's process:
//     it alone starts it and waits for it. Stop returns after all keepers.
//  2. A keeper never starts a process after its stop channel is closed.
//  3. A process that was started is waited for, so none is left as a zombie.
//
// A child shows its progress in memory that it shares with the parent, file descriptor 4: a child that hangs cannot answer, and
// over its socket a healthy one may be slow because it has many clients.
//
// Polling pids or a health port instead of a pipe would be later by the polling interval, and could
// not tell a child that died at once from one that is slow.
type Group struct {
	cfg     GroupConfig
	spawn   chan func()
	keepers []*keeper     // in the order of Start
	others  chan struct{} // closed when all are ready but the late ones
	failed  chan error
	lines   sync.Mutex // serialises lines on Stderr
	hearing sync.WaitGroup
}

// New returns a group without processes. Stop must be called.
func New(cfg GroupConfig) *Group {
	g := &Group{cfg: cfg.withDefaults(), spawn: make(chan func()), failed: make(chan error, 1), others: make(chan struct{})}
	go onOneThread(g.spawn)
	return g
}

// Start starts all specs at once, the late ones when the others are ready, and returns when these are. If one dies before
// that, is silent for too long, or ctx ends, it returns an error; Stop then ends the others. To be called once.
func (g *Group) Start(ctx context.Context, specs ...Spec) error {
	results, waits := make(chan error, len(specs)), 0
	for _, s := range specs {
		g.keepers = append(g.keepers, &keeper{g: g, spec: s, ready: results, stop: make(chan struct{}), done: make(chan struct{})})
	}
	for _, k := range g.keepers {
		if !k.spec.Late {
			waits++
		}
		go k.run()
	}
	for range waits {
		select {
		case err := <-results:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	close(g.others)
	return nil
}

// Failed receives one error when a process has died that is not restarted, or whose restart was
// given up.
func (g *Group) Failed() <-chan error { return g.failed }

// Settle waits until all processes that live have said that they are settled, or ctx ends. It calls say, once, if one is not.
func (g *Group) Settle(ctx context.Context, say func()) {
	const soon = 100 * time.Millisecond // for a word that is on its way
	for _, k := range g.keepers {
		c := k.living()
		if c == nil {
			continue
		}
		select {
		case <-c.settled:
			continue
		case <-time.After(soon):
		case <-ctx.Done():
			return
		}
		if say != nil {
			say()
			say = nil
		}
		select {
		case <-c.settled:
		case <-ctx.Done():
			return
		}
	}
}

// Stop ends the processes: the first spec's, then the others'. Each gets SIGTERM and the grace of
// GroupConfig, then SIGKILL; if force ends, SIGKILL comes at once. Returns when none is left.
func (g *Group) Stop(force context.Context) {
	if len(g.keepers) > 0 {
		g.keepers[0].end(force)
	}
	var wg sync.WaitGroup
	for _, k := range g.keepers {
		wg.Go(func() { k.end(force) })
	}
	wg.Wait()
	g.hearing.Wait()
	close(g.spawn)
}

// End ends the process of that name for good, as Stop does. The others go on.
func (g *Group) End(name string) {
	for _, k := range g.keepers {
		if k.spec.Name == name {
			k.end(context.Background())
		}
	}
}

// Pids returns the process ids of the children that live now, by name.
func (g *Group) Pids() map[string]int {
	pids := map[string]int{}
	for _, k := range g.keepers {
		if c := k.living(); c != nil {
			pids[k.spec.Name] = c.cmd.Process.Pid
		}
	}
	return pids
}

func (g *Group) say(name, line string) {
	g.lines.Lock()
	defer g.lines.Unlock()
	fmt.Fprintln(g.cfg.Stderr, g.cfg.Line(name, line))
}

func (g *Group) fail(err error) {
	select {
	case g.failed <- err:
	default: // one is enough
	}
}

// keeper owns one Spec's process from Start to Stop.
type keeper struct {
	g     *Group
	spec  Spec
	ready chan<- error  // gets the first start's result, of one that is not late
	stop  chan struct{} // closed by end
	done  chan struct{} // closed when run returns
	once  sync.Once

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
			k.g.fail(fmt.Errorf("%s ended: %w", k.spec.Name, died))
			return
		}
		if c.age() > 5*time.Second {
			delay = 0
		}
		k.again(died)
		if c = k.restart(delay); c == nil {
			return
		}
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
