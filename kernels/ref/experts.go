package ref

import "math"

// RouteOpt is kernels.RouteOpt.
type RouteOpt struct {
	Sigmoid bool
	Normed  bool
	Bias    []float32
	Scale   float32
	Each    []float32
}

// Choose returns the `used` experts of a row with the largest scores, in order of (score descending, id ascending), and their weights.
//
// A NaN logit counts as -Inf. Scores are the logits themselves; with Sigmoid 1/(1+e^-logit); with a Bias Sigmoid's, or the softmax over all
// experts, plus Bias, where a NaN counts as -Inf again. Weights are Sigmoid's, or the softmax: Exp(logit-m) divided by the sum over all
// experts, in 16 lanes; m is the largest logit. Normed weights are divided by their own sum, which is added up in order of rank from +0;
// of a softmax they are Exp(logit-m) divided by the sum of these, so that no other expert's logit has a part in them. Then comes Scale,
// and last the expert's own factor of Each.
func Choose(logits []float32, used int, opt RouteOpt) (ids []int32, weights []float32) {
	low := float32(math.Inf(-1))
	v, top := make([]float32, len(logits)), low
	for i, x := range logits {
		if v[i] = x; x != x {
			v[i] = low
		}
		top = max(top, v[i])
	}
	weight := make([]float32, len(v))
	var lanes [16]float32
	for i, x := range v {
		if opt.Sigmoid {
			weight[i] = 1 / (1 + Exp(-x))
			continue
		}
		weight[i] = Exp(x - top)
		lanes[i%16] += weight[i]
	}
	if sum := Reduce(lanes); !opt.Sigmoid && (!opt.Normed || opt.Bias != nil) {
		for i := range weight {
			weight[i] /= sum
		}
	}
	score := v
	if opt.Sigmoid || opt.Bias != nil {
		score = make([]float32, len(v))
		copy(score, weight)
	}
	for i := range opt.Bias {
		if score[i] += opt.Bias[i]; score[i] != score[i] {
			score[i] = low
		}
	}
	ids, _, _, _ = TopK(score, used)
	var sum float32
	for _, id := range ids {
		sum += weight[id]
	}
	for _, id := range ids {
		w := weight[id]
		if opt.Normed {
			w /= sum
		}
		if opt.Scale != 0 {
			w *= opt.Scale
		}
		if opt.Each != nil {
			w *= opt.Each[id]
		}
		weights = append(weights, w)
	}
	return ids, weights
}

// JoinExperts writes to out the weighted sum of the parts of x, each as long as out: from +0, in order, each product rounded. With add it
// is added to out.
func JoinExperts(x, weights, out []float32, add bool) {
	for i := range out {
		var sum float32
		for s, w := range weights {
			sum += float32(w * x[s*len(out)+i])
		}
		if add {
			sum += out[i]
		}
		out[i] = sum
	}
}

// Constants of ClampedSiLUMul: the steepness of its sigmoid, and the largest magnitude of what enters.
const (
	clampedSlope float32 = 1.702
	clampedLimit float32 = 7
)

// ClampedSiLUMul writes (g / (1 + e^-1.702g))·(u + 1) to y, g being at most 7 and u between -7 and 7 (gpt-oss).
func ClampedSiLUMul(g, u, y []float32) {
	for i := range g {
		a, b := g[i], u[i]
		if a > clampedLimit {
			a = clampedLimit
		}
		if b > clampedLimit {
			b = clampedLimit
		}
		if b < -clampedLimit {
			b = -clampedLimit
		}
		z := clampedSlope * a
		y[i] = float32(a/(1+Exp(-z))) * (b + 1)
	}
}
