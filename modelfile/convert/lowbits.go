package convert

// The types of 2 and 3 bits, searched like the others. To fit the block's own scales again to the codes that were chosen gains
// nothing: r.m.s. errors on normal weights fall by 0.3 % (Q2_K) and 0.05 % (Q3_K).

var three = symmetric{-4, 3, 2.2, 0.15, 18}

// encodeQ3_K: 32 bytes of high bits, 64 of low pairs of bits, 12 of 6-bit scales, d. Codes are −4 to 3.
func encodeQ3_K(dst []byte, x []float32) error {
	if err := bounded(x); err != nil {
		return err
	}
	scales, top := three.scalesOf(x)
	clear(dst)
	d, err := putScale(dst[108:], top/-32)
	if err != nil || d == 0 {
		return err
	}
	for s := range scales {
		values := x[16*s : 16*s+16]
		level := three.nearLevel(values, scales[s], d, -32, 31)
		putSixes(dst[96:108], s, byte(level+32))
		inv := inverse(d*float32(level), float32(level))
		side, part, at := s/8, s%8/2, s%2*16
		for i, v := range values {
			q := three.code(v, inv) + 4
			dst[32+side*32+at+i] |= byte(q&3) << (2 * part)
			dst[at+i] |= byte(q>>2) << (4*side + part)
		}
	}
	return nil
}

// putSixes stores 6-bit scale s of 16 in 12 bytes: 4 bits of two in each of the first eight, 2 bits of four in each of the last four.
func putSixes(q []byte, s int, scale byte) {
	q[s%8] |= scale & 15 << (s / 8 * 4)
	q[8+s%4] |= scale >> 4 << (s / 4 * 2)
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
	d, err := putScale(dst[80:], top.scale/15)
	if err != nil {
		return err
	}
	dmin, err := putScale(dst[82:], top.min/15)
	if err != nil {
		return err
	}
	for s, g := range grids {
		values := x[16*s : 16*s+16]
		scale, level := nearGrid(values, g, d, dmin, 15)
		dst[s] = byte(scale | level<<4)
		chosen := affine{d * float32(scale), dmin * float32(level), 3}
		inv := inverse(chosen.scale, chosen.scale)
		for i, v := range values {
			dst[16+s/8*32+s%2*16+i] |= byte(chosen.code(v, inv)) << (s % 8 / 2 * 2)
		}
	}
	return nil
}
