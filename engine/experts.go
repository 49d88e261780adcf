package engine

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// experts is the mixture of a model's feed-forward blocks: each row goes through `used` of `count` of them, weighted as route says.
// The zero value is a model without.
type experts struct {
	count, used int
	route       kernels.RouteOpt
}

// mixedLayers returns how many layers have experts.
func (c *Config) mixedLayers() (n int) {
	for _, l := range c.layers {
		if l.expert > 0 {
			n++
		}
	}
	return n
}

// experts reports whether the architecture has experts in place of one feed-forward block.
func (t *traits) experts() bool { return slices.Contains(t.reads, keyExperts) }

// maxExperts bounds the experts of a layer.
const maxExperts = 1 << 12

// Gating functions, as numbered in GGUF files.
const (
	gateSoftmax  = 1 // weights are shares of all experts
	gateSigmoid  = 2
	gateOfChosen = 3 // weights are shares of those that are chosen
)

// readExperts reads the mixture of an architecture that has one.
func (h *hyper) readExperts(c *Config) {
	if !c.traits.experts() {
		return
	}
	if none, err := h.file.IntOr(h.arch+"."+keyExperts, 0, maxExperts, 0); c.traits.beside && err == nil && none == 0 {
		return
	}
	e := &c.experts
	e.count = h.count("expert_count", -1, maxExperts)
	e.used = h.count("expert_used_count", -1, maxExperts)
	if e.used > e.count {
		h.fail(tandem.Corrupt, "key %q is %d: want at most %d, the number of experts", h.arch+".expert_used_count", e.used, e.count)
	}
	if slices.Contains(c.traits.reads, keyGroups) {
		n, err := h.file.IntOr(h.arch+"."+keyGroups, 0, maxExperts, 0)
		if h.keep(err); n > 1 {
			h.fail(tandem.Unsupported, "key %q is %d: tandem chooses among all experts, not within groups", h.arch+"."+keyGroups, n)
		}
	}
	usual := gateOfChosen
	if c.traits.shares {
		usual = gateSoftmax
	}
	normed, err := h.file.BoolOr(h.arch+".expert_weights_norm", !c.traits.shares)
	h.keep(err)
	switch gate := h.count("expert_gating_func", usual, 1<<16); gate {
	case gateSoftmax, gateSigmoid:
		e.route = kernels.RouteOpt{Sigmoid: gate == gateSigmoid, Normed: normed}
	case gateOfChosen:
		e.route.Normed = true
	default:
		h.fail(tandem.Unsupported, "key %q is %d: supported are %d (softmax), %d (sigmoid) and %d (softmax of those chosen)",
			h.arch+".expert_gating_func", gate, gateSoftmax, gateSigmoid, gateOfChosen)
	}
	key := h.arch + ".expert_weights_scale"
	scale, err := h.file.FloatOr(key, 0) // 0, as in llama.cpp, is none
	if h.keep(err); err == nil && scale != 0 && !(scale >= minMultiplier && scale <= maxMultiplier) {
		h.fail(tandem.Corrupt, "key %q is %v: want 0, or %v to %v", key, scale, minMultiplier, maxMultiplier)
	}
	if scale != 1 {
		e.route.Scale = float32(scale)
	}
	h.readShared(c)
}

// readShared finds the width of the expert that every row uses, in the layers that have experts.
func (h *hyper) readShared(c *Config) {
	optional := func(name string, most int) int {
		if !slices.Contains(c.traits.reads, name) {
			return 0
		}
		n, err := h.file.IntOr(h.arch+"."+name, 0, most, 0)
		h.keep(err)
		return n
	}
	count, width := optional(keyShared, maxExperts), optional(keySharedWidth, maxDim)
	for i := range c.layers {
		l := &c.layers[i]
		if l.expert == 0 {
			continue
		}
		if l.shared = width; width == 0 {
			l.shared = count * l.expert
		}
		if l.shared > maxDim {
			h.fail(tandem.Corrupt, "key %q is %d: shared experts of %d elements each are wider than %d", h.arch+"."+keyShared, count,
				l.expert, maxDim)
		}
	}
}

// widths returns the width of each layer's feed-forward block, and of one expert: 0 in layers without. Where experts take the block's
// place, one key may say both.
func (h *hyper) widths(c *Config) (ffn, expert []int) {
	const key = "expert_feed_forward_length"
	dense := 0
	if slices.Contains(c.traits.reads, keyDense) {
		var err error
		dense, err = h.file.IntOr(h.arch+"."+keyDense, 0, c.Layers-1, 0)
		h.keep(err)
	}
	has := c.traits.experts() && h.file.Has(h.arch+"."+key)
	if expert = make([]int, c.Layers); has {
		expert = h.perLayer(key, nil, maxDim, c.Layers)
	}
	if has && !c.traits.beside && dense == 0 {
		return expert, expert
	}
	if ffn = h.perLayer("feed_forward_length", nil, maxDim, c.Layers); c.traits.experts() && !c.traits.beside && !has {
		expert = ffn
	}
	if expert = slices.Clone(expert); dense > 0 {
		clear(expert[:dense])
		ffn = append(slices.Clone(ffn[:dense]), expert[dense:]...)
	}
	return ffn, expert
}

