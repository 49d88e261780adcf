package blocks

import (
	"fmt"

	"github.com/tandem-llm/tandem/kernels"
)

// Layer is what a layer of a model computes: its parts, one after the other. Family.Layer composes it of what the file has, when a model is
// read. A layer holds only what it has, so that laying it out asks no questions.
type Layer struct {
	Parts []Part
	Traits
}

// Part is a part of a layer, with the handles of its weights. Lay asks the planner for the buffers that the part needs, so that what a pass
// takes follows from the parts.
type Part interface {
	// Lay adds the operations of the part to b's program. They read the residual stream b.X and leave their result in it.
	Lay(b *Planner)
}

// Traits say what the parts of a layer consist of, one bit each. Identities and descriptions of models are made with them.
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

// Traits returns the traits that at least one layer has.
func (w *Weights) Traits() (all Traits) {
	for i := range w.Layers {
		all |= w.Layers[i].Traits
	}
	return all
}

// Lay lays out all parts of a layer, in order.
func (l *Layer) Lay(b *Planner) {
	for _, p := range l.Parts {
		p.Lay(b)
	}
}

// Keep lays out only the making and storing of the layer's keys and values, for rows without queries. They are made of in, (rows, d).
func (l *Layer) Keep(b *Planner, in kernels.Act) {
	for _, p := range l.Parts {
		if a, ok := p.(interface{ Keep(*Planner, kernels.Act) }); ok {
			a.Keep(b, in)
		}
	}
}

// Step lays out operations that change a buffer x in place.
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

// Entrance lays out how a part's input b.Normed is made of the residual stream b.X. It calls begin once, where the part's stage begins.
// What it lays out before that belongs to the stage before, whose last operation a device may run together with it.
type Entrance func(b *Planner, begin func())

// Normed is the entrance norm(x); weight is (d).
func Normed(weight []float32) Entrance {
	return func(b *Planner, begin func()) {
		b.RMSNorm(b.X, weight, b.NormEps, b.Normed)
		begin()
	}
}

// Bare is the entrance of a part that reads x itself.
func Bare(b *Planner, begin func()) {
	b.Feed(b.X, b.Normed)
	begin()
}

// Staying is the entrance norm(x) that replaces x in the residual stream too; weight is (d).
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

// Exit lays out how a part's result is added to the residual stream b.X. Which function is called depends on who lays out the last sum.
type Exit struct {
	Sum  func(b *Planner, lay func(out kernels.Buf, add bool)) // calls lay, which writes the result to out or, with add, adds it
	Join func(b *Planner, y kernels.Buf)                       // adds y, (rows, d), and may change it
}

// Added is the exit x += y. A part makes its sum in the residual stream itself.
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

// Weighed is the exit x += s·y.
func Weighed(s float32) Exit {
	return joined(func(b *Planner, y kernels.Buf) { b.AddScaled(y, s, b.X) })
}

// PostNormed is the exit x += norm(y); weight is (d).
func PostNormed(weight []float32) Exit {
	return joined(func(b *Planner, y kernels.Buf) { b.NormAdd(y, weight, b.NormEps, b.X) })
}

// Branch is the last product of a part, and the steps that follow on its result, such as a bias.
type Branch struct {
	W    kernels.W
	Then []Step
}

// Into lays out the branch for input in. The result goes into out or, with add, is added to it.
func (y *Branch) Into(b *Planner, in kernels.Act, out kernels.Buf, add bool) {
	b.MatMul(y.W, in, out, kernels.MatMulOpt{Add: add})
	for _, do := range y.Then {
		do(b, out)
	}
}

// Leave lays out the branch for input in, and an exit that takes its result to the residual stream.
func (y *Branch) Leave(b *Planner, in kernels.Act, by Exit) {
	by.Sum(b, func(out kernels.Buf, add bool) { y.Into(b, in, out, add) })
}

// stage begins the stage of a layer, or of a part of it.
func (b *Planner) stage(layer int, part string) { b.Stage(fmt.Sprintf("layer %d%s", layer, part)) }

// Lines lay out some operations, on buffers that they ask b for by name.
type Lines func(b *Planner)

// Product is a matrix of Dim outputs. Its product goes into the buffer named Out, (rows, Dim): see Planner.BufOf.
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
