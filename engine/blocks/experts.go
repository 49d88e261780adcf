package blocks

import (
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
)

// Experts is the mixture of a model's feed-forward blocks: each row goes through `used` of `count` of them, weighted as route says.
// The zero value is a model without.
type Experts struct {
	Count, Used int
	Route       kernels.RouteOpt
}

// MixedLayers returns how many layers have experts.
func (c *Config) MixedLayers() (n int) {
	for _, l := range c.Shapes {
		if l.Expert > 0 {
			n++
		}
	}
	return n
}

// MaxExperts bounds the experts of a layer.
const MaxExperts = 1 << 12

// Gating functions, as numbered in GGUF files.
const (
	GateSoftmax  = 1 // weights are shares of all experts
	GateSigmoid  = 2
	GateOfChosen = 3 // weights are shares of those that are chosen
)

// Keys of experts.
const (
	keyExperts     = "expert_count"
	keyWidth       = "expert_feed_forward_length"
	keyShared      = "expert_shared_count" // experts that every row uses, as one of so many times the width
	keySharedWidth = "expert_shared_feed_forward_length"
	keyDense       = "leading_dense_block_count"
)

// LayersOfExperts is Layers for an architecture whose layers, but for the first so many, have experts in place of a feed-forward block. One
// key may say the widths of both.
func (h *Reader) LayersOfExperts(c *Config, dense int) {
	if h.LayerHeads(c); h.Err != nil {
		return
	}
	var ffn []int
	expert := h.ExpertWidths(c)
	if expert == nil || dense > 0 {
		ffn = h.PerLayer("feed_forward_length", nil, MaxDim, c.Layers)
	}
	if expert == nil {
		expert = ffn
	}
	expert = slices.Clone(expert)
	clear(expert[:dense])
	h.Widths(c, append(slices.Clone(ffn[:dense]), expert[dense:]...), expert)
}

// ExpertWidths reads the width of an expert of each layer; nil if the file does not say.
func (h *Reader) ExpertWidths(c *Config) []int {
	if !h.Has(keyWidth) {
		return nil
	}
	return h.PerLayer(keyWidth, nil, MaxDim, c.Layers)
}

// Dense reads how many layers come before those with experts.
func (h *Reader) Dense(c *Config) int { return h.Optional(keyDense, c.Layers-1) }

// ExpertCount reads the number of experts of a layer; 0: none.
func (h *Reader) ExpertCount() int { return h.Optional(keyExperts, MaxExperts) }

// Experts reads the mixture of an architecture that has one. usual is the gating function of files that do not name one, and normed whether
// their weights, if they are not shares of those chosen, are divided by their sum.
func (h *Reader) Experts(c *Config, usual int, normed bool) {
	e := &c.Experts
	e.Count = h.Count(keyExperts, -1, MaxExperts)
	e.Used = h.Count("expert_used_count", -1, MaxExperts)
	if e.Used > e.Count {
		h.Fail(tandem.Corrupt, "key %q is %d: want at most %d, the number of experts", h.Arch+".expert_used_count", e.Used, e.Count)
	}
	normed = h.Switch("expert_weights_norm", normed)
	switch gate := h.Count("expert_gating_func", usual, 1<<16); gate {
	case GateSoftmax, GateSigmoid:
		e.Route = kernels.RouteOpt{Sigmoid: gate == GateSigmoid, Normed: normed}
	case GateOfChosen:
		e.Route.Normed = true
	default:
		h.Fail(tandem.Unsupported, "key %q is %d: supported are %d (softmax), %d (sigmoid) and %d (softmax of those chosen)",
			h.Arch+".expert_gating_func", gate, GateSoftmax, GateSigmoid, GateOfChosen)
	}
	key := h.Arch + ".expert_weights_scale"
	scale, err := h.File.FloatOr(key, 0) // 0, as in llama.cpp, is none
	if h.Keep(err); err == nil && scale != 0 && !(scale >= minMultiplier && scale <= maxMultiplier) {
		h.Fail(tandem.Corrupt, "key %q is %v: want 0, or %v to %v", key, scale, minMultiplier, maxMultiplier)
	}
	if scale != 1 {
		e.Route.Scale = float32(scale)
	}
}

