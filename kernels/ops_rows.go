package kernels

import "math"

// Operations on each row by itself.
type (
	// Embed fills Out with the rows of W that the pass's tokens name, widened to f32, or with the pass's Given embeddings. With Blank a row
	// without a token is 0.
	Embed struct {
		W     W
		Out   Buf
		Blank bool
	}
	// RMSNorm fills Out with In, divided by its root mean square and multiplied by Weight.
	RMSNorm struct {
		In     Buf
		Weight []float32
		Eps    float32
		Out    Act
	}
	// NormAdd adds the RMSNorm of In to Out: the residual connection of models that normalise a block's output.
	NormAdd struct {
		In     Buf
		Weight []float32
		Eps    float32
		Out    Buf
	}
	// HeadNorm replaces each of the heads in a row of Buf by its RMSNorm; Weight is one head long.
	HeadNorm struct {
		Buf    Buf
		Heads  int
		Weight []float32
		Eps    float32
	}
	// Copy fills Out with In: the hidden state of a Tap.
	Copy struct{ In, Out Buf }
	// Scale multiplies every value of Buf by Factor.
	Scale struct {
		Buf    Buf
		Factor float32
	}
	// PositionScale multiplies every value of a row at position p by Factors[p/Every], or by the last factor if there are fewer.
	PositionScale struct {
		Buf     Buf
		Every   int // positions
		Factors []float32
	}
	// SoftCap replaces every value x of Buf by Cap·tanh(x/Cap).
	SoftCap struct {
		Buf Buf
		Cap float32
	}
	// AddBias adds Bias to every row of Buf.
	AddBias struct {
		Buf  Buf
		Bias []float32
	}
	// RoPE turns each head of Buf by the row's position.
	RoPE struct {
		Buf            Buf
		Heads, HeadDim int
		Rotation       Rotation
	}
	// Gate fills Out with Gate, after its curve, times Up.
	Gate struct {
		Curve    Curve
		Gate, Up Buf
		Out      Act
	}
	// Feed fills Out with In: a buffer becomes the input of products.
	Feed struct {
		In  Buf
		Out Act
	}
	// AddScaled adds Factor·In to Out: the residual connection of models that scale a block's output.
	AddScaled struct {
		In     Buf
		Factor float32
		Out    Buf
	}
	// AddSiLU adds silu(In) to Out: the residual block of a head.
	AddSiLU struct{ In, Out Buf }
	// Blend moves Out towards In by the share σ(Gate), number by number: Out = σ(Gate)·In + (1-σ(Gate))·Out.
	Blend struct{ Gate, In, Out Buf }
	// SigmoidScale multiplies Buf by σ(Gate). A row of Gate divides the row of Buf into as many equal parts as it has numbers; number i
	// scales part i.
	SigmoidScale struct{ Gate, Buf Buf }
	// CopyHeads copies elements [From, From+Dim) of each head of In to [To, To+Dim) of the same head of Out, and leaves Out's other
	// elements. With one head these are columns.
	CopyHeads struct {
		In, Out       Buf
		Heads         int
		From, To, Dim int
	}
	// BlockConv fills Out with a convolution over the rows of each block of a block draft (DFlash2): row t gets
	// Σ_k (Base_k + w_k(t)) ∘ x_{t-k}, x being In, and k counting back from the row itself. Rows before the block's first have no part
	// in it. Blocks are told by the pass: row t of a block is at position Prefix+t, and the rows before it stand right before it. A row
	// that is in no block is the only one of its own.
	BlockConv struct {
		In      Buf
		Base    []float32 // (taps, In's columns)
		Weights Buf       // of each row, from column From on: w, (taps, In's columns/Group)
		From    int
		Group   int // neighbouring columns of In that share a number of w
		Out     Buf
	}
	// Gather copies the wanted rows of In to Out, a WantedBuf.
	Gather struct{ In, Out Buf }
	// TopK finds the best Pass.TopK values of each wanted row and the softmax sum over all; see Runner.Top.
	TopK struct{ Logits Buf }
)

