// Package roles assembles the rooms into processes. Its subpackages drafter, verifier and gateway each assemble one kind of process; this
// package has what is common to all: an address, credentials, traces, counters, a pulse, models, and access to the pool. Settings are
// plain values, and several roles may run in one process, as tests do; flags belong to the command line.
package roles

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/schedule/owner"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/supervise"
	"github.com/tandem-llm/tandem/services/peers/telemetry"
)

// Program is what a program gives to a process that it runs. The zero value will do.
type Program struct {
	ReadyFD int              // descriptor for telling the supervisor that the process is ready; 0: no supervisor
	PulseFD int              // descriptor of the memory in which the process shows its progress; 0: none
	Version string           // the program's
	Log     *slog.Logger     // where the process logs, as settings.Logging says; nil discards
	Ready   func()           // called once the process serves; may be nil
	Calm    func() bool      // whether the machine has nothing else to do, so that passes can be measured; nil: found out. For tests
	Now     func() time.Time // the wall clock, by which tickets expire; nil: time.Now. For tests
}

// Process is the common part of a running process: its server, its traces, its log and counters.
type Process struct {
	settings.Peer // with Sessions filled in
	Program
	Role        rpc.Role
	Server      *rpc.Server
	Certificate *rpc.Certificate // the process's; nil for none
	Credentials *rpc.Credentials
	Events      tandem.Events
	Counters    *tandem.Counters
	Traces      *telemetry.Telemetry // records spans; nil: off

	gauges  map[string]func() int64 // complete before the server serves
	tellers []func(counters map[string]int64)
	mapped  int64                       // bytes of weights that drafts share with their target
	losable []kernels.Losable           // devices whose loss ends the process
	later   []func(ctx context.Context) // work for when the process serves
	pulse   *supervise.Pulse            // shows the supervisor progress; nil: no supervisor
}

