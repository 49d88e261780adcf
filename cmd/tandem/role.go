package main

import (
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
)

// childFlags are those of a process that another one has started.
type childFlags struct {
	ReadyFD int `name:"ready-fd" hidden:"" setting:"-"`
	PulseFD int `name:"pulse-fd" hidden:"" setting:"-"`
}

// config returns the configuration of a process with these settings.
func (c childFlags) config(a *app, listen string, p settings.Process, l settings.Logging) roles.Config {
	return roles.Config{Listen: listen, Sizes: roles.Sizes(p.Sizes), TLS: start.TLSFiles(p.Certificate),
		Insecure:   p.InsecureListen,
		SecretFile: p.SecretFile, OTLPEndpoint: p.OTLPEndpoint, Grace: p.Grace, ReadyFD: c.ReadyFD, PulseFD: c.PulseFD,
		Version: buildVersion().Version, Log: l.Logger(a.stderr, a.kong.Command()), Ready: func() { a.outdated(l) }}
}

// models returns how a process with these flags loads models, but for their devices; it shows progress on stderr.
func (k kernelFlags) models(a *app) (roles.Models, error) {
	if err := k.Validate(); err != nil {
		return roles.Models{}, err
	}
	return roles.Models{Threads: k.Threads, Options: engine.Options{Lock: k.Lock, KVType: k.KVType}, KVMemory: k.KVMemory.Bytes(),
		Open: a.openModel}, nil
}

// or returns v, or def if v is empty.
func or(v, def string) string {
	if v == "" {
		return def
	}
	return v
}

// openModel loads a model and shows its progress on stderr.
func (a *app) openModel(path string, o engine.Options) (*engine.Model, error) {
	return terminal.Open(a.stderr, path, o, engine.Open)
}

// openDrafts returns openModel for models among which are drafts that read the hidden states of target.
func (a *app) openDrafts(target string) func(path string, o engine.Options) (*engine.Model, error) {
	return func(path string, o engine.Options) (*engine.Model, error) {
		return terminal.Open(a.stderr, path, o, func(path string, o engine.Options) (*engine.Model, error) {
			return engine.OpenDraft(path, target, o)
		})
	}
}
