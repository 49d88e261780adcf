package main

import (
	"os"

	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/supervise"
)

// childFlags are those of a process that another one has started.
type childFlags struct {
	ReadyFD int `name:"ready-fd" hidden:"" setting:"-"`
	PulseFD int `name:"pulse-fd" hidden:"" setting:"-"`
	// SharedModel is the model whose weights lie in supervise.WeightsFD; "": nothing lies there.
	SharedModel string `name:"shared-model" hidden:"" setting:"-"`
	// SharedOutput says that its output matrix alone does, for drafts.
	SharedOutput bool `name:"shared-output" hidden:"" setting:"-"`
	// OrCPU has it compute on the cores where --device cannot be used, such as a GPU that was lost: --device was chosen by auto.
	OrCPU bool `name:"or-cpu" hidden:"" setting:"-"`
}

// sharing adds the memory that others share to how a process loads models.
func (c childFlags) sharing(a *app, m *roles.Models) {
	if c.SharedModel == "" {
		return
	}
	m.SharedModel, m.Shared = c.SharedModel, &engine.Shared{File: os.NewFile(supervise.WeightsFD, "weights"), Output: c.SharedOutput,
		Refused: func(model string, why error) {
			a.say("tandem: %s has weights of its own, which others do not share: %v", roles.ModelName(model), why)
		}}
}

// program returns what a process with these settings gets of the program.
func (c childFlags) program(a *app, l settings.Logging) roles.Program {
	return roles.Program{ReadyFD: c.ReadyFD, PulseFD: c.PulseFD, Version: buildVersion().Version,
		Log: l.Logger(a.stderr, a.kong.Command()), Ready: func() { a.outdated(l) }}
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
