package engine

import (
	"math"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// naiveMixture is the experts of a naive model, by the formulas.
type naiveMixture struct {
	count, used int
	sigmoid     bool    // scores are of each expert by itself
	shares      bool    // weights are not divided by their sum
	scale       float64 // of the weights; 0: 1
	clamped     bool    // gpt-oss's gate
	bias        bool    // of the router
	choosing    bool    // scores are biased for choosing
	dense       int     // leading layers without experts
	shared      int     // width of the expert that every row uses; 0: none
	sharedGate  bool    // its outputs are multiplied by a sigmoid
}

// at reports whether layer i has experts.
func (m naiveMixture) at(i int) bool { return m.count > 0 && i >= m.dense }

func (m naiveMixture) generate(at string, n *naive, add func(name string, rows, cols int, mean, deviation float64)) {
	if m.count == 0 {
		return
	}
	add(at+"ffn_gate_inp.weight", m.count, n.dim, 0, 1.5/math.Sqrt(float64(n.dim)))
	if m.bias {
		add(at+"ffn_gate_inp.bias", 1, m.count, 0, 0.5)
	}
	if m.choosing {
		add(at+"exp_probs_b.bias", 1, m.count, 0, 0.3)
	}
	if m.shared > 0 {
		add(at+"ffn_gate_shexp.weight", m.shared, n.dim, 0, 1.5/math.Sqrt(float64(n.dim)))
		add(at+"ffn_up_shexp.weight", m.shared, n.dim, 0, 1.5/math.Sqrt(float64(n.dim)))
		add(at+"ffn_down_shexp.weight", n.dim, m.shared, 0, 1.5/math.Sqrt(float64(m.shared)))
	}
	if m.sharedGate {
		add(at+"ffn_gate_inp_shexp.weight", 1, n.dim, 0, 1.5/math.Sqrt(float64(n.dim)))
	}
}

// write writes a tensor of experts; it returns false for any other.
func (m naiveMixture) write(w *gguf.Writer, name string, data []float64, cols int) bool {
	switch {
	case m.count == 0 || !strings.Contains(name, "_exps."):
		return false
	case strings.HasSuffix(name, ".bias"):
		w.Tensor(name, gguf.Type(kernels.F32), []int{len(data) / m.count, m.count}, bytesOfFloats(data))
	default:
		w.Tensor(name, gguf.Type(kernels.F32), []int{cols, len(data) / cols / m.count, m.count}, bytesOfFloats(data))
	}
	return true
}

// mixture returns the weighted sum of what the best experts make of x.
func (n *naive) mixture(at string, x []float64) []float64 {
	m := n.mix
	logits := n.mul(at+"ffn_gate_inp", x)
	scores, order, all := make([]float64, m.count), make([]int, m.count), 0.0
	for i, l := range logits {
		order[i], scores[i] = i, math.Exp(l)
		if m.sigmoid {
			scores[i] = 1 / (1 + math.Exp(-l))
		}
		all += scores[i]
	}
	chosenBy := slices.Clone(scores)
	for i := range scores {
		if bias := n.weights[at+"exp_probs_b.bias"]; bias != nil && m.sigmoid {
			chosenBy[i] += bias[i]
		} else if bias != nil {
			chosenBy[i] = scores[i]/all + bias[i]
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if chosenBy[a] > chosenBy[b] {
			return -1
		}
		return 1
	})
	divisor := 0.0
	for _, e := range order[:m.used] {
		divisor += scores[e]
	}
	if m.shares && m.sigmoid {
		divisor = 1
	} else if m.shares {
		divisor = all
	}
	y := make([]float64, n.dim)
	for _, e := range order[:m.used] {
		gate, up := n.mulExpert(at+"ffn_gate_exps", e, x), n.mulExpert(at+"ffn_up_exps", e, x)
		n.gated(gate, up)
		for i, v := range n.mulExpert(at+"ffn_down_exps", e, up) {
			y[i] += scores[e] / divisor * orOne(m.scale) * v
		}
	}
	if m.shared == 0 {
		return y
	}
	gate, up, share := n.mul(at+"ffn_gate_shexp", x), n.mul(at+"ffn_up_shexp", x), 1.0
	if m.sharedGate {
		share = 1 / (1 + math.Exp(-n.mul(at+"ffn_gate_inp_shexp", x)[0]))
	}
	n.gated(gate, up)
	for i, v := range n.mul(at+"ffn_down_shexp", up) {
		y[i] += share * v
	}
	return y
}

// mulExpert is mul with the matrix of one expert.
func (n *naive) mulExpert(name string, e int, x []float64) []float64 {
	all, cols := n.weights[name+".weight"], n.shapes[name+".weight"][1]
	rows := len(all) / cols / n.mix.count
	one := &naive{weights: map[string][]float64{"e.weight": all[e*rows*cols : (e+1)*rows*cols]},
		shapes: map[string][2]int{"e.weight": {rows, cols}}}
	if b := n.weights[name+".bias"]; b != nil {
		one.weights["e.bias"] = b[e*rows : (e+1)*rows]
	}
	return one.mul("e", x)
}
