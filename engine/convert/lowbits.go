package convert

import "math"

// The types of 2 and 3 bits. With so few codes the integers of scales and minima are coarse, so the block's own scales are fitted
// again to the codes that were chosen (least squares), and the codes to these, as long as the error falls.

var three = symmetric{-4, 3, 2.2, 0.15, 18}

// encodeQ3_K: 32 bytes of high bits, 64 of low pairs of bits, 12 of 6-bit scales, d. Codes are −4 to 3.
func encodeQ3_K(dst []byte, x []float32) error {
	if err := bounded(x); err != nil {
		return err
	}
	var scales [16]float32
	var top float32
	for s := range scales {
		scales[s] = three.scaleOf(x[16*s : 16*s+16])
		if math.Abs(float64(scales[s])) > math.Abs(float64(top)) {
			top = scales[s]
		}
	}
	clear(dst)
	d, err := putScale(dst[108:], top/-32)
	if err != nil || d == 0 {
		return err
	}
	levels, least := three.levels(x, &scales, d)
	for range 2 {
		again, err := putScale(dst[108:], three.fit(x, &levels, d))
		if err != nil || again == 0 {
			break
		}
		l, e := three.levels(x, &scales, again)
		if e >= least {
			break
		}
		d, levels, least = again, l, e
	}
	if _, err := putScale(dst[108:], d); err != nil {
		return err
	}
	for s, level := range levels {
		putSixes(dst[96:108], s, byte(level+32))
		inv := inverse(d*float32(level), float32(level))
		side, part, at := s/8, s%8/2, s%2*16
		for i, v := range x[16*s : 16*s+16] {
			q := three.code(v, inv) + 4
			dst[32+side*32+at+i] |= byte(q&3) << (2 * part)
			dst[at+i] |= byte(q>>2) << (4*side + part)
		}
	}
	return nil
}

// levels returns the 6-bit scales that fit x best near scales/d, and the error.
func (t *symmetric) levels(x []float32, scales *[16]float32, d float32) (levels [16]int32, e float32) {
	for s := range levels {
		values := x[16*s : 16*s+16]
		levels[s] = t.nearLevel(values, scales[s], d, -32, 31)
		e += t.errorOf(values, d*float32(levels[s]))
	}
	return levels, e
}

// fit returns the d that fits x best with the codes that d and levels give.
func (t *symmetric) fit(x []float32, levels *[16]int32, d float32) float32 {
	var xc, cc float64
	for s, level := range levels {
		inv := inverse(d*float32(level), float32(level))
		for _, v := range x[16*s : 16*s+16] {
			c := float64(level * t.code(v, inv))
			xc += float64(v) * c
			cc += c * c
		}
	}
	if cc == 0 {
		return 0
	}
	return float32(xc / cc)
}

// putSixes stores 6-bit scale s of 16 in 12 bytes: 4 bits of two in each of the first eight, 2 bits of four in each of the last four.
func putSixes(q []byte, s int, scale byte) {
	q[s%8] |= scale & 15 << (s / 8 * 4)
	q[8+s%4] |= scale >> 4 << (s / 4 * 2)
}

// block2 is a block of Q2_K: sub-block s has the grid (d·scale[s], dmin·level[s]).
type block2 struct {
	d, dmin      float32
	scale, level [16]int32
	err          float32 // squared
}

func (b *block2) grid(s int) affine {
	return affine{b.d * float32(b.scale[s]), b.dmin * float32(b.level[s]), 3}
}

// encodeQ2_K: 16 bytes of 4-bit scales and minima, 64 of codes, d, dmin.
func encodeQ2_K(dst []byte, x []float32) error {
	if err := bounded(x); err != nil {
		return err
	}
	var grids [16]affine
	var top affine
	for s := range grids {
		grids[s] = gridOf(x[16*s:16*s+16], 3)
		top.scale, top.min = max(top.scale, grids[s].scale), max(top.min, grids[s].min)
	}
	clear(dst)
	best, err := near2(dst, x, &grids, top.scale/15, top.min/15)
	if err != nil {
		return err
	}
	for range 3 {
		d, dmin := best.fit(x)
		b, err := near2(dst, x, &grids, d, dmin)
		if err != nil || b.err >= best.err {
			break
		}
		best = b
	}
	if _, err := putScale(dst[80:], best.d); err != nil {
		return err
	}
	if _, err := putScale(dst[82:], best.dmin); err != nil {
		return err
	}
	for s := range best.scale {
		dst[s] = byte(best.scale[s] | best.level[s]<<4)
		g := best.grid(s)
		inv := inverse(g.scale, g.scale)
		for i, v := range x[16*s : 16*s+16] {
			dst[16+s/8*32+s%2*16+i] |= byte(g.code(v, inv)) << (s % 8 / 2 * 2)
		}
	}
	return nil
}

// near2 returns the block with the scales d and dmin, rounded to f16, and for each sub-block the integers next to its grid that fit
// best. It uses the place of the scales in dst.
func near2(dst []byte, x []float32, grids *[16]affine, d, dmin float32) (b block2, err error) {
	if b.d, err = putScale(dst[80:], d); err != nil {
		return b, err
	}
	if b.dmin, err = putScale(dst[82:], dmin); err != nil {
		return b, err
	}
	for s, g := range grids {
		values := x[16*s : 16*s+16]
		b.scale[s], b.level[s] = nearGrid(values, g, b.d, b.dmin, 15)
		g = b.grid(s)
		b.err += g.errorOf(values)
	}
	return b, nil
}

// fit returns the d and dmin, not negative, that fit x best with the block's codes and integers.
func (b *block2) fit(x []float32) (d, dmin float32) {
	var cc, cm, mm, xc, xm float64 // x ≈ d·c − dmin·m
	for s := range b.scale {
		g := b.grid(s)
		inv, m := inverse(g.scale, g.scale), float64(b.level[s])
		for _, v := range x[16*s : 16*s+16] {
			c := float64(b.scale[s] * g.code(v, inv))
			cc, cm, mm = cc+c*c, cm+c*m, mm+m*m
			xc, xm = xc+float64(v)*c, xm+float64(v)*m
		}
	}
	det := float64(cc*mm) - float64(cm*cm) // the conversions keep products from being fused
	if det <= 1e-9*cc*mm {
		return b.d, b.dmin
	}
	return max(0, float32((float64(xc*mm)-float64(xm*cm))/det)), max(0, float32((float64(xc*cm)-float64(xm*cc))/det))
}
