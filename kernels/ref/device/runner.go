package device

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
)

// runner interprets a program.
type runner struct {
	*kernels.Program
	weights kernels.Weights
	cache   *cache // nil without one
	limits  kernels.PassLimits
	bufs    [][]float32
	acts    [][]float32
	parts   []parts
	routes  []route
	tops    []kernels.Top
	pass    *kernels.Pass
	closed  bool
}

// parts is what AttendBlocks has computed of the pass: per row its blocks, per block the heads.
type parts struct {
	first []int // per row
	all   []ref.Part
}

// Compile keeps the program as it is.
func (*Device) Compile(p *kernels.Program, w kernels.Weights, c kernels.Cache) (kernels.Runner, error) {
	if err := p.CheckFor(name, kernels.Rows, false); err != nil {
		return nil, err
	}
	r := &runner{Program: p, weights: w, parts: make([]parts, len(p.Parts)), routes: make([]route, len(p.Routes))}
	pages := 0
	var err error
	if r.cache, err = kernels.CacheFor[*cache](p, c); err != nil {
		return nil, err
	}
	if r.cache != nil {
		pages = r.cache.pages
	}
	r.limits = p.PassLimits(pages)
	rows := func(dim int, wanted bool) []float32 {
		if wanted {
			return make([]float32, dim*p.MaxWanted)
		}
		return make([]float32, dim*p.MaxRows)
	}
	for _, b := range p.Buffers {
		r.bufs = append(r.bufs, rows(b.Dim, b.Wanted))
	}
	for _, a := range p.Activations {
		r.acts = append(r.acts, rows(a.Dim, a.Wanted))
	}
	return r, nil
}

// Run runs all stages.
func (r *runner) Run(a *kernels.Pass) error {
	if err := r.Start(a); err != nil {
		return err
	}
	for i := range r.StageCount() {
		if err := r.Stage(i); err != nil {
			return err
		}
	}
	return nil
}

// Start checks the pass.
func (r *runner) Start(a *kernels.Pass) error {
	if r.closed {
		return errors.New("ref: the runner is closed")
	}
	if err := r.limits.Check(a); err != nil {
		return err
	}
	r.pass, r.tops = a, make([]kernels.Top, len(a.Wanted))
	for i, s := range r.Routes {
		if s.Fixed {
			r.routes[i].ids = slices.Repeat([][]int32{ascending(s.Experts)}, a.Rows)
		}
	}
	for i, s := range r.Program.Parts {
		p, n := &r.parts[i], 0
		p.first = make([]int, a.Rows)
		for row := range a.Rows {
			p.first[row] = n
			n += ((a.Keys(row)-1)/kernels.Block + 1) * s.Heads
		}
		p.all = make([]ref.Part, n)
		for j := range p.all {
			p.all[j].O = make([]float32, s.Dim)
		}
	}
	return nil
}

// Stage runs the operations of a stage, one row after the other.
func (r *runner) Stage(i int) error {
	if r.pass == nil || i < 0 || i >= r.StageCount() {
		return fmt.Errorf("ref: stage %d of %d, want one of a pass that is started", i, r.StageCount())
	}
	data := make([][][]byte, len(r.Weights)) // per weight: its matrices
	if ws := r.StageWeights(i); len(ws) > 0 {
		chosen := r.chosenFor(i)
		all, err := r.weights.Acquire(i, chosen)
		if err != nil {
			return fmt.Errorf("ref: weights of %s: %w", r.StageName(i), err)
		}
		defer r.weights.Release(i)
		for _, w := range ws {
			data[w], all = r.matrices(&r.Weights[w], all, chosen)
		}
	}
	from, to := r.StageOps(i)
	for _, o := range r.Ops[from:to] {
		r.run(o, data)
	}
	if i+1 == r.StageCount() {
		r.pass = nil
	}
	return nil
}

// row returns row i of a buffer, act of an activation.
func (r *runner) row(b kernels.Buf, i int) []float32 {
	n := r.Buffers[b].Dim
	return r.bufs[b][i*n : (i+1)*n : (i+1)*n]
}

func (r *runner) act(a kernels.Act, i int) []float32 {
	n := r.Activations[a].Dim
	return r.acts[a][i*n : (i+1)*n]
}

