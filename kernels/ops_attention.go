package kernels

// Operations on the KV cache.
type (
	// StoreKV writes each row's keys and values, in the format of the cache, into the cell that the pass names for it. To a
	// compressed layer K is the rotated key and V the latent vector; without a rotated key K is None.
	StoreKV struct {
		K, V  Buf
		Layer int
	}
	// Attention fills Out with softmax(scores of Q and K)·V of each row over the positions it sees.
	Attention struct {
		AttentionOpt
		Q     Buf
		Layer int
		Heads int
		Out   Act
		Sinks []float32 // per query head, a score that has a share of the softmax but no value; nil: none
		Gate  Buf       // with Gated: each number of the result is multiplied by σ of Gate's
		Gated bool
	}
	// AttendBlocks computes Attention's blocks of 256 positions and hands each over as (m, l, o): the largest score, Σ exp(s-m), Σ
	// exp(s-m)·v. Two of them, one on each Side, make a whole.
	AttendBlocks struct {
		AttentionOpt
		Q     Buf
		Layer int
		Heads int
		Side  Side
		// Shared is how many KV heads of the block at the cut belong to the Left; the others to the Right.
		Shared int
		Out    Parts
	}
	// JoinBlocks fills Out with the attention of each row: its blocks, joined in order of position.
	JoinBlocks struct {
		AttentionOpt // of the AttendBlocks
		In           Parts
		Layer        int
		Out          Act
		Sinks        []float32 // of the Attention
		Gate         Buf       // likewise
		Gated        bool
	}
)

// AttentionOpt says how an Attention weighs positions: score s = Scale·q·k, then with a SoftCap
// s = SoftCap·tanh(s/SoftCap); with a Window, a query at position p sees position j only if p-j < Window.
type AttentionOpt struct {
	Scale   float32
	Window  int     // positions, the query's own included; 0: all
	SoftCap float32 // 0: none
	Later   bool    // a row also sees the cells that the pass lists for it behind its own: later rows of its block
}

// Blocks returns o as two operations: one that fills parts with the blocks of a side, and one that joins the parts. shared is as in
// AttendBlocks.
func (o Attention) Blocks(parts Parts, side Side, shared int) (AttendBlocks, JoinBlocks) {
	return AttendBlocks{o.AttentionOpt, o.Q, o.Layer, o.Heads, side, shared, parts},
		JoinBlocks{o.AttentionOpt, parts, o.Layer, o.Out, o.Sinks, o.Gate, o.Gated}
}

func (o StoreKV) uses(*Program) Uses {
	u := touches(None, o.V)
	if u.Layer = o.Layer; o.K != None {
		u.Reads = []Buf{o.K, o.V}
	}
	return u
}

func (o Attention) uses(*Program) Uses {
	u := fills(o.Out, o.Q)
	if u.Layer = o.Layer; o.Gated {
		u.Reads = []Buf{o.Q, o.Gate}
	}
	return u
}

func (o AttendBlocks) uses(*Program) Uses {
	u := touches(None, o.Q)
	u.Layer = o.Layer
	return u
}

func (o JoinBlocks) uses(*Program) Uses {
	u := fills(o.Out)
	if u.Layer = o.Layer; o.Gated {
		u.Reads = []Buf{o.Gate}
	}
	return u
}

func (o Attention) numbers() []float32  { return o.Sinks }
func (o JoinBlocks) numbers() []float32 { return o.Sinks }

func (o StoreKV) check(c *checker) {
	c.name = "store"
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

func (o Attention) check(c *checker) {
	c.name = "attention"
	heads, dim := c.attention(o.AttentionOpt, o.Q, o.Layer, o.Heads)
	c.attended(o.Out, heads, dim, o.Sinks, o.Gated, o.Gate)
}

func (o AttendBlocks) check(c *checker) {
	c.name = "attend blocks"
	heads, dim := c.attention(o.AttentionOpt, o.Q, o.Layer, o.Heads)
	s := of(c, "parts", c.Parts, o.Out)
	l, ok := c.layer(o.Layer)
	if c.want("parts' heads", s.Heads, heads); !ok {
		return
	}
	c.want("parts' head size", s.Dim, dim)
	other, begun := c.sides[o.Out]
	c.sides[o.Out] = o
	c.side(o.Side)
	switch {
	case o.Shared < 0 || o.Shared > max(1, l.Heads) || o.Side == Whole && o.Shared != 0:
		c.fail("%d KV heads of the block at the cut, want 0 to %d", o.Shared, max(1, l.Heads))
	case begun && (o.Side == Whole || other.Side == Whole || other.Side == o.Side):
		c.fail("parts %d are computed twice before they are joined", int(o.Out))
	case begun && (other.Shared != o.Shared || other.Layer != o.Layer || other.AttentionOpt != o.AttentionOpt || other.Heads != o.Heads):
		c.fail("the two sides in parts %d belong to different attentions", int(o.Out))
	}
}

func (o JoinBlocks) check(c *checker) {
	c.name = "join blocks"
	s := of(c, "parts", c.Parts, o.In)
	c.layer(o.Layer)
	delete(c.sides, o.In)
	c.window(o.AttentionOpt)
	c.attended(o.Out, s.Heads, s.Dim, o.Sinks, o.Gated, o.Gate)
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

// attended checks the result of an attention, its sinks and its gate.
func (c *checker) attended(out Act, heads, dim int, sinks []float32, gated bool, gate Buf) {
	a := c.act(out)
	c.want("output's columns", a.Dim, heads*dim)
	c.sameRows(a.Wanted, false)
	if sinks != nil {
		c.want("number of sinks", len(sinks), heads)
	}
	if gated {
		b := c.buf(gate)
		c.sameRows(b.Wanted, false)
		c.want("gate's columns", b.Dim, a.Dim)
	}
}

// StoreKV adds a StoreKV: k and v are (rows, KV heads·head size), or what a compressed layer keeps.
func (p *Program) StoreKV(k, v Buf, layer int) { p.Add(StoreKV{k, v, layer}) }

// Attention adds an Attention of q, (rows, heads·key size), over the keys and values of a layer; out is (rows, heads·value size).
func (p *Program) Attention(q Buf, layer, heads int, opt AttentionOpt, out Act) {
	p.Add(Attention{AttentionOpt: opt, Q: q, Layer: layer, Heads: heads, Out: out})
}
