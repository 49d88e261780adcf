package kernels

// Op is one operation of a Program: one of the types of this file. docs/kernels.md and kernels/ref say what each computes to
// the bit.
type Op interface{ op() }

// Range is [From, To); the zero Range means all.
type Range struct{ From, To int }

// Shares is the denominator of Pass.Left.
const Shares = 4096

// Cut returns where outputs are divided when the Left has left Shares of them: a multiple of GroupRows, or the end.
func (r Range) Cut(left int32) int {
	groups := (r.To - r.From + GroupRows - 1) / GroupRows
	return min(r.From+(groups*int(left)+Shares/2)/Shares*GroupRows, r.To)
}

// Part returns the outputs of one side.
func (r Range) Part(s Side, left int32) Range {
	switch s {
	case Left:
		return Range{r.From, r.Cut(left)}
	case Right:
		return Range{r.Cut(left), r.To}
	}
	return r
}

// Of returns r itself, or [0, n) for the zero Range.
func (r Range) Of(n int) Range {
	if r == (Range{}) {
		return Range{0, n}
	}
	return r
}

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
	// PositionScale multiplies every value of a row at position p by Factors[p/Every], from the last factor's positions on by the last.
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
	// SigmoidScale multiplies Buf by σ(Gate): each number of a row of Gate scales its share of the row of Buf, as many numbers in a row as
	// Buf has columns for one of Gate's.
	SigmoidScale struct{ Gate, Buf Buf }
	// CopyHeads copies elements [From, From+Dim) of each head of In to [To, To+Dim) of the same head of Out, which keeps its others.
	// With one head these are columns.
	CopyHeads struct {
		In, Out       Buf
		Heads         int
		From, To, Dim int
	}
	// MatMul fills the columns Outputs of Out with the products of those rows of W and In. A range begins at a multiple of
	// GroupRows and ends at one, or at the end.
	MatMul struct {
		W          W
		In         Act
		Out        Buf
		Outputs    Range
		Side       Side // Left or Right: the part of Outputs before or behind the pass's cut, Range.Cut
		Add        bool // Out += result: the residual connection
		Concurrent bool // the next operation does not depend on this one and may run beside it
	}
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
	// Meet waits until the other device of a divided pass has come to the same Meet: see Couple.
	Meet struct{}
	// Gather copies the wanted rows of In to Out, a WantedBuf.
	Gather struct{ In, Out Buf }
	// TopK finds the best Pass.TopK values of each wanted row and the softmax sum over all; see Runner.Top.
	TopK struct{ Logits Buf }

	// ChooseExperts fills Out with the experts of each row, best first, and their weights.
	ChooseExperts struct {
		RouteOpt
		Logits Buf
		Out    Route
	}
	// ExpertMatMul multiplies each row of In by the experts of W that it chose, and fills Out with the products side by side, in order of
	// rank. In has one input for all of them (Cols), or side by side one for each (Used·Cols). A pass reads the outputs of an expert once,
	// however many rows chose it.
	ExpertMatMul struct {
		W          W
		In         Act
		Route      Route
		Bias       []float32 // (Experts, Rows), added to the products; nil: none
		Out        Buf
		Side       Side // Left or Right: the part of each expert's outputs before or behind the pass's cut, Range.Cut
		Concurrent bool // the next operation does not depend on this one and may run beside it
	}
	// JoinExperts fills Out with the weighted sum of what lies side by side in In: Used parts, in order of rank.
	JoinExperts struct {
		In    Buf
		Route Route
		Out   Buf
		Add   bool // Out += result: the residual connection
	}
	// DeltaNet is a layer of gated delta rule behind a causal convolution: it takes each row's inputs through the layer's state as
	// Pass.Walks says, and fills Out with what the state gives for the row. kernels/ref has the formulas.
	DeltaNet struct {
		DeltaShape
		State       int       // index in KVShape.States
		In          Buf       // (Channels): queries and keys of the key heads, then values, before the convolution
		Alpha, Beta Buf       // (ValueHeads): decay and strength before their curves
		Conv        []float32 // (Channels, Kernel), newest tap last
		A, Bias     []float32 // (ValueHeads): the decay is exp(A·softplus(Alpha+Bias))
		Out         Buf       // (ValueHeads·Dim)
	}
)

// DeltaShape gives the sizes of a DeltaNet. Value head j belongs to key head j mod KeyHeads.
type DeltaShape struct {
	KeyHeads, ValueHeads int
	Dim                  int // of every head
	Kernel               int // taps of the convolution
}

