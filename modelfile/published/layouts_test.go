package published

import (
	"math"
	"testing"
)

// rotateHalf is RoPE as Hugging Face's llama has it: element i of a head turns with element i + n/2 (apply_rotary_pos_emb).
func rotateHalf(x []float64, position int) []float64 {
	n := len(x)
	out := make([]float64, n)
	for i := range n {
		angle := float64(position) * math.Pow(10000, -2*float64(i%(n/2))/float64(n))
		other := -1.0
		j := i + n/2
		if i >= n/2 {
			other, j = 1, i-n/2
		}
		out[i] = x[i]*math.Cos(angle) + other*x[j]*math.Sin(angle)
	}
	return out
}

// rotatePairs is RoPE as GGUF files of llama have it: element 2i turns with 2i+1.
func rotatePairs(x []float64, position int) []float64 {
	n := len(x)
	out := make([]float64, n)
	for i := 0; i < n; i += 2 {
		angle := float64(position) * math.Pow(10000, -float64(i)/float64(n))
		out[i], out[i+1] = x[i]*math.Cos(angle)-x[i+1]*math.Sin(angle), x[i]*math.Sin(angle)+x[i+1]*math.Cos(angle)
	}
	return out
}

// Queries and keys whose rows are reordered give the same scores when pairs are turned as before when halves were.
func TestPaired(t *testing.T) {
	const head, heads = 8, 3
	var q, k [heads * head]float64
	for i := range q {
		q[i], k[i] = math.Sin(float64(3*i+1)), math.Cos(float64(5*i+2))
	}
	rowOf := paired(head, head)
	for h := range heads {
		reorder := func(x []float64) []float64 {
			out := make([]float64, head)
			for i := range out {
				out[i] = x[rowOf(h*head+i)]
			}
			return out
		}
		for _, at := range [][2]int{{0, 0}, {7, 3}, {100, 99}} {
			var want, got float64
			a, b := rotateHalf(q[h*head:][:head], at[0]), rotateHalf(k[h*head:][:head], at[1])
			c, d := rotatePairs(reorder(q[:]), at[0]), rotatePairs(reorder(k[:]), at[1])
			for i := range head {
				want, got = want+a[i]*b[i], got+c[i]*d[i]
			}
			if math.Abs(want-got) > 1e-12 {
				t.Errorf("head %d at %d: score %g, want %g", h, at, got, want)
			}
		}
	}
	if got := paired(8, 4)(6); got != 6 {
		t.Errorf("element 6 of 8, of which 4 turn, comes from %d", got)
	}
}
