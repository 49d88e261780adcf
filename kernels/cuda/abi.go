package cuda

import (
	"unsafe"

	"github.com/tandem-llm/tandem/kernels"
)

// The structures of src/abi.h, field by field.

type cAct struct {
	q, q256, scale, scale256, sum, sum256, x Pointer
	dim, wanted                              int32
}

type cDelta struct {
	slots, records, alpha, beta, rows, held   Pointer
	slot, record, row, room                   int64
	keyHeads, valueHeads, dim, taps, channels int32
	scale                                     float32
}

type cOp struct {
	w, vec, freq, table                                Pointer
	in, in2, out, parts, kv, ids, route, shares        Pointer
	pageBytes, headBytes, layerAt, values, valueScales int64
	src, dst                                           cAct
	delta                                              cDelta
	flags, tail, done                                  Pointer
	kind, tails, spans, share                          int32
	wanted, dim, cols, outputs, from, to, add, ld      int32
	heads, headDim, turned, halves                     int32
	kvHeads, kvQ8, valueRow, window, side, shared      int32
	later, taps, group                                 int32
	chunks, mostWanted, used, sigmoid, normed, biased  int32
	ahead, blank, each, every, steps, valueDim, latent int32
	tiled                                              int32
	eps, scale, softCap, magnitude                     float32
}

type cPair struct{ row, block int32 }

type cWalk struct{ from, first, n, keep int32 }

type cStep struct{ row, record, save, walk, parent, load, hold, update int32 }

const (
	loadNone  = -1 // LOAD_NONE
	loadFirst = -2 // LOAD_FIRST
)

type cPass struct {
	tokens, pos, turn, store, pages, table, prefix, anc, ancOff, ancLen, cut, wanted, given, pairs, first, walks, steps Pointer
	gifts, gives, after                                                                                                 Pointer
	rows, nwanted, topk, rowFrom, rowTo, pairFrom, pairTo, left, nwalks, nsteps, held, each, blocks                     int32
	ngives, nafter, result                                                                                              int32
}

// lists are the addresses of a pass, in order.
func (p *cPass) lists() []*Pointer {
	return []*Pointer{&p.tokens, &p.pos, &p.turn, &p.store, &p.pages, &p.table, &p.prefix, &p.anc, &p.ancOff, &p.ancLen, &p.cut,
		&p.wanted, &p.given, &p.pairs, &p.first, &p.walks, &p.steps,
		&p.gifts, &p.gives, &p.after}
}

const (
	opBytes   = int(unsafe.Sizeof(cOp{}))
	passBytes = int(unsafe.Sizeof(cPass{}))
	stepBytes = int(unsafe.Sizeof(cStep{}))
	walkBytes = int(unsafe.Sizeof(cWalk{}))
	actBytes  = int(unsafe.Sizeof(cAct{}))

	threads     = 256                  // THREADS
	block       = 256                  // BLOCK
	queries     = 8                    // QUERIES
	topChunk    = 4096                 // TOP_CHUNK
	segments    = 8                    // MOST_SEGMENTS
	lanesAtOnce = 4                    // LANES_AT_ONCE
	topRow      = 2*kernels.MaxTop + 2 // TOP_ROW

	deltaColumns, deltaKeys, mostDelta = 32, 32, 512 // COLUMNS, SEGMENT, MOST_DELTA
)

// lanes reports whether src/weights.h has LANES for a type: sums of 32 products are exact.
func lanes(t kernels.Type) bool { return t.Quantized() && t != kernels.Q2_K && t != kernels.Q3_K }

// The kinds of operations that a tail may do: ROWS_NORM and so on.
const (
	rowsNorm int32 = 1 + iota
	rowsNormAdd
	rowsHeadNorm
	rowsRope
	rowsStore
	rowsChoose
	rowsBias
	rowsCopy
	rowsScale
	rowsAddScaled
	rowsTurns
	rowsExperts
	rowsCap
	rowsAddSiLU
	rowsBlend
	rowsSigmoid
	rowsHeads
	rowsGather
	fillFeed
	fillSiLU
	fillGELU
	fillClamped
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