// rows calls f for each row of the pass, or each wanted one.
func (r *runner) rows(wanted bool, f func(i int)) {
	n := r.pass.Rows
	if wanted {
		n = len(r.pass.Wanted)
	}
	for i := range n {
		f(i)
	}
}

func (r *runner) each(b kernels.Buf, f func(i int, x []float32)) {
	r.rows(r.Buffers[b].Wanted, func(i int) { f(i, r.row(b, i)) })
}

func (r *runner) run(o kernels.Op, data [][][]byte) {
	switch o := o.(type) {
	case kernels.Embed:
		r.each(o.Out, func(i int, out []float32) { r.embed(data[o.W][0], o, r.pass.Tokens[i], out) })
	case kernels.RMSNorm:
		r.each(o.In, func(i int, x []float32) { ref.RMSNorm(x, o.Weight, o.Eps, r.act(o.Out, i)) })
	case kernels.NormAdd:
		r.each(o.In, func(i int, x []float32) { ref.NormAdd(x, o.Weight, o.Eps, r.row(o.Out, i)) })
	case kernels.HeadNorm:
		r.each(o.Buf, func(_ int, x []float32) {
			for h := range slices.Chunk(x, len(o.Weight)) {
				ref.RMSNorm(h, o.Weight, o.Eps, h)
			}
		})
	case kernels.Copy:
		r.each(o.In, func(i int, x []float32) { copy(r.row(o.Out, i), x) })
	case kernels.Scale:
		r.values(o.Buf, func(_ int, x float32) float32 { return x * o.Factor })
	case kernels.PositionScale:
		r.each(o.Buf, func(i int, x []float32) { ref.PositionScale(x, r.pass.Turns()[i], o.Every, o.Factors) })
	case kernels.SoftCap:
		r.values(o.Buf, func(_ int, x float32) float32 { return ref.SoftCap(x, o.Cap) })
	case kernels.AddBias:
		r.values(o.Buf, func(j int, x float32) float32 { return x + o.Bias[j] })
	case kernels.RoPE:
		r.each(o.Buf, func(i int, x []float32) {
			for h := range slices.Chunk(x, o.HeadDim) {
				ref.RoPE(h, r.pass.Turns()[i]+int32(o.Rotation.Ahead), o.Rotation.InvFreq, o.Rotation.Factor(), o.Rotation.Halves)
			}
		})
	case kernels.Gate:
		gate := [...]func(g, u, y []float32){kernels.SiLU: ref.SiLUMul, kernels.GELU: ref.GELUMul,
			kernels.ClampedSiLU: ref.ClampedSiLUMul}[o.Curve]
		r.each(o.Gate, func(i int, g []float32) { gate(g, r.row(o.Up, i), r.act(o.Out, i)) })
	case kernels.Feed:
		r.each(o.In, func(i int, x []float32) { copy(r.act(o.Out, i), x) })
	case kernels.AddScaled:
		r.each(o.In, func(i int, x []float32) { ref.AddScaled(x, o.Factor, r.row(o.Out, i)) })
	case kernels.AddSiLU:
		r.each(o.In, func(i int, g []float32) { ref.AddSiLU(g, r.row(o.Out, i)) })
	case kernels.Blend:
		r.each(o.Gate, func(i int, g []float32) { ref.Blend(g, r.row(o.In, i), r.row(o.Out, i)) })
	case kernels.SigmoidScale:
		r.each(o.Gate, func(i int, g []float32) { ref.SigmoidScale(g, r.row(o.Buf, i)) })
	case kernels.CopyHeads:
		r.each(o.In, func(i int, in []float32) {
			out := r.row(o.Out, i)
			from, to := len(in)/o.Heads, len(out)/o.Heads
			for h := range o.Heads {
				copy(out[h*to+o.To:][:o.Dim], in[h*from+o.From:])
			}
		})
	case kernels.MatMul:
		r.matmul(o, data[o.W][0])
	case kernels.ChooseExperts, kernels.ExpertMatMul, kernels.JoinExperts:
		r.experts(o, data)
	case kernels.DeltaNet, kernels.BlockConv:
		r.acrossRows(o)
	case kernels.Gather:
		r.each(o.Out, func(i int, out []float32) { copy(out, r.row(o.In, int(r.pass.Wanted[i]))) })
	case kernels.TopK:
		r.each(o.Logits, func(i int, x []float32) {
			t := &r.tops[i]
			t.IDs, t.Logits, t.Max, t.Sum = ref.TopK(x, r.pass.TopK)
		})
	case kernels.StoreKV:
		r.each(o.V, func(i int, v []float32) {
			if o.K != kernels.None {
				r.cache.put(o.Layer, 0, r.pass.Store[i], r.row(o.K, i))
			}
			r.cache.put(o.Layer, 1, r.pass.Store[i], v)
		})
	default:
		r.attention(o)
	}
}