// Channels returns how many numbers the convolution goes over.
func (s DeltaShape) Channels() int { return (2*s.KeyHeads + s.ValueHeads) * s.Dim }

// Floats returns the numbers of the state: the last Kernel-1 inputs of the convolution, and a matrix for each value head.
func (s DeltaShape) Floats() int { return (s.Kernel-1)*s.Channels() + s.ValueHeads*s.Dim*s.Dim }

// Record returns the numbers of a row's record: In, Alpha and Beta.
func (s DeltaShape) Record() int { return s.Channels() + 2*s.ValueHeads }

// AttentionOpt says how an Attention weighs positions: score s = Scale·q·k, then with a SoftCap
// s = SoftCap·tanh(s/SoftCap); with a Window, a query at position p sees position j only if p-j < Window.
type AttentionOpt struct {
	Scale   float32
	Window  int     // positions, the query's own included; 0: all
	SoftCap float32 // 0: none
}

// Curve is what a Gate's input goes through: see the functions of kernels/ref.
type Curve int

const (
	SiLU        Curve = iota // x·σ(x)
	GELU                     // in its tanh approximation
	ClampedSiLU              // x·σ(1.702·x) of min(x, 7), times Up clipped to ±7, plus 1 (gpt-oss)
)

// RouteOpt says how experts are chosen and weighted. The zero value takes the largest logits, weighted by the softmax over all experts.
type RouteOpt struct {
	Sigmoid bool      // scores are σ(logit) of each expert by itself, not the softmax
	Normed  bool      // weights are divided by their sum; with a softmax that is the softmax over those that are chosen
	Bias    []float32 // per expert, added to scores for choosing alone; nil: none
	Scale   float32   // weights are multiplied by it; 0 stands for 1
	Each    []float32 // per expert, its weight is multiplied by it at last; nil: none
}

// Rotation says how RoPE turns a head: pair i by the angle position·InvFreq[i]. The pairs are elements
// (2i, 2i+1), or with Halves (i, i+len(InvFreq)); elements behind the pairs stay. Cosines and sines are
// multiplied by Magnitude; 0 stands for 1. A row is turned as if it were Ahead positions further.
type Rotation struct {
	InvFreq   []float64
	Magnitude float32
	Halves    bool
	Ahead     int
}

// Side says which part of a divided operation a device computes: of a MatMul the outputs on that side of its cut, of an AttendBlocks the
// blocks of each row. Pass.Cut is the row's block that both sides share.
type Side int

const (
	Whole Side = iota
	Left       // blocks before the cut, and the first Shared KV heads of the block at the cut
	Right      // the other KV heads of that block, and the blocks behind it
)

func (Embed) op()         {}
func (RMSNorm) op()       {}
func (NormAdd) op()       {}
func (HeadNorm) op()      {}
func (Copy) op()          {}
func (Scale) op()         {}
func (PositionScale) op() {}
func (SoftCap) op()       {}
func (AddBias) op()       {}
func (RoPE) op()          {}
func (Gate) op()          {}
func (Feed) op()          {}
func (AddScaled) op()     {}
func (AddSiLU) op()       {}
func (Blend) op()         {}
func (SigmoidScale) op()  {}
func (CopyHeads) op()     {}
func (MatMul) op()        {}
func (StoreKV) op()       {}
func (Attention) op()     {}
func (AttendBlocks) op()  {}
func (JoinBlocks) op()    {}
func (Meet) op()          {}
func (Gather) op()        {}
func (TopK) op()          {}
func (ChooseExperts) op() {}
func (ExpertMatMul) op()  {}
func (JoinExperts) op()   {}
func (DeltaNet) op()      {}

// WeightOf returns the matrix that an operation reads, or None.
func WeightOf(o Op) W {
	switch o := o.(type) {
	case Embed:
		return o.W
	case MatMul:
		return o.W
	case ExpertMatMul:
		return o.W
	}
	return None
}

// Output returns the buffer that an operation changes, or None.
func Output(o Op) Buf {
	switch o := o.(type) {
	case Embed:
		return o.Out
	case NormAdd:
		return o.Out
	case HeadNorm:
		return o.Buf
	case Copy:
		return o.Out
	case Scale:
		return o.Buf
	case PositionScale:
		return o.Buf
	case SoftCap:
		return o.Buf
	case AddBias:
		return o.Buf
	case RoPE:
		return o.Buf
	case AddScaled:
		return o.Out
	case AddSiLU:
		return o.Out
	case Blend:
		return o.Out
	case SigmoidScale:
		return o.Buf
	case CopyHeads:
		return o.Out
	case MatMul:
		return o.Out
	case Gather:
		return o.Out
	case ExpertMatMul:
		return o.Out
	case JoinExperts:
		return o.Out
	case DeltaNet:
		return o.Out
	}
	return None
}

