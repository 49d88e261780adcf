package blocks

import (
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
)

// MaxExperts bounds the experts of a layer.
const MaxExperts = 1 << 12

// Gating functions, as numbered in GGUF files.
const (
	GateSoftmax  = 1 // weights are shares of all experts
	GateSigmoid  = 2
	GateOfChosen = 3 // weights are shares of those that are chosen
)

// LayersOfExperts is Layers for an architecture in which all layers but the first dense have experts in place of a feed-forward block. If
// the file does not state the width of experts, that of feed-forward blocks is theirs too.
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

// ExpertWidths reads the inner size of an expert, layer by layer; nil if the file does not state it.
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

// Experts reads c.Experts, for an architecture that has experts. usual is the gating function where the file names none. normed says
// whether weights are divided by their sum where the file does not say; weights that are shares of the chosen experts always are.
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

// Shared gives each layer with experts one more that every row uses. Its inner size is width or, if that is 0, count times that of the
// layer's other experts.
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

// Mixture is a layer's experts with what chooses them. It takes the place of a feed-forward block:
//
//	n = In(x); the router's logits are Wr n [+ b], by which each row chooses experts e and their weights w (Experts.Route)
//	x = Out(x, Σ w·(Wdown (act(Wgate n [+ b]) ∘ (Wup n [+ b])) [+ b]) of the experts chosen)
//
// The stage of the experts begins when they are known.
type Mixture struct {
	In Entrance
	Router
	Units
	Out Exit
}

// Router chooses the experts of each row.
type Router struct {
	Branch             // makes logits
	Choosing []float32 // (experts), added to scores for choosing alone; nil: none
	Each     []float32 // (experts), factors of the weights; nil: none
}

// Units are the experts of a layer: gated units of one inner size. Biases are (experts, outputs); nil where the file has none.
type Units struct {
	Gate, Up, Down             kernels.W
	GateBias, UpBias, DownBias []float32
	width, layer               int
}

// SharingMixture is a Mixture and an expert that every row uses, whose output is added to the weighted sum of the chosen ones. The shared
// expert's weights are in the router's stage, since every pass needs them.
type SharingMixture struct {
	Mixture
	Shared SharedExpert
}

// SharedExpert is the expert that every row uses.
type SharedExpert struct {
	Gated
	Weigh []Lines // multiplies the output, "branch"
}

// SharedExpert finds the tensors of the expert that every row uses.
func (t *Tensors) SharedExpert() SharedExpert {
	s := SharedExpert{Gated: t.gated("ffn_gate_shexp.weight", "ffn_up_shexp.weight", t.Shape.Shared)}
	t.Mat(&s.Down.W, "ffn_down_shexp.weight", t.C.Dim, t.Shape.Shared)
	return s
}

// GatedShare finds Ws, a matrix of one row: it multiplies the shared expert's output by sigmoid(Ws n). It changes s and returns it.
func (s SharedExpert) GatedShare(t *Tensors) SharedExpert {
	var share kernels.W
	t.Row(&share, t.Name("ffn_gate_inp_shexp.weight"), t.C.Dim)
	t.Traits |= GatedShare
	s.Weigh = []Lines{func(b *Planner) {
		gate := b.BufOf("share", 1)
		b.MatMul(share, b.Normed, gate, kernels.MatMulOpt{})
		b.Add(kernels.SigmoidScale{Gate: gate, Buf: b.BufOf("branch", b.Dim)})
	}}
	return s
}

// Experts finds the tensors of a layer's experts and returns a *Mixture; for a layer without experts it returns FeedForward's block.
func (t *Tensors) Experts(in Entrance) Part {
	if t.Shape.Expert == 0 || t.C.Experts.Count == 0 {
		return t.FeedForward(in)
	}
	m := t.mixture(in)
	return &m
}

