package main

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/supervise"
	"github.com/tandem-llm/tandem/services/telemetry"
	"github.com/tandem-llm/tandem/services/wire"
)

// Addresses of processes that were told none.
const (
	gatewayAddr  = "127.0.0.1:8451"
	verifierAddr = "127.0.0.1:8453"
	drafterAddr  = "127.0.0.1:8452"
)

// addressFlags say where one process is and where it finds the others.
type addressFlags struct {
	Listen     string   `help:"Address to serve on, host:port or unix:///path (default: gateway 127.0.0.1:8451, drafter 127.0.0.1:8452, verifier 127.0.0.1:8453)." placeholder:"ADDR"`
	Pool       string   `help:"NATS server of the pool: nats://[token@]host:port, or file:PATH of a file that holds such a URL. A gateway without it runs a server of its own." placeholder:"URL"`
	PoolListen string   `help:"Address, host:port, on which a gateway without --pool serves the pool (default: a port of 127.0.0.1 that the system chooses)." placeholder:"ADDR"`
	PoolFile   string   `help:"File in which a gateway that runs the pool writes its URL for the others." placeholder:"FILE"`
	Drafter    []string `help:"Address of a drafter process that need not announce itself through the pool's server; may be repeated. Others are found there." placeholder:"ADDR" sep:"none"`
	Verifier   string   `help:"Address of the verifier." placeholder:"ADDR"`
}

// roleFlags are what every single process has.
type roleFlags struct {
	sizeFlags
	telemetryFlags
	secureFlags
	Grace   time.Duration `help:"How long calls in progress may go on after SIGTERM." default:"25s"`
	ReadyFD int           `name:"ready-fd" hidden:"" setting:"-"`
}

// role is the common part of a running process: its server, its traces, its log and counters.
type role struct {
	flags    roleFlags
	server   *rpc.Server
	identity *rpc.Identity // nil without --tls-cert
	events   tandem.Events
	counters *tandem.Counters
	gauges   map[string]func() int64 // counters that go up and down; complete before the server serves
	log      *slog.Logger
	stderr   io.Writer
	flush    func()
	traces   *telemetry.Telemetry // nil: off
}

// startRole opens the traces and the server's address, so that an address in use is known before a model
// is loaded. drain may be nil.
func (a *app) startRole(name, listen string, f roleFlags, drain func()) (*role, error) {
	if err := f.sizeFlags.check(); err != nil {
		return nil, err
	}
	identity, err := f.identity()
	if err != nil {
		return nil, err
	}
	r := &role{flags: f, identity: identity, counters: new(tandem.Counters), stderr: a.stderr, flush: func() {},
		log: slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	traces, err := telemetry.Setup(a.ctx, telemetry.Config{Service: "tandem-" + name, Endpoint: f.OTLPEndpoint,
		Version: buildVersion().Version, Roots: name == "gateway", Counters: r.counters})
	if err != nil {
		return nil, err
	}
	r.traces, r.events, r.flush = traces, traces.Events(), traces.Shutdown
	r.server, err = rpc.NewServer(rpc.Config{Listen: listen, TLS: identity, Insecure: f.InsecureListen, Grace: f.Grace, Drain: drain, Log: r.log, Counters: r.counters})
	if err != nil {
		r.flush()
		return nil, err
	}
	return r, nil
}

// serve tells the supervisor that this process is ready, and serves until ctx ends.
func (r *role) serve(ctx context.Context) error {
	r.server.SetServing(true)
	if err := supervise.Ready(r.flags.ReadyFD); err != nil {
		r.server.Close()
		return err
	}
	return r.server.Run(ctx)
}

// loadModels loads models with KV caches for the role's sessions of so many tree rows each, telling the
// supervisor that it goes on. They share the role's threads evenly, each getting at least one.
func (r *role) loadModels(paths []string, k kernelFlags, nodes int) (models []*engine.Model, err error) {
	if err := k.check(); err != nil {
		return nil, err
	}
	room := room{sessions: r.flags.sessionsOr(defaultSessions), ctx: r.flags.Ctx, kvType: k.KVType}
	for _, path := range paths {
		if err := room.add(path, nodes); err != nil {
			return nil, err
		}
	}
	if err := room.check(engine.AvailableMemory()); err != nil {
		return nil, err
	}
	threads := k.Threads
	if n := len(paths); n > 1 {
		if threads == 0 {
			threads = runtime.NumCPU()
		}
		threads = max(1, threads/n)
	}
	defer func() {
		if err != nil {
			for _, m := range models {
				m.Close()
			}
		}
	}()
	for i, path := range paths {
		device, err := openDevice(threads, k.ISA)
		if err != nil {
			return models, tandem.Errorf("", tandem.Invalid, "%w", err)
		}
		m, err := r.open(path, engine.Options{Device: device, Lock: k.Lock, KVType: k.KVType, MaxRows: passRows,
			Context: r.flags.context(room.models[i].context), KVPages: room.models[i].pages(room.sessions, room.ctx)})
		if err != nil {
			return models, err
		}
		models = append(models, m)
	}
	r.gauge("kv.pages", func() (used int64) {
		for _, m := range models {
			used += int64(m.Pages() - m.FreePages())
		}
		return used
	})
	r.gauge("prefix.pages", func() (kept int64) { // none of those in kv.pages
		for _, m := range models {
			kept += int64(m.PrefixPages())
		}
		return kept
	})
	r.gauge("kv.pages_limit", func() (all int64) {
		for _, m := range models {
			all += int64(m.Pages())
		}
		return all
	})
	return models, nil
}

// open opens one model.
func (r *role) open(path string, o engine.Options) (*engine.Model, error) {
	show := newLoading(r.stderr, modelName(path))
	defer show.end()
	o.Progress = func(done, total int64) {
		_ = supervise.Alive(r.flags.ReadyFD)
		show.step(done, total)
	}
	return engine.Open(path, o)
}

const (
	// spareSessions is KV memory for sessions that a client left behind and that are not yet forgotten.
	spareSessions = 1
	// passRows is the largest pass: one tree of the largest size, or many smaller ones with a chunk of prefill.
	passRows = 256
)

// describe tells what a process with a model is.
func (r *role) describe(name, path, socket string, m *engine.Model) func() wire.Description {
	process := r.describeProcess(name, socket)
	return func() wire.Description {
		d := process()
		d.Model, d.File, d.Vocab, d.Fingerprint = m.Config().Name, filepath.Base(path), m.Vocab().Size(), fingerprint(m.Vocab().Fingerprint())
		d.Context, d.Threads, d.ISA, d.KVCapacity = m.Config().Context, m.Threads(), m.ISA(), int64(m.Pages())*kvPageRows
		return d
	}
}

// describeProcess tells what a process without a model is.
func (r *role) describeProcess(name, socket string) func() wire.Description {
	return func() wire.Description {
		counters := map[string]int64{}
		maps.Copy(counters, r.counters.Snapshot())
		for name, now := range r.gauges {
			counters[name] = now()
		}
		return wire.Description{Name: name, Version: buildVersion().Version, PID: os.Getpid(), SegmentSocket: socket, Counters: counters}
	}
}

// gauge adds a counter that goes up and down.
func (r *role) gauge(name string, now func() int64) {
	if r.gauges == nil {
		r.gauges = map[string]func() int64{}
	}
	r.gauges[name] = now
}

// modelName is how tickets and traces call a model: its file's name without the ending.
func modelName(path string) string { return strings.TrimSuffix(filepath.Base(path), ".gguf") }

// or returns v, or def if v is empty.
func or(v, def string) string {
	if v == "" {
		return def
	}
	return v
}
