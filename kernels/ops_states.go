package kernels

// DeltaNet is a layer of gated delta rule behind a causal convolution: it takes each row's inputs through the layer's state as
// Pass.Walks says, and fills Out with what the state gives for the row. kernels/ref has the formulas.
type DeltaNet struct {
	DeltaShape
	State       int       // index in KVShape.States
	In          Buf       // (Channels): queries and keys of the key heads, then values, before the convolution
	Alpha, Beta Buf       // (ValueHeads): decay and strength before their curves
	Conv        []float32 // (Channels, Kernel), newest tap last
	A, Bias     []float32 // (ValueHeads): the decay is exp(A·softplus(Alpha+Bias))
	Out         Buf       // (ValueHeads·Dim)
}

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

func (o DeltaNet) uses(*Program) Uses { return touches(o.Out, o.In, o.Alpha, o.Beta) }

// numbers returns the convolution tap by tap, (Kernel, Channels), then the factors of the decay and its biases.
func (o DeltaNet) numbers() []float32 {
	n := o.Channels()
	all := make([]float32, n*o.Kernel, n*o.Kernel+2*o.ValueHeads)
	for i, w := range o.Conv {
		all[i%o.Kernel*n+i/o.Kernel] = w
	}
	return append(append(all, o.A...), o.Bias...)
}

func (o DeltaNet) check(c *checker) {
	c.name = "delta net"
	s := of(c, "state", c.KV.States, o.State)
	for _, b := range []Buf{o.Out, o.In, o.Alpha, o.Beta} {
		c.sameRows(c.buf(b).Wanted, false)
	}
	const most = 1 << 12
	d := o.DeltaShape
	if d.KeyHeads < 1 || d.ValueHeads < 1 || d.ValueHeads > most || d.ValueHeads%d.KeyHeads != 0 {
		c.fail("%d value heads for %d key heads, want a multiple, at most %d", d.ValueHeads, d.KeyHeads, most)
	}
	if d.Dim < 1 || d.Dim > most || d.Kernel < 1 || d.Kernel > most {
		c.fail("heads of %d and a convolution of %d taps, want 1 to %d of each", d.Dim, d.Kernel, most)
	}
	if c.err != nil {
		return
	}
	c.want("inputs' columns", c.buf(o.In).Dim, d.Channels())
	c.want("output's columns", c.buf(o.Out).Dim, d.ValueHeads*d.Dim)
	c.want("alpha's columns", c.buf(o.Alpha).Dim, d.ValueHeads)
	c.want("beta's columns", c.buf(o.Beta).Dim, d.ValueHeads)
	c.want("convolution's weights", len(o.Conv), d.Channels()*d.Kernel)
	c.want("decay factors", len(o.A), d.ValueHeads)
	c.want("decay biases", len(o.Bias), d.ValueHeads)
	c.want("state's numbers", s.Floats, d.Floats())
	c.want("record's numbers", s.Record, d.Record())
}