// Curve is the function that a Gate applies to its input: see the functions of kernels/ref.
type Curve int

const (
	SiLU        Curve = iota // x·σ(x)
	GELU                     // in its tanh approximation
	ClampedSiLU              // x·σ(1.702·x) of min(x, 7), times Up clipped to ±7, plus 1 (gpt-oss)
)

// Rotation says how RoPE turns a head: pair i by the angle position·InvFreq[i]. The pairs are elements
// (2i, 2i+1), or with Halves (i, i+len(InvFreq)); elements behind the pairs stay. Cosines and sines are
// multiplied by Magnitude; 0 stands for 1. A row is turned as if it were Ahead positions further.
type Rotation struct {
	InvFreq   []float64
	Magnitude float32
	Halves    bool
	Ahead     int
}

// Factor returns Magnitude, or 1 if it is 0.
func (r Rotation) Factor() float32 {
	if r.Magnitude == 0 {
		return 1
	}
	return r.Magnitude
}

func (o Embed) uses(*Program) Uses {
	u := touches(o.Out)
	u.W = o.W
	return u
}
func (o RMSNorm) uses(*Program) Uses       { return fills(o.Out, o.In) }
func (o NormAdd) uses(*Program) Uses       { return touches(o.Out, o.In, o.Out) }
func (o HeadNorm) uses(*Program) Uses      { return touches(o.Buf, o.Buf) }
func (o Copy) uses(*Program) Uses          { return touches(o.Out, o.In) }
func (o Scale) uses(*Program) Uses         { return touches(o.Buf, o.Buf) }
func (o PositionScale) uses(*Program) Uses { return touches(o.Buf, o.Buf) }
func (o SoftCap) uses(*Program) Uses       { return touches(o.Buf, o.Buf) }
func (o AddBias) uses(*Program) Uses       { return touches(o.Buf, o.Buf) }
func (o RoPE) uses(*Program) Uses          { return touches(o.Buf, o.Buf) }
func (o Gate) uses(*Program) Uses          { return fills(o.Out, o.Gate, o.Up) }
func (o Feed) uses(*Program) Uses          { return fills(o.Out, o.In) }
func (o AddScaled) uses(*Program) Uses     { return touches(o.Out, o.In, o.Out) }
func (o AddSiLU) uses(*Program) Uses       { return touches(o.Out, o.In, o.Out) }
func (o Blend) uses(*Program) Uses         { return touches(o.Out, o.Gate, o.In, o.Out) }
func (o SigmoidScale) uses(*Program) Uses  { return touches(o.Buf, o.Gate, o.Buf) }
func (o CopyHeads) uses(*Program) Uses     { return touches(o.Out, o.In, o.Out) }
func (o BlockConv) uses(*Program) Uses     { return touches(o.Out, o.In, o.Weights) }
func (o Gather) uses(*Program) Uses        { return touches(o.Out, o.In) }
func (o TopK) uses(*Program) Uses          { return touches(None, o.Logits) }

func (o RMSNorm) numbers() []float32       { return o.Weight }
func (o NormAdd) numbers() []float32       { return o.Weight }
func (o HeadNorm) numbers() []float32      { return o.Weight }
func (o PositionScale) numbers() []float32 { return o.Factors }
func (o AddBias) numbers() []float32       { return o.Bias }
func (o BlockConv) numbers() []float32     { return o.Base }

