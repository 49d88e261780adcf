package kernels

import (
	"fmt"
	"math"
)

// Check returns the first mistake in the plan, such as an invalid handle or a size that does not fit. A device may still refuse
// a correct plan: see Unsupported.
func (p *Program) Check() error {
	if p.MaxRows < 1 || p.MaxRows > 1<<20 || p.MaxWanted < 0 || p.MaxWanted > p.MaxRows {
		return fmt.Errorf("kernels: program of %d rows and %d wanted ones, want 1 to %d rows and no more wanted", p.MaxRows, p.MaxWanted,
			1<<20)
	}
	if len(p.Ops) == 0 {
		return fmt.Errorf("kernels: program without operations")
	}
	if err := p.checkSizes(); err != nil {
		return err
	}
	c := checker{Program: p, sides: map[Parts]AttendBlocks{}, chosen: map[Route]bool{}}
	for i, o := range p.Ops {
		if c.op(o); c.err != nil {
			return fmt.Errorf("kernels: operation %d, %w", i, c.err)
		}
	}
	return p.checkTaps()
}

// checkSizes checks everything but operations.
func (p *Program) checkSizes() error {
	for i, b := range p.Buffers {
		if b.Dim < 1 || b.Dim > maxDim {
			return fmt.Errorf("kernels: buffer %d of %d columns, want 1 to %d", i, b.Dim, maxDim)
		}
	}
	for i, a := range p.Activations {
		if a.Dim < 1 || a.Dim > maxDim {
			return fmt.Errorf("kernels: activation %d of %d columns, want 1 to %d", i, a.Dim, maxDim)
		}
	}
	for i := range p.Weights {
		if err := p.Weights[i].check(); err != nil {
			return fmt.Errorf("kernels: weight %d %q: %w", i, p.Weights[i].Name, err)
		}
	}
	for i, s := range p.Parts {
		if s.Heads < 1 || s.Dim < 1 || s.Heads > maxDim || s.Dim > maxDim {
			return fmt.Errorf("kernels: parts %d of %d heads of %d", i, s.Heads, s.Dim)
		}
	}
	for i, r := range p.Routes {
		if r.Used < 1 || r.Used > r.Experts || r.Experts > maxDim {
			return fmt.Errorf("kernels: route %d to %d of %d experts, want 1 to as many as there are", i, r.Used, r.Experts)
		}
		if r.Fixed && r.Used != r.Experts {
			return fmt.Errorf("kernels: route %d of %d experts is fixed, but its rows use %d, want all", i, r.Experts, r.Used)
		}
	}
	for i, s := range p.Stages {
		if i == 0 && s.First != 0 || s.First < 0 || s.First >= len(p.Ops) || i > 0 && s.First <= p.Stages[i-1].First {
			return fmt.Errorf("kernels: stage %d %q begins with operation %d of %d, want 0 for the first and ascending numbers",
				i, s.Name, s.First, len(p.Ops))
		}
	}
	if len(p.KV.Layers) > 0 || len(p.KV.States) > 0 {
		return p.KV.Check()
	}
	return nil
}

func (w *Weight) check() error {
	const limit = 1 << 30
	elems, _ := w.Type.Block()
	switch {
	case elems == 0:
		return fmt.Errorf("no kernels for weights of %v", w.Type)
	case w.Rows < 1 || w.Cols < 1 || w.Rows > limit || w.Cols > limit:
		return fmt.Errorf("matrix of %d outputs and %d inputs, want 1 to %d of each", w.Rows, w.Cols, limit)
	case w.Cols%elems != 0:
		return fmt.Errorf("rows of %d elements in %v, want a multiple of %d", w.Cols, w.Type, elems)
	case w.Experts < 0 || w.Experts > maxDim:
		return fmt.Errorf("%d experts, want 1 to %d, or 0 for a plain matrix", w.Experts, maxDim)
	case w.Layout != Rows && w.Layout != Groups16 && w.Layout != Groups32:
		return fmt.Errorf("unknown layout %q, want %s, %s or %s", w.Layout, Rows, Groups16, Groups32)
	}
	return nil
}