// acrossRows runs operations that take something from row to row.
func (r *runner) acrossRows(o kernels.Op) {
	if o, ok := o.(kernels.DeltaNet); ok {
		r.deltaNet(o)
		return
	}
	conv := o.(kernels.BlockConv)
	r.each(conv.Out, func(i int, out []float32) {
		var rows [][]float32
		for k := range min(conv.Taps(len(out)), max(int(r.pass.Pos[i]-r.pass.Prefix[i]), 0)+1) {
			rows = append(rows, r.row(conv.In, i-k))
		}
		ref.BlockConv(rows, conv.Base, r.row(conv.Weights, i)[conv.From:], conv.Group, out)
	})
}

func (r *runner) values(b kernels.Buf, f func(j int, x float32) float32) {
	r.each(b, func(_ int, x []float32) {
		for j := range x {
			x[j] = f(j, x[j])
		}
	})
}

func (r *runner) embed(data []byte, o kernels.Embed, token int32, out []float32) {
	if token < 0 && o.Blank {
		clear(out)
		return
	}
	if token < 0 {
		copy(out, r.pass.Given[int(-1-token)*len(out):])
		return
	}
	w := &r.Weights[o.W]
	size := len(data) / w.Rows
	ref.Dequantize(uint32(w.Type), data[int(token)*size:(int(token)+1)*size], out)
}

func (r *runner) matmul(o kernels.MatMul, data []byte) {
	const most = 64 // outputs at a time
	w := &r.Weights[o.W]
	size, outs := len(data)/w.Rows, o.Outputs.Of(w.Rows).Part(o.Side, r.pass.Left)
	pieces := (outs.To - outs.From + most - 1) / most
	n := r.pass.Rows
	if r.Buffers[o.Out].Wanted {
		n = len(r.pass.Wanted)
	}
	parallel(n*pieces, func(u int) {
		row, from := u/pieces, outs.From+u%pieces*most
		to := min(from+most, outs.To)
		ref.MatVec(uint32(w.Type), data[from*size:to*size], size, r.act(o.In, row), r.row(o.Out, row)[from:to], o.Add)
	})
}

func (r *runner) attention(o kernels.Op) {
	switch o := o.(type) {
	case kernels.Attention:
		defer r.gate(o.Gated, o.Gate, o.Out)
		r.heads(o.AttentionOpt, o.Q, o.Layer, o.Heads, func(row, _, head int, q []float32, keys, values []ref.Row) {
			dim := len(values[0].X)
			ref.Attention(q, keys, values, r.option(row, o.AttentionOpt), r.act(o.Out, row)[head*dim:][:dim], sink(o.Sinks, head, dim)...)
		})
	case kernels.AttendBlocks:
		r.heads(o.AttentionOpt, o.Q, o.Layer, o.Heads, func(row, kvHead, head int, q []float32, keys, values []ref.Row) {
			opt := r.option(row, o.AttentionOpt)
			for b := ref.FirstBlock(len(keys), opt); b*kernels.Block < len(keys); b++ {
				if !r.mine(o, row, b, kvHead) {
					continue
				}
				p := r.part(o.Out, row, b, head)
				got := ref.AttendBlock(q, keys, values, b, opt)
				p.Max, p.Sum = got.Max, got.Sum
				copy(p.O, got.O)
			}
		})
	case kernels.JoinBlocks:
		defer r.gate(o.Gated, o.Gate, o.Out)
		s := r.Program.Parts[o.In]
		r.rows(false, func(row int) {
			opt := r.option(row, o.AttentionOpt)
			n := int(r.pass.Pos[row]) + 1 + opt.Later
			for head := range s.Heads {
				all := sink(o.Sinks, head, s.Dim)
				for b := ref.FirstBlock(n, opt); b*kernels.Block < n; b++ {
					all = append(all, *r.part(o.In, row, b, head))
				}
				ref.Join(all, r.act(o.Out, row)[head*s.Dim:][:s.Dim])
			}
		})
	}
}

