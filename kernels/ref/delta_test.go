package ref

import (
	"math"
	"testing"
)

func TestSoftplus(t *testing.T) {
	for f := float32(-86); f < 90; f += 0.37 {
		x := float64(f)
		want := math.Max(x, 0) + math.Log1p(math.Exp(-math.Abs(x)))
		if got := float64(Softplus(f)); math.Abs(got-want) > 4e-7*want+1e-37 {
			t.Errorf("softplus(%g) is %g, want %g", x, got, want)
		}
	}
}

// TestDeltaStep: steps give what the formulas of the architecture give in float64.
func TestDeltaStep(t *testing.T) {
	r := rng()
	d := Delta{KeyHeads: 2, ValueHeads: 4, Dim: 40, Kernel: 4}
	random := func(n int, scale float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64() * scale)
		}
		return x
	}
	n, dim := d.Channels(), d.Dim
	d.Conv, d.A, d.Bias = random(n*4, 0.5), []float32{-0.1, -2, -0.5, -7}, random(4, 1)
	state := make([]float32, 3*n+4*dim*dim)
	past := make([][]float32, 3)
	for i := range past {
		past[i] = make([]float32, n)
	}
	m := make([]float64, 4*dim*dim)
	silu := func(x float64) float64 { return x / (1 + math.Exp(-x)) }
	for step := range 20 {
		in, alpha, beta, out := random(n, 1), random(4, 1), random(4, 1), make([]float32, 4*dim)
		d.Step(state, in, alpha, beta, out)
		past = append(past, in)
		c := make([]float64, n)
		for i := range c {
			for j := range 4 {
				c[i] += float64(d.Conv[i*4+j]) * float64(past[len(past)-4+j][i])
			}
			c[i] = silu(c[i])
		}
		for h := range 2 * d.KeyHeads {
			x, sum := c[h*dim:(h+1)*dim], 1e-6
			for _, v := range x {
				sum += v * v
			}
			for i := range x {
				if x[i] /= math.Sqrt(sum); h < d.KeyHeads {
					x[i] /= math.Sqrt(float64(dim))
				}
			}
		}
		for j := range d.ValueHeads {
			h := j % d.KeyHeads
			q, k, v := c[h*dim:], c[(d.KeyHeads+h)*dim:], c[(2*d.KeyHeads+j)*dim:]
			a := float64(alpha[j] + d.Bias[j])
			g, b := math.Exp(float64(d.A[j])*math.Log1p(math.Exp(a))), 1/(1+math.Exp(-float64(beta[j])))
			for col := range dim {
				var km, o float64
				for i := range dim {
					m[(j*dim+i)*dim+col] *= g
					km += k[i] * m[(j*dim+i)*dim+col]
				}
				for i := range dim {
					m[(j*dim+i)*dim+col] += k[i] * b * (v[col] - km)
					o += q[i] * m[(j*dim+i)*dim+col]
				}
				if got := float64(out[j*dim+col]); math.Abs(got-o) > 2e-6 {
					t.Fatalf("step %d, head %d, column %d: %g, want %g", step, j, col, got, o)
				}
			}
		}
	}
}
