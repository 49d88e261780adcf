// Package open makes loaded models of files. It plans a model, checks that there is memory for all of it, and only then allocates and reads
// weights.
package open

import (
	"github.com/tandem-llm/tandem/engine/kv"
	"github.com/tandem-llm/tandem/engine/plan"
	"github.com/tandem-llm/tandem/kernels"
)

// Images keeps packed weights from one start to the next.
type Images interface {
	// Find returns the path of the file that has i, "" if there is none. The file stays until free is called.
	Find(i *Image) (path string, free func())
	// Refused is told why a file that Find has returned was not used.
	Refused(i *Image, why error)
}

// Options say how to load a model. The zero value of a field is its default.
type Options struct {
	Device kernels.Device // where passes run, with memory for weights, cache and buffers; needed. It outlives the model
	// positions that a sequence may hold; at most, and by default, the model's context. LongRoPE's factors are chosen by it
	Context   int
	KVPages   int    // pages in the KV cache, which all sequences share; default: for one sequence of the whole context and 256 tree rows
	KVType    string // of keys and values in the cache: f16, q8_0; default f16
	Sequences int    // held at once: memory for the states of recurrent layers is for so many. More may be held; default 4
	MaxRows   int    // rows in a pass; default 256
	MaxWanted int    // rows with logits in a pass; default MaxRows
	// hidden states to hand out: N ≥ 1 is the residual stream after N layers, -1 the state after the final norm
	Taps     []int
	Lock     bool                    // keep weights and cache in memory (mlock)
	Images   Images                  // has packed weights of earlier starts; nil: none
	Shared   *Shared                 // has packed weights of other processes; nil: they are this one's own
	Lender   *Loaded                 // a draft's target in this process, which outlives it: it borrows there, not from Shared; nil: none
	Forget   bool                    // drop the file from the system's page cache as it is read
	Progress func(done, total int64) // bytes of weights, and of a locked cache, made ready so far; called from one goroutine at a time
}

func (o Options) withDefaults(context int) Options {
	const treeRows = 256
	if o.MaxRows == 0 {
		o.MaxRows = 256
	}
	if o.MaxWanted == 0 {
		o.MaxWanted = o.MaxRows
	}
	if o.Sequences == 0 {
		o.Sequences = 4
	}
	if o.KVPages == 0 {
		o.KVPages = kv.PagesFor(context) + kv.PagesFor(treeRows)
	}
	return o
}

// sizes returns how much passes and cache may hold.
func (o Options) sizes(t kernels.KVType) plan.Sizes {
	return plan.Sizes{Rows: o.MaxRows, Wanted: o.MaxWanted, Sequences: o.Sequences, KV: t, Taps: o.Taps}
}
