package cpu

// #include "tk.h"
import "C"

import "github.com/tandem-llm/tandem/kernels"

// fillOp makes a tk_op of entry i of the list: one case for each operation, with its kind in C and the fields that this kind reads.
func (r *runner) fillOp(c *C.tk_op, i int) {
	l, x := r.program, &r.program.list[i]
	if len(x.numbers) > 0 {
		copy(view[float32](r.mem, r.at.vecs[i], len(x.numbers)), x.numbers)
		c.vec = (*C.float)(r.mem.at(r.at.vecs[i]))
	}
	if x.table >= 0 {
		t := l.angles[x.table]
		c.angles, c.freq = (*C.float)(r.mem.at(r.at.tables[x.table])), (*C.double)(r.mem.at(r.at.freqs[x.table]))
		c.rope_dim = C.int(2 * len(t.freq))
		c.dim, c.scale, c.ahead = c.rope_dim, C.float(t.magnitude), C.int(t.ahead) // of the angles; a RoPE has others
	}
	switch o := x.Op.(type) {
	case nil:
		c.kind = C.TK_ANGLES
	case kernels.Embed:
		c.kind, c.blank = C.TK_EMBED, flag(o.Blank)
		r.inPlace(c, o.Out)
		r.matrix(c, o.W, kernels.None, kernels.Range{})
	case kernels.RMSNorm:
		c.kind, c.eps, c.dst = C.TK_NORM, C.float(o.Eps), r.actForms(o.Out)
		r.from(c, o.In)
	case kernels.NormAdd:
		c.kind, c.eps = C.TK_NORM_ADD, C.float(o.Eps)
		r.fromTo(c, o.In, o.Out)
	case kernels.HeadNorm:
		c.kind, c.eps, c.heads, c.head_dim = C.TK_HEAD_NORM, C.float(o.Eps), C.int(o.Heads), C.int(len(o.Weight))
		r.inPlace(c, o.Buf)
	case kernels.Copy:
		c.kind = C.TK_COPY
		r.fromTo(c, o.In, o.Out)
	case kernels.Scale:
		c.kind, c.scale = C.TK_SCALE, C.float(o.Factor)
		r.inPlace(c, o.Buf)
	case kernels.PositionScale:
		c.kind, c.every, c.steps = C.TK_POSITION_SCALE, C.int(o.Every), C.int(len(o.Factors))
		r.inPlace(c, o.Buf)
	case kernels.SoftCap:
		c.kind, c.scale = C.TK_SOFT_CAP, C.float(o.Cap)
		r.inPlace(c, o.Buf)
	case kernels.AddBias:
		c.kind = C.TK_BIAS
		r.inPlace(c, o.Buf)
	case kernels.RoPE:
		c.kind, c.heads, c.head_dim, c.halves = C.TK_ROPE, C.int(o.Heads), C.int(o.HeadDim), flag(o.Rotation.Halves)
		r.inPlace(c, o.Buf)
	case kernels.Gate:
		c.kind = [...]C.tk_kind{kernels.SiLU: C.TK_SILU, kernels.GELU: C.TK_GELU, kernels.ClampedSiLU: C.TK_CLAMPED}[o.Curve]
		c.in2, c.dst = r.floats(o.Up), r.actForms(o.Out)
		r.from(c, o.Gate)
	case kernels.Feed:
		c.kind, c.dst = C.TK_FEED, r.actForms(o.Out)
		r.from(c, o.In)
	case kernels.AddScaled:
		c.kind, c.scale = C.TK_ADD_SCALED, C.float(o.Factor)
		r.fromTo(c, o.In, o.Out)
	case kernels.AddSiLU:
		c.kind = C.TK_ADD_SILU
		r.fromTo(c, o.In, o.Out)
	case kernels.Blend:
		c.kind, c.in2 = C.TK_BLEND, r.floats(o.In)
		r.fromTo(c, o.Gate, o.Out)
	case kernels.SigmoidScale:
		c.kind = C.TK_SIGMOID_SCALE
		r.fromTo(c, o.Gate, o.Buf)
	case kernels.CopyHeads:
		c.kind, c.heads, c.head_dim, c.from, c.to = C.TK_COPY_HEADS, C.int(o.Heads), C.int(o.Dim), C.int(o.From), C.int(o.To)
		r.fromTo(c, o.In, o.Out)
	case kernels.Gather:
		c.kind = C.TK_GATHER
		r.fromTo(c, o.In, o.Out)
		c.wanted = 1
	case kernels.TopK:
		c.kind = C.TK_TOPK
		r.from(c, o.Logits)
	default:
		r.fillLayered(c, i)
	}
}

