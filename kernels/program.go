package kernels

import "fmt"

// Program is all that a pass computes, as a plain value: buffers, weights, and the operations in the order in which they run. It says
// what is computed, not where: a Device compiles it into a Runner.
//
// Its fields may be filled in by hand or by the methods that are named like the operations; Check finds mistakes in either.
//
// Invariants:
//  1. An operation ends before the next starts, unless it is a MatMul with Concurrent.
//  2. One operation fills an activation. A device keeps it in each form that the products with it need (f32, or int8 with scales), so
//     that a row is quantised once for all of them.
//  3. No operation's result depends on the number of rows or threads, or on how a device divides it (docs/kernels.md).
//  4. A stage is a run of operations whose weights are there together: see Weights.
type Program struct {
	MaxRows, MaxWanted int // rows of a pass, and how many of them may have logits
	KV                 KVShape
	Buffers            []Buffer
	Activations        []Activation
	Weights            []Weight
	Parts              []PartShape
	Routes             []RouteShape
	Ops                []Op
	Stages             []Stage // in order, the first from operation 0 on; none: all is one stage
	Taps               []Tap
}

// Handles name what a Program has, by index.
type (
	Buf   int // Buffers
	Act   int // Activations
	W     int // Weights
	Parts int // Parts
	Route int // Routes
)

// None is the handle of nothing.
const None = -1

// Buffer is (MaxRows, Dim) or, if Wanted, (MaxWanted, Dim) numbers in f32, by row.
type Buffer struct {
	Dim    int
	Wanted bool
}

// Activation is the input of products, like a Buffer but in the forms that they need.
type Activation struct {
	Dim    int
	Wanted bool
}

// Weight is a matrix of Rows outputs and Cols inputs.
type Weight struct {
	Name       string // for messages
	Type       Type
	Rows, Cols int
	Experts    int    // number of such matrices, one after the other; a pass reads those its rows chose. 0: one matrix, always read
	Layout     Layout // in which Weights hands it over
	Lent       bool   // it lies in memory of others: Borrower
}

// LentBytes returns the bytes of all weights that are Lent.
func (p *Program) LentBytes() (sum int64) {
	for i := range p.Weights {
		if w := &p.Weights[i]; w.Lent {
			sum += int64(w.Bytes())
		}
	}
	return sum
}

// AllRows returns the number of outputs of all its matrices together.
func (w *Weight) AllRows() int { return max(1, w.Experts) * w.Rows }

// Each returns the bytes of one matrix of w in its layout; expert e begins at byte e·Each.
func (w *Weight) Each() int { return w.Layout.Bytes(w.Type, w.Rows, w.Cols) }

// Bytes returns the bytes of all matrices of w in its layout.
func (w *Weight) Bytes() int { return max(1, w.Experts) * w.Each() }

// PartShape is what AttendBlocks hands over for each row and each of its blocks: Heads times (m, l, o), o of Dim numbers.
type PartShape struct{ Heads, Dim int }

// RouteShape is a choice of Used experts out of Experts for each row, each with a weight. In a Fixed route every row uses all experts, in
// order: no operation chooses them, and they have no weights.
type RouteShape struct {
	Experts, Used int
	Fixed         bool
}

// Tap makes the hidden state after a layer readable outside the pass: it stays in Buf, which no other operation writes to,
// until the next pass. Layer counts from the model's first layer.
type Tap struct {
	Layer int
	Buf   Buf
}

// Stage begins with operation First and ends where the next one begins: a layer, or less, such as one matrix of a large one.
type Stage struct {
	Name  string
	First int
}

const maxDim = 1 << 24

// NewProgram returns an empty program for passes of at most maxRows rows, of which at most maxWanted are wanted (have logits).
func NewProgram(maxRows, maxWanted int) *Program {
	return &Program{MaxRows: maxRows, MaxWanted: maxWanted}
}

// Buf adds a buffer of (MaxRows, dim) numbers.
func (p *Program) Buf(dim int) Buf { return p.buffer(Buffer{Dim: dim}) }

