package engine

import (
	"fmt"
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
	e := &c.experts
	e.count = h.count("expert_count", -1, maxExperts)
	e.used = h.count("expert_used_count", -1, maxExperts)
	if e.used > e.count {
		h.fail(tandem.Corrupt, "key %q is %d: want at most %d, the number of experts", h.arch+".expert_used_count", e.used, e.count)
	}
	normed, err := h.file.BoolOr(h.arch+".expert_weights_norm", true)
	h.keep(err)
	switch gate := h.count("expert_gating_func", gateOfChosen, 1<<16); gate {
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
}

// widths returns the width of each layer's feed-forward block, of one expert if there are experts.
func (h *hyper) widths(c *Config) []int {
	if key := "expert_feed_forward_length"; c.traits.experts() && h.file.Has(h.arch+"."+key) {
		return h.perLayer(key, nil, maxDim, c.Layers)
	}
	return h.perLayer("feed_forward_length", nil, maxDim, c.Layers)
}

// mixture holds the experts of a layer; biases are nil where the file has none.
type mixture struct {
	router                     kernels.W
	routerBias                 []float32 // (experts)
	gate, up, down             kernels.W
	gateBias, upBias, downBias []float32 // (experts, outputs)
}

func (c *catalog) collectExperts(m *mixture, cfg *Config, name func(string) string, width int) {
	n := cfg.experts.count
	c.matrix(&m.router, name("ffn_gate_inp.weight"), true, n, cfg.Dim)
	m.routerBias = c.vector(name("ffn_gate_inp.bias"), false, n)
	for _, x := range []struct {
		name       string
		into       *kernels.W
		bias       *[]float32
		rows, cols int
	}{{"ffn_gate_exps", &m.gate, &m.gateBias, width, cfg.Dim}, {"ffn_up_exps", &m.up, &m.upBias, width, cfg.Dim},
		{"ffn_down_exps", &m.down, &m.downBias, cfg.Dim, width}} {
		c.ofExperts(x.into, name(x.name+".weight"), n, x.rows, x.cols)
		*x.bias = c.vector(name(x.name+".bias"), false, x.rows, n)
	}
}

// ofExperts asks for a stack of n weight matrices of (rows, cols).
func (c *catalog) ofExperts(into *kernels.W, name string, n, rows, cols int) {
	if t := c.find(name, true, cols, rows, n); t != nil && c.runs(t) {
		*into = kernels.W(len(c.matrices))
		c.matrices = append(c.matrices, matrix{tensor: t, rows: rows, experts: n})
	}
}

// mix adds the weighted outputs of the experts that each row chooses to the residual stream. The stage of the experts begins when they are
// known.
func (b *planner) mix(i int) {
	l, m, e, n := &b.w.layers[i], &b.w.layers[i].mixture, b.experts, b.layers[i].ffn
	logits, gate, up := b.buf("router", e.count), b.buf("gates", e.used*n), b.buf("ups", e.used*n)
	wide, apart := b.act("activated apart", e.used*n), b.buf("apart", e.used*b.Dim)
	r := kernels.Route(len(b.Routes))
	b.Routes = append(b.Routes, kernels.RouteShape{Experts: e.count, Used: e.used})
	b.RMSNorm(b.x, l.ffnNorm, b.NormEps, b.normed)
	b.MatMul(m.router, b.normed, logits, kernels.MatMulOpt{})
	b.bias(logits, m.routerBias)
	b.Add(kernels.ChooseExperts{RouteOpt: e.route, Logits: logits, Out: r})
	b.Stage(fmt.Sprintf("layer %d, experts", i))
	b.Add(kernels.ExpertMatMul{W: m.gate, In: b.normed, Route: r, Bias: m.gateBias, Out: gate, Concurrent: true})
	b.Add(kernels.ExpertMatMul{W: m.up, In: b.normed, Route: r, Bias: m.upBias, Out: up})
	b.Add(kernels.Gate{Curve: b.traits.curve, Gate: gate, Up: up, Out: wide})
	b.Add(kernels.ExpertMatMul{W: m.down, In: wide, Route: r, Bias: m.downBias, Out: apart})
	if l.ffnPost == nil && b.residualScale == 1 {
		b.Add(kernels.JoinExperts{In: apart, Route: r, Out: b.x, Add: true})
		return
	}
	branch := b.buf("branch", b.Dim)
	b.Add(kernels.JoinExperts{In: apart, Route: r, Out: branch})
	b.join(branch, l.ffnPost)
}

// experts counts the experts that the last pass has used: what it read of them from memory. nil for a model without experts, or on a device
// that does not tell.
func (m *Model) experts(rows int) tandem.Experts {
	r, tells := m.runner.(kernels.Routed)
	if !tells || len(m.plan.Routes) == 0 {
		return nil
	}
	added := make([]int, rows)
	seen := make([]int, m.config.experts.count) // the latest layer in which an expert was used, counted from 1
	for i := range m.plan.Routes {
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
