package blocks

import (
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// Planner lays the pass of a model out as one list of operations:
//
//	x = embed(tokens) [·scale]
//	each layer: what its architecture says (package arch), of the blocks here
//	wanted rows: logits = Whead norm(x) [·scale] [soft cap]; the best tokens of each
type Planner struct {
	*kernels.Program
	*Config
	W      *Weights
	X      kernels.Buf // (rows, d): the residual stream
	Normed kernels.Act // (rows, d)
	Inputs kernels.Buf // (rows, layers·size): what each layer gets of the token, where Config.LayerInput is not 0
	bufs   map[slot]kernels.Buf
	acts   map[slot]kernels.Act
	tapped map[int]kernels.Buf   // by number of layers
	fixed  map[int]kernels.Route // by number of heads: every row uses all
	temper []float32             // factors of queries, one for each Rope.Original positions; nil: none
	Ahead  int                   // RoPE turns heads as if they were so many positions further
}

// slot names a buffer of layers: layers that need the same size share it.
type slot struct {
	what string
	dim  int
}

// NewPlanner returns a planner that adds the pass of a model to p, which has no operations yet. c is the model's shape, w its weights.
func NewPlanner(p *kernels.Program, c *Config, w *Weights) *Planner {
	return &Planner{Program: p, Config: c, W: w, bufs: map[slot]kernels.Buf{}, acts: map[slot]kernels.Act{},
		fixed: map[int]kernels.Route{}, tapped: map[int]kernels.Buf{}, temper: c.temperatures()}
}

// allHeads returns the route in which every row uses all of so many heads.
func (b *Planner) allHeads(n int) kernels.Route {
	if _, ok := b.fixed[n]; !ok {
		b.fixed[n] = kernels.Route(len(b.Routes))
		b.Routes = append(b.Routes, kernels.RouteShape{Experts: n, Used: n, Fixed: true})
	}
	return b.fixed[n]
}

// Concurrent is the option of a product that does not have to end before the next operation begins.
var Concurrent = kernels.MatMulOpt{Concurrent: true}

// Norm fills out with the norm of in, or with in itself if weight is nil.
func (b *Planner) Norm(in kernels.Buf, weight []float32, out kernels.Act) {
	if weight == nil {
		b.Feed(in, out)
		return
	}
	b.RMSNorm(in, weight, b.NormEps, out)
}

// Bias adds values to each row of a buffer; nil: nothing.
func (b *Planner) Bias(to kernels.Buf, values []float32) {
	if values != nil {
		b.AddBias(to, values)
	}
}

// BufOf returns the buffer of that name and size, (rows, dim), and adds it to the program at the first call. All who ask for it share it.
func (b *Planner) BufOf(what string, dim int) kernels.Buf {
	s := slot{what, dim}
	if _, ok := b.bufs[s]; !ok {
		b.bufs[s] = b.Buf(dim)
	}
	return b.bufs[s]
}

// ActOf returns the activation of that name and size, (rows, dim): BufOf for inputs of products.
func (b *Planner) ActOf(what string, dim int) kernels.Act {
	s := slot{what, dim}
	if _, ok := b.acts[s]; !ok {
		b.acts[s] = b.Act(dim)
	}
	return b.acts[s]
}

// Tap keeps the residual stream after n layers if it is wanted. That after the last layer stays in its buffer anyway.
func (b *Planner) Tap(n int, wanted []int) {
	if n == b.Layers {
		b.tapped[n] = b.X
	} else if slices.Contains(wanted, n) {
		b.tapped[n] = b.Buf(b.Dim)
		b.Copy(b.X, b.tapped[n])
		b.Taps = append(b.Taps, kernels.Tap{Layer: n - 1, Buf: b.tapped[n]})
	}
}

// TapsAt returns the buffers that Tap has noted for the wanted numbers of layers; None for a negative one, the state after the final norm.
func (b *Planner) TapsAt(wanted []int) (at []kernels.Buf) {
	for _, n := range wanted {
		if n < 0 {
			at = append(at, kernels.None)
		} else {
			at = append(at, b.tapped[n])
		}
	}
	return at
}
