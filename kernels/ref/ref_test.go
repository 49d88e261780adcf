package ref

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

func rng() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

// anyFloat returns a finite float32 of any exponent.
func anyFloat(r *rand.Rand) float32 {
	for {
		if f := math.Float32frombits(r.Uint32()); f-f == 0 {
			return f
		}
	}
}

// TestFMA compares with exact arithmetic, on random operands and on sums that nearly cancel or tie.
func TestFMA(t *testing.T) {
	r := rng()
	for i := 0; i < 200000; i++ {
		a, b, c := anyFloat(r), anyFloat(r), anyFloat(r)
		switch i % 4 {
		case 1:
			c = -float32(float64(a) * float64(b))
		case 2: // near a tie of the product's rounding
			a, b = 1+float32(r.IntN(1<<12))*0x1p-12, 1+float32(r.IntN(1<<12))*0x1p-12
			c = anyFloat(r) * 0x1p-40
		case 3: // denormal results
			a, b, c = a*0x1p-60, b*0x1p-60, c*0x1p-100
		}
		if c-c != 0 {
			continue
		}
		x := new(big.Float).SetPrec(600).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)))
		want, _ := x.Add(x, big.NewFloat(float64(c))).Float32()
		if got := FMA(a, b, c); got != want {
			t.Fatalf("FMA(%x, %x, %x) = %x, want %x", a, b, c, got, want)
		}
	}
	inf := float32(math.Inf(1))
	if got := FMA(inf, 1, -1); got != inf {
		t.Errorf("FMA(Inf, 1, -1) = %v", got)
	}
	if got := FMA(inf, 1, -inf); got == got {
		t.Errorf("FMA(Inf, 1, -Inf) = %v, want NaN", got)
	}
}

func TestExp(t *testing.T) {
	worst := 0.0
	for x := float32(-87.3); x < 88.3; x += 0.0037 {
		want := math.Exp(float64(x))
		ulp := float64(math.Nextafter32(float32(want), 2*float32(want))) - float64(float32(want))
		worst = max(worst, math.Abs(float64(Exp(x))-want)/ulp)
	}
	if worst > 2 {
		t.Errorf("largest error %v ulp, want at most 2", worst)
	}
	nan := float32(math.NaN())
	for x, want := range map[float32]float32{0: 1, -88: 0, -1e30: 0, float32(math.Inf(-1)): 0, 1000: Exp(88.3),
		float32(math.Inf(1)): Exp(88.3)} {
		if got := Exp(x); got != want {
			t.Errorf("Exp(%v) = %v, want %v", x, got, want)
		}
	}
	if got := Exp(nan); got == got {
		t.Errorf("Exp(NaN) = %v", got)
	}
}

func TestAngle(t *testing.T) {
	r := rng()
	for i := 0; i < 100000; i++ {
		pos, freq := int32(r.IntN(1<<20)), math.Pow(10000, -r.Float64())
		c, s := Angle(pos, freq)
		sin, cos := math.Sincos(float64(pos) * freq)
		if d := max(math.Abs(float64(c)-cos), math.Abs(float64(s)-sin)); d > 0x1p-25+1e-9 {
			t.Fatalf("Angle(%d, %v) is %v off", pos, freq, d)
		}
	}
}

func TestReduceOrder(t *testing.T) {
	// 1e8 + 1 loses the 1 in float32: the result tells which pairs were added first.
	var a [16]float32
	a[0], a[8], a[4], a[12] = 1e8, -1e8, 1, 1
	if got := Reduce(a); got != 2 {
		t.Errorf("lanes 8 apart are not added first: %v, want 2", got)
	}
	a = [16]float32{0: 1e8, 8: 1, 4: -1e8, 12: 1}
	if got := Reduce(a); got != 0 {
		t.Errorf("lanes 8 apart are not added first: %v, want 0", got)
	}
}

func TestQuantize(t *testing.T) {
	x := make([]float32, 128)
	for i := range x[:32] {
		x[i] = float32(i) - 16
	}
	x[40], x[64] = 1e-31, float32(math.NaN())
	x[96] = float32(math.Inf(-1))
	a := Quantize(x, 32)
	if a.Q[0] != -127 || a.Q[16] != 0 || a.Q[31] != 119 || a.Scale[0] != float32(16)/127 {
		t.Errorf("codes %d %d %d scale %v, want -127 0 119 and 16/127", a.Q[0], a.Q[16], a.Q[31], a.Scale[0])
	}
	if a.Scale[1] != 0 || a.Q[40] != 0 {
		t.Errorf("a tiny block has scale %v, want 0", a.Scale[1])
	}
	for _, b := range []int{2, 3} {
		if a.Scale[b] == a.Scale[b] || a.Q[32*b] != 0 {
			t.Errorf("block %d with Inf or NaN has scale %v, want NaN", b, a.Scale[b])
		}
	}
	y := make([]float32, 512)
	y[3], y[255], y[256] = 1, -127, 0.5
	if b := Quantize(y, 256); b.Q[3] != 1 || b.Q[255] != -127 || b.Scale[0] != 1 || b.Scale[7] != 1 || b.Q[256] != 127 {
		t.Errorf("spans of 256: codes %d %d %d scales %v", b.Q[3], b.Q[255], b.Q[256], b.Scale)
	}
}
