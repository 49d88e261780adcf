package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/cmd/tandem/supervise"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/services/pool"
	"github.com/tandem-llm/tandem/services/rpc"
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
	Listen   string `help:"Address to serve on, host:port or unix:///path (default: gateway 127.0.0.1:8451, drafter 127.0.0.1:8452, verifier 127.0.0.1:8453)." placeholder:"ADDR"`
	Pool     string `help:"NATS server of the pool: nats://[token@]host:port, or file:PATH of a file that holds such a URL. A gateway without it runs a server of its own." placeholder:"URL"`
	PoolFile string `help:"File in which a gateway that runs the pool writes its URL for the others." placeholder:"FILE"`
	Drafter  string `help:"Address of the drafter." placeholder:"ADDR"`
	Verifier string `help:"Address of the verifier." placeholder:"ADDR"`
}

// roleFlags are what every single process has.
type roleFlags struct {
	sizeFlags
	telemetryFlags
	Grace   time.Duration `help:"How long calls in progress may go on after SIGTERM." default:"25s"`
	ReadyFD int           `name:"ready-fd" hidden:"" setting:"-"`
}

// role is the common part of a running process: its server, its traces, its log and counters.
type role struct {
	flags    roleFlags
	server   *rpc.Server
	events   tandem.Events
	counters *tandem.Counters
	log      *slog.Logger
	stderr   io.Writer
	flush    func()
}

// startRole opens the traces and the server's address, so that an address in use is known before a model
// is loaded. drain may be nil.
func (a *app) startRole(name, listen string, f roleFlags, drain func()) (*role, error) {
	if err := f.sizeFlags.check(); err != nil {
		return nil, err
	}
	r := &role{flags: f, counters: new(tandem.Counters), stderr: a.stderr, flush: func() {},
		log: slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	traces, err := telemetry.Setup(a.ctx, telemetry.Config{Service: "tandem-" + name, Endpoint: f.OTLPEndpoint,
		Version: buildVersion().Version, Roots: name == "gateway", Counters: r.counters})
	if err != nil {
		return nil, err
	}
	r.events, r.flush = traces.Events(), traces.Shutdown
	r.server, err = rpc.NewServer(rpc.Config{Listen: listen, Grace: f.Grace, Drain: drain, Log: r.log, Counters: r.counters})
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

// loadModel loads a model with a KV cache for the role's sessions of so many tree rows each, telling the
// supervisor that it goes on.
func (r *role) loadModel(path string, k kernelFlags, nodes int) (*engine.Model, error) {
	if err := k.check(); err != nil {
		return nil, err
	}
	room := room{sessions: r.flags.sessionsOr(defaultSessions), ctx: r.flags.Ctx, kvType: k.KVType}
	if err := room.add(path, nodes); err != nil {
		return nil, err
	}
	if err := room.check(engine.AvailableMemory()); err != nil {
		return nil, err
	}
	show := newLoading(r.stderr, modelName(path))
	defer show.end()
	return engine.Open(path, engine.Options{
		Threads: k.Threads, ISA: k.ISA, Lock: k.Lock, KVType: k.KVType,
		Context: r.flags.context(room.models[0].context), KVPages: room.models[0].pages(room.sessions, room.ctx),
		MaxRows: passRows,
		Progress: func(done, total int64) {
			_ = supervise.Alive(r.flags.ReadyFD)
			show.step(done, total)
		},
	})
}

const (
	// spareSessions is KV memory for sessions that a client left behind and that are not yet forgotten.
	spareSessions = 1
	// passRows is the largest pass: one tree of the largest size, or many smaller ones with a chunk of prefill.
	passRows = 256
)

// describe tells what a process with a model is.
func (r *role) describe(name, path, socket string, m *engine.Model) func() wire.Description {
	d := wire.Description{
		Name: name, Version: buildVersion().Version, Model: m.Config().Name, File: filepath.Base(path), Vocab: m.Vocab().Size(),
		Fingerprint: fingerprint(m.Vocab().Fingerprint()), Context: m.Config().Context, Threads: m.Threads(), ISA: m.ISA().String(), PID: os.Getpid(),
		KVCapacity: int64(m.Pages()) * kvPageRows, SegmentSocket: socket,
	}
	return func() wire.Description {
		now := d
		now.Counters = r.counters.Snapshot()
		return now
	}
}

// modelName is how tickets and traces call a model: its file's name without the ending.
func modelName(path string) string { return strings.TrimSuffix(filepath.Base(path), ".gguf") }

// poolAccess turns --pool into an address with its secret. A file may still have to be written.
func poolAccess(ctx context.Context, flag string) (pool.Access, error) {
	if flag == "" {
		return pool.Access{}, tandem.Errorf("", tandem.Invalid, "--pool is missing: want nats://host:port, or file:PATH as a gateway writes it with --pool-file")
	}
	path, isFile := strings.CutPrefix(flag, "file:")
	if !isFile {
		return pool.Access{URL: flag}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		b, err := os.ReadFile(path)
		if err == nil {
			return pool.Access{URL: strings.TrimSpace(string(b))}, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return pool.Access{}, tandem.Errorf("", tandem.Invalid, "--pool %s: %w", flag, reason(err))
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return pool.Access{}, tandem.Errorf("", tandem.Unavailable, "--pool %s: no gateway has written it", flag)
		}
	}
}

// writePoolFile writes the URL of a pool, with its secret, for this user alone, all at once.
func writePoolFile(path string, access pool.Access) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".pool-*")
	if err != nil {
		return tandem.Errorf("", tandem.Invalid, "--pool-file %s: %w", path, reason(err))
	}
	defer os.Remove(tmp.Name())
	url := strings.Replace(access.URL, "nats://", "nats://"+access.Token+"@", 1)
	_, err = tmp.WriteString(url + "\n")
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return tandem.Errorf("", tandem.Invalid, "--pool-file %s: %w", path, reason(err))
	}
	return nil
}

// or returns v, or def if v is empty.
func or(v, def string) string {
	if v == "" {
		return def
	}
	return v
}
