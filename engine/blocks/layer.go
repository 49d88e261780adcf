package blocks

import (
	"fmt"

	"github.com/tandem-llm/tandem/kernels"
)

// Layer is what a layer of a model computes: its parts, one after the other. A family composes it of what the file has when a model is read
// (Family.Layer). What a layer does not have is not in it, so that laying it out asks nothing.
type Layer struct {
	Parts []Part
	Traits
}

// Part is a part of a layer. It holds its weights. Lay lays its operations out and asks the planner for the buffers that it needs, so that
// what a pass takes follows from the parts.
type Part interface {
	// Lay adds the operations of the part to b's program. What it reads and leaves is b.X, the residual stream.
	Lay(b *Planner)
}

// Traits say, for identities and descriptions, what the parts of a layer consist of.
type Traits uint

const (
	HeadNorms     Traits = 1 << iota // of queries and keys
	ValueNorms                       // of values' heads
	PostNorms                        // of what the feed-forward block adds
	Sinks                            // scores without a value
	GatedShare                       // the expert that every row uses counts by a gate
	BesideExperts                    // a feed-forward block beside experts
)

// Have reports whether t has all of some.
func (t Traits) Have(some Traits) bool { return t&some == some }

// Traits returns those of all layers together.
func (w *Weights) Traits() (all Traits) {
	for i := range w.Layers {
		all |= w.Layers[i].Traits
	}
	return all
}

// Lay lays out a layer.
func (l *Layer) Lay(b *Planner) {
	for _, p := range l.Parts {
		p.Lay(b)
	}
}

// Keep lays out the keys and values of a layer for rows that have no queries: they are made of in.
func (l *Layer) Keep(b *Planner, in kernels.Act) {
	for _, p := range l.Parts {
		if a, ok := p.(interface{ Keep(*Planner, kernels.Act) }); ok {
			a.Keep(b, in)
		}
	}
}

// Step is something that is done with a buffer in its place.
type Step func(b *Planner, x kernels.Buf)

// biased adds a bias, if the file has one.
func biased(values []float32) []Step {
	if values == nil {
		return nil
	}
	return []Step{func(b *Planner, x kernels.Buf) { b.AddBias(x, values) }}
}

func headsNormed(heads int, weight []float32) Step {
	return func(b *Planner, x kernels.Buf) { b.HeadNorm(x, heads, weight, b.NormEps) }
}

// Scaled is a part that multiplies the residual stream.
type Scaled float32

// Lay implements Part.
func (s Scaled) Lay(b *Planner) { b.Scale(b.X, float32(s)) }

// Entrance makes the input of a part, b.Normed, of the residual stream. It calls begin where the part's stage begins: what comes before can
// be chained with the operation that made the stream.
type Entrance func(b *Planner, begin func())

// Normed is norm(x).
func Normed(weight []float32) Entrance {
	return func(b *Planner, begin func()) {
		b.RMSNorm(b.X, weight, b.NormEps, b.Normed)
		begin()
	}
}

// Bare is x itself.
func Bare(b *Planner, begin func()) {
	b.Feed(b.X, b.Normed)
	begin()
}

// Staying is norm(x), which x is from then on, in the residual stream too.
func Staying(weight []float32) Entrance {
	return func(b *Planner, begin func()) {
		b.HeadNorm(b.X, 1, weight, b.NormEps)
		Bare(b, begin)
	}
}

// inStage is the entrance of a part without a stage of its own.
func (in Entrance) inStage(b *Planner) { in(b, func() {}) }

// enter enters layer i.
func (in Entrance) enter(b *Planner, i int) { in(b, func() { b.stage(i, "") }) }

// Exit adds what a part has made to the residual stream.
type Exit struct {
	Sum  func(b *Planner, lay func(out kernels.Buf, add bool)) // adds what lay writes to out or, if add, adds to it
	Join func(b *Planner, y kernels.Buf)                       // adds y, which may change
}

// Added is x += y: a sum is made in the residual stream itself.
var Added = Exit{Sum: func(b *Planner, lay func(out kernels.Buf, add bool)) { lay(b.X, true) },
	Join: func(b *Planner, y kernels.Buf) { b.AddScaled(y, 1, b.X) }}

// joined makes a sum in a buffer of its own, for join.
func joined(join func(b *Planner, y kernels.Buf)) Exit {
	return Exit{Join: join, Sum: func(b *Planner, lay func(out kernels.Buf, add bool)) {
		out := b.BufOf("branch", b.Dim)
		lay(out, false)
		join(b, out)
	}}
}

// Weighed is x += s·y.
func Weighed(s float32) Exit {
	return joined(func(b *Planner, y kernels.Buf) { b.AddScaled(y, s, b.X) })
}

// PostNormed is x += norm(y).
func PostNormed(weight []float32) Exit {
	return joined(func(b *Planner, y kernels.Buf) { b.NormAdd(y, weight, b.NormEps, b.X) })
}

// Branch is the last product of a part, and what is done with that: a bias.
type Branch struct {
	W    kernels.W
	Then []Step
}

// Into lays out the product with in, which goes into out or, if add, is added to it.
func (y *Branch) Into(b *Planner, in kernels.Act, out kernels.Buf, add bool) {
	b.MatMul(y.W, in, out, kernels.MatMulOpt{Add: add})
	for _, do := range y.Then {
		do(b, out)
	}
}

// Leave adds the product with in by an exit.
func (y *Branch) Leave(b *Planner, in kernels.Act, by Exit) {
	by.Sum(b, func(out kernels.Buf, add bool) { y.Into(b, in, out, add) })
}

// stage begins the stage of a layer, or of a part of it.
func (b *Planner) stage(layer int, part string) { b.Stage(fmt.Sprintf("layer %d%s", layer, part)) }

// Lines lay out some operations.
type Lines func(b *Planner)

// Product is a matrix whose product goes into a buffer of that name, (rows, Dim).
type Product struct {
	W   kernels.W
	Out string
	Dim int
}

// products lays out products with in. But for the last, each may run beside the next.
func (b *Planner) products(all []Product, in kernels.Act, add bool) {
	for i, p := range all {
		b.MatMul(p.W, in, b.BufOf(p.Out, p.Dim), kernels.MatMulOpt{Add: add, Concurrent: i < len(all)-1})
	}
}

func (b *Planner) lay(all []Lines) {
	for _, lines := range all {
		lines(b)
	}
}

// on makes lines of steps on a buffer of that name.
func on(name string, dim int, steps ...Step) (all []Lines) {
	for _, s := range steps {
		all = append(all, func(b *Planner) { s(b, b.BufOf(name, dim)) })
	}
	return all
}
