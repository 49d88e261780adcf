package settings

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
)

// Verifier are the settings of a verifier.
type Verifier struct {
	Target    string `short:"m" aliases:"model" help:"GGUF file of the target model (default: the shipped one)." placeholder:"FILE" group:"Model"`
	Advertise string `help:"Address under which others reach it (default: where it listens)." placeholder:"ADDR" group:"Serving"`
	Taps
	Peer
	Processor
	ModelOptions
	VerifierOptions
	Beside
	Drafting
}

// Beside is the draft in a verifier's own process: whoever starts all processes knows whether memory is short.
type Beside struct {
	BesideDraft   string `help:"GGUF file of a draft that reads hidden states, to run in this process beside its target. It takes less memory than in a process of its own, and computes in turn with the target. up, generate and bench choose it where a target would else be streamed, or more of it." placeholder:"FILE" more:"" group:"Memory"`
	BesideThreads int    `help:"Threads of that draft; 0 = one." default:"0" check:">=0" more:"" group:"Devices"`
}

// VerifierOptions are settings of a verifier that all commands which start one have.
type VerifierOptions struct {
	TargetHeads
	PassCosts
	Batches       int `help:"Divide the running sessions into this many batches: a pass verifies one of them while the others are drafted for; 1 = draft for all, then verify all. 0 = a pass takes whatever waits when it can begin. -1 = 2 while that is expected to be faster, if drafter and verifier have processors of their own; else 0." default:"-1" check:">=-1" more:"" group:"Speculation"`
	FeatureMemory int `help:"Memory in MiB for the hidden states of all sessions that drafters may still read." default:"64" check:">=1 <=1048576 MiB" more:"" group:"Memory"`
	Budget
	CacheFolder
	PrefixStore
	GPULayers
}

// Taps are settings of a single verifier: whoever starts all processes knows the drafts.
type Taps struct {
	Taps          []int `help:"Hidden states that drafters may read: N for those after N layers, -1 for those after the final norm. up, generate and bench choose them by the drafts." placeholder:"N" more:"" group:"Speculation"`
	DraftersApart bool  `help:"The drafters have processors of their own. up, generate and bench see that from the devices." more:"" group:"Devices"`
	SpareThreads  int   `help:"Threads to leave to a drafter on the same machine, if passes are found to take at most a twentieth longer without them." default:"0" more:"" group:"Devices"`
}

// Check refuses hidden states that are too many or named twice.
func (t Taps) Check() error {
	if len(t.Taps) > tandem.MostTaps {
		return tandem.Errorf("", tandem.Invalid, "--taps names %d hidden states: want at most %d", len(t.Taps), tandem.MostTaps)
	}
	for i, n := range t.Taps {
		if slices.Contains(t.Taps[:i], n) {
			return tandem.Errorf("", tandem.Invalid, "--taps names %d twice: want each hidden state once", n)
		}
	}
	return nil
}

// TargetHeads name the side files with which the target drafts for itself.
type TargetHeads struct {
	Heads []string `help:"Side file by which the target drafts by itself. May be repeated, one of each kind (docs/sidefiles.md). medusa and ppd are those shipped for the shipped target. Requests know it as a drafter: ${selfdrafts}." placeholder:"FILE" sep:"none" group:"Model"`
}

// PassCosts say where the costs of the target's passes come from.
type PassCosts struct {
	Measure bool   `help:"Measure what passes of the target cost, twice for at most a second or eight passes, while there is nothing else to do, unless the cache has it. The planner uses this; without it, it learns from the passes that it sees." default:"true" negatable:"" more:"" group:"Speculation"`
	Plan    string `help:"Take the costs of passes from this plan of 'tandem profile', if it was made on this machine, instead of measuring them (default: plan.json in the default cache folder); off = do not." placeholder:"FILE|off" more:"" group:"Speculation"`
}

// Budget bounds memory.
type Budget struct {
	MemoryBudget *Size `help:"Memory for everything (default: what is free). Weights, KV cache, buffers, the processes. A target that does not fit is streamed from a packed copy in the cache folder, with as many layers in memory as fit. The default is what is free, or what the control group allows, less a margin." placeholder:"SIZE" group:"Memory"`
}

// CacheDir says where tandem keeps what it makes.
type CacheDir struct {
	Cache string `help:"Folder for files that tandem makes and can make again (default: tandem in $XDG_CACHE_HOME or ~/.cache)." placeholder:"DIR" more:"" group:"Memory"`
}

// CacheFolder says where tandem keeps what it makes, and how much.
type CacheFolder struct {
	CacheDir
	CacheLimit Size `help:"Largest size of that folder; the least recently used files are removed first." default:"8GiB" placeholder:"SIZE" more:"" group:"Memory"`
}

// PrefixStore says what is kept of long beginnings of texts on the disk.
type PrefixStore struct {
	PrefixStore *Size         `help:"Keep long beginnings of texts on disk (default: off). Keys and values of beginnings of 512 tokens or more, at most SIZE in all, are there again after a restart. They lie in the folder prefixes of the cache folder. Where clients have keys they are encrypted, with keys made from those." placeholder:"SIZE" group:"Memory"`
	PrefixAge   time.Duration `help:"Remove from the disk what --prefix-store has kept and nobody has used for this long; 0 = never." default:"168h" check:">=0" more:"" group:"Memory"`
}

// GPULayers lend a GPU's spare memory to a target that computes on the processor.
type GPULayers struct {
	GPUMemory GPUShare `name:"gpu-memory" help:"GPU memory for first layers, with --device cpu. As many of the target's first layers as it holds, with their keys, values and buffers, run on the first GPU; all others run on the processor. The results are the same." placeholder:"SIZE" group:"Devices"`
}

// Check refuses memory for layers where the whole target is on a GPU already, or may be.
func (g GPULayers) Check(device string) error {
	if g.GPUMemory > 0 && device != "cpu" && device != "" {
		return tandem.Errorf("", tandem.Invalid, "--gpu-memory %v with --device %s: it is for layers of a model that computes on the "+
			"processor, want --device cpu", g.GPUMemory, device)
	}
	return nil
}
