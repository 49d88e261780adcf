package httpapi

import (
	"cmp"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// description is what /tandem/v1/describe answers.
type description struct {
	Version      string           `json:"version"`
	Model        string           `json:"model"`
	Architecture string           `json:"architecture"`
	Vocabulary   int              `json:"vocabulary"`
	Context      int              `json:"context"`
	Chat         bool             `json:"chat"`   // there is a chat template
	Keyed        bool             `json:"keyed"`  // a key is needed
	Ready        bool             `json:"ready"`  // requests are answered now
	Reason       string           `json:"reason"` // why they are not
	Defaults     defaultValues    `json:"defaults"`
	Limits       limitValues      `json:"limits"`
	Drafters     []string         `json:"drafters"` // names that a request may use now
	Processes    []process        `json:"processes"`
	Counters     map[string]int64 `json:"counters"`
}

// defaultValues are the values of fields that a request leaves out, named as in a request.
type defaultValues struct {
	MaxTokens int `json:"max_tokens"`
	MaxOutput int `json:"max_output_tokens,omitempty"` // bounds what a request may ask for
	oai.Sampling
	Accept      string           `json:"accept"`
	Speculation speculationValue `json:"speculation"`
}

type speculationValue struct {
	Enabled  bool            `json:"enabled"`
	Strategy tandem.Strategy `json:"strategy"`
	Vote     tandem.Vote     `json:"vote"`
	Drafters []string        `json:"drafters"` // empty: all that are alive
	Nodes    int             `json:"max_nodes"`
	Width    int             `json:"max_width"` // the old name of max_nodes
	Depth    int             `json:"max_depth"`
	Branches int             `json:"max_branches"`
	Without  []string        `json:"without"`
}

// limitValues bound a request's fields about speculation.
type limitValues struct {
	Nodes    int `json:"max_nodes"`
	Width    int `json:"max_width"` // the old name of max_nodes
	Depth    int `json:"max_depth"`
	Branches int `json:"max_branches"`
	Choices  int `json:"n"`
}

type process struct {
	Role     string           `json:"role"`
	Up       bool             `json:"up"`
	Name     string           `json:"name"`
	Model    string           `json:"model"`
	Version  string           `json:"version"`
	Device   string           `json:"device"` // "" for a process without a model
	ISA      string           `json:"isa"`
	Threads  int              `json:"threads"`
	PID      int              `json:"pid"`
	Identity tandem.Identity  `json:"identity"` // "" for a process without a model
	Lineage  string           `json:"lineage"`
	Ways     []string         `json:"ways,omitempty"` // names of the ways in which the model drafts for itself
	Protocol int              `json:"protocol"`
	Counters map[string]int64 `json:"counters"`
}

// describe answers /tandem/v1/describe.
func describe(c *call, cfg Config) error {
	d := cfg.Describe(c.Context())
	if k := cfg.MetricsKeys; k != nil && !opened(k, c.Header) {
		d = d.Bare()
	}
	l := tandem.DefaultLimits
	nodes, reason := cmp.Or(cfg.Limits.Nodes, l.Nodes), cfg.Loading()
	out := description{Version: d.Version, Model: cfg.Model.Name, Architecture: cfg.Model.Architecture, Vocabulary: d.Vocab,
		Context: d.Context,
		Chat:    cfg.Chat != nil, Keyed: cfg.Keys != nil, Ready: reason == "", Reason: reason, Defaults: values(cfg.Defaults),
		Limits:   limitValues{nodes, nodes, cmp.Or(cfg.Limits.Depth, l.Depth), cmp.Or(cfg.Limits.Width, l.Width), ask.MostChoices},
		Drafters: append([]string{}, cfg.Drafters()...), Processes: []process{}, Counters: d.Counters}
	for _, p := range d.Processes {
		out.Processes = append(out.Processes, process{Role: p.Role, Up: p.Up, Name: p.Name, Model: p.Model, Version: p.Version,
			Device: p.Device, ISA: p.ISA, Threads: p.Threads, PID: p.PID,
			Identity: p.Identity, Lineage: p.Lineage, Ways: p.SelfDraftNames(), Protocol: p.Protocol,
			Counters: p.Counters})
	}
	return c.reply(out)
}

func values(d ask.Defaults) defaultValues {
	return defaultValues{MaxTokens: d.MaxTokens, MaxOutput: d.MaxOutput, Sampling: oai.NewSampling(d.Sampling),
		Accept: string(cmp.Or(d.Sampling.Accept, tandem.AcceptExact)),
		Speculation: speculationValue{Enabled: !d.Bounds.Plain(), Strategy: cmp.Or(d.Strategy, tandem.StrategyFixed),
			Vote:     cmp.Or(d.Vote, tandem.VoteAuto),
			Drafters: append([]string{}, d.Drafters...), Nodes: d.Bounds.Nodes, Width: d.Bounds.Nodes,
			Depth: d.Bounds.Depth, Branches: d.Bounds.Width,
			Without: append([]string{}, d.Without.Names()...)}}
}

// alive is the answer of a server that is well.
var alive = map[string]string{"status": "ok"}

// ready answers whether requests are answered now.
func ready(c *call, cfg Config, draining bool) error {
	h := cfg.Health(c.Context())
	if draining {
		h = Health{Reason: "the gateway is shutting down"}
	}
	if !h.Ready {
		return tandem.Errorf("", tandem.Unavailable, "not ready: %s", h.Reason)
	}
	return c.reply(alive)
}