// mixture holds the experts of a layer; biases are nil where the file has none.
type mixture struct {
	router                     kernels.W
	routerBias                 []float32 // (experts)
	gate, up, down             kernels.W
	gateBias, upBias, downBias []float32 // (experts, outputs)
	choosing                   []float32 // (experts), added to scores for choosing alone; nil: none
	shared                     sharedExpert

	// Of experts beside a feed-forward block:
	routerNorm []float32 // (dim), of the router's input
	inNorm     []float32 // (dim), of the experts' input
	densePost  []float32 // (dim), of the feed-forward block's output
	post       []float32 // (dim), of the experts' output
	each       []float32 // (experts), factors of their weights
}

// collectBeside finds the tensors of experts beside a feed-forward block.
func (c *catalog) collectBeside(m *mixture, cfg *Config, name func(string) string, width int) {
	n := cfg.experts.count
	if width == 0 {
		c.fail(tandem.Corrupt, "key %q is missing: want the inner size of an expert", cfg.Arch+".expert_feed_forward_length")
		return
	}
	c.matrix(&m.router, name("ffn_gate_inp.weight"), true, n, cfg.Dim)
	m.routerNorm = slices.Clone(c.vector(name("ffn_gate_inp.scale"), true, cfg.Dim))
	for i := range m.routerNorm { // the router's input is divided by √d
		m.routerNorm[i] *= float32(1 / math.Sqrt(float64(cfg.Dim)))
	}
	m.inNorm = c.vector(name("pre_ffw_norm_2.weight"), true, cfg.Dim)
	m.densePost = c.vector(name("post_ffw_norm_1.weight"), true, cfg.Dim)
	m.post = c.vector(name("post_ffw_norm_2.weight"), true, cfg.Dim)
	c.ofExperts(name("ffn_gate_up_exps.weight"), n, cfg.Dim, band{&m.gate, width}, band{&m.up, width})
	c.ofExperts(name("ffn_down_exps.weight"), n, width, band{&m.down, cfg.Dim})
	m.each = c.vector(name("ffn_down_exps.scale"), true, n)
}

// sharedExpert is the expert that every row uses.
type sharedExpert struct {
	gate, up, down kernels.W
	share          kernels.W // (1, d): its sigmoid multiplies the outputs; None: they count in full
}

func (c *catalog) collectShared(s *sharedExpert, cfg *Config, name func(string) string, width int) {
	if s.share = kernels.None; width == 0 {
		return
	}
	c.matrix(&s.gate, name("ffn_gate_shexp.weight"), true, width, cfg.Dim)
	c.matrix(&s.up, name("ffn_up_shexp.weight"), true, width, cfg.Dim)
	c.matrix(&s.down, name("ffn_down_shexp.weight"), true, cfg.Dim, width)
	if cfg.traits.sharedGate {
		c.row(&s.share, name("ffn_gate_inp_shexp.weight"), cfg.Dim)
	}
}

func (c *catalog) collectExperts(m *mixture, cfg *Config, name func(string) string, l layerShape) {
	n, width := cfg.experts.count, l.expert
	c.collectShared(&m.shared, cfg, name, l.shared)
	m.choosing = c.vector(name("exp_probs_b.bias"), false, n)
	c.matrix(&m.router, name("ffn_gate_inp.weight"), true, n, cfg.Dim)
	m.routerBias = c.vector(name("ffn_gate_inp.bias"), false, n)
	for _, x := range []struct {
		name       string
		into       *kernels.W
		bias       *[]float32
		rows, cols int
	}{{"ffn_gate_exps", &m.gate, &m.gateBias, width, cfg.Dim}, {"ffn_up_exps", &m.up, &m.upBias, width, cfg.Dim},
		{"ffn_down_exps", &m.down, &m.downBias, cfg.Dim, width}} {
		c.ofExperts(name(x.name+".weight"), n, x.cols, band{x.into, x.rows})
		*x.bias = c.vector(name(x.name+".bias"), false, x.rows, n)
	}
}

// ofExperts asks for stacks of n weight matrices in one tensor. In each of its matrices their rows follow each other.
func (c *catalog) ofExperts(name string, n, cols int, bands ...band) {
	rows := 0
	for _, b := range bands {
		rows += b.rows
	}
	t := c.find(name, true, cols, rows, n)
	if t == nil || !c.runs(t) {
		return
	}
	row0 := 0
	for _, b := range bands {
		*b.into = kernels.W(len(c.matrices))
		c.matrices = append(c.matrices, matrix{tensor: t, row0: row0, rows: b.rows, experts: n})
		row0 += b.rows
	}
}