// checkTaps checks that exactly one operation writes to each tapped buffer.
func (p *Program) checkTaps() error {
	for i, t := range p.Taps {
		if t.Layer < 0 || t.Buf < 0 || int(t.Buf) >= len(p.Buffers) {
			return fmt.Errorf("kernels: tap %d of layer %d in buffer %d of %d", i, t.Layer, t.Buf, len(p.Buffers))
		}
		writers := 0
		for _, o := range p.Ops {
			if Output(o) == t.Buf {
				writers++
			}
		}
		if writers != 1 {
			return fmt.Errorf("kernels: the buffer of tap %d, layer %d, is written to by %d operations, want 1", i, t.Layer, writers)
		}
	}
	return nil
}

// checker checks one operation after the other; the first mistake sticks.
type checker struct {
	*Program
	name  string
	err   error
	sides map[Parts]AttendBlocks // computed since the last join; another device may compute the other side
	// chosen are the routes that an operation has filled.
	chosen map[Route]bool
	given  int // columns of the pass's given embeddings; 0: none yet
}

func (c *checker) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(c.name+": "+format, args...)
	}
}

func (c *checker) want(what string, got, want int) {
	if got != want {
		c.fail("%s is %d, want %d", what, got, want)
	}
}

func (c *checker) sameRows(a, b bool) {
	if a != b {
		c.fail("one side has all rows, the other the wanted rows")
	}
}

// of returns the entry that a handle names; an invalid handle fails the plan.
func of[H ~int, T any](c *checker, what string, all []T, h H) (t T) {
	if h < 0 || int(h) >= len(all) {
		c.fail("%s %d of %d", what, int(h), len(all))
		return t
	}
	return all[h]
}

func (c *checker) buf(b Buf) Buffer     { return of(c, "buffer", c.Buffers, b) }
func (c *checker) act(a Act) Activation { return of(c, "activation", c.Activations, a) }
func (c *checker) weight(w W) Weight    { return of(c, "weight", c.Weights, w) }

func (c *checker) heads(heads, dim int) {
	if heads < 1 || dim < 1 || heads > maxDim || dim > maxDim {
		c.fail("%d heads of %d, want at least 1 of each", heads, dim)
	}
}

