package cuda

import "unsafe"

// The structures of src/abi.h, field by field.

type cAct struct {
	q, q256, scale, scale256, sum, sum256, x Pointer
	dim, wanted                              int32
}

type cOp struct {
	w, vec, freq, table                                Pointer
	in, in2, out, parts, kv, ids, tops, route, shares  Pointer
	pageBytes, headBytes, layerAt, values, valueScale  int64
	src, dst                                           cAct
	wanted, dim, cols, outputs, from, to, add, ld      int32
	heads, headDim, turned, halves                     int32
	kvHeads, kvQ8, valueRow, window, side, shared      int32
	chunks, mostWanted, used, sigmoid, normed, biased  int32
	ahead, blank, each, every, steps, valueDim, latent int32
	eps, scale, softCap, magnitude                     float32
}

type cPair struct{ row, block int32 }

type cPass struct {
	tokens, pos, store, pages, table, prefix, anc, ancOff, ancLen, cut, wanted, given, pairs, first Pointer
	rows, nwanted, topk, rowFrom, rowTo, pairFrom, pairTo, left                                     int32
}

const (
	opBytes   = int(unsafe.Sizeof(cOp{}))
	passBytes = int(unsafe.Sizeof(cPass{}))
	actBytes  = int(unsafe.Sizeof(cAct{}))

	threads  = 256  // THREADS
	block    = 256  // BLOCK
	queries  = 4    // QUERIES
	topChunk = 4096 // TOP_CHUNK
	segments = 8    // MOST_SEGMENTS
)

// view returns the bytes of x.
func view[T any](x []T) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), len(x)*int(unsafe.Sizeof(x[0])))
}

// as views b, which begins at an address that suits T.
func as[T any](b []byte) []T {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(*new(T))))
}