// mix adds the weighted outputs of the experts that each row chooses to the residual stream. The stage of the experts begins when they are
// known.
func (b *planner) mix(i int) {
	l := &b.w.layers[i]
	b.RMSNorm(b.x, l.ffnNorm, b.NormEps, b.normed)
	branch := b.mixShared(i)
	r := b.choose(i, b.normed)
	apart := b.ofExperts(i, r)
	if l.ffnPost == nil && b.residualScale == 1 && branch == kernels.None {
		b.Add(kernels.JoinExperts{In: apart, Route: r, Out: b.x, Add: true})
		return
	}
	add := branch != kernels.None
	if !add {
		branch = b.buf("branch", b.Dim)
	}
	b.Add(kernels.JoinExperts{In: apart, Route: r, Out: branch, Add: add})
	b.join(branch, l.ffnPost)
}

// mixShared returns a buffer with what the shared expert of layer i makes, or None. Its weights are read with the router's: every pass
// needs them.
func (b *planner) mixShared(i int) kernels.Buf {
	s, n := &b.w.layers[i].mixture.shared, b.layers[i].shared
	if n == 0 {
		return kernels.None
	}
	gate, up, out, branch := b.buf("gate", n), b.buf("up", n), b.act("activated", n), b.buf("branch", b.Dim)
	b.MatMul(s.gate, b.normed, gate, concurrent)
	b.MatMul(s.up, b.normed, up, kernels.MatMulOpt{})
	b.Add(kernels.Gate{Curve: b.traits.curve, Gate: gate, Up: up, Out: out})
	b.MatMul(s.down, out, branch, kernels.MatMulOpt{})
	if s.share != kernels.None {
		share := b.buf("share", 1)
		b.MatMul(s.share, b.normed, share, kernels.MatMulOpt{})
		b.Add(kernels.SigmoidScale{Gate: share, Buf: branch})
	}
	return branch
}

// choose lays out the choice of layer i, whose router reads in.
func (b *planner) choose(i int, in kernels.Act) kernels.Route {
	m, e := &b.w.layers[i].mixture, b.experts
	logits, r := b.buf("router", e.count), kernels.Route(len(b.Routes))
	b.Routes = append(b.Routes, kernels.RouteShape{Experts: e.count, Used: e.used})
	b.MatMul(m.router, in, logits, kernels.MatMulOpt{})
	b.bias(logits, m.routerBias)
	opt := e.route
	opt.Bias, opt.Each = m.choosing, m.each
	b.Add(kernels.ChooseExperts{RouteOpt: opt, Logits: logits, Out: r})
	return r
}

// ofExperts lays out the experts of layer i, which read b.normed, in a stage of their own. Their outputs lie side by side.
func (b *planner) ofExperts(i int, r kernels.Route) kernels.Buf {
	m, e, n := &b.w.layers[i].mixture, b.experts, b.layers[i].expert
	gate, up, wide := b.buf("gates", e.used*n), b.buf("ups", e.used*n), b.act("activated apart", e.used*n)
	apart := b.buf("apart", e.used*b.Dim)
	b.Stage(fmt.Sprintf("layer %d, experts", i))
	b.Add(kernels.ExpertMatMul{W: m.gate, In: b.normed, Route: r, Bias: m.gateBias, Out: gate, Concurrent: true})
	b.Add(kernels.ExpertMatMul{W: m.up, In: b.normed, Route: r, Bias: m.upBias, Out: up})
	b.Add(kernels.Gate{Curve: b.traits.curve, Gate: gate, Up: up, Out: wide})
	b.Add(kernels.ExpertMatMul{W: m.down, In: wide, Route: r, Bias: m.downBias, Out: apart})
	return apart
}

// mixBeside adds the feed-forward block's output and the experts', each normed by itself, and then their sum, to the residual stream:
// x += norm(norm(block) + norm(experts)).
func (b *planner) mixBeside(i int) {
	l, m := &b.w.layers[i], &b.w.layers[i].mixture
	dense, joined, routed := b.buf("dense", b.Dim), b.buf("branch", b.Dim), b.act("routed", b.Dim)
	b.MatMul(l.down, b.inner(i), dense, kernels.MatMulOpt{})
	b.HeadNorm(dense, 1, m.densePost, b.NormEps)
	b.RMSNorm(b.x, m.routerNorm, b.NormEps, routed)
	r := b.choose(i, routed)
	b.RMSNorm(b.x, m.inNorm, b.NormEps, b.normed)
	b.Add(kernels.JoinExperts{In: b.ofExperts(i, r), Route: r, Out: joined})
	b.NormAdd(joined, m.post, b.NormEps, dense)
	b.join(dense, l.ffnPost)
}

// experts counts the experts that the last pass has used: what it read of them from memory. nil for a model without experts, or on a device
// that does not tell.
func (m *Model) experts(rows int) tandem.Experts {
	r, tells := m.runner.(kernels.RouteReader)
	if !tells || len(m.plan.Routes) == 0 {
		return nil
	}
	added := make([]int, rows)
	seen := make([]int, m.config.experts.count) // the latest layer in which an expert was used, counted from 1
	for i, s := range m.plan.Routes {
		if s.Fixed {
			continue
		}
		for row := range added {
			chosen := r.Chosen(kernels.Route(i), row)
			if chosen == nil {
				return nil
			}
			for _, e := range chosen {
				if seen[e] <= i {
					seen[e] = i + 1
					added[row]++
				}
			}
		}
	}
	return tandem.CountExperts(added)
}
