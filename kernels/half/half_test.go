package half

import (
	"math"
	"testing"
)

// exact is From by the definition: x in units of the last place of a half, rounded to even.
func exact(x float32) uint16 {
	sign := uint16(math.Float32bits(x) >> 16 & 0x8000)
	a := math.Abs(float64(x))
	switch {
	case a != a:
		return sign | 0x7e00
	case a >= 65520:
		return sign | 0x7c00
	case a < 0x1p-14:
		return sign | uint16(math.RoundToEven(a*0x1p24))
	}
	frac, exp := math.Frexp(a) // a = frac·2^exp, frac in [1/2, 1)
	man := int(math.RoundToEven(frac * 2048))
	return sign | uint16((exp+13)<<10+man)
}

// TestEveryHalf: every half survives, and what lies between two of them goes to the nearer one, at a tie to the even one.
func TestEveryHalf(t *testing.T) {
	check := func(x float32, want uint16) {
		t.Helper()
		if got := From(x); got != want || exact(x) != want {
			t.Fatalf("%v becomes %#x, by the definition %#x: want %#x", x, got, exact(x), want)
		}
		var packed [1]uint16
		if Pack(packed[:], []float32{x}); packed[0] != min(want&0x7fff, 0x7bff)|want&0x8000 {
			t.Fatalf("%v is packed as %#x, want %#x or the largest half", x, packed[0], want)
		}
	}
	for i := range uint16(0x7c00) {
		x := Float(i)
		if x != float32(float64(i)*0x1p-24) && i < 0x400 || i >= 0x400 && x != float32(math.Ldexp(float64(i&1023|1024), int(i>>10)-25)) {
			t.Fatalf("half %#x is %v", i, x)
		}
		check(x, i)
		check(-x, i|0x8000)
		if i == 0x7bff {
			break
		}
		middle := (x + Float(i+1)) / 2 // exact
		even := i + i&1
		check(middle, even)
		check(-middle, even|0x8000)
		check(math.Nextafter32(middle, 0), i)
		check(math.Nextafter32(middle, 1e9), i+1)
	}
}

func TestEdges(t *testing.T) {
	inf := float32(math.Inf(1))
	for x, want := range map[float32]uint16{65504: 0x7bff, 65519.996: 0x7bff, 65520: 0x7c00, 1e30: 0x7c00, inf: 0x7c00, -inf: 0xfc00,
		1e-30: 0, 0x1p-25: 0, 0x1.000002p-25: 1, 0x1p-149: 0} {
		if got := From(x); got != want || exact(x) != want {
			t.Errorf("%v becomes %#x, by the definition %#x: want %#x", x, got, exact(x), want)
		}
	}
	for i := range 0x400 { // infinite and NaN
		for _, h := range []uint16{0x7c00 | uint16(i), 0xfc00 | uint16(i)} {
			var x [1]float32
			if finite := Unpack(x[:], []uint16{h}); finite || (x[0] == x[0]) != (i == 0) || math.Signbit(float64(x[0])) != (h > 0x7fff) {
				t.Fatalf("half %#x: %v, finite %v", h, x[0], finite)
			}
			if back := From(x[0]); back>>10 != h>>10 || (back&0x3ff == 0) != (i == 0) {
				t.Fatalf("half %#x comes back as %#x", h, back)
			}
			if i > 0 {
				continue
			}
			if Pack([]uint16{0}, x[:]); x[0] > 0 != (h < 0x8000) {
				t.Fatalf("half %#x is %v", h, x[0])
			}
		}
	}
	var h [3]uint16
	if Pack(h[:], []float32{inf, -inf, float32(math.NaN())}); h[0] != 0x7bff || h[1] != 0xfbff || h[2]&0x7fff <= 0x7c00 {
		t.Errorf("infinities and NaN are packed as %#x", h)
	}
	if x := make([]float32, 2); !Unpack(x, []uint16{1, 0xfbff}) || x[0] != 0x1p-24 || x[1] != -65504 {
		t.Errorf("unpacked %v", x)
	}
}