func (c *checker) op(o Op) {
	switch o := o.(type) {
	case Embed:
		c.name = "embed"
		c.embed(o)
	case RMSNorm:
		c.name = "rmsnorm"
		in, out := c.buf(o.In), c.act(o.Out)
		c.want("weight's length", len(o.Weight), in.Dim)
		c.want("output's columns", out.Dim, in.Dim)
		c.sameRows(out.Wanted, in.Wanted)
	case NormAdd:
		c.name = "normadd"
		in, out := c.buf(o.In), c.buf(o.Out)
		c.want("weight's length", len(o.Weight), in.Dim)
		c.want("output's columns", out.Dim, in.Dim)
		c.sameRows(out.Wanted, in.Wanted)
	case HeadNorm:
		c.name = "headnorm"
		b := c.buf(o.Buf)
		c.heads(o.Heads, len(o.Weight))
		c.want("heads·headDim", o.Heads*len(o.Weight), b.Dim)
	case Copy:
		c.name = "copy"
		c.alike(o.In, o.Out)
	case Scale:
		c.name = "scale"
		c.buf(o.Buf)
	case PositionScale:
		c.name = "position scale"
		c.sameRows(c.buf(o.Buf).Wanted, false)
		if o.Every < 1 || o.Every > math.MaxInt32 || len(o.Factors) < 1 || len(o.Factors) > maxDim {
			c.fail("%d factors for %d positions each, want 1 to %d factors and 1 to %d positions", len(o.Factors), o.Every, maxDim,
				math.MaxInt32)
		}
	case SoftCap:
		c.name = "softcap"
		if c.buf(o.Buf); !(o.Cap >= 1e-6) || o.Cap > 1e6 {
			c.fail("cap %v, want 1e-6 to 1e6", o.Cap)
		}
	case AddBias:
		c.name = "bias"
		c.want("length", len(o.Bias), c.buf(o.Buf).Dim)
	case RoPE:
		c.name = "rope"
		c.rope(o)
	case Gate:
		c.name = "gate"
		g, u, out := c.buf(o.Gate), c.buf(o.Up), c.act(o.Out)
		c.want("up's columns", u.Dim, g.Dim)
		if o.Curve < SiLU || o.Curve > ClampedSiLU {
			c.fail("curve %d, want %d to %d", o.Curve, SiLU, ClampedSiLU)
		}
		c.want("output's columns", out.Dim, g.Dim)
		c.sameRows(g.Wanted, u.Wanted)
		c.sameRows(g.Wanted, out.Wanted)
	case Feed:
		c.name = "feed"
		in, out := c.buf(o.In), c.act(o.Out)
		c.want("output's columns", out.Dim, in.Dim)
		c.sameRows(out.Wanted, in.Wanted)
	case AddScaled:
		c.name = "addscaled"
		c.alike(o.In, o.Out)
	case AddSiLU:
		c.name = "addsilu"
		c.alike(o.In, o.Out)
	case Blend:
		c.name = "blend"
		c.alike(o.Gate, o.Out)
		c.alike(o.In, o.Out)
	case SigmoidScale:
		c.name = "sigmoid scale"
		c.sigmoidScale(o)
	case CopyHeads:
		c.name = "copy heads"
		c.copyHeads(o)
	case MatMul:
		c.name = "matmul"
		c.matmul(o)
	case Gather:
		c.name = "gather"
		in, out := c.buf(o.In), c.buf(o.Out)
		c.want("output's columns", out.Dim, in.Dim)
		c.sameRows(in.Wanted, false)
		c.sameRows(out.Wanted, true)
	case Meet:
	case TopK:
		c.name = "topk"
		c.sameRows(c.buf(o.Logits).Wanted, true)
	default:
		c.layered(o)
	}
}

// alike checks that an input has the shape of the output, and is another buffer.
func (c *checker) alike(in, out Buf) {
	a, b := c.buf(in), c.buf(out)
	c.want("input's columns", a.Dim, b.Dim)
	c.sameRows(a.Wanted, b.Wanted)
	if in == out {
		c.fail("buffer %d is input and output", int(in))
	}
}

func (c *checker) sigmoidScale(o SigmoidScale) {
	g, b := c.buf(o.Gate), c.buf(o.Buf)
	c.sameRows(g.Wanted, b.Wanted)
	if g.Dim == 0 || b.Dim%g.Dim != 0 || o.Gate == o.Buf {
		c.fail("buffer %d of %d columns scaled by buffer %d of %d, want another buffer whose columns divide those", int(o.Buf), b.Dim,
			int(o.Gate), g.Dim)
	}
}

func (c *checker) copyHeads(o CopyHeads) {
	in, out := c.buf(o.In), c.buf(o.Out)
	c.sameRows(in.Wanted, out.Wanted)
	if o.Heads < 1 || in.Dim%o.Heads != 0 || out.Dim%o.Heads != 0 || o.In == o.Out {
		c.fail("%d heads from buffer %d of %d columns to buffer %d of %d, want a number that divides the columns of two buffers", o.Heads,
			int(o.In), in.Dim, int(o.Out), out.Dim)
		return
	}
	if o.Dim < 1 || o.From < 0 || o.To < 0 || o.From+o.Dim > in.Dim/o.Heads || o.To+o.Dim > out.Dim/o.Heads {
		c.fail("%d elements from %d of a head of %d to %d of a head of %d", o.Dim, o.From, in.Dim/o.Heads, o.To, out.Dim/o.Heads)
	}
}

