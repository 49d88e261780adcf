// Package supervise keeps child processes of this program running: it starts them together, waits
// until each says that it is ready, restarts those that die or hang, and stops them in order. No child
// outlives the parent, however the parent ends.
package supervise

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
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

	// Ended is called, from its keeper's goroutine, when a process that served and is not restarted has ended, unless it was stopped; then
	// its death is not the group's. why is nil if it ended with exit status 0. nil: its death is the group's.
	Ended func(why error)
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
	others  chan struct{} // closed when all are ready but the late ones
	failed  chan error
	lines   sync.Mutex // serialises lines on Stderr
	hearing sync.WaitGroup

	mu      sync.Mutex
	keepers []*keeper // in the order of Start and Add
	stopped bool
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
		if !s.Late {
			waits++
		}
		g.add(s, results)
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

// Add starts a further process, which must be Late: nobody waits for it. Nothing is started after Stop.
func (g *Group) Add(s Spec) { g.add(s, nil) }

func (g *Group) add(s Spec, ready chan<- error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return
	}
	k := &keeper{g: g, spec: s, ready: ready, stop: make(chan struct{}), done: make(chan struct{})}
	g.keepers = append(g.keepers, k)
	go k.run()
}

// all returns the keepers.
func (g *Group) all() []*keeper {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.keepers)
}

// Failed receives one error when a process has died that is not restarted, or whose restart was
// given up.
func (g *Group) Failed() <-chan error { return g.failed }

// Settle waits until all processes that live have said that they are settled, or ctx ends. It calls say, once, if one is not.
func (g *Group) Settle(ctx context.Context, say func()) {
	const soon = 100 * time.Millisecond // for a word that is on its way
	for _, k := range g.all() {
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
	g.mu.Lock()
	g.stopped = true
	g.mu.Unlock()
	all := g.all()
	if len(all) > 0 {
		all[0].end(force)
	}
	var wg sync.WaitGroup
	for _, k := range all {
		wg.Go(func() { k.end(force) })
	}
	wg.Wait()
	g.hearing.Wait()
	close(g.spawn)
}

// End ends the process of that name for good, as Stop does. The others go on.
func (g *Group) End(name string) {
	for _, k := range g.all() {
		if k.spec.Name == name {
			k.end(context.Background())
		}
	}
}

// Again ends the process of that name as Stop does, and starts it again at once, such as with other settings: its spec must say Restart.
// It returns when the process has ended.
func (g *Group) Again(name string) {
	for _, k := range g.all() {
		c := k.living()
		if k.spec.Name != name || c == nil {
			continue
		}
		k.asked.Store(true)
		c.signal(syscall.SIGTERM)
		grace := time.NewTimer(g.cfg.Grace)
		defer grace.Stop()
		select {
		case <-c.ended:
			continue
		case <-grace.C:
		}
		c.signal(syscall.SIGKILL)
		<-c.ended
	}
}

// Pids returns the process ids of the children that live now, by name.
func (g *Group) Pids() map[string]int {
	pids := map[string]int{}
	for _, k := range g.all() {
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
