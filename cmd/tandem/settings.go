package main

import (
	"cmp"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/roles"
)

func (s sizeFlags) check() error { return roles.Sizes(s).Check() }

// sessionsOr returns the number of sessions, def if none is given.
func (s sizeFlags) sessionsOr(def int) int { return cmp.Or(s.Sessions, def) }

// kvFlags say how keys and values are stored.
type kvFlags struct {
	KVType   string    `name:"kv-type" help:"Type of keys and values in the cache: f16, or q8_0, which takes about half the memory." default:"f16"`
	KVMemory *byteSize `name:"kv-memory" help:"Memory for keys and values, which all sessions share; of several models together (default: half of the memory that is free beside the models, three quarters within a control group, at most what --sessions of --ctx can use)." placeholder:"SIZE"`
}

// kvBytes returns the size of --kv-memory, 0 for none.
func (k kvFlags) kvBytes() int64 {
	if k.KVMemory == nil {
		return 0
	}
	return int64(*k.KVMemory)
}

func (k kvFlags) check() error {
	if k.KVMemory != nil && k.kvBytes() < 1 {
		return tandem.Errorf("", tandem.Invalid, "--kv-memory is %v: want at least what one session needs, as in 512MiB", *k.KVMemory)
	}
	if k.KVType != "f16" && k.KVType != "q8_0" {
		return tandem.Errorf("", tandem.Invalid, "--kv-type %s: want f16 or q8_0", k.KVType)
	}
	return nil
}

// modelFlags name the models.
type modelFlags struct {
	Target string   `short:"m" aliases:"model" help:"GGUF file of the target model (default: the shipped one)." placeholder:"FILE"`
	Draft  []string `help:"GGUF file of a draft model, dovetail for the shipped draft that reads the hidden states of the shipped target, mtp for the draft inside the target's own file, or lookup alone for none; may be repeated: all work in one drafter process (default: the three shipped experts, or the shipped draft for everything if the strategy is fixed or llmcad, which ask one; for a target of another vocabulary mtp if its file has it, else lookup)." placeholder:"FILE" sep:"none"`
}

// pair returns the paths of the target and of its drafts for r and the like; no drafts with noDraft.
func (m modelFlags) pair(noDraft bool, r tandem.Request) (target string, drafts []string, err error) {
	if target, err = targetPath(m.Target); err != nil || noDraft {
		return target, nil, err
	}
	drafts, err = draftPaths(m.Draft, m.Target, r)
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
	headsFlags
	draftHeadsFlags
	sizeFlags
	telemetryFlags
	secureFlags
	secretFlags
	awakeFlags
	measureFlags
	batchFlags
	featureFlags
	budgetFlags
	cacheFlags
	RunDir          string `help:"Directory for the processes' sockets while they run (default: the temporary directory)." placeholder:"DIR"`
	DrafterThreads  int    `help:"Threads of the drafter; 0 = a quarter of the cores, at least 1." default:"0"`
	VerifierThreads int    `help:"Threads of the verifier; 0 = all cores, or, if passes measured at the start are about as quick, only those that the drafter does not use." default:"0"`
	ISA             string `name:"isa" help:"Instruction set: auto, generic, avx2, avx512, neon, neon-dot, neon-i8mm." default:"auto"`
	Device          string `help:"Where the target computes: cpu, cuda (an NVIDIA GPU; cuda:1 is the second), cores:LIST (a group of cores, as in cores:0-3,6), two of them that divide each pass (cuda+cpu), or auto: where the plan of 'tandem profile' says, else cuda if it can be used, else cpu. All give the same results." default:"cpu" placeholder:"DEVICE"`
	DraftDevice     string `help:"Where the drafts compute, likewise." default:"cpu" placeholder:"DEVICE"`
	gpuMemoryFlags
	Lock bool `help:"Lock the models in memory (mlock)."`
	kvFlags
	prefixFlags
	lookupFlags
	ruleFlags
	aheadFlags
	InlineLimit int           `help:"Send trees larger than this many bytes through shared memory; 0 = all." default:"0"`
	Grace       time.Duration `help:"How long requests in progress may go on after SIGTERM." default:"25s"`
}

// aheadFlags bound what a drafter does while the target verifies.
type aheadFlags struct {
	AheadGain float64 `help:"Draft ahead of a verdict while each pass is expected to save this many later passes of the draft model, 0 to 1: about what it costs the verifier. -1 = 0.7 if both compute on the same cores; measured at the start if the drafts have a processor of their own." default:"-1"`
}

// samplingFlags shape one generation.
type samplingFlags struct {
	MaxTokens   int     `help:"Largest number of tokens to generate." default:"128"`
	Temperature float64 `help:"0 takes the likeliest token; more is more random." default:"0"`
	TopK        int     `help:"Draw among the K likeliest tokens; 0 = all." default:"0"`
	TopP        float64 `help:"Draw among the likeliest tokens that together have this probability." default:"1"`
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
	outputFlags
	logFlags
	groupFlags
	addressFlags
	spareFlags
	tapFlags
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
	w := tabwriter.NewWriter(printable{a.stdout}, 0, 0, 2, ' ', 0)
	for _, s := range list {
		fmt.Fprintf(w, "%s\t%v\t%s\n", s.Name, s.Value, s.Origin)
	}
	return w.Flush()
}
