package naive

import (
	"math"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Mixture is the experts of a naive model, by the formulas.
type Mixture struct {
	Count, Used int
	Sigmoid     bool    // scores are of each expert by itself
	shares      bool    // weights are not divided by their sum
	Scale       float64 // of the weights; 0: 1
	clamped     bool    // gpt-oss's gate
	bias        bool    // of the router
	choosing    bool    // scores are biased for choosing
	Dense       int     // leading layers without experts
	Shared      int     // width of the expert that every row uses; 0: none
	SharedGate  bool    // its outputs are multiplied by a sigmoid
}

// at reports whether layer i has experts.
func (m Mixture) at(i int) bool { return m.Count > 0 && i >= m.Dense }

func (m Mixture) generate(at string, n *Model, add func(name string, rows, cols int, mean, deviation float64)) {
	if m.Count == 0 {
		return
	}
	add(at+"ffn_gate_inp.weight", m.Count, n.Dim, 0, 1.5/math.Sqrt(float64(n.Dim)))
	if m.bias {
		add(at+"ffn_gate_inp.bias", 1, m.Count, 0, 0.5)
	}
	if m.choosing {
		add(at+"exp_probs_b.bias", 1, m.Count, 0, 0.3)
	}
	if m.Shared > 0 {
		add(at+"ffn_gate_shexp.weight", m.Shared, n.Dim, 0, 1.5/math.Sqrt(float64(n.Dim)))
		add(at+"ffn_up_shexp.weight", m.Shared, n.Dim, 0, 1.5/math.Sqrt(float64(n.Dim)))
		add(at+"ffn_down_shexp.weight", n.Dim, m.Shared, 0, 1.5/math.Sqrt(float64(m.Shared)))
	}
	if m.SharedGate {
		add(at+"ffn_gate_inp_shexp.weight", 1, n.Dim, 0, 1.5/math.Sqrt(float64(n.Dim)))
	}
}

// write writes a tensor of experts; it returns false for any other.
func (m Mixture) write(w *gguf.Writer, name string, data []float64, cols int) bool {
	switch {
	case m.Count == 0 || !strings.Contains(name, "_exps."):
		return false
	case strings.HasSuffix(name, ".bias"):
		w.Tensor(name, gguf.Type(kernels.F32), []int{len(data) / m.Count, m.Count}, BytesOfFloats(data))
	default:
		w.Tensor(name, gguf.Type(kernels.F32), []int{cols, len(data) / cols / m.Count, m.Count}, BytesOfFloats(data))
	}
	return true
}

// mixture returns the weighted sum of what the best experts make of x.
func (n *Model) mixture(at string, x []float64) []float64 {
	m := n.Mix
	logits := n.mul(at+"ffn_gate_inp", x)
	scores, order, all := make([]float64, m.Count), make([]int, m.Count), 0.0
	for i, l := range logits {
		order[i], scores[i] = i, math.Exp(l)
		if m.Sigmoid {
			scores[i] = 1 / (1 + math.Exp(-l))
		}
		all += scores[i]
	}
	chosenBy := slices.Clone(scores)
	for i := range scores {
		if bias := n.Weights[at+"exp_probs_b.bias"]; bias != nil && m.Sigmoid {
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
	for _, e := range order[:m.Used] {
		divisor += scores[e]
	}
	if m.shares && m.Sigmoid {
		divisor = 1
	} else if m.shares {
		divisor = all
	}
	y := make([]float64, n.Dim)
	for _, e := range order[:m.Used] {
		gate, up := n.mulExpert(at+"ffn_gate_exps", e, x), n.mulExpert(at+"ffn_up_exps", e, x)
		n.gated(gate, up)
		for i, v := range n.mulExpert(at+"ffn_down_exps", e, up) {
			y[i] += scores[e] / divisor * orOne(m.Scale) * v
		}
	}
	if m.Shared == 0 {
		return y
	}
	gate, up, share := n.mul(at+"ffn_gate_shexp", x), n.mul(at+"ffn_up_shexp", x), 1.0
	if m.SharedGate {
		share = 1 / (1 + math.Exp(-n.mul(at+"ffn_gate_inp_shexp", x)[0]))
	}
	n.gated(gate, up)
	for i, v := range n.mul(at+"ffn_down_shexp", up) {
		y[i] += share * v
	}
	return y
}

// mulExpert is mul with the matrix of one expert.
func (n *Model) mulExpert(name string, e int, x []float64) []float64 {
	all, cols := n.Weights[name+".weight"], n.Shapes[name+".weight"][1]
	rows := len(all) / cols / n.Mix.Count
	one := &Model{Weights: map[string][]float64{"e.weight": all[e*rows*cols : (e+1)*rows*cols]},
		Shapes: map[string][2]int{"e.weight": {rows, cols}}}
	if b := n.Weights[name+".bias"]; b != nil {
		one.Weights["e.bias"] = b[e*rows : (e+1)*rows]
	}
	return one.mul("e", x)
}
