package blocks

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-llm/tandem/engine/tensors"

	"github.com/tandem-llm/tandem"
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

// experts reports whether the architecture has experts in place of one feed-forward block.
func (t *Traits) experts() bool { return slices.Contains(t.Reads, KeyExperts) }

// MaxExperts bounds the experts of a layer.
const MaxExperts = 1 << 12

// Gating functions, as numbered in GGUF files.
const (
	gateSoftmax  = 1 // weights are shares of all experts
	gateSigmoid  = 2
	gateOfChosen = 3 // weights are shares of those that are chosen
)

// readExperts reads the mixture of an architecture that has one.
func (h *Reader) readExperts(c *Config) {
	if !c.Traits.experts() {
		return
	}
	if none, err := h.File.IntOr(h.Arch+"."+KeyExperts, 0, MaxExperts, 0); c.Traits.Beside && err == nil && none == 0 {
		return
	}
	e := &c.Experts
	e.Count = h.Count("expert_count", -1, MaxExperts)
	e.Used = h.Count("expert_used_count", -1, MaxExperts)
	if e.Used > e.Count {
		h.Fail(tandem.Corrupt, "key %q is %d: want at most %d, the number of experts", h.Arch+".expert_used_count", e.Used, e.Count)
	}
	if slices.Contains(c.Traits.Reads, KeyGroups) {
		n, err := h.File.IntOr(h.Arch+"."+KeyGroups, 0, MaxExperts, 0)
		if h.Keep(err); n > 1 {
			h.Fail(tandem.Unsupported, "key %q is %d: tandem chooses among all experts, not within groups", h.Arch+"."+KeyGroups, n)
		}
	}
	usual := gateOfChosen
	if c.Traits.Shares {
		usual = gateSoftmax
	}
	normed, err := h.File.BoolOr(h.Arch+".expert_weights_norm", !c.Traits.Shares)
	h.Keep(err)
	switch gate := h.Count("expert_gating_func", usual, 1<<16); gate {
	case gateSoftmax, gateSigmoid:
		e.Route = kernels.RouteOpt{Sigmoid: gate == gateSigmoid, Normed: normed}
	case gateOfChosen:
		e.Route.Normed = true
	default:
		h.Fail(tandem.Unsupported, "key %q is %d: supported are %d (softmax), %d (sigmoid) and %d (softmax of those chosen)",
			h.Arch+".expert_gating_func", gate, gateSoftmax, gateSigmoid, gateOfChosen)
	}
	key := h.Arch + ".expert_weights_scale"
	scale, err := h.File.FloatOr(key, 0) // 0, as in llama.cpp, is none
	if h.Keep(err); err == nil && scale != 0 && !(scale >= minMultiplier && scale <= maxMultiplier) {
		h.Fail(tandem.Corrupt, "key %q is %v: want 0, or %v to %v", key, scale, minMultiplier, maxMultiplier)
	}
	if scale != 1 {
		e.Route.Scale = float32(scale)
	}
	h.readShared(c)
}

// readShared finds the width of the expert that every row uses, in the layers that have experts.
func (h *Reader) readShared(c *Config) {
	optional := func(name string, most int) int {
		if !slices.Contains(c.Traits.Reads, name) {
			return 0
		}
		n, err := h.File.IntOr(h.Arch+"."+name, 0, most, 0)
		h.Keep(err)
		return n
	}
	count, width := optional(KeyShared, MaxExperts), optional(KeySharedWidth, MaxDim)
	for i := range c.Shapes {
		l := &c.Shapes[i]
		if l.Expert == 0 {
			continue
		}
		if l.Shared = width; width == 0 {
			l.Shared = count * l.Expert
		}
		if l.Shared > MaxDim {
			h.Fail(tandem.Corrupt, "key %q is %d: shared experts of %d elements each are wider than %d", h.Arch+"."+KeyShared, count,
				l.Expert, MaxDim)
		}
	}
}

