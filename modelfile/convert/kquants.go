package convert

import (
	"fmt"
	"math"
)

// The types of 256 values. A value is a code times its sub-block's scale, which is an integer times the block's
// f16; Q2_K and Q4_K subtract a minimum of the same kind. The encoders minimise the sum of squared errors. First each
// sub-block alone, with real scales: they try scales around the one that just reaches the largest value and
// compute the best scale for the codes that each gives (least squares). Then, when the block's f16 is known, they
// choose among the integers next to the best. Q2_K and Q3_K are in lowbits.go.

// nearest rounds v to the nearest integer, ties to even; |v| < 2^22.
func nearest(v float32) int32 {
	const magic = 3 << 22 // where floats are the integers; the conversion keeps a product v from being fused
	return int32(math.Float32bits(float32(v)+magic)&0x7fffff) - 1<<22
}

// bounded refuses values whose squares would overflow; no type of 256 reaches that far.
func bounded(x []float32) error {
	if top := extreme(x); math.Abs(float64(top)) > 1e12 {
		return fmt.Errorf("%g is beyond the quantised types: want bf16 or f32", top)
	}
	return nil
}

// encodeQ6_K: 128 bytes of low nibbles, 64 of high pairs of bits, 16 scales, d. Codes are −32 to 31.
func encodeQ6_K(dst []byte, x []float32) error {
	if err := bounded(x); err != nil {
		return err
	}
	scales, top := six.scalesOf(x)
	clear(dst)
	d, err := putScale(dst[208:], top/-128)
	if err != nil || d == 0 {
		return err
	}
	for s := range scales {
		values := x[16*s : 16*s+16]
		level := six.nearLevel(values, scales[s], d, -128, 127)
		dst[192+s] = byte(int8(level))
		inv := inverse(d*float32(level), float32(level))
		side, part, at := s/8, s%8/2, s%2*16
		for i, v := range values {
			q := six.code(v, inv) + 32
			dst[side*64+part%2*32+at+i] |= byte(q&15) << (part / 2 * 4)
			dst[128+side*32+at+i] |= byte(q>>4) << (2 * part)
		}
	}
	return nil
}

// symmetric is a type of values scale·code, codes least to most.
type symmetric struct {
	least, most int32
	from, step  float32 // scaleOf tries so many steps, and so much more each time, from 0 to the largest value
	tries       int
}

var six = symmetric{-32, 31, 26, 1, 10}

func (t *symmetric) code(v, inv float32) int32 { return max(t.least, min(t.most, nearest(v*inv))) }

func (t *symmetric) errorOf(x []float32, d float32) float32 {
	inv := inverse(d, d)
	var sum [2]float32 // two chains: an addition waits for the one before
	for i, v := range x {
		e := v - float32(d*float32(t.code(v, inv)))
		sum[i&1] += float32(e * e)
	}
	return sum[0] + sum[1]
}

// nearLevel returns the integer, lo to hi, whose scale d·level fits x best among those next to scale/d; d is not 0.
func (t *symmetric) nearLevel(x []float32, scale, d float32, lo, hi int32) (level int32) {
	guess, least := nearest(scale/d), float32(math.Inf(1))
	for l := max(lo, guess-1); l <= min(hi, guess+1); l++ {
		if e := t.errorOf(x, d*float32(l)); e < least {
			level, least = l, e
		}
	}
	return level
}

// scalesOf returns scaleOf for each 16 of x, and the one with the largest magnitude.
func (t *symmetric) scalesOf(x []float32) (scales [16]float32, top float32) {
	for s := range scales {
		scales[s] = t.scaleOf(x[16*s : 16*s+16])
		if math.Abs(float64(scales[s])) > math.Abs(float64(top)) {
			top = scales[s]
		}
	}
	return scales, top
}

// scaleOf returns the scale d that lets d·code come closest to x.
func (t *symmetric) scaleOf(x []float32) float32 {
	top := extreme(x)
	if math.Abs(float64(top)) < 1e-30 { // its square would underflow
		return 0
	}
	var best, gain float32
	for k := range t.tries {
		inv := -(t.from + float32(t.step*float32(k))) / top
		var xq [2]float32
		var qq int32
		for i, v := range x {
			q := t.code(v, inv)
			xq[i&1] += float32(v * float32(q))
			qq += q * q
		}
		sum := xq[0] + xq[1]
		if d := sum / float32(qq); d*sum > gain { // by how much d lowers Σx²
			best, gain = d, d*sum
		}
	}
	return best
}

// affine is a sub-block's grid: values scale·code − min, codes 0 to most, neither negative.
type affine struct {
	scale, min float32
	most       int32
}

// encodeQ4_K: d, dmin, 12 bytes of scales and minima, 128 bytes of codes.
func encodeQ4_K(dst []byte, x []float32) error {
	if err := bounded(x); err != nil {
		return err
	}
	var grids [8]affine
	var top affine
	for s := range grids {
		grids[s] = gridOf(x[32*s:32*s+32], 15)
		top.scale, top.min = max(top.scale, grids[s].scale), max(top.min, grids[s].min)
	}
	clear(dst)
	d, err := putScale(dst, top.scale/63)
	if err != nil {
		return err
	}
	dmin, err := putScale(dst[2:], top.min/63)
	if err != nil {
		return err
	}
	for s, g := range grids {
		values := x[32*s : 32*s+32]
		scale, level := nearGrid(values, g, d, dmin, 63)
		putSixBits(dst[4:16], s, scale, level)
		chosen := affine{d * float32(scale), dmin * float32(level), 15}
		inv := inverse(chosen.scale, chosen.scale)
		for i, v := range values {
			dst[16+s/2*32+i] |= byte(chosen.code(v, inv)) << (s % 2 * 4)
		}
	}
	return nil
}

