package cuda

import "github.com/tandem-llm/tandem/kernels"

// group is the number of outputs in a group of Groups32, vector the bytes that each has in a row.
const group, vector = 32, 16

// pack puts one row of a matrix, in GGUF layout, into its lane of a group. src/weights.h says where everything lies.
func pack(dst []byte, w *kernels.Weight, lane int, src []byte) {
	elems, size := w.Type.Block()
	per := kernels.Segment32(w.Type)
	own := make([]byte, per)
	for k := 0; k < w.Cols; k += 256 {
		n := min(256, w.Cols-k)
		clear(own)
		segment(own, w.Type, src[k/elems*size:(k+n)/elems*size], n)
		to := dst[k/256*group*per:][:group*per]
		for i := 0; i+vector <= per; i += vector {
			copy(to[i*group+lane*vector:], own[i:i+vector])
		}
		if tail := per % vector; tail > 0 {
			copy(to[per/vector*vector*group+lane*tail:], own[per-tail:])
		}
	}
}

// segment puts n inputs of one output in the order of the kernels.
func segment(dst []byte, t kernels.Type, src []byte, n int) {
	_, size := t.Block()
	switch t {
	case kernels.Q8_0, kernels.Q4_0:
		for b := range n / 32 {
			copy(dst[2*b:], src[b*size:][:2])
			copy(dst[16+b*(size-2):], src[b*size+2:][:size-2])
		}
	case kernels.MXFP4: // exponents, nibbles
		for b := range n / 32 {
			dst[b] = src[b*size]
			copy(dst[16+16*b:], src[b*size+1:][:16])
		}
	case kernels.IQ4_NL: // as Q4_0
		segment(dst, kernels.Q4_0, src, n)
	case kernels.IQ4_XS: // nibbles, header
		copy(dst, src[8:])
		copy(dst[128:], src[:8])
	case kernels.Q4_1: // scales and minima, nibbles
		for b := range n / 32 {
			copy(dst[4*b:], src[b*size:][:4])
			copy(dst[32+16*b:], src[b*size+4:][:16])
		}
	case kernels.Q5_1: // scales and minima, low nibbles, high bits
		for b := range n / 32 {
			copy(dst[4*b:], src[b*size:][:4])
			copy(dst[32+128+4*b:], src[b*size+4:][:4])
			copy(dst[32+16*b:], src[b*size+8:][:16])
		}
	case kernels.Q5_0: // scales, low nibbles, high bits
		for b := range n / 32 {
			copy(dst[2*b:], src[b*size:][:2])
			copy(dst[16+128+4*b:], src[b*size+2:][:4])
			copy(dst[16+16*b:], src[b*size+6:][:16])
		}
	case kernels.Q5_K: // header, low nibbles, high bits
		copy(dst, src[:16])
		copy(dst[16:], src[48:176])
		copy(dst[144:], src[16:48])
	case kernels.Q6_K: // scales, low nibbles, high bits, d
		copy(dst, src[192:208])
		copy(dst[16:], src[:192])
		copy(dst[208:], src[208:210])
	case kernels.Q3_K: // scales and d, low bits, high bits
		copy(dst, src[96:110])
		copy(dst[16:], src[32:96])
		copy(dst[80:], src[:32])
	default: // floats, and Q2_K and Q4_K as they are in the file
		copy(dst, src)
	}
}
