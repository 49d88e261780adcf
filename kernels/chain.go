package kernels

// RowGiver is a Runner on a device with memory of its own, where each call of Row costs a copy.
type RowGiver interface {
	Runner
	// Give returns place for row i of a buffer, of any content; nil if there is no such row. The caller fills all of it before the next
	// pass begins, with which the row goes to the device. It replaces what the caller has written to that row by Row.
	Give(b Buf, i int) []float32
}

// Give is RowGiver.Give for any Runner.
func Give(r Runner, b Buf, i int) []float32 {
	if g, ok := r.(RowGiver); ok {
		return g.Give(b, i)
	}
	return r.Row(b, i)
}

// Chainer is a Device that may run chains.
type Chainer interface {
	Device
	// Chains reports whether its runners are ChainRunners.
	Chains() bool
}

// Link says how a row of a chain follows from a row of an earlier pass. Its token is the best one there, which Embed looks up. Its state is
// what the pass left in From there: after RMSNorm, if Norm is given, it goes to To.
type Link struct {
	Tokens   []int32 // per logit: its token; nil: logit i is token i's
	From, To Buf     // (rows, d); None: there are no states
	Norm     []float32
	Eps      float32
	Zero     []Buf // (rows, …): 0 in rows that follow; neither From nor To
}

// ChainStep is a pass of a chain.
type ChainStep struct {
	*Pass
	// After is empty in the first step. Later ones have for each row the wanted row that it follows: rows are counted through all steps
	// before. Then Tokens are replaced.
	After []int32
}

// ChainRunner is a Runner that runs passes one after the other without coming back in between, though each depends on what the one before
// has found: a draft's best guesses, each behind the last.
type ChainRunner interface {
	Runner
	// Link says how the rows of later chains follow; it keeps nothing of l. The program must have an Embed and a TopK, and neither states
	// of recurrent layers nor Parts. Errors: one that lacks this; tokens that Embed cannot look up; buffers of other shapes; not enough
	// memory.
	Link(l Link) error
	// Chain runs the steps, at least one, which together have at most MaxWanted wanted rows. What Top and State return then is numbered
	// through all steps; Row returns what the last one has left. The cache gets keys and values of all rows. Every index is checked before
	// anything is written. Errors: Link was not called; no best values (TopK is 0) in a chain of several steps; a row that follows none;
	// those of Run.
	Chain(steps []ChainStep) error
	// State returns the state of wanted row i of the last Chain, as a row that follows gets it: (d). nil: there is none. Valid until the
	// next pass.
	State(i int) []float32
}