func (c *checker) embed(o Embed) {
	w, out := c.weight(o.W), c.buf(o.Out)
	c.want("buffer's columns", out.Dim, w.Cols)
	c.want("experts", w.Experts, 0)
	c.sameRows(out.Wanted, false)
	if given := c.given; !o.Blank && given > 0 && given != w.Cols {
		c.fail("given embeddings of %d columns and of %d: want one of the two blank", given, w.Cols)
	} else if !o.Blank {
		c.given = w.Cols
	}
}

func (c *checker) rope(o RoPE) {
	b := c.buf(o.Buf)
	c.heads(o.Heads, o.HeadDim)
	c.want("heads·headDim", o.Heads*o.HeadDim, b.Dim)
	c.sameRows(b.Wanted, false)
	if n := 2 * len(o.Rotation.InvFreq); n < 2 || n > o.HeadDim {
		c.fail("%d of %d elements turn, want at least 2 and no more than there are", n, o.HeadDim)
	}
	if a := o.Rotation.Ahead; a < 0 || a > 1<<20 {
		c.fail("turned %d positions ahead, want 0 to %d", a, 1<<20)
	}
	for i, f := range o.Rotation.InvFreq {
		if !(math.Abs(f) <= 16) {
			c.fail("frequency %d is %v, want at most 16", i, f)
		}
	}
}

func (c *checker) matmul(o MatMul) {
	w, in, out := c.weight(o.W), c.act(o.In), c.buf(o.Out)
	c.want("input's columns", in.Dim, w.Cols)
	c.want("output's columns", out.Dim, w.Rows)
	c.want("experts", w.Experts, 0)
	c.sameRows(in.Wanted, out.Wanted)
	r := o.Outputs.Of(w.Rows)
	if r.From < 0 || r.From >= r.To || r.To > w.Rows {
		c.fail("outputs %d to %d of %d", r.From, r.To, w.Rows)
	}
	c.side(o.Side)
	if r.From%GroupRows != 0 || r.To%GroupRows != 0 && r.To != w.Rows {
		c.fail("outputs %d to %d of %d, want multiples of %d, or the end", r.From, r.To, w.Rows, GroupRows)
	}
}

// layered checks operations on the KV cache, recurrent states and experts.
func (c *checker) layered(o Op) {
	switch o := o.(type) {
	case StoreKV:
		c.name = "store"
		c.store(o)
	case Attention:
		c.name = "attention"
		heads, dim := c.attention(o.AttentionOpt, o.Q, o.Layer, o.Heads)
		out := c.act(o.Out)
		c.want("output's columns", out.Dim, heads*dim)
		c.sameRows(out.Wanted, false)
		c.sinks(o.Sinks, heads)
		c.gate(o.Gated, o.Gate, out.Dim)
	case AttendBlocks:
		c.name = "attend blocks"
		c.attendBlocks(o)
	case JoinBlocks:
		c.name = "join blocks"
		s, out := of(c, "parts", c.Parts, o.In), c.act(o.Out)
		c.layer(o.Layer)
		delete(c.sides, o.In)
		c.want("output's columns", out.Dim, s.Heads*s.Dim)
		c.sameRows(out.Wanted, false)
		c.window(o.AttentionOpt)
		c.sinks(o.Sinks, s.Heads)
		c.gate(o.Gated, o.Gate, out.Dim)
	case ChooseExperts:
		c.name = "choose experts"
		c.choose(o)
	case ExpertMatMul:
		c.name = "expert matmul"
		c.experts(o)
	case JoinExperts:
		c.name = "join experts"
		c.joinExperts(o)
	case DeltaNet:
		c.name = "delta net"
		c.deltaNet(o)
	default:
		c.name = fmt.Sprintf("%T", o)
		c.fail("unknown operation")
	}
}

