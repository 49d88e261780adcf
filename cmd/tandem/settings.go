package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/tandem-llm/tandem"
)

// treeRows is how many tree rows the KV cache has for each session: the largest tree.
var treeRows = tandem.DefaultLimits.Nodes

// defaultSessions is how many sessions a process holds that was told nothing.
const defaultSessions = 8

// check refuses sizes that no process can have.
func (s sizeFlags) check() error {
	switch {
	case s.Ctx < 0 || s.Ctx == 1:
		return tandem.Errorf("", tandem.Invalid, "--ctx is %d: want at least 2, or 0 for the model's context", s.Ctx)
	case s.Sessions < 0 || s.Sessions > 4096:
		return tandem.Errorf("", tandem.Invalid, "--sessions is %d: want 1 to 4096, or 0 for the default", s.Sessions)
	}
	return nil
}

// sessionsOr returns the number of sessions, def if none is given.
func (s sizeFlags) sessionsOr(def int) int {
	if s.Sessions == 0 {
		return def
	}
	return s.Sessions
}

// context returns the positions of a session of a model with that context.
func (s sizeFlags) context(model int) int {
	if s.Ctx == 0 || s.Ctx > model {
		return model
	}
	return s.Ctx
}

// modelFlags name the models.
type modelFlags struct {
	Target string   `help:"GGUF file of the target model (default: the shipped one)." placeholder:"FILE"`
	Draft  []string `help:"GGUF file of a draft model, or lookup for drafts from the text itself; may be repeated: all work in one drafter process (default: the shipped one)." placeholder:"FILE" sep:"none"`
}

// pair returns the path of the target and those of its drafts; there are none when none is wanted.
func (m modelFlags) pair(noDraft bool) (target string, drafts []string, err error) {
	if target, err = targetPath(m.Target); err != nil || noDraft {
		return target, nil, err
	}
	drafts, err = draftPaths(m.Draft)
	return target, drafts, err
}

// telemetryFlags say where traces go.
type telemetryFlags struct {
	OTLPEndpoint string `name:"otlp-endpoint" help:"OTLP gRPC collector for traces, host:port or URL; the OTEL_… variables work too. Off by default." placeholder:"ADDR"`
}

// awakeFlags are the gateway's alone.
type awakeFlags struct {
	KeepAwake bool `help:"Keep processors out of deep idle states while requests run, where the system allows it (write access to /dev/cpu_dma_latency)." default:"true" negatable:""`
}

// groupFlags are the settings of the three processes run together.
type groupFlags struct {
	modelFlags
	sizeFlags
	telemetryFlags
	secureFlags
	awakeFlags
	measureFlags
	RunDir          string `help:"Directory below which sockets live while the processes run (default: the temporary directory)." placeholder:"DIR"`
	DrafterThreads  int    `help:"Threads of the drafter; 0 = a quarter of the cores, at least 1." default:"0"`
	VerifierThreads int    `help:"Threads of the verifier; 0 = all cores, or those that the drafter does not use if its passes, measured at the start, are about as quick on them." default:"0"`
	ISA             string `name:"isa" help:"Instruction set: auto, generic, avx2, avx512, neon, neon-dot, neon-i8mm." default:"auto"`
	Lock            bool   `help:"Lock the models in memory (mlock)."`
	kvFlags
	prefixFlags
	ruleFlags
	aheadFlags
	InlineLimit int           `help:"Trees of more bytes than this go through shared memory; 0 = all." default:"1024"`
	Grace       time.Duration `help:"How long requests in progress may go on after SIGTERM." default:"25s"`
}

// aheadFlags bound what a drafter does while the target verifies.
type aheadFlags struct {
	AheadGain float64 `help:"Passes of the draft model that one pass ahead of a verdict must be expected to spare: about what it costs the verifier on cores that both use; 0 where the drafter has a processor of its own." default:"0.7"`
}

// samplingFlags shape one generation.
type samplingFlags struct {
	MaxTokens   int     `help:"Largest number of tokens to generate." default:"128"`
	Temperature float64 `help:"0 takes the likeliest token; more is more random." default:"0"`
	TopK        int     `help:"Draw among the K likeliest tokens; 0 = all." default:"0"`
	TopP        float64 `help:"Draw among the likeliest tokens with this probability in all." default:"1"`
	Seed        uint64  `help:"Seed of the draws: the same seed gives the same text." default:"0"`
	shapeFlags
	speculationFlags
	NoDraft   bool `help:"Decode without speculation."`
	IgnoreEOS bool `name:"ignore-eos" help:"Go on beyond the end of the text."`
	FullTrace bool `help:"Record every round in the trace, not one in 32."`
}

// request returns the request for a prompt, validated.
func (s samplingFlags) request(prompt string) (tandem.Request, error) {
	r := tandem.Request{
		Prompt: prompt, MaxTokens: s.MaxTokens, IgnoreEOS: s.IgnoreEOS, FullTrace: s.FullTrace,
		Sampling: tandem.Sampling{Temperature: s.Temperature, TopK: s.TopK, TopP: s.TopP, Seed: s.Seed},
	}
	if err := s.shape(&r); err != nil {
		return r, err
	}
	if err := s.speculate(&r); err != nil {
		return r, err
	}
	if s.NoDraft {
		r.Bounds = tandem.Bounds{}
	}
	return r, r.Validate(tandem.Limits{})
}

// showConfigCmd has every setting of every command, so that all are shown and checked.
type showConfigCmd struct {
	samplingFlags
	httpFlags
	groupFlags
	addressFlags
	spareFlags
	Threads int    `help:"Threads of a single process; 0 = all cores." default:"0"`
	Addr    string `help:"Address of a running gateway for generate." placeholder:"ADDR"`
	output
}

// Run prints the effective settings.
func (c *showConfigCmd) Run(a *app) error {
	list := a.settings.Effective(a.kong)
	if c.JSON {
		return printJSON(a.stdout, map[string]any{"settings": list})
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	for _, s := range list {
		fmt.Fprintf(w, "%s\t%v\t%s\n", s.Name, s.Value, s.Origin)
	}
	return w.Flush()
}