// Inputs returns the buffers that an operation only reads.
func Inputs(o Op) []Buf {
	switch o := o.(type) {
	case RMSNorm:
		return []Buf{o.In}
	case NormAdd:
		return []Buf{o.In}
	case Copy:
		return []Buf{o.In}
	case Gate:
		return []Buf{o.Gate, o.Up}
	case Feed:
		return []Buf{o.In}
	case AddScaled:
		return []Buf{o.In}
	case AddSiLU:
		return []Buf{o.In}
	case Blend:
		return []Buf{o.Gate, o.In}
	case SigmoidScale:
		return []Buf{o.Gate}
	case CopyHeads:
		return []Buf{o.In}
	case StoreKV:
		return []Buf{o.K, o.V}
	case Attention:
		if o.Gated {
			return []Buf{o.Q, o.Gate}
		}
		return []Buf{o.Q}
	case AttendBlocks:
		return []Buf{o.Q}
	case JoinBlocks:
		if o.Gated {
			return []Buf{o.Gate}
		}
	case Gather:
		return []Buf{o.In}
	case TopK:
		return []Buf{o.Logits}
	case ChooseExperts:
		return []Buf{o.Logits}
	case JoinExperts:
		return []Buf{o.In}
	case DeltaNet:
		return []Buf{o.In, o.Alpha, o.Beta}
	}
	return nil
}

// Add appends an operation.
func (p *Program) Add(o Op) { p.Ops = append(p.Ops, o) }

// MatMulOpt modifies a MatMul: see its fields.
type MatMulOpt struct {
	Add        bool
	Concurrent bool
	Outputs    Range
}

// The methods below append the operation of their name.

func (p *Program) Embed(w W, out Buf) { p.Add(Embed{W: w, Out: out}) }

func (p *Program) RMSNorm(in Buf, weight []float32, eps float32, out Act) {
	p.Add(RMSNorm{in, weight, eps, out})
}

func (p *Program) NormAdd(in Buf, weight []float32, eps float32, out Buf) {
	p.Add(NormAdd{in, weight, eps, out})
}

func (p *Program) HeadNorm(b Buf, heads int, weight []float32, eps float32) {
	p.Add(HeadNorm{b, heads, weight, eps})
}

func (p *Program) Copy(in, out Buf) { p.Add(Copy{in, out}) }

func (p *Program) Scale(b Buf, factor float32) { p.Add(Scale{b, factor}) }

func (p *Program) PositionScale(b Buf, every int, factors []float32) {
	p.Add(PositionScale{b, every, factors})
}

func (p *Program) SoftCap(b Buf, cap float32) { p.Add(SoftCap{b, cap}) }

func (p *Program) AddBias(b Buf, bias []float32) { p.Add(AddBias{b, bias}) }

func (p *Program) RoPE(b Buf, heads, headDim int, r Rotation) {
	p.Add(RoPE{b, heads, headDim, r})
}

func (p *Program) SiLUMul(gate, up Buf, out Act) { p.Add(Gate{SiLU, gate, up, out}) }

func (p *Program) GELUMul(gate, up Buf, out Act) { p.Add(Gate{GELU, gate, up, out}) }

func (p *Program) Feed(in Buf, out Act) { p.Add(Feed{in, out}) }

func (p *Program) AddScaled(in Buf, factor float32, out Buf) { p.Add(AddScaled{in, factor, out}) }

func (p *Program) AddSiLU(in, out Buf) { p.Add(AddSiLU{in, out}) }

func (p *Program) Blend(gate, in, out Buf) { p.Add(Blend{gate, in, out}) }

func (p *Program) MatMul(w W, in Act, out Buf, opt MatMulOpt) {
	p.Add(MatMul{W: w, In: in, Out: out, Outputs: opt.Outputs, Add: opt.Add, Concurrent: opt.Concurrent})
}

func (p *Program) StoreKV(k, v Buf, layer int) { p.Add(StoreKV{k, v, layer}) }

func (p *Program) Attention(q Buf, layer, heads int, opt AttentionOpt, out Act) {
	p.Add(Attention{AttentionOpt: opt, Q: q, Layer: layer, Heads: heads, Out: out})
}

func (p *Program) Gather(in, out Buf) { p.Add(Gather{in, out}) }

func (p *Program) TopK(logits Buf) { p.Add(TopK{logits}) }