// layer returns the shape of the keys and values that layer i reads, its own or shared ones. ok is false if there are none.
func (c *checker) layer(i int) (l KVLayer, ok bool) {
	if i < 0 || i >= len(c.KV.Layers) {
		c.fail("layer %d of a KV cache of %d", i, len(c.KV.Layers))
		return l, false
	}
	if l = c.KV.Layers[c.KV.Kept(i)]; l.Heads == 0 && l.Latent == 0 {
		c.fail("layer %d keeps no keys and values", i)
		return l, false
	}
	return l, true
}

func (c *checker) store(o StoreKV) {
	l, ok := c.layer(o.Layer)
	if !ok {
		return
	}
	if c.KV.Layers[o.Layer].Shared {
		c.fail("layer %d shares the keys and values of layer %d, which stores them", o.Layer, c.KV.Layers[o.Layer].Source)
		return
	}
	k, v := l.Heads*l.Dim, l.Heads*l.Dim
	if l.Latent > 0 {
		k, v = l.Rotated, l.Latent
	}
	if k == 0 && o.K == None {
		c.want("values' columns", c.buf(o.V).Dim, v)
		return
	}
	c.want("keys' columns", c.buf(o.K).Dim, k)
	c.want("values' columns", c.buf(o.V).Dim, v)
	c.sameRows(c.buf(o.K).Wanted || c.buf(o.V).Wanted, false)
}

func (c *checker) window(opt AttentionOpt) {
	if opt.Window < 0 || opt.Window > maxDim {
		c.fail("window of %d positions, want 1 to %d, or 0 for all", opt.Window, maxDim)
	}
	if !(opt.SoftCap >= 0) || opt.SoftCap > 1e6 {
		c.fail("soft cap %v, want more than 0 and at most 1e6, or 0 for none", opt.SoftCap)
	}
}

// attention checks what whole and divided attention have in common. It returns the number of heads in the result and their size.
func (c *checker) attention(opt AttentionOpt, q Buf, layer, heads int) (int, int) {
	c.window(opt)
	b := c.buf(q)
	l, ok := c.layer(layer)
	if !ok {
		return 0, 0
	}
	if most := l.Window; most > 0 && (opt.Window == 0 || opt.Window > most) {
		c.fail("window of %d positions in layer %d, which keeps %d", opt.Window, layer, most)
	}
	kv, key, value := l.Seen()
	if heads < 1 || heads > maxDim || heads%kv != 0 {
		c.fail("%d heads on %d KV heads, want a multiple", heads, kv)
	}
	c.want("query's columns", b.Dim, heads*key)
	c.sameRows(b.Wanted, false)
	return heads, value
}

func (c *checker) attendBlocks(o AttendBlocks) {
	heads, dim := c.attention(o.AttentionOpt, o.Q, o.Layer, o.Heads)
	s := of(c, "parts", c.Parts, o.Out)
	l, ok := c.layer(o.Layer)
	if c.want("parts' heads", s.Heads, heads); !ok {
		return
	}
	c.want("parts' head size", s.Dim, dim)
	other, begun := c.sides[o.Out]
	c.sides[o.Out] = o
	switch {
	case o.Side < Whole || o.Side > Right:
		c.fail("side %d, want whole, left or right", o.Side)
	case o.Shared < 0 || o.Shared > max(1, l.Heads) || o.Side == Whole && o.Shared != 0:
		c.fail("%d KV heads of the block at the cut, want 0 to %d", o.Shared, max(1, l.Heads))
	case begun && (o.Side == Whole || other.Side == Whole || other.Side == o.Side):
		c.fail("parts %d are computed twice before they are joined", int(o.Out))
	case begun && (other.Shared != o.Shared || other.Layer != o.Layer || other.AttentionOpt != o.AttentionOpt || other.Heads != o.Heads):
		c.fail("the two sides in parts %d belong to different attentions", int(o.Out))
	}
}
