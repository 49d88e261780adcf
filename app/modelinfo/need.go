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
	Advice  string    // what would fit; "" if it does
}

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
	return Need{Arch: info.Config.Arch, Stored: info.Stored, Memory: m.Total, Free: m.Available, Context: m.Room.One, Fits: m.Fits,
		Advice: m.Advice}, nil
}

// String says it in a line.
func (n Need) String() string {
	if n.Side != "" {
		return "a side file, " + string(n.Side)
	}
	fits := "runs here"
	if !n.Fits {
		fits = "does not fit"
	}
	return fmt.Sprintf("%s, %s: %s of memory with a context of %s tokens, and %s are free: %s", n.Arch, n.Stored, memory.Bytes(n.Memory),
		Digits(n.Context), memory.Bytes(n.Free), fits)
}
