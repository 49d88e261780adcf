package modelinfo

import (
	"fmt"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// Need is what a file of a model takes here, as far as its header says it.
type Need struct {
	Arch    string    // architecture
	Stored  string    // types of its weights together, such as Q4_K_M
	Side    side.Kind // of a side file, of which the rest is not known without its target; "": a model
	Memory  int64     // bytes of a verifier with it
	Free    int64     // bytes that it may take
	Context int       // tokens of a session in that memory
	Fits    bool      // all of it into memory
	PerPass int64     // bytes that each pass reads from the disk, if it does not fit and runs streamed; 0: it does not run so
	Advice  string    // what would fit; "" if it does
}

// Runs reports whether the model runs here, be it with weights that are read from the disk in each pass.
func (n Need) Runs() bool { return n.Fits || n.PerPass > 0 }

// NeedOf finds out what the model at q.Path takes, without reading its weights. Errors: Unsupported for an architecture or a type that
// tandem does not compute, and those of engine.Inspect.
func NeedOf(q Query) (n Need, err error) {
	s, err := engine.SideOf(q.Path)
	if err != nil || s.Kind != "" {
		return Need{Side: s.Kind, Fits: true}, err
	}
	info, err := engine.Inspect(q.Path)
	if err != nil {
		return n, err
	}
	m, err := q.memory(info)
	if err != nil {
		return n, err
	}
	n = Need{Arch: info.Config.Arch, Stored: info.Stored, Memory: m.Total, Free: m.Available, Context: m.Room.One, Fits: m.Fits,
		Advice: m.Advice}
	if !n.Fits && q.Streams != nil {
		line, err := q.budget(m, q.Streams.Limit(memory.Free()))
		if err != nil {
			return n, err
		}
		if n.PerPass = line.PerPass; n.PerPass > 0 {
			n.Context = line.Context
		}
	}
	return n, nil
}

// String says it in a line.
func (n Need) String() string {
	if n.Side != "" {
		return "a side file, " + string(n.Side)
	}
	fits := "runs here"
	switch {
	case n.PerPass > 0:
		fits = fmt.Sprintf("runs here streamed, each pass reads %s from the disk", memory.Bytes(n.PerPass))
	case !n.Fits:
		fits = "does not fit"
	}
	return fmt.Sprintf("%s, %s: %s of memory with a context of %s tokens, and %s are free: %s", n.Arch, n.Stored, memory.Bytes(n.Memory),
		Digits(n.Context), memory.Bytes(n.Free), fits)
}