// Shared gives layers with experts one that every row uses: of that width or, if it is 0, of so many times the width of the others.
func (h *Reader) Shared(c *Config, count, width int) {
	for i := range c.Shapes {
		l := &c.Shapes[i]
		if l.Expert == 0 {
			continue
		}
		if l.Shared = width; width == 0 {
			l.Shared = count * l.Expert
		}
		if l.Shared > MaxDim {
			h.Fail(tandem.Corrupt, "key %q is %d: shared experts of %d elements each are wider than %d", h.Arch+"."+keyShared, count,
				l.Expert, MaxDim)
		}
	}
}

// Mixture holds the experts of a layer; biases are nil where the file has none.
type Mixture struct {
	Router                     kernels.W
	RouterBias                 []float32 // (experts)
	Gate, Up, Down             kernels.W
	GateBias, UpBias, DownBias []float32 // (experts, outputs)
	Choosing                   []float32 // (experts), added to scores for choosing alone; nil: none
	Shared                     SharedExpert

	// Of experts beside a feed-forward block:
	RouterNorm []float32 // (dim), of the router's input
	InNorm     []float32 // (dim), of the experts' input
	DensePost  []float32 // (dim), of the feed-forward block's output
	Post       []float32 // (dim), of the experts' output
	Each       []float32 // (experts), factors of their weights
}

// SharedExpert is the expert that every row uses.
type SharedExpert struct {
	Gate, Up, Down kernels.W
	Share          kernels.W // (1, d): its sigmoid multiplies the outputs; None: they count in full
}

// SharedExpert finds the tensors of the expert that every row uses, if the layer has one.
func (t *Tensors) SharedExpert() {
	if n, s := t.Shape.Shared, &t.Mixture.Shared; n > 0 {
		t.Mat(&s.Gate, "ffn_gate_shexp.weight", n, t.C.Dim)
		t.Mat(&s.Up, "ffn_up_shexp.weight", n, t.C.Dim)
		t.Mat(&s.Down, "ffn_down_shexp.weight", t.C.Dim, n)
	}
}

// Experts finds the tensors of a layer's experts. A layer without them has a feed-forward block.
func (t *Tensors) Experts() {
	m, n, width := &t.Mixture, t.C.Experts.Count, t.Shape.Expert
	if width == 0 || n == 0 {
		t.FeedForward()
		return
	}
	m.Choosing = t.VecIf("exp_probs_b.bias", n)
	t.Mat(&m.Router, "ffn_gate_inp.weight", n, t.C.Dim)
	m.RouterBias = t.VecIf("ffn_gate_inp.bias", n)
	for _, x := range []struct {
		name       string
		into       *kernels.W
		bias       *[]float32
		rows, cols int
	}{{"ffn_gate_exps", &m.Gate, &m.GateBias, width, t.C.Dim}, {"ffn_up_exps", &m.Up, &m.UpBias, width, t.C.Dim},
		{"ffn_down_exps", &m.Down, &m.DownBias, t.C.Dim, width}} {
		t.OfExperts(t.Name(x.name+".weight"), n, x.cols, tensors.Rows(x.into, x.rows))
		*x.bias = t.VecIf(x.name+".bias", x.rows, n)
	}
}