// SharingExperts is Experts for layers that may have a shared expert. If the layer has one, shared finds its tensors.
func (t *Tensors) SharingExperts(in Entrance, shared func() SharedExpert) Part {
	if t.Shape.Shared == 0 {
		return t.Experts(in)
	}
	m := &SharingMixture{Shared: shared()}
	m.Mixture = t.mixture(in)
	return m
}

func (t *Tensors) mixture(in Entrance) Mixture {
	n, width := t.C.Experts.Count, t.Shape.Expert
	m := Mixture{In: in, Out: t.exit(), Units: Units{width: width, layer: t.I}}
	m.Choosing = t.VecIf("exp_probs_b.bias", n)
	t.Mat(&m.W, "ffn_gate_inp.weight", n, t.C.Dim)
	m.Then = biased(t.VecIf("ffn_gate_inp.bias", n))
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
	return m
}

// StackedUnits finds the layer's experts in a file where one tensor holds gate and up of them all. They have no biases.
func (t *Tensors) StackedUnits() Units {
	n, u := t.C.Experts.Count, Units{width: t.Shape.Expert, layer: t.I}
	t.OfExperts(t.Name("ffn_gate_up_exps.weight"), n, t.C.Dim, tensors.Rows(&u.Gate, u.width), tensors.Rows(&u.Up, u.width))
	t.OfExperts(t.Name("ffn_down_exps.weight"), n, u.width, tensors.Rows(&u.Down, t.C.Dim))
	return u
}

// Lay implements Part.
func (m *Mixture) Lay(b *Planner) {
	m.In.inStage(b)
	r := m.Choose(b, b.Normed)
	each := m.Apart(b, r)
	m.Out.Sum(b, func(out kernels.Buf, add bool) {
		b.Add(kernels.JoinExperts{In: each, Route: r, Out: out, Add: add})
	})
}

// Lay implements Part.
func (m *SharingMixture) Lay(b *Planner) {
	m.In.inStage(b)
	branch := b.BufOf("branch", b.Dim)
	m.Shared.Down.Into(b, m.Shared.Inner(b), branch, false)
	b.lay(m.Shared.Weigh)
	r := m.Choose(b, b.Normed)
	b.Add(kernels.JoinExperts{In: m.Apart(b, r), Route: r, Out: branch, Add: true})
	m.Out.Join(b, branch)
}

// Choose lays out the choice of each row's experts by its logits, the router's product with in: (rows, d). The route is the caller's to use
// in later operations of the same program.
func (m *Router) Choose(b *Planner, in kernels.Act) kernels.Route {
	e := b.Experts
	logits, r := b.BufOf("router", e.Count), kernels.Route(len(b.Routes))
	b.Routes = append(b.Routes, kernels.RouteShape{Experts: e.Count, Used: e.Used})
	m.Into(b, in, logits, false)
	opt := e.Route
	opt.Bias, opt.Each = m.Choosing, m.Each
	b.Add(kernels.ChooseExperts{RouteOpt: opt, Logits: logits, Out: r})
	return r
}

// Apart lays out the chosen experts in a stage of their own. They read b.Normed. It returns their outputs side by side, not yet weighted:
// (rows, used·d).
func (m *Units) Apart(b *Planner, r kernels.Route) kernels.Buf {
	used, n := b.Experts.Used, m.width
	gate, up, wide := b.BufOf("gates", used*n), b.BufOf("ups", used*n), b.ActOf("activated apart", used*n)
	apart := b.BufOf("apart", used*b.Dim)
	b.stage(m.layer, ", experts")
	b.Add(kernels.ExpertMatMul{W: m.Gate, In: b.Normed, Route: r, Bias: m.GateBias, Out: gate, Concurrent: true})
	b.Add(kernels.ExpertMatMul{W: m.Up, In: b.Normed, Route: r, Bias: m.UpBias, Out: up})
	b.Add(kernels.Gate{Curve: b.Curve, Gate: gate, Up: up, Out: wide})
	b.Add(kernels.ExpertMatMul{W: m.Down, In: wide, Route: r, Bias: m.DownBias, Out: apart})
	return apart
}