// fillLayered does what fillOp does for products, attention, experts, recurrent layers and blocks.
func (r *runner) fillLayered(c *C.tk_op, i int) {
	l, x := r.program, &r.program.list[i]
	switch o := x.Op.(type) {
	case kernels.MatMul:
		c.kind, c.add, c.concurrent, c.side = C.TK_MATMUL, flag(o.Add), flag(o.Concurrent), C.int(o.Side)
		r.product(c, o.W, o.In, o.Out, o.Outputs.Of(l.Weights[o.W].Rows))
	case kernels.ChooseExperts:
		c.kind, c.route, c.scale = C.TK_CHOOSE, C.int(o.Out), C.float(o.Scale)
		c.sigmoid, c.normed = flag(o.Sigmoid), flag(o.Normed)
		if len(o.Each) > 0 { // behind the bias
			c.each = (*C.float)(r.mem.at(r.at.vecs[i] + 4*len(o.Bias)))
		}
		if len(o.Bias) == 0 {
			c.vec = nil
		}
		r.from(c, o.Logits)
	case kernels.ExpertMatMul:
		c.kind, c.route, c.concurrent, c.side = C.TK_EXPERTS, C.int(o.Route), flag(o.Concurrent), C.int(o.Side)
		r.product(c, o.W, o.In, o.Out, kernels.Range{To: l.Weights[o.W].Rows})
		c.dim, c.each_w = C.int(l.Weights[o.W].Cols), (**C.uint8_t)(r.mem.at(r.at.each[i])) // of one expert's input
	case kernels.JoinExperts:
		c.kind, c.route, c.add = C.TK_JOIN_EXPERTS, C.int(o.Route), flag(o.Add)
		r.fromTo(c, o.In, o.Out)
	case kernels.StoreKV:
		c.kind, c.in2, c.layer = C.TK_STORE, r.floats(o.K), C.int(o.Layer)
		r.from(c, o.V)
	case kernels.Attention:
		r.attention(c, o.AttentionOpt, o.Layer, o.Heads)
		c.kind, c.dst = C.TK_ATTEND, r.actForms(o.Out)
		r.from(c, o.Q)
		if o.Gated {
			c.in2 = r.floats(o.Gate)
		}
	case kernels.AttendBlocks:
		r.attention(c, o.AttentionOpt, o.Layer, o.Heads)
		c.kind, c.parts, c.side, c.shared = C.TK_ATTEND_BLOCKS, C.int(o.Out), C.int(o.Side), C.int(o.Shared)
		r.from(c, o.Q)
	case kernels.JoinBlocks:
		r.attention(c, o.AttentionOpt, o.Layer, l.Parts[o.In].Heads)
		c.kind, c.parts, c.dst = C.TK_JOIN, C.int(o.In), r.actForms(o.Out)
		c.dim = C.int(l.Activations[o.Out].Dim)
		if o.Gated {
			c.in2 = r.floats(o.Gate)
		}
	case kernels.DeltaNet:
		if c.kind = C.TK_DELTA; x.inputs {
			c.kind = C.TK_DELTA_IN
		}
		r.fromTo(c, o.In, o.Out)
	case kernels.BlockConv:
		n, w := l.Buffers[o.In].Dim, l.Buffers[o.Weights].Dim
		c.kind, c.in2, c.from = C.TK_BLOCK_CONV, r.floats(o.Weights), C.int(o.From)
		c.taps, c.group, c.ld2 = C.int(o.Taps(n)), C.int(o.Group), C.int(w)
		r.fromTo(c, o.In, o.Out)
	case kernels.Meet:
		c.kind = C.TK_MEET
	}
}

