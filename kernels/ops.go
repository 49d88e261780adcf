package kernels

// Op is one operation of a Program. Each is a type with its contract, what it touches and its checks in one place: ops_rows.go,
// ops_products.go, ops_attention.go, ops_states.go. docs/kernels.md and kernels/ref say what each computes to the bit.
type Op interface {
	// uses says what the operation touches of p.
	uses(p *Program) Uses
	// check tells c what is wrong with the operation.
	check(c *checker)
}

// Uses is what an operation touches of its program.
type Uses struct {
	Reads  []Buf // buffers whose numbers it needs: also Writes, if it leaves a part of them or computes with them
	Writes Buf   // the buffer that it changes, or None
	Takes  Act   // the activation that it multiplies, or None
	Fills  Act   // the activation that it fills, or None
	W      W     // the matrix that it reads, or None
	Layer  int   // of the KV cache, or None
}

// Uses returns what o, an operation of p, reads and writes.
func (p *Program) Uses(o Op) Uses { return o.uses(p) }

// touches returns Uses of an operation that reads some buffers and changes at most one.
func touches(writes Buf, reads ...Buf) Uses {
	return Uses{Reads: reads, Writes: writes, Takes: None, Fills: None, W: None, Layer: None}
}

// fills returns Uses of an operation that fills an activation.
func fills(out Act, reads ...Buf) Uses {
	u := touches(None, reads...)
	u.Fills = out
	return u
}

// Numbers returns the numbers that an operation holds itself, such as the weights of a norm, in the order in which devices keep them. nil:
// it holds none. They are only to be read.
func Numbers(o Op) []float32 {
	if n, ok := o.(interface{ numbers() []float32 }); ok {
		return n.numbers()
	}
	return nil
}

// Add appends an operation. The methods of Program that are named like operations append one, too.
func (p *Program) Add(o Op) { p.Ops = append(p.Ops, o) }

// Range is [From, To); the zero Range means all.
type Range struct{ From, To int }

// Shares is the denominator of Pass.Left.
const Shares = 4096

// Cut returns where the outputs r are divided if the Left gets left of Shares of them: a multiple of GroupRows behind From, or To.
func (r Range) Cut(left int32) int {
	groups := (r.To - r.From + GroupRows - 1) / GroupRows
	return min(r.From+(groups*int(left)+Shares/2)/Shares*GroupRows, r.To)
}

// Part returns the outputs of r that side s computes, divided as by Cut; all of them for Whole.
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

// Side says which part of a divided operation a device computes: of a MatMul the outputs on that side of its cut, of an AttendBlocks the
// blocks of each row. Pass.Cut is the row's block that both sides share.
type Side int

const (
	Whole Side = iota // all of it
	Left              // blocks before the cut, and the first Shared KV heads of the block at the cut
	Right             // the other KV heads of that block, and the blocks behind it
)

func (c *checker) side(s Side) {
	if s < Whole || s > Right {
		c.fail("side %d, want whole, left or right", s)
	}
}

// Meet waits until the other device of a divided pass has come to the same Meet: see Couple.
type Meet struct{}

func (Meet) uses(*Program) Uses { return touches(None) }
func (Meet) check(*checker)     {}
