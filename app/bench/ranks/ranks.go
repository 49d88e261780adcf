// Package ranks divides a pass by rows and columns in turn, as Megatron does it, to compare that with package split: of two matrices that
// follow each other the first is divided by outputs and the second by inputs, attention by KV heads, and after each second one the partial
// sums are added: an all-reduce. Each rank has its own weights, its own keys and values, and the whole residual stream.
//
// It is for measurements alone. A sum of partial sums is rounded in another order, so it gives other bits than every device of tandem: that
// is why tandem does not compute so.
package ranks

import (
	"fmt"

	"github.com/tandem-llm/tandem/kernels"
)

// Shares is how much of a program each rank has; the first rank's come first.
type Shares struct {
	KVHeads [2]int // with their query heads
	FFN     [2]int // inner features
	Vocab   [2]int // logits
}

// ffnUnit divides the inner features, so that every type of weights can be divided there.
const ffnUnit = 256

// SharesOf divides p so that the first rank has about that share of everything. Errors: too few KV heads or features for two.
func SharesOf(p *kernels.Program, share float64) (s Shares, err error) {
	for i, l := range p.KV.Layers {
		if l != p.KV.Layers[0] {
			return s, fmt.Errorf("ranks: layer %d keeps other keys and values than layer 0, want layers that are alike", i)
		}
	}
	all := widths(p)
	divide := func(what string, n, unit int) (parts [2]int) {
		units := (n + unit - 1) / unit
		if units < 2 && err == nil {
			err = fmt.Errorf("ranks: %d %s cannot be divided between two, want more than %d", n, what, unit)
			return parts
		}
		first := min(max(int(share*float64(units)+0.5), 1), units-1) * unit
		return [2]int{first, n - first}
	}
	s.KVHeads = divide("KV heads", all[byHeads]/max(1, all[headDim]), 1)
	s.FFN = divide("inner features", all[byFFN], ffnUnit)
	s.Vocab = divide("logits", all[byVocab], kernels.GroupRows)
	return s, err
}

// kind says by what a buffer or activation is divided.
type kind int

const (
	whole   kind = iota // every rank has all of it
	byHeads             // of attention
	byFFN
	byVocab
	headDim // no kind: the key of another width
)

// widths returns how wide what is divided is in all: keys and values, inner features, logits; and one head.
func widths(p *kernels.Program) map[kind]int {
	w := map[kind]int{}
	for _, o := range p.Ops {
		switch o := o.(type) {
		case kernels.StoreKV:
			kept := p.KV.Layers[o.Layer]
			w[byHeads], w[headDim] = kept.Heads*kept.Dim, kept.Dim
		case kernels.Gate:
			w[byFFN] = p.Buffers[o.Gate].Dim
		case kernels.TopK:
			w[byVocab] = p.Buffers[o.Logits].Dim
		}
	}
	return w
}

// rank is one rank's part of a program. Each of its stages but the last ends with a buffer whose sum over the ranks is wanted.
type rank struct {
	*kernels.Program
	sums   []kernels.Buf // per stage; None for the last
	slices []slice       // per weight
	side   int
	shares Shares
	all    map[kind]int
	bufs   map[kernels.Buf]kind
	acts   map[kernels.Act]kind
}

// slice is a part of a matrix of the whole program.
type slice struct {
	of         kernels.W
	rows, cols kernels.Range
}

// rankOf returns a rank's part of p. Errors: an operation that cannot be divided so.
func rankOf(p *kernels.Program, side int, s Shares, layout func(kernels.Type) kernels.Layout) (*rank, error) {
	q := *p
	r := &rank{Program: &q, side: side, shares: s, all: widths(p), bufs: map[kernels.Buf]kind{}, acts: map[kernels.Act]kind{}}
	r.classify(p)
	q.Ops, q.Stages, q.Taps = nil, nil, nil
	q.Buffers, q.Activations = nil, nil
	for i, b := range p.Buffers {
		b.Dim = r.part(r.bufs[kernels.Buf(i)], b.Dim).len()
		q.Buffers = append(q.Buffers, b)
	}
	for i, a := range p.Activations {
		a.Dim = r.part(r.acts[kernels.Act(i)], a.Dim).len()
		q.Activations = append(q.Activations, a)
	}
	kept := p.KV.Layers[0]
	q.KV = kernels.UniformKV(len(p.KV.Layers), s.KVHeads[side], kept.Dim, p.KV.Type)
	q.Weights = nil
	q.Stage("before the first sum")
	for _, o := range p.Ops {
		if err := r.add(o, p, layout); err != nil {
			return nil, err
		}
	}
	r.sums = append(r.sums, kernels.None)
	return r, nil
}