// WantedBuf adds a buffer of (MaxWanted, dim) numbers.
func (p *Program) WantedBuf(dim int) Buf { return p.buffer(Buffer{dim, true}) }

func (p *Program) buffer(b Buffer) Buf {
	p.Buffers = append(p.Buffers, b)
	return Buf(len(p.Buffers) - 1)
}

// Act adds an activation of (MaxRows, dim) numbers.
func (p *Program) Act(dim int) Act { return p.activation(Activation{Dim: dim}) }

// WantedAct adds an activation of (MaxWanted, dim) numbers.
func (p *Program) WantedAct(dim int) Act { return p.activation(Activation{dim, true}) }

func (p *Program) activation(a Activation) Act {
	p.Activations = append(p.Activations, a)
	return Act(len(p.Activations) - 1)
}

// Weight adds a matrix, or a stack of experts' matrices, and returns its handle.
func (p *Program) Weight(w Weight) W {
	p.Weights = append(p.Weights, w)
	return W(len(p.Weights) - 1)
}

// Stage begins a stage with the operation that is added next; name is for messages.
func (p *Program) Stage(name string) {
	if n := len(p.Stages); n > 0 && p.Stages[n-1].First == len(p.Ops) {
		p.Stages[n-1].Name = name // the new stage replaces one without operations
		return
	}
	if len(p.Stages) == 0 && len(p.Ops) > 0 {
		p.Stages = append(p.Stages, Stage{})
	}
	p.Stages = append(p.Stages, Stage{name, len(p.Ops)})
}

// StageCount returns the number of stages, at least 1.
func (p *Program) StageCount() int { return max(1, len(p.Stages)) }

// StageOps returns the operations [from, to) of stage i.
func (p *Program) StageOps(i int) (from, to int) {
	to = len(p.Ops)
	if i < len(p.Stages) {
		from = p.Stages[i].First
	}
	if i+1 < len(p.Stages) {
		to = p.Stages[i+1].First
	}
	return from, to
}

// StageName names stage i for messages.
func (p *Program) StageName(i int) string {
	if i < len(p.Stages) && p.Stages[i].Name != "" {
		return p.Stages[i].Name
	}
	return fmt.Sprintf("stage %d", i)
}

// StageWeights returns the weights that the operations of stage i read, each once, in order of first use.
func (p *Program) StageWeights(i int) (all []W) {
	from, to := p.StageOps(i)
	seen := map[W]bool{}
	for _, o := range p.Ops[from:to] {
		if w := o.uses(p).W; w != None && !seen[w] {
			seen[w] = true
			all = append(all, w)
		}
	}
	return all
}

// StageRoute returns the route by which an earlier stage has chosen the experts of stage i. ok is false if stage i has no experts, chooses
// them itself, or takes them from several routes.
func (p *Program) StageRoute(i int) (route Route, ok bool) {
	from, to := p.StageOps(i)
	for _, o := range p.Ops[from:to] {
		switch o := o.(type) {
		case ChooseExperts:
			return 0, false
		case ExpertMatMul:
			if p.Routes[o.Route].Fixed {
				return 0, false
			}
			if ok && o.Route != route {
				return 0, false
			}
			route, ok = o.Route, true
		}
	}
	return route, ok
}

// MACs returns the multiply-adds with weights in a pass of so many rows, of which wanted have logits. For each row only the
// experts that it uses count.
func (p *Program) MACs(rows, wanted int) (n int64) {
	for _, o := range p.Ops {
		switch o := o.(type) {
		case MatMul:
			w, r := p.Weights[o.W], o.Outputs.Of(p.Weights[o.W].Rows)
			if n += int64(r.To-r.From) * int64(w.Cols) * int64(rows); p.Activations[o.In].Wanted {
				n -= int64(r.To-r.From) * int64(w.Cols) * int64(rows-wanted)
			}
		case ExpertMatMul:
			n += int64(p.Weights[o.W].Rows) * int64(p.Weights[o.W].Cols) * int64(rows) * int64(p.Routes[o.Route].Used)
		}
	}
	return n
}