// Mix lays out the experts of layer i:
//
//	n = norm(x); the router's logits are Wr n [+ b], by which each row chooses experts e and their weights w (Experts.Route)
//	x += [norm or scale] (Σ w·(Wdown (act(Wgate n) ∘ (Wup n))) of the experts chosen [+ the same of one that every row uses])
//
// What the last one makes may be multiplied by sigmoid(Ws n). The stage of the experts begins when they are known. A layer without experts
// has a feed-forward block.
func (b *Planner) Mix(i int) {
	if b.Shapes[i].Expert == 0 {
		b.FeedForward(i)
		return
	}
	l := &b.W.Layers[i]
	b.RMSNorm(b.X, l.FFNNorm, b.NormEps, b.Normed)
	branch := b.mixShared(i)
	r := b.Choose(i, b.Normed)
	apart := b.EachExpert(i, r)
	if l.FFNPost == nil && b.ResidualScale == 1 && branch == kernels.None {
		b.Add(kernels.JoinExperts{In: apart, Route: r, Out: b.X, Add: true})
		return
	}
	add := branch != kernels.None
	if !add {
		branch = b.BufOf("branch", b.Dim)
	}
	b.Add(kernels.JoinExperts{In: apart, Route: r, Out: branch, Add: add})
	b.Join(branch, l.FFNPost)
}

// mixShared returns a buffer with what the shared expert of layer i makes, or None. Its weights are read with the router's: every pass
// needs them.
func (b *Planner) mixShared(i int) kernels.Buf {
	s, n := &b.W.Layers[i].Mixture.Shared, b.Shapes[i].Shared
	if n == 0 {
		return kernels.None
	}
	gate, up, out, branch := b.BufOf("gate", n), b.BufOf("up", n), b.ActOf("activated", n), b.BufOf("branch", b.Dim)
	b.MatMul(s.Gate, b.Normed, gate, Concurrent)
	b.MatMul(s.Up, b.Normed, up, kernels.MatMulOpt{})
	b.Add(kernels.Gate{Curve: b.Curve, Gate: gate, Up: up, Out: out})
	b.MatMul(s.Down, out, branch, kernels.MatMulOpt{})
	if s.Share != kernels.None {
		share := b.BufOf("share", 1)
		b.MatMul(s.Share, b.Normed, share, kernels.MatMulOpt{})
		b.Add(kernels.SigmoidScale{Gate: share, Buf: branch})
	}
	return branch
}

// Choose lays out the choice of layer i, whose router reads in.
func (b *Planner) Choose(i int, in kernels.Act) kernels.Route {
	m, e := &b.W.Layers[i].Mixture, b.Experts
	logits, r := b.BufOf("router", e.Count), kernels.Route(len(b.Routes))
	b.Routes = append(b.Routes, kernels.RouteShape{Experts: e.Count, Used: e.Used})
	b.MatMul(m.Router, in, logits, kernels.MatMulOpt{})
	b.Bias(logits, m.RouterBias)
	opt := e.Route
	opt.Bias, opt.Each = m.Choosing, m.Each
	b.Add(kernels.ChooseExperts{RouteOpt: opt, Logits: logits, Out: r})
	return r
}

// EachExpert lays out the experts of layer i, which read b.normed, in a stage of their own. Their outputs lie side by side.
func (b *Planner) EachExpert(i int, r kernels.Route) kernels.Buf {
	m, e, n := &b.W.Layers[i].Mixture, b.Experts, b.Shapes[i].Expert
	gate, up, wide := b.BufOf("gates", e.Used*n), b.BufOf("ups", e.Used*n), b.ActOf("activated apart", e.Used*n)
	apart := b.BufOf("apart", e.Used*b.Dim)
	b.Stage(fmt.Sprintf("layer %d, experts", i))
	b.Add(kernels.ExpertMatMul{W: m.Gate, In: b.Normed, Route: r, Bias: m.GateBias, Out: gate, Concurrent: true})
	b.Add(kernels.ExpertMatMul{W: m.Up, In: b.Normed, Route: r, Bias: m.UpBias, Out: up})
	b.Add(kernels.Gate{Curve: b.Curve, Gate: gate, Up: up, Out: wide})
	b.Add(kernels.ExpertMatMul{W: m.Down, In: wide, Route: r, Bias: m.DownBias, Out: apart})
	return apart
}