// span is a part of something divided.
type span kernels.Range

func (s span) len() int { return s.To - s.From }

// part returns this rank's part of n numbers that are divided by k.
func (r *rank) part(k kind, n int) span {
	parts := [2]int{}
	switch k {
	case whole:
		return span{To: n}
	case byHeads:
		each := n / (r.shares.KVHeads[0] + r.shares.KVHeads[1])
		parts = [2]int{r.shares.KVHeads[0] * each, r.shares.KVHeads[1] * each}
	case byFFN:
		parts = r.shares.FFN
	case byVocab:
		parts = r.shares.Vocab
	}
	if r.side == 0 {
		return span{To: parts[0]}
	}
	return span{From: parts[0], To: n}
}

// classify finds out by what buffers and activations are divided.
func (r *rank) classify(p *kernels.Program) {
	for _, o := range p.Ops {
		switch o := o.(type) {
		case kernels.StoreKV:
			r.bufs[o.K], r.bufs[o.V] = byHeads, byHeads
		case kernels.Attention:
			r.bufs[o.Q], r.acts[o.Out] = byHeads, byHeads
		case kernels.Gate:
			r.bufs[o.Gate], r.bufs[o.Up], r.acts[o.Out] = byFFN, byFFN, byFFN
		case kernels.TopK:
			r.bufs[o.Logits] = byVocab
		}
	}
}

// add adds this rank's part of an operation.
func (r *rank) add(o kernels.Op, p *kernels.Program, layout func(kernels.Type) kernels.Layout) error {
	heads := r.shares.KVHeads[0] + r.shares.KVHeads[1]
	mine := func(n int) int { return n / heads * r.shares.KVHeads[r.side] }
	switch x := o.(type) {
	case kernels.MatMul:
		r.matmul(x, p, layout)
		return nil
	case kernels.Embed:
		w := p.Weights[x.W]
		x.W = r.weight(w, slice{x.W, kernels.Range{To: w.Rows}, kernels.Range{To: w.Cols}}, layout)
		o = x
	case kernels.RoPE:
		x.Heads = mine(x.Heads)
		o = x
	case kernels.HeadNorm:
		x.Heads = mine(x.Heads)
		o = x
	case kernels.Attention:
		x.Heads = mine(x.Heads)
		o = x
	case kernels.AddBias:
		at := r.part(r.bufs[x.Buf], p.Buffers[x.Buf].Dim)
		x.Bias = x.Bias[at.From:at.To]
		o = x
	case kernels.RMSNorm, kernels.NormAdd, kernels.Scale, kernels.SoftCap, kernels.StoreKV, kernels.Gate, kernels.Gather,
		kernels.TopK:
	default:
		return fmt.Errorf("ranks: %T cannot be divided by rows and columns", o)
	}
	r.Add(o)
	return nil
}

// matmul adds this rank's part of a product: of one with a divided input a partial sum, which ends the stage. Only the first rank adds it
// to what is there.
func (r *rank) matmul(o kernels.MatMul, p *kernels.Program, layout func(kernels.Type) kernels.Layout) {
	in, out := r.acts[o.In], r.bufs[o.Out]
	rows, cols := r.part(out, p.Buffers[o.Out].Dim), r.part(in, p.Activations[o.In].Dim)
	o.W = r.weight(p.Weights[o.W], slice{o.W, kernels.Range(rows), kernels.Range(cols)}, layout)
	if in == whole {
		r.Add(o)
		return
	}
	o.Add = o.Add && r.side == 0
	r.Add(o)
	r.sums = append(r.sums, o.Out)
	r.Stage(fmt.Sprintf("after sum %d", len(r.sums)))
}

// weight adds a part of a matrix. A matrix that two operations read, as an embedding that is the output matrix too, is there twice.
func (r *rank) weight(w kernels.Weight, part slice, layout func(kernels.Type) kernels.Layout) kernels.W {
	w.Rows, w.Cols, w.Layout = part.rows.To-part.rows.From, part.cols.To-part.cols.From, layout(w.Type)
	r.slices = append(r.slices, part)
	return r.Weight(w)
}

// cut returns this rank's part of a matrix in GGUF layout.
func (x slice) cut(whole kernels.Weight, src []byte) []byte {
	elems, size := whole.Type.Block()
	row := whole.Cols / elems * size
	if x.cols == (kernels.Range{To: whole.Cols}) {
		return src[x.rows.From*row : x.rows.To*row]
	}
	var out []byte
	for i := x.rows.From; i < x.rows.To; i++ {
		out = append(out, src[i*row+x.cols.From/elems*size:i*row+x.cols.To/elems*size]...)
	}
	return out
}
