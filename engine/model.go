// Package engine runs forward passes of a transformer language model: rows of several sessions in one
// pass, each row with its place in its session's prefix or token tree.
//
// A Model is loaded from a GGUF file; weights are repacked for the kernels and the operations of a pass are planned once. A
// Sequence holds one session's keys and values. Forward runs a batch of parts. See package kernels for the arithmetic,
// which is the same to the bit on every machine and for every width of a pass.
//
// The packages below have the steps: header reads files without weights, plan lays a pass out, memory says what it takes, open allocates
// and reads weights; sequence keeps what sessions hold, and pass runs passes. A Model joins them.
package engine

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/engine/header"
	"github.com/tandem-llm/tandem/engine/kv"
	"github.com/tandem-llm/tandem/engine/open"
	"github.com/tandem-llm/tandem/engine/pass"
	"github.com/tandem-llm/tandem/engine/sequence"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/text/token"
	"os"
)

// What callers of a Model hand to it and get of it. The packages that declare them say more.
type (
	Options  = open.Options
	Image    = open.Image // packed weights, for a later start
	Images   = open.Images
	Shared   = open.Shared
	Config   = blocks.Config // the shape of a model
	Names    = header.Names
	Sequence = sequence.Sequence
	Window   = sequence.Window
	Prefixes = sequence.Prefixes
	Part     = sequence.Part
	Want     = sequence.Want
	State    = guess.State // the hidden state of the position before a row's
	Output   = pass.Output
	Top      = pass.Top
	Block    = pass.Block
	GuessAsk = guess.Ask // asks one of the target's self-drafts for what follows
)

// Which rows of a Part get logits.
const (
	WantNone = sequence.WantNone
	WantTail = sequence.WantTail
	WantAll  = sequence.WantAll
)

// NewShared makes an empty memory file for Shared, which the caller closes.
func NewShared() (*os.File, error) { return open.NewShared() }

// PageTokens is the number of tokens whose keys and values share a page of the KV cache.
const PageTokens = kernels.PageRows

// PagesFor returns the KV pages that so many sequences of that capacity and number of tree rows need.
func PagesFor(sequences, capacity, nodes int) int {
	return sequences * (kv.PagesFor(capacity) + kv.PagesFor(nodes))
}

// Model is a loaded model on a device. Its Runner makes sequences in its cache and runs passes over them; what is here says which model it
// is, how large it is, and what guesses beside it. One goroutine at a time may use it and its sequences.
type Model struct {
	*pass.Runner
	loaded *open.Loaded
	passes *pass.Passes
}

// Open loads the model in the GGUF file at path. Errors: Invalid (no such file), Corrupt, Unsupported (architecture, type,
// tokenizer), Exhausted (memory).
func Open(path string, o Options) (*Model, error) {
	l, err := open.Model(path, o)
	if err != nil {
		return nil, err
	}
	return newModel(l), nil
}

// OpenDraft loads the model in the file at path, which may be a draft with states: a side file of kind dovetail, eagle, eagle3, dflash or
// mtp, or side.MTPPath of the target. Then the output matrix, unless the file has one, comes from the file of its target: the rows of those
// tokens that the draft knows. The embedding matrix is not loaded: passes read rows of it from that file, and fail if somebody has written
// to it (Corrupt). On a device that runs chains (kernels.Chainer) it is, unless the draft is a block draft. A plain model opens as by Open,
// and target is not used. Errors: Open's, and Invalid for a side file of another target or kind.
//
// Rows of such a draft depend on the states that they are given, not on tokens alone. So the pages that shared sequences hand on
// (NewShared) are as good as the states that they were made with: that costs acceptance at most, since a draft only guesses.
func OpenDraft(path, target string, o Options) (*Model, error) {
	l, err := open.Draft(path, target, o)
	if err != nil {
		return nil, err
	}
	return newModel(l), nil
}

func newModel(l *open.Loaded) *Model {
	machine := pass.Machine{Device: l.Device, Runner: l.Runner, Cache: l.Cache}
	perPosition := (l.Footprint.PageBytes + l.Footprint.Own.Page) / kernels.PageRows
	return &Model{loaded: l, Runner: pass.NewRunner(l.Header, l.Pass, l.Sizes, machine, &l.Beside),
		passes: pass.NewPasses(l.Header, l.Pass, machine, perPosition)}
}

// Lend lets a draft that is opened with o in this process borrow m's output matrix. m is its target, and is closed after it.
func (m *Model) Lend(o *Options) { o.Lender = m.loaded }

// Mapped returns how many bytes of a draft's weights lie in memory that it shares with its target. apart says why it has a copy of its
// target's output matrix; nil: it has none.
func (m *Model) Mapped() (bytes int64, apart error) { return m.loaded.Mapped, m.loaded.Apart }

// Image returns the packed weights, for a later start; nil if they cannot be kept.
func (m *Model) Image() *Image { return m.loaded.Image }

// Close frees everything but the device; the model and its sequences must not be used afterwards. Closing twice is harmless.
func (m *Model) Close() {
	if m.loaded != nil {
		m.loaded.Close()
	}
	*m = Model{}
}

// OpenSide reads a side file whose kind is InVerifier for m, which must be its target: same lineage, vocabulary and width;
// an assistant states no lineage, and its layers must find their kinds in the target. It is called
// before the first pass, at most once for each kind. Close frees it with the model. Errors: Invalid (no such file, another target, not a
// side file, one of its kind is open), Corrupt, Unsupported, Exhausted (memory). After an error the model is as before.
func (m *Model) OpenSide(path string) error { return m.loaded.OpenSide(path) }

// Config returns the model's shape.
func (m *Model) Config() Config { return m.loaded.Config }

// Vocab returns the model's tokenizer.
func (m *Model) Vocab() *token.Vocab { return m.loaded.Vocab }

// Names returns the names of the model.
func (m *Model) Names() Names { return m.loaded.Names }

// MaxRows and MaxWanted return the limits of a pass.
func (m *Model) MaxRows() int   { return m.loaded.Sizes.Rows }
func (m *Model) MaxWanted() int { return m.loaded.Sizes.Wanted }

// About describes the device that passes run on.
func (m *Model) About() kernels.About { return m.loaded.Device.About() }

// Passes returns what m's passes consist of, cost and run on.
func (m *Model) Passes() *pass.Passes { return m.passes }

// FeatureWidth returns how many numbers a row of features has: the hidden size for each of Options.Taps.
func (m *Model) FeatureWidth() int { return len(m.loaded.Options.Taps) * m.loaded.Config.Dim }

// StateWidth returns how many numbers State.Target and State.Own have; 0, 0 for a plain model.
func (m *Model) StateWidth() (features, own int) {
	if m.loaded.Draft == nil {
		return 0, 0
	}
	return m.loaded.Draft.Spec.StateWidth()
}

// Block returns how m guesses if it is a block draft; the zero value: it is none.
func (m *Model) Block() Block {
	if m.loaded.Draft == nil {
		return Block{}
	}
	return m.loaded.Draft.Block()
}

// SelfDrafts describes the opened side files, in the order in which they were opened.
func (m *Model) SelfDrafts() []tandem.SelfDraft { return m.loaded.Beside.SelfDrafts() }

// Guess answers asks: see guess.List.Guess.
func (m *Model) Guess(asks []GuessAsk, top int) ([]tandem.Guess, error) {
	return m.loaded.Beside.Guess(asks, top)
}