// putSixBits stores scale and minimum s of eight: those of the last four are split into 4 bits in the last
// four bytes, and 2 in the top of the first eight.
func putSixBits(q []byte, s int, scale, min int32) {
	if s < 4 {
		q[s] |= byte(scale)
		q[s+4] |= byte(min)
		return
	}
	q[s+4] = byte(scale&15 | min&15<<4)
	q[s-4] |= byte(scale >> 4 << 6)
	q[s] |= byte(min >> 4 << 6)
}

// nearGrid returns the integers, 0 to top, whose grid (d·scale, dmin·min) fits x best among those
// next to g.
func nearGrid(x []float32, g affine, d, dmin float32, top int32) (scale, min int32) {
	s0, m0 := ratio(g.scale, d, top), ratio(g.min, dmin, top)
	least := float32(math.Inf(1))
	for s := max(0, s0-1); s <= s0+1 && s <= top; s++ {
		for m := max(0, m0-1); m <= m0+1 && m <= top; m++ {
			at := affine{d * float32(s), dmin * float32(m), g.most}
			if e := at.errorOf(x); e < least {
				scale, min, least = s, m, e
			}
		}
	}
	return scale, min
}

// ratio returns a/b rounded, 0 to top.
func ratio(a, b float32, top int32) int32 {
	if b == 0 {
		return 0
	}
	return nearest(min(float32(top), a/b))
}

func (g affine) code(v, inv float32) int32 { return max(0, min(g.most, nearest((v+g.min)*inv))) }

func (g affine) errorOf(x []float32) float32 {
	inv := inverse(g.scale, g.scale)
	var sum [2]float32 // two chains: an addition waits for the one before
	for i, v := range x {
		e := v - (float32(g.scale*float32(g.code(v, inv))) - g.min)
		sum[i&1] += float32(e * e)
	}
	return sum[0] + sum[1]
}

// gridOf returns the grid of codes 0 to most, 3 or 15, that fits x best: at most 32 values.
func gridOf(x []float32, most int32) affine {
	var lo, hi float32 = 0, x[0] // a grid begins at 0 or below
	for _, v := range x {
		lo, hi = min(lo, v), max(hi, v)
	}
	best := affine{0, -lo, most}
	if hi-lo < 1e-30 {
		return best
	}
	l := line{n: len(x), lo: lo}
	for i, v := range x {
		l.y[i] = v - lo
		l.y1 += l.y[i]
		l.y2 += float32(l.y[i] * l.y[i])
	}
	least := float32(math.Inf(1))
	from, step, tries := float32(13.4), float32(0.4), 7 // as if there were 13.4 to 15.8 steps from lo to hi
	if most == 3 {
		from, step, tries = 1.4, 0.2, 11
	}
	for k := range tries {
		if g, e := l.fit(affine{(hi - lo) / (from + float32(step*float32(k))), -lo, most}); e < least {
			best, least = g, e
		}
	}
	for range 2 { // codes, then the grid for these codes, again
		if g, e := l.fit(best); e < least {
			best, least = g, e
		}
	}
	return best
}

// line finds lines through points (code, y): y are the values of a sub-block less their least, at most 0.
type line struct {
	y      [32]float32
	n      int
	y1, y2 float32 // Σy, Σy²
	lo     float32
}

// fit returns the best grid for the codes that g gives, and its error.
func (l *line) fit(g affine) (affine, float32) {
	inv, shift := 1/g.scale, g.min+l.lo
	var q1, q2 int32
	var sum [2]float32
	for i, y := range l.y[:l.n] {
		q := max(0, min(g.most, nearest((y+shift)*inv)))
		q1 += q
		q2 += q * q
		sum[i&1] += float32(y * float32(q))
	}
	n := int32(l.n)
	det := float32(n*q2 - q1*q1)
	if det == 0 {
		return g, float32(math.Inf(1)) // all codes equal
	}
	n1, n2, yq := float32(q1), float32(q2), sum[0]+sum[1]
	slope := (float32(float32(n)*yq) - float32(n1*l.y1)) / det
	start := (float32(n2*l.y1) - float32(n1*yq)) / det
	if start > -l.lo { // the grid would begin above zero
		start = -l.lo
		slope = (yq - float32(start*n1)) / n2
	}
	if slope <= 0 {
		return g, float32(math.Inf(1))
	}
	// Σ(y − slope·q − start)²
	e := l.y2 - float32(slope*yq) - float32(start*l.y1) +
		float32(slope*(float32(slope*n2)+float32(start*n1)-yq)) + float32(start*(float32(slope*n1)+float32(start*float32(n))-l.y1))
	return affine{slope, -(l.lo + start), g.most}, e
}
