package main

import (
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/roles"
)

// addressFlags say where one process is and where it finds the others.
type addressFlags struct {
	Listen     string   `help:"Address to serve on, host:port or unix:///path (default: gateway 127.0.0.1:8451; drafter and verifier the sockets drafter.sock and verifier.sock in $XDG_RUNTIME_DIR/tandem, /run/tandem or /tmp/tandem-UID)." placeholder:"ADDR"`
	Pool       string   `help:"NATS server of the pool: nats://[token@]host:port, or file:PATH of a file that holds such a URL. A gateway without it runs a server of its own." placeholder:"URL"`
	PoolListen string   `help:"Address, host:port, on which a gateway without --pool serves the pool (default: a port of 127.0.0.1 that the system chooses)." placeholder:"ADDR"`
	PoolFile   string   `help:"File in which a gateway that runs the pool writes its URL for the others." placeholder:"FILE"`
	Drafter    []string `help:"Address of a drafter process that does not announce itself through the pool's server; may be repeated. Others are found there." placeholder:"ADDR" sep:"none"`
	Verifier   string   `help:"Address of the verifier (default: its default socket)." placeholder:"ADDR"`
}

// roleFlags are common to all single processes.
type roleFlags struct {
	sizeFlags
	telemetryFlags
	secureFlags
	secretFlags
	logFlags
	Grace   time.Duration `help:"How long calls in progress may go on after SIGTERM." default:"25s"`
	ReadyFD int           `name:"ready-fd" hidden:"" setting:"-"`
	PulseFD int           `name:"pulse-fd" hidden:"" setting:"-"`
}

// config returns the configuration of a process with these flags.
func (f roleFlags) config(a *app, listen string) roles.Config {
	return roles.Config{Listen: listen, Sizes: roles.Sizes(f.sizeFlags), TLS: f.files(), Insecure: f.InsecureListen,
		SecretFile:   f.SecretFile,
		OTLPEndpoint: f.OTLPEndpoint, Grace: f.Grace, ReadyFD: f.ReadyFD, PulseFD: f.PulseFD, Version: buildVersion().Version,
		Log: f.logger(a.stderr, a.kong.Command())}
}

// models returns how a process with these flags loads models, but for their devices; it shows progress on stderr.
func (k kernelFlags) models(a *app) (roles.Models, error) {
	if err := k.check(); err != nil {
		return roles.Models{}, err
	}
	return roles.Models{Threads: k.Threads, Options: engine.Options{Lock: k.Lock, KVType: k.KVType}, KVMemory: k.kvBytes(),
		Open: a.openModel}, nil
}

// or returns v, or def if v is empty.
func or(v, def string) string {
	if v == "" {
		return def
	}
	return v
}
