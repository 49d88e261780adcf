package settings

// Group are the settings of the three processes run together, as up and generate do.
type Group struct {
	Models
	Process
	GatewayOptions
	DrafterOptions
	VerifierOptions
	ModelOptions
	Device          string `help:"Where the target computes: cpu, cuda, cores:…, auto. cuda is an NVIDIA GPU, cuda:1 the second; cores:0-3,6 is a group of cores; two of them divide each pass (cuda+cpu); auto is where the plan of 'tandem profile' says, else where it was measured to be fastest. With a GPU, up begins on the cores, measures in idle moments and then moves new conversations. All give the same results." default:"auto" placeholder:"DEVICE" group:"Devices"`
	DraftAnyway     bool   `help:"Load the drafts even where they are predicted to cost speed. By default a draft is left out if its memory makes the target read more from the disk and the prediction says that this does not pay, or if 'tandem profile' has found that it brings less than a fiftieth here." more:"" group:"Memory"`
	DraftDevice     string `help:"Where the drafts compute, likewise." default:"auto" placeholder:"DEVICE" group:"Devices"`
	VerifierThreads int    `help:"Threads of the verifier; 0 = all cores. Or, if passes are found to be about as quick, only those that the drafter does not use." default:"0" group:"Devices"`
	DrafterThreads  int    `help:"Threads of the drafter; 0 = a quarter of the cores, at least 1, and all for a draft of 64 MiB or more." default:"0" more:"" group:"Devices"`
	ISA             string `name:"isa" help:"Instruction set: auto, generic, avx2, avxvnni, avx512, neon, neon-dot, neon-i8mm." default:"auto" more:"" group:"Devices"`
	RunDir          string `help:"Directory for the processes' sockets while they run (default: the temporary directory)." placeholder:"DIR" more:"" group:"Serving"`
}

// Models name the models.
type Models struct {
	Target string   `short:"m" aliases:"model" completes:"models" help:"The target, a file or a name (default: the shipped one)." placeholder:"FILE" group:"Model"`
	Draft  []string `help:"A draft: a file or name, dovetail, mtp or lookup. May be repeated. dovetail is the shipped draft that reads the hidden states of the shipped target, mtp the draft inside the target's own file, lookup alone is none. All work in one drafter process. Default: the three shipped experts, or the shipped draft for everything if the strategy is fixed or llmcad, which ask one; for a target of another vocabulary mtp if its file has it, else a draft that lies beside it or its family's small model, if one is here and expected to pay, else lookup." placeholder:"FILE" sep:"none" group:"Model"`
}