func (o Embed) check(c *checker) {
	c.name = "embed"
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

func (o RMSNorm) check(c *checker) {
	c.name = "rmsnorm"
	c.want("weight's length", len(o.Weight), c.buf(o.In).Dim)
	c.fed(o.In, o.Out)
}

func (o NormAdd) check(c *checker) {
	c.name = "normadd"
	in, out := c.buf(o.In), c.buf(o.Out)
	c.want("weight's length", len(o.Weight), in.Dim)
	c.want("output's columns", out.Dim, in.Dim)
	c.sameRows(out.Wanted, in.Wanted)
}

func (o HeadNorm) check(c *checker) {
	c.name = "headnorm"
	b := c.buf(o.Buf)
	c.heads(o.Heads, len(o.Weight))
	c.want("heads·headDim", o.Heads*len(o.Weight), b.Dim)
}

func (o Copy) check(c *checker) {
	c.name = "copy"
	c.alike(o.In, o.Out)
}

func (o Scale) check(c *checker) {
	c.name = "scale"
	c.buf(o.Buf)
}

func (o PositionScale) check(c *checker) {
	c.name = "position scale"
	c.sameRows(c.buf(o.Buf).Wanted, false)
	if o.Every < 1 || o.Every > math.MaxInt32 || len(o.Factors) < 1 || len(o.Factors) > maxDim {
		c.fail("%d factors for %d positions each, want 1 to %d factors and 1 to %d positions", len(o.Factors), o.Every, maxDim,
			math.MaxInt32)
	}
}

func (o SoftCap) check(c *checker) {
	c.name = "softcap"
	if c.buf(o.Buf); !(o.Cap >= 1e-6) || o.Cap > 1e6 {
		c.fail("cap %v, want 1e-6 to 1e6", o.Cap)
	}
}

func (o AddBias) check(c *checker) {
	c.name = "bias"
	c.want("length", len(o.Bias), c.buf(o.Buf).Dim)
}

func (o RoPE) check(c *checker) {
	c.name = "rope"
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

func (o Gate) check(c *checker) {
	c.name = "gate"
	g, u := c.buf(o.Gate), c.buf(o.Up)
	c.want("up's columns", u.Dim, g.Dim)
	if o.Curve < SiLU || o.Curve > ClampedSiLU {
		c.fail("curve %d, want %d to %d", o.Curve, SiLU, ClampedSiLU)
	}
	c.sameRows(g.Wanted, u.Wanted)
	c.fed(o.Gate, o.Out)
}

func (o Feed) check(c *checker) {
	c.name = "feed"
	c.fed(o.In, o.Out)
}

func (o AddScaled) check(c *checker) {
	c.name = "addscaled"
	c.alike(o.In, o.Out)
}

func (o AddSiLU) check(c *checker) {
	c.name = "addsilu"
	c.alike(o.In, o.Out)
}

func (o Blend) check(c *checker) {
	c.name = "blend"
	c.alike(o.Gate, o.Out)
	c.alike(o.In, o.Out)
}

func (o SigmoidScale) check(c *checker) {
	c.name = "sigmoid scale"
	g, b := c.buf(o.Gate), c.buf(o.Buf)
	c.sameRows(g.Wanted, b.Wanted)
	if g.Dim == 0 || b.Dim%g.Dim != 0 || o.Gate == o.Buf {
		c.fail("buffer %d of %d columns scaled by buffer %d of %d, want another buffer whose columns divide those", int(o.Buf), b.Dim,
			int(o.Gate), g.Dim)
	}
}

func (o CopyHeads) check(c *checker) {
	c.name = "copy heads"
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

// MostTaps bounds the taps of a BlockConv.
const MostTaps = 32

// Taps returns how many rows the convolution goes over, for rows of so many columns.
func (o BlockConv) Taps(columns int) int { return len(o.Base) / columns }

func (o BlockConv) check(c *checker) {
	c.name = "block convolution"
	c.alike(o.In, o.Out)
	in, w := c.buf(o.In), c.buf(o.Weights)
	c.sameRows(in.Wanted || w.Wanted, false)
	if o.Weights == o.Out {
		c.fail("buffer %d is input and output", int(o.Weights))
	}
	if c.err != nil {
		return
	}
	taps := o.Taps(in.Dim)
	if taps < 1 || taps > MostTaps || len(o.Base) != taps*in.Dim {
		c.fail("%d numbers for rows of %d columns, want 1 to %d for each", len(o.Base), in.Dim, MostTaps)
		return
	}
	if o.Group < 1 || in.Dim%o.Group != 0 {
		c.fail("groups of %d columns in rows of %d, want a number that divides it", o.Group, in.Dim)
		return
	}
	if n := taps * in.Dim / o.Group; o.From < 0 || n > w.Dim || o.From > w.Dim-n {
		c.fail("%d numbers from column %d of %d", n, o.From, w.Dim)
	}
}

func (o Gather) check(c *checker) {
	c.name = "gather"
	in, out := c.buf(o.In), c.buf(o.Out)
	c.want("output's columns", out.Dim, in.Dim)
	c.sameRows(in.Wanted, false)
	c.sameRows(out.Wanted, true)
}

func (o TopK) check(c *checker) {
	c.name = "topk"
	c.sameRows(c.buf(o.Logits).Wanted, true)
}

// Embed adds an Embed without Blank: each row has a token or a Given embedding. out is (rows, w's columns).
func (p *Program) Embed(w W, out Buf) { p.Add(Embed{W: w, Out: out}) }

// RMSNorm adds an RMSNorm of in; weight is as long as its rows. The program keeps weight.
func (p *Program) RMSNorm(in Buf, weight []float32, eps float32, out Act) {
	p.Add(RMSNorm{in, weight, eps, out})
}

// NormAdd adds a NormAdd of in to out; weight is as long as their rows. The program keeps weight.
func (p *Program) NormAdd(in Buf, weight []float32, eps float32, out Buf) {
	p.Add(NormAdd{in, weight, eps, out})
}

// HeadNorm adds a HeadNorm of b, (rows, heads·len(weight)), in place. The program keeps weight.
func (p *Program) HeadNorm(b Buf, heads int, weight []float32, eps float32) {
	p.Add(HeadNorm{b, heads, weight, eps})
}

// Copy adds a Copy of all rows and columns.
func (p *Program) Copy(in, out Buf) { p.Add(Copy{in, out}) }

// Scale adds a Scale of b, in place.
func (p *Program) Scale(b Buf, factor float32) { p.Add(Scale{b, factor}) }

// PositionScale adds a PositionScale of b, in place. The program keeps factors.
func (p *Program) PositionScale(b Buf, every int, factors []float32) {
	p.Add(PositionScale{b, every, factors})
}

// SoftCap adds a SoftCap of b, in place.
func (p *Program) SoftCap(b Buf, cap float32) { p.Add(SoftCap{b, cap}) }

// AddBias adds an AddBias of b, in place; bias is as long as its rows. The program keeps it.
func (p *Program) AddBias(b Buf, bias []float32) { p.Add(AddBias{b, bias}) }

// RoPE adds a RoPE of b, (rows, heads·headDim), in place. The program keeps r's frequencies.
func (p *Program) RoPE(b Buf, heads, headDim int, r Rotation) { p.Add(RoPE{b, heads, headDim, r}) }

// SiLUMul adds a Gate: out = silu(gate)·up, number by number.
func (p *Program) SiLUMul(gate, up Buf, out Act) { p.Add(Gate{SiLU, gate, up, out}) }

// GELUMul adds a Gate: out = gelu(gate)·up, number by number, with the tanh approximation.
func (p *Program) GELUMul(gate, up Buf, out Act) { p.Add(Gate{GELU, gate, up, out}) }

// Feed adds a Feed: in becomes the input of products, unchanged.
func (p *Program) Feed(in Buf, out Act) { p.Add(Feed{in, out}) }

// AddScaled adds an AddScaled: out += factor·in.
func (p *Program) AddScaled(in Buf, factor float32, out Buf) { p.Add(AddScaled{in, factor, out}) }

// AddSiLU adds an AddSiLU: out += silu(in).
func (p *Program) AddSiLU(in, out Buf) { p.Add(AddSiLU{in, out}) }

// Blend adds a Blend: out moves towards in by σ(gate). All three have the same shape.
func (p *Program) Blend(gate, in, out Buf) { p.Add(Blend{gate, in, out}) }

// Gather adds a Gather: out, a WantedBuf, gets the rows of in that have logits.
func (p *Program) Gather(in, out Buf) { p.Add(Gather{in, out}) }

// TopK adds a TopK of logits, (wanted rows, tokens): see Runner.Top for what it finds.
func (p *Program) TopK(logits Buf) { p.Add(TopK{logits}) }
