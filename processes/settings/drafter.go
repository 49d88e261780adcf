package settings

// Drafter are the settings of a drafter.
type Drafter struct {
	Draft     []string `help:"GGUF file of a draft model; may be repeated (default: the shipped ones)." placeholder:"FILE" sep:"none" group:"Model"`
	Target    string   `help:"The target, for drafts that read its hidden states (default: shipped). They use its embeddings and output matrix." placeholder:"FILE" group:"Model"`
	Advertise string   `help:"Address under which others reach it (default: where it listens)." placeholder:"ADDR" group:"Serving"`
	Peer
	Processor
	ModelOptions
	DrafterOptions
	CacheFolder
}

// DrafterOptions are settings of a drafter that all commands which start one have.
type DrafterOptions struct {
	DraftHeads []string `help:"Side file, of kind ppd, of a draft model: it needs fewer passes for a tree. May be repeated, for drafts of its own each." placeholder:"FILE" sep:"none" more:"" group:"Model"`
	Drafting
}

// Drafting says how a draft drafts.
type Drafting struct {
	AheadGain   float64 `help:"Draft ahead of a verdict while each pass is expected to save this many later passes of the draft model, 0 to 1: about what it costs the verifier; 1 = never. -1 = 0.7 if both compute on the same cores, never for a large draft to which up gives all of them; measured at the start if the drafts have a processor of their own." default:"-1" more:"" group:"Speculation"`
	InlineLimit int     `help:"Send trees larger than this many bytes through shared memory to processes on this host; 0 = all." default:"0" check:">=0 bytes" more:"" group:"Speculation"`
}

// ModelOptions say how drafter and verifier hold their models.
type ModelOptions struct {
	Loading
	Prefixes
}

// Loading says how a model is held.
type Loading struct {
	Lock bool `help:"Lock the models in memory (mlock)." more:"" group:"Memory"`
	KV
}

// KV says how keys and values are stored.
type KV struct {
	KVType   string `name:"kv-type" help:"Keys and values as f16, or q8_0 in half the memory." default:"f16" check:"f16|q8_0" group:"Memory"`
	KVMemory *Size  `name:"kv-memory" help:"Memory for keys and values, which all sessions share; of several models together (default: half of the memory that is free beside the models, three quarters within a control group, at most what --sessions of --ctx can use)." placeholder:"SIZE" check:">0" more:"" group:"Memory"`
}

// Prefixes bound what is kept of sessions that have ended.
type Prefixes struct {
	PrefixCache string `help:"Reuse the KV cache of ended sessions for later ones of the same tenant with an equal prefix: auto (in KV memory that no session needs), off, or the most tokens to keep in each model's cache." default:"auto" placeholder:"auto|off|TOKENS" more:"" group:"Memory"`
}

// Processor says what computes.
type Processor struct {
	Threads int    `help:"Threads; 0 = all cores." default:"0" group:"Devices"`
	ISA     string `name:"isa" help:"Instruction set: auto, generic, avx2, avxvnni, avx512, neon, neon-dot, neon-i8mm." default:"auto" group:"Devices"`
	Device  string `help:"cpu, cuda, cores:LIST, two of them as in cuda+cpu, or auto. cuda is an NVIDIA GPU, cuda:1 the second; cores:0-3,6 is a group of cores; two processors divide each pass; auto is where the plan of 'tandem profile' says, else cuda if it can be used, else cpu. All give the same results." default:"cpu" placeholder:"DEVICE" group:"Devices"`
}