// gate multiplies what an attention has given by σ of its gate.
func (r *runner) gate(gated bool, gate kernels.Buf, out kernels.Act) {
	if gated {
		r.each(gate, func(i int, g []float32) { ref.GateBy(g, r.act(out, i)) })
	}
}

// sink returns the part of a head's sink, or none.
func sink(sinks []float32, head, dim int) []ref.Part {
	if sinks == nil {
		return nil
	}
	return []ref.Part{ref.Sink(sinks[head], dim)}
}

// mine reports whether an operation computes a row's block for a KV head.
func (r *runner) mine(o kernels.AttendBlocks, row, block, kvHead int) bool {
	if o.Side == kernels.Whole {
		return true
	}
	cut := int(r.pass.Cut[row])
	return (block < cut || block == cut && kvHead < o.Shared) == (o.Side == kernels.Left)
}

func (r *runner) part(p kernels.Parts, row, block, head int) *ref.Part {
	return &r.parts[p].all[r.parts[p].first[row]+block*r.Program.Parts[p].Heads+head]
}

// option returns how an attention weighs what a row sees.
func (r *runner) option(row int, o kernels.AttentionOpt) ref.AttentionOpt {
	out := ref.AttentionOpt{Scale: o.Scale, Window: o.Window, SoftCap: o.SoftCap}
	if o.Later {
		out.Later = r.pass.Keys(row) - int(r.pass.Pos[row]) - 1
	}
	return out
}

// heads calls f for every row and query head, with the keys and values that it sees in order of position.
func (r *runner) heads(opt kernels.AttentionOpt, q kernels.Buf, layer, heads int,
	f func(row, kvHead, head int, q []float32, keys, values []ref.Row)) {
	layer = r.KV.Kept(layer)
	kvHeads, dim, _ := r.KV.Layers[layer].Seen()
	group := heads / kvHeads
	parallel(r.pass.Rows*kvHeads, func(u int) {
		row, kvHead := u/kvHeads, u%kvHeads
		var keys, values []ref.Row
		for _, cell := range r.seen(row)[:int(r.pass.Pos[row])+1+r.option(row, opt).Later] {
			keys, values = append(keys, r.cache.row(layer, 0, kvHead, cell)), append(values, r.cache.row(layer, 1, kvHead, cell))
		}
		for head := kvHead * group; head < (kvHead+1)*group; head++ {
			f(row, kvHead, head, r.row(q, row)[head*dim:][:dim], keys, values)
		}
	})
}

// seen returns the cells that a row sees at most, in order of position.
func (r *runner) seen(row int) (cells []kernels.Cell) {
	p := r.pass
	for pos := range int(p.Prefix[row]) {
		page := p.Pages[int(p.Table[row])+pos/kernels.PageRows]
		cells = append(cells, kernels.Cell(page)*kernels.PageRows+kernels.Cell(pos%kernels.PageRows))
	}
	return append(cells, p.Anc[p.AncOff[row]:p.AncOff[row]+p.AncLen[row]]...)
}

// Row returns row i of a buffer.
func (r *runner) Row(b kernels.Buf, i int) []float32 {
	if r.closed || b < 0 || int(b) >= len(r.bufs) || i < 0 || (i+1)*r.Buffers[b].Dim > len(r.bufs[b]) {
		return nil
	}
	return r.row(b, i)
}

// Top returns what TopK found.
func (r *runner) Top(i int) kernels.Top {
	if r.closed || i < 0 || i >= len(r.tops) {
		return kernels.Top{}
	}
	return r.tops[i]
}

// Part returns a block's result.
func (r *runner) Part(p kernels.Parts, row, block, head int) kernels.Part {
	if r.closed || p < 0 || int(p) >= len(r.parts) || head < 0 || head >= r.Program.Parts[p].Heads || row < 0 ||
		row >= len(r.parts[p].first) {
		return kernels.Part{}
	}
	end := len(r.parts[p].all)
	if row+1 < len(r.parts[p].first) {
		end = r.parts[p].first[row+1]
	}
	if at := r.parts[p].first[row] + block*r.Program.Parts[p].Heads + head; block < 0 || at >= end {
		return kernels.Part{}
	}
	x := r.part(p, row, block, head)
	return kernels.Part{Max: &x.Max, Sum: &x.Sum, O: x.O}
}

// Close ends the runner.
func (r *runner) Close() { r.closed = true }