// Start opens the traces and the server's address, so that an address in use is noticed before a model is loaded. drain is called
// first when the process is to end, and may be nil. The caller must Close the process, and its Server if it is not served. Errors: Invalid
// for impossible settings, which they name as the command line does.
func Start(ctx context.Context, name rpc.Role, c settings.Peer, p Program, drain func()) (*Process, error) {
	if err := c.Sizes.Check(); err != nil {
		return nil, err
	}
	if n := rpc.Files(); n < rpc.LeastFiles {
		return nil, tandem.Errorf("start", tandem.Invalid, "this process may have %d files open: want at least %d (ulimit -n)", n,
			rpc.LeastFiles)
	}
	c.Sizes = c.Sizes.OrDefault()
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	r := &Process{Peer: c, Program: p, Role: name, Counters: new(tandem.Counters)}
	serve, err := r.access(name)
	if err != nil {
		return nil, err
	}
	if r.pulse, err = supervise.OpenPulse(p.PulseFD); err != nil {
		return nil, err
	}
	if r.pulse != nil {
		r.Gauge("restarts", func() int64 { all, _ := r.pulse.Restarts(); return all })
		r.Gauge("watchdog.kills", func() int64 { _, hung := r.pulse.Restarts(); return hung })
	}
	traces, err := telemetry.Setup(ctx, telemetry.Config{Service: "tandem-" + string(name), Endpoint: c.OTLPEndpoint,
		Version: p.Version, Roots: name == rpc.Gateway, Counters: r.Counters})
	if err != nil {
		return nil, err
	}
	r.Traces, r.Events = traces, traces.Events()
	serve.Grace, serve.Drain, serve.Log, serve.Counters = c.Grace, drain, r.Log, r.Counters
	if r.Server, err = rpc.NewServer(serve); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Close sends the last traces.
func (r *Process) Close() { r.Traces.Shutdown() }

// Beat returns the pulse with which a model's owner shows the supervisor its progress, nil without a supervisor, and a function that
// reports that the owner's pass makes progress.
func (r *Process) Beat(name string) (pulse owner.Pulse, goes func()) {
	if r.pulse == nil {
		return nil, func() {}
	}
	beat := r.pulse.Beat(name)
	return beat, beat.Goes
}

// live shows the supervisor, until stop is called, that the process as a whole makes progress: it reads the gauges, which take
// the locks of its rooms.
func (r *Process) live() (stop func()) {
	if r.pulse == nil {
		return func() {}
	}
	beat, describe, done := r.pulse.Beat("process"), r.DescribeProcess("", ""), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(supervise.Interval)
		defer ticker.Stop()
		for {
			describe()
			beat.Finished()
			select {
			case <-ticker.C:
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

// Serve tells the supervisor that this process is ready, and serves until ctx ends, or until a device that its models run on is lost:
// then the process must start again, and the error says why.
func (r *Process) Serve(ctx context.Context) error {
	defer r.live()()
	lost, stop := r.watch()
	defer stop()
	debug.FreeOSMemory() // what was read to start, such as a large vocabulary's strings, is of no more use: see gatewayBytes
	r.Server.SetServing(true)
	if err := supervise.Ready(r.ReadyFD); err != nil {
		r.Server.Close()
		return err
	}
	if r.Ready != nil {
		r.Ready()
	}
	defer r.work(ctx)()
	err := r.Server.Run(ctx)
	select {
	case why := <-lost:
		return tandem.Errorf("", tandem.Unavailable, "%w", why)
	default:
		return err
	}
}

// work does what was left for later, one after the other, on a thread of the lowest priority. stop ends it.
func (r *Process) work(ctx context.Context) (stop func()) {
	if len(r.later) == 0 {
		_ = supervise.Settled(r.ReadyFD)
		return func() {}
	}
	const lowest = 19 // of the system's nice values
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its priority
		_ = syscall.Setpriority(syscall.PRIO_PROCESS, syscall.Gettid(), lowest)
		for _, f := range r.later {
			f(ctx)
		}
		_ = supervise.Settled(r.ReadyFD)
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// watch stops the server once a device is lost, without waiting for what is in progress, and hands over why. stop ends it.
func (r *Process) watch() (lost <-chan error, stop func()) {
	why, done := make(chan error, len(r.losable)), make(chan struct{})
	var wg sync.WaitGroup
	for _, d := range r.losable {
		wg.Go(func() {
			select {
			case <-d.Gone():
				why <- d.Lost()
				r.Server.Close()
			case <-done:
			}
		})
	}
	return why, func() {
		close(done)
		wg.Wait()
	}
}

// Describe returns a function that describes a process with a model m, read from path. name is the drafter's or the role's; socket is where
// the process hands out its shared memory, "" for nowhere.
func (r *Process) Describe(name, path, socket string, m *engine.Model) func() tandem.Description {
	process := r.DescribeProcess(name, socket)
	return func() tandem.Description {
		d := process()
		d.Model, d.File, d.Vocab, d.Fingerprint = m.Config().Name, filepath.Base(path), m.Vocab().Size(),
			Fingerprint(m.Vocab().Fingerprint())
		d.Context, d.KVCapacity = m.Config().Context, int64(m.Pages())*kernels.PageRows
		d.Device, d.ISA, d.Threads = m.About().Name, m.About().Kernels, m.About().Threads
		d.Identity, d.Lineage = m.Names().Identity, m.Names().Lineage
		return d
	}
}

// DescribeProcess is Describe for a process without a model. The function reads all gauges.
func (r *Process) DescribeProcess(name, socket string) func() tandem.Description {
	return func() tandem.Description {
		counters := map[string]int64{}
		maps.Copy(counters, r.Counters.Snapshot())
		for name, now := range r.gauges {
			counters[name] = now()
		}
		for _, tell := range r.tellers {
			tell(counters)
		}
		return tandem.Description{Name: name, Version: r.Version, PID: os.Getpid(), SegmentSocket: socket, Counters: counters,
			Protocol: tandem.Protocol}
	}
}

// Refused logs why another process is not used.
func (r *Process) Refused(err error) { r.Log.Warn("process is not used", "error", err) }

// Gauge adds a gauge, before the process serves. now may wait only for locks: see live.
func (r *Process) Gauge(name string, now func() int64) {
	if r.gauges == nil {
		r.gauges = map[string]func() int64{}
	}
	r.gauges[name] = now
}

// Tell adds gauges whose names are not known in advance. now is as for Gauge.
func (r *Process) Tell(now func(counters map[string]int64)) { r.tellers = append(r.tellers, now) }

// ModelName returns a model's name in tickets and traces: its file's name without folder and ending.
func ModelName(path string) string {
	if side.IsMTPPath(path) {
		return string(side.MTP)
	}
	return strings.TrimPrefix(strings.TrimSuffix(filepath.Base(path), ".gguf"), gguf.Builtin)
}

// Fingerprint returns a vocabulary's fingerprint in the form that processes exchange.
func Fingerprint(f uint64) string { return fmt.Sprintf("%016x", f) }