// from sets the buffer that an operation reads, whose rows it goes over.
func (r *runner) from(c *C.tk_op, b kernels.Buf) {
	c.in, c.dim, c.wanted = r.floats(b), C.int(r.program.Buffers[b].Dim), flag(r.program.Buffers[b].Wanted)
}

// to sets the buffer that an operation changes.
func (r *runner) to(c *C.tk_op, b kernels.Buf) {
	c.out, c.ldo = r.floats(b), C.size_t(r.program.Buffers[b].Dim)
}

func (r *runner) fromTo(c *C.tk_op, in, out kernels.Buf) {
	r.from(c, in)
	r.to(c, out)
}

// inPlace sets the buffer that an operation changes, whose rows it goes over.
func (r *runner) inPlace(c *C.tk_op, b kernels.Buf) {
	r.fromTo(c, b, b)
	c.in = nil
}

func (r *runner) attention(c *C.tk_op, opt kernels.AttentionOpt, layer, heads int) {
	c.layer, c.heads = C.int(layer), C.int(heads)
	c.scale, c.window, c.softcap, c.later = C.float(opt.Scale), C.int(opt.Window), C.float(opt.SoftCap), flag(opt.Later)
}

func (r *runner) product(c *C.tk_op, w kernels.W, in kernels.Act, out kernels.Buf, outputs kernels.Range) {
	a := r.program.Activations[in]
	c.dim, c.wanted = C.int(a.Dim), flag(a.Wanted)
	r.to(c, out)
	r.matrix(c, w, in, outputs)
}

// matrix sets the weight that an operation reads, of a product with its input and outputs.
func (r *runner) matrix(c *C.tk_op, of kernels.W, in kernels.Act, outputs kernels.Range) {
	w := &r.program.Weights[of]
	c.src = r.actForm(in, w.Type)
	c._type, c.cols, c.gbytes, c.expert_bytes = C.int(w.Type), C.int(w.Rows), C.size_t(groupBytes(w)), C.size_t(w.Each())
	c.first_group = C.int(outputs.From / lanes)
	c.groups = C.int((outputs.To+lanes-1)/lanes) - c.first_group
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// floats returns where a buffer lies; nil for None.
func (r *runner) floats(b kernels.Buf) *C.float {
	if b < 0 || (r.program.Buffers[b].Wanted && r.program.MaxWanted == 0) {
		return nil
	}
	if s := r.half.shared; s != nil {
		return (*C.float)(s.Buffers[b])
	}
	if of := r.half.of; of != nil {
		return of.floats(b)
	}
	return (*C.float)(r.mem.at(r.at.bufs[b]))
}

// actForms returns an activation for C with all forms that are read; none of None.
func (r *runner) actForms(a kernels.Act) (t C.tk_act) {
	if a < 0 || (r.program.Activations[a].Wanted && r.program.MaxWanted == 0) {
		return t
	}
	x, f := r.program.Activations[a], r.program.forms[a]
	t.dim, t.wanted = C.int(x.Dim), flag(x.Wanted)
	if f.int8 {
		t.q = (*C.tk_qblock)(r.mem.at(r.at.q[a]))
	}
	if f.int256 {
		t.q256 = (*C.tk_qblock)(r.mem.at(r.at.q256[a]))
	}
	if f.f32 {
		t.x = (*C.float)(r.mem.at(r.at.f32[a]))
	}
	return t
}

// actForm returns an activation for C with only the form that products with type w read.
func (r *runner) actForm(a kernels.Act, w kernels.Type) C.tk_act {
	t := r.actForms(a)
	if !w.Super() {
		t.q256 = nil
	}
	if !w.Quantized() || w.Super() {
		t.q = nil
	}
	if w.Quantized() {
		t.x = nil
	}
	return t
}