// widths returns the width of each layer's feed-forward block, and of one expert: 0 in layers without. Where experts take the block's
// place, one key may say both.
func (h *Reader) widths(c *Config) (ffn, expert []int) {
	const key = "expert_feed_forward_length"
	dense := 0
	if slices.Contains(c.Traits.Reads, KeyDense) {
		var err error
		dense, err = h.File.IntOr(h.Arch+"."+KeyDense, 0, c.Layers-1, 0)
		h.Keep(err)
	}
	has := c.Traits.experts() && h.File.Has(h.Arch+"."+key)
	if expert = make([]int, c.Layers); has {
		expert = h.PerLayer(key, nil, MaxDim, c.Layers)
	}
	if has && !c.Traits.Beside && dense == 0 {
		return expert, expert
	}
	if ffn = h.PerLayer("feed_forward_length", nil, MaxDim, c.Layers); c.Traits.experts() && !c.Traits.Beside && !has {
		expert = ffn
	}
	if expert = slices.Clone(expert); dense > 0 {
		clear(expert[:dense])
		ffn = append(slices.Clone(ffn[:dense]), expert[dense:]...)
	}
	return ffn, expert
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

// collectBeside finds the tensors of experts beside a feed-forward block.
func (c Finder) collectBeside(m *Mixture, cfg *Config, name func(string) string, width int) {
	n := cfg.Experts.Count
	if width == 0 {
		c.Fail(tandem.Corrupt, "key %q is missing: want the inner size of an expert", cfg.Arch+".expert_feed_forward_length")
		return
	}
	c.Matrix(&m.Router, name("ffn_gate_inp.weight"), true, n, cfg.Dim)
	m.RouterNorm = slices.Clone(c.Vector(name("ffn_gate_inp.scale"), true, cfg.Dim))
	for i := range m.RouterNorm { // the router's input is divided by √d
		m.RouterNorm[i] *= float32(1 / math.Sqrt(float64(cfg.Dim)))
	}
	m.InNorm = c.Vector(name("pre_ffw_norm_2.weight"), true, cfg.Dim)
	m.DensePost = c.Vector(name("post_ffw_norm_1.weight"), true, cfg.Dim)
	m.Post = c.Vector(name("post_ffw_norm_2.weight"), true, cfg.Dim)
	c.OfExperts(name("ffn_gate_up_exps.weight"), n, cfg.Dim, tensors.Rows(&m.Gate, width), tensors.Rows(&m.Up, width))
	c.OfExperts(name("ffn_down_exps.weight"), n, width, tensors.Rows(&m.Down, cfg.Dim))
	m.Each = c.Vector(name("ffn_down_exps.scale"), true, n)
}

// SharedExpert is the expert that every row uses.
type SharedExpert struct {
	Gate, Up, Down kernels.W
	Share          kernels.W // (1, d): its sigmoid multiplies the outputs; None: they count in full
}

func (c Finder) collectShared(s *SharedExpert, cfg *Config, name func(string) string, width int) {
	if s.Share = kernels.None; width == 0 {
		return
	}
	c.Matrix(&s.Gate, name("ffn_gate_shexp.weight"), true, width, cfg.Dim)
	c.Matrix(&s.Up, name("ffn_up_shexp.weight"), true, width, cfg.Dim)
	c.Matrix(&s.Down, name("ffn_down_shexp.weight"), true, cfg.Dim, width)
	if cfg.Traits.SharedGate {
		c.Row(&s.Share, name("ffn_gate_inp_shexp.weight"), cfg.Dim)
	}
}

func (c Finder) collectExperts(m *Mixture, cfg *Config, name func(string) string, l LayerShape) {
	n, width := cfg.Experts.Count, l.Expert
	c.collectShared(&m.Shared, cfg, name, l.Shared)
	m.Choosing = c.Vector(name("exp_probs_b.bias"), false, n)
	c.Matrix(&m.Router, name("ffn_gate_inp.weight"), true, n, cfg.Dim)
	m.RouterBias = c.Vector(name("ffn_gate_inp.bias"), false, n)
	for _, x := range []struct {
		name       string
		into       *kernels.W
		bias       *[]float32
		rows, cols int
	}{{"ffn_gate_exps", &m.Gate, &m.GateBias, width, cfg.Dim}, {"ffn_up_exps", &m.Up, &m.UpBias, width, cfg.Dim},
		{"ffn_down_exps", &m.Down, &m.DownBias, cfg.Dim, width}} {
		c.OfExperts(name(x.name+".weight"), n, x.cols, tensors.Rows(x.into, x.rows))
		*x.bias = c.Vector(name(x.name+".bias"), false, x.rows, n)
	}
}

// Mix adds the weighted outputs of the experts that each row chooses to the residual stream. The stage of the experts begins when they are
// known.
func (b *Planner) Mix(i int) {
	l := &b.W.Layers[i]
	b.RMSNorm(b.X, l.FFNNorm, b.NormEps, b.Normed)
	branch := b.mixShared(i)
	r := b.choose(i, b.Normed)
	apart := b.ofExperts(i, r)
	if l.FFNPost == nil && b.ResidualScale == 1 && branch == kernels.None {
		b.Add(kernels.JoinExperts{In: apart, Route: r, Out: b.X, Add: true})
		return
	}
	add := branch != kernels.None
	if !add {
		branch = b.buf("branch", b.Dim)
	}
	b.Add(kernels.JoinExperts{In: apart, Route: r, Out: branch, Add: add})
	b.join(branch, l.FFNPost)
}

// mixShared returns a buffer with what the shared expert of layer i makes, or None. Its weights are read with the router's: every pass
// needs them.
func (b *Planner) mixShared(i int) kernels.Buf {
	s, n := &b.W.Layers[i].Mixture.Shared, b.Shapes[i].Shared
	if n == 0 {
		return kernels.None
	}
	gate, up, out, branch := b.buf("gate", n), b.buf("up", n), b.act("activated", n), b.buf("branch", b.Dim)
	b.MatMul(s.Gate, b.Normed, gate, Concurrent)
	b.MatMul(s.Up, b.Normed, up, kernels.MatMulOpt{})
	b.Add(kernels.Gate{Curve: b.Traits.Curve, Gate: gate, Up: up, Out: out})
	b.MatMul(s.Down, out, branch, kernels.MatMulOpt{})
	if s.Share != kernels.None {
		share := b.buf("share", 1)
		b.MatMul(s.Share, b.Normed, share, kernels.MatMulOpt{})
		b.Add(kernels.SigmoidScale{Gate: share, Buf: branch})
	}
	return branch
}

// choose lays out the choice of layer i, whose router reads in.
func (b *Planner) choose(i int, in kernels.Act) kernels.Route {
	m, e := &b.W.Layers[i].Mixture, b.Experts
	logits, r := b.buf("router", e.Count), kernels.Route(len(b.Routes))
	b.Routes = append(b.Routes, kernels.RouteShape{Experts: e.Count, Used: e.Used})
	b.MatMul(m.Router, in, logits, kernels.MatMulOpt{})
	b.AddBiasIf(logits, m.RouterBias)
	opt := e.Route
	opt.Bias, opt.Each = m.Choosing, m.Each
	b.Add(kernels.ChooseExperts{RouteOpt: opt, Logits: logits, Out: r})
	return r
}

// ofExperts lays out the experts of layer i, which read b.normed, in a stage of their own. Their outputs lie side by side.
func (b *Planner) ofExperts(i int, r kernels.Route) kernels.Buf {
	m, e, n := &b.W.Layers[i].Mixture, b.Experts, b.Shapes[i].Expert
	gate, up, wide := b.buf("gates", e.Used*n), b.buf("ups", e.Used*n), b.act("activated apart", e.Used*n)
	apart := b.buf("apart", e.Used*b.Dim)
	b.Stage(fmt.Sprintf("layer %d, experts", i))
	b.Add(kernels.ExpertMatMul{W: m.Gate, In: b.Normed, Route: r, Bias: m.GateBias, Out: gate, Concurrent: true})
	b.Add(kernels.ExpertMatMul{W: m.Up, In: b.Normed, Route: r, Bias: m.UpBias, Out: up})
	b.Add(kernels.Gate{Curve: b.Traits.Curve, Gate: gate, Up: up, Out: wide})
	b.Add(kernels.ExpertMatMul{W: m.Down, In: wide, Route: r, Bias: m.DownBias, Out: apart})
	return apart
}

// MixBeside adds the feed-forward block's output and the experts', each normed by itself, and then their sum, to the residual stream:
// x += norm(norm(block) + norm(experts)).
func (b *Planner) MixBeside(i int) {
	l, m := &b.W.Layers[i], &b.W.Layers[i].Mixture
	dense, joined, routed := b.buf("dense", b.Dim), b.buf("branch", b.Dim), b.act("routed", b.Dim)
	b.MatMul(l.Down, b.inner(i), dense, kernels.MatMulOpt{})
	b.HeadNorm(dense, 1, m.DensePost, b.NormEps)
	b.RMSNorm(b.X, m.RouterNorm, b.NormEps, routed)
	r := b.choose(i, routed)
	b.RMSNorm(b.X, m.InNorm, b.NormEps, b.Normed)
	b.Add(kernels.JoinExperts{In: b.ofExperts(i, r), Route: r, Out: joined})
	b.NormAdd(joined, m.Post, b.NormEps, dense)
	b.join(dense, l.FFNPost)
}
